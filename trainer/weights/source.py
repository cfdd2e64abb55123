"""Weights of one model, whatever form they are stored in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainer.weights.casting import Array
from trainer.weights.huggingface import PublishedModel
from trainer.weights.json_files import read_object
from trainer.weights.names import EMBEDDING

__all__ = [
    "ADAPTER",
    "PROVENANCE",
    "Given",
    "Source",
    "companions",
    "provenance",
    "with_compute_dtype",
]

ADAPTER: Final = "olmo3"
"""Entry point of group ``evalmon.models`` that opens our trees."""

PROVENANCE: Final = "provenance.json"

_COMPANIONS: Final = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says about a source that does not say it itself.

    Attributes:
        config: a published ``config.json``.
        preset: name of a preset.
    """

    config: Path | None = None
    preset: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Weights of one model, whatever form they are stored in.

    Attributes:
        path: the folder.
        form: what it is, in words.
        model: shapes, constants and ids.
        dtypes: stored dtype by published name, in the order that is quickest to read.
        read: published name -> tensor in published orientation.
        any_order: whether another order is as quick.
        files: the files read, for their hashes.
        companions: tokenizer and generation settings: name -> file.
        left_out: what stands beside the parameters and is not converted.
        assumed: what the source does not say and OLMo 3's constants were taken for.
        fingerprint: of the parameters, as recorded when they were written.
        origin: further facts, for provenance.
    """

    path: Path
    form: str
    model: PublishedModel
    dtypes: Mapping[str, np.dtype[Any]]
    read: Callable[[str], Array]
    any_order: bool
    files: tuple[Path, ...]
    companions: Mapping[str, Path] = field(default_factory=dict[str, Path])
    left_out: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    fingerprint: str | None = None
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])


def companions(folder: Path) -> dict[str, Path]:
    """Return the tokenizer and generation files of a folder."""
    return {name: folder / name for name in _COMPANIONS if (folder / name).is_file()}


def provenance(folder: Path) -> dict[str, Any]:
    """Return a folder's provenance, empty where it has none."""
    file = folder / PROVENANCE
    return read_object(file) if file.exists() else {}


def with_compute_dtype(
    model: PublishedModel, dtypes: Mapping[str, np.dtype[Any]]
) -> PublishedModel:
    """Return the model with the compute dtype its weights are stored in, if it can compute so."""
    stored = str(dtypes[EMBEDDING])
    dtype = stored if stored != "float16" else "float32"
    return replace(model, config=replace(model.config, dtype=dtype))
