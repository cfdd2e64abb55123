"""What a model is held against: log-probabilities of texts, and where they are from."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import CheckpointError
from evalmon.parity.prompts import Prompts

__all__ = ["Reference", "ReferenceFacts", "Rows", "file_hash"]

Rows: TypeAlias = Callable[[int, int], tuple[NDArray[np.int64], NDArray[np.float32]]]
"""From a range of positions to those of them that the reference has, and their
log-probabilities [t, V]."""


@dataclass(frozen=True, slots=True)
class ReferenceFacts:
    """What is known of a reference.

    Attributes:
        path: folder of the published weights.
        form: ``huggingface`` for weights that are run, ``stored`` for kept log-probabilities.
        vocab_size: V, rows of its head.
        window: tokens its sliding layers see, the current one included.
        stored_dtype: dtype of its weights; it always computes in float32.
        config_hash: hash of its ``config.json``.
        versions: of the libraries that ran it.
        weights_hash: hash of its weight files, empty where it was not asked for.
        stored_in: file its log-probabilities are kept in, empty where it is run.
    """

    path: str
    form: str
    vocab_size: int
    window: int
    stored_dtype: str
    config_hash: str
    versions: dict[str, str]
    weights_hash: str = ""
    stored_in: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference ready to be read.

    Attributes:
        facts: what is known of it.
        read: number and token ids of a text to its log-probabilities, in parts.
        prompts: the texts it has, None where it can run any.
        weights_hash: reads the weight files and returns their hash.
    """

    facts: ReferenceFacts
    read: Callable[[int, list[int]], Rows]
    prompts: Prompts | None = None
    weights_hash: Callable[[], str] = field(default=lambda: "")


def file_hash(files: Sequence[Path]) -> str:
    """Return SHA-256 over the contents of files, each preceded by its name and size.

    Raises:
        CheckpointError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
                while block := content.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()
