"""What a folder of weights is."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from evalmon.errors import CheckpointError, ConfigError
from trainer.weights import orbax_sources, orbax_tree
from trainer.weights.casting import same_bits
from trainer.weights.huggingface import FIELDS, PublishedModel
from trainer.weights.json_files import read_object
from trainer.weights.matching import require_tensors
from trainer.weights.names import EMBEDDING, HEAD, axis_sizes, published_axes
from trainer.weights.safetensors_files import INDEX, SINGLE, open_tensors
from trainer.weights.source import Given, Source, companions, with_compute_dtype

__all__ = ["open_source"]

_ITEMS: Final = ("items", "params", "state", "model", "default")
"""Names of the item that holds parameters in a step folder."""

_STEP: Final = re.compile(r"(?:.*[_-])?(\d+)")


def open_source(path: Path, given: Given | None = None) -> Source:
    """Find out what a folder is, and check every tensor's name and shape.

    Args:
        path: a published folder; ``RUN/checkpoints/N``; a weights folder; an Orbax
            checkpoint of MaxText's or of another trainer, its step folder or its item.
        given: what the command line says about a source without a configuration.

    Raises:
        CheckpointError: not recognized, unfinished, cut off; a tensor is missing, unknown,
            misshaped or tied but different.
        ConfigError: its configuration is no OLMo 3's, or is needed and not given.
    """
    given, path = given or Given(), path.absolute()
    if not os.path.isdir(path):  # noqa: PTH112 - Path raises where a name is too long
        raise CheckpointError(f"{path}: no such folder; give weights or a checkpoint")
    if (path / "config.json").exists() or (path / SINGLE).exists() or (path / INDEX).exists():
        _refuse_given(given, path / "config.json")
        return _open_published(path)
    if (path / "model.json").exists():
        _refuse_given(given, path / "model.json")
        return orbax_sources.open_weights(path)
    item = _find_item(path)
    if item.name == "params" and (item.parent / "model.json").exists():
        _refuse_given(given, item.parent / "model.json")
        return orbax_sources.open_weights(item.parent)
    run = item.parent.parent.parent
    if item.name == "params" and (run / "run.json").exists():
        _refuse_given(given, run / "run.json")
        return orbax_sources.open_run(run, item.parent)
    return orbax_sources.open_bare(path, item, given)


def _refuse_given(given: Given, file: Path) -> None:
    """Raise when a configuration is given for a source that has its own."""
    for option, value in (("--config", given.config), ("--preset", given.preset)):
        if value is not None:
            raise ConfigError(f"{option} {value}: {file} says what the model is; leave it out")


def _find_item(path: Path) -> Path:
    """Return the Orbax item that holds parameters in or below a folder."""
    if orbax_tree.is_item(path):
        orbax_tree.require_finished(path.parent)
        return path
    orbax_tree.require_finished(path)
    for name in _ITEMS:
        if orbax_tree.is_item(path / name):
            return path / name
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    steps = sorted(
        (int(match[1]), step.name)
        for step in folder.iterdir()
        if (match := _STEP.fullmatch(step.name)) and any((step / n).is_dir() for n in _ITEMS)
    )
    if len(steps) == 1 and folder == path:
        return _find_item(path / steps[0][1])
    hint = (
        f"{folder} holds {', '.join(name for _, name in steps)}; give one of them"
        if steps
        else "expected config.json with safetensors, model.json, or an Orbax checkpoint"
    )
    raise CheckpointError(f"{path}: not recognized as weights; {hint}")


def _open_published(path: Path) -> Source:
    """Open a Hugging Face folder."""
    file = path / "config.json"
    record = read_object(file)
    model = PublishedModel.from_record(record, str(file))
    tensors, files = open_tensors(path)
    tied = model.tied and EMBEDDING in tensors
    assumed: tuple[str, ...] = ()
    if tied and HEAD not in tensors:
        tensors = {**tensors, HEAD: tensors[EMBEDDING]}
        assumed = ("tie_word_embeddings is true and there is no head: it is the embedding's copy",)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    expected = published_axes(model.config.layers)
    require_tensors(shapes, expected, axis_sizes(model.config), str(path), FIELDS)
    if tied and not same_bits(tensors[EMBEDDING].read(), tensors[HEAD].read()):
        raise CheckpointError(
            f"{path}: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}; set it "
            "to false if the head is meant"
        )
    dtypes = {name: tensors[name].dtype for name in expected}
    said = record.get("dtype", record.get("torch_dtype"))
    if said is not None and said not in [str(dtype) for dtype in dtypes.values()]:
        odd = f"{file}: dtype is {said!r}, but the tensors are {str(dtypes[EMBEDDING])!r}"
        model = replace(model, warnings=(*model.warnings, odd))
    return Source(
        path=path,
        form="huggingface",
        model=with_compute_dtype(model, dtypes),
        dtypes=dtypes,
        read=lambda name: tensors[name].read(),
        any_order=True,
        files=(file, *files),
        companions=companions(path),
        assumed=assumed,
        origin={"commit_hash": record.get("_commit_hash")},
    )
