"""A golden slice: what a model's own trainer says some weights answer, kept to check against.

One ``golden.npz`` lies in a checkpoint's folder, or in the run's folder for one of its
checkpoints. It is NumPy's own form, without pickles, so that any trainer can write it::

    format     int64      1
    weights    str        fingerprint of the weights it was made with, as evalmon names them
    dtype      str        what it was computed in, as "float32"
    ids        int32 [T]  a text
    columns    int32 [K]  ids of the tokens whose probability is kept
    logprobs   f4 [T, K]  natural-log probability of each kept token after each place
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError, WriteError
from evalmon.models import LanguageModel

__all__ = ["GOLDEN_NAME", "Golden", "load", "save", "slice_of", "take"]

GOLDEN_NAME: Final = "golden.npz"
"""Name of the file, in a checkpoint's folder or in the run's."""

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """Answers of one set of weights.

    Attributes:
        weights: fingerprint of the weights.
        dtype: what it was computed in.
        ids: [T] a text.
        columns: [K] ids of the tokens kept.
        logprobs: [T, K] natural-log probability of each kept token after each place.
    """

    weights: str
    dtype: str
    ids: NDArray[np.int32]
    columns: NDArray[np.int32]
    logprobs: NDArray[np.float32]


def slice_of(
    model: LanguageModel, ids: Sequence[int], columns: Sequence[int]
) -> NDArray[np.float32]:
    """Return the log-probabilities of some tokens after each place of a text.

    Args:
        model: the model, its weights loaded.
        ids: [T] the text.
        columns: [K] tokens kept.

    Returns:
        [T, K] in nats, by the model's plain forward path.
    """
    kept = np.asarray(columns, np.int64)
    return np.concatenate([part[:, kept] for part in model.log_probabilities(ids)])


def take(model: LanguageModel, ids: Sequence[int], columns: Sequence[int], weights: str) -> Golden:
    """Make a golden slice of the weights loaded into a model.

    Args:
        model: the model.
        ids: [T] a text, at least one token.
        columns: [K] ids of the tokens kept, at least one.
        weights: fingerprint of the weights.
    """
    return Golden(
        weights,
        model.dtype,
        np.asarray(ids, np.int32),
        np.asarray(columns, np.int32),
        slice_of(model, ids, columns),
    )


def save(path: Path, golden: Golden) -> None:
    """Write a golden slice whole or not at all.

    Raises:
        WriteError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(
                file,
                format=np.int64(_FORMAT),
                weights=np.str_(golden.weights),
                dtype=np.str_(golden.dtype),
                ids=golden.ids.astype("<i4"),
                columns=golden.columns.astype("<i4"),
                logprobs=golden.logprobs.astype("<f4"),
            )
        partial.replace(path)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written ({error}); free some space") from error


def load(path: Path) -> Golden:
    """Read a golden slice.

    Raises:
        DataError: it cannot be read, is of another format, or its arrays do not fit together.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            values: dict[str, Any] = {name: stored[name] for name in stored.files}
        golden = Golden(
            str(values["weights"]),
            str(values["dtype"]),
            _ids(values["ids"], "ids"),
            _ids(values["columns"], "columns"),
            values["logprobs"].astype(np.float32),
        )
        form = int(values["format"])
    except (OSError, ValueError, KeyError, EOFError, AttributeError, BadZipFile) as error:
        reason = "it is no numpy archive" if "pickle" in str(error) else error
        raise DataError(
            f"{path}: no golden slice ({type(error).__name__}: {reason}); write it again or "
            "remove it"
        ) from error
    expected = (len(golden.ids), len(golden.columns))
    if form != _FORMAT or 0 in expected or golden.logprobs.shape != expected:
        raise DataError(
            f"{path}: format {form} with log-probabilities of shape {golden.logprobs.shape}, "
            f"expected format {_FORMAT} and {expected}; write it again or remove it"
        )
    if not np.isfinite(golden.logprobs).all():
        raise DataError(f"{path}: holds log-probabilities that are not finite; write it again")
    return golden


def _ids(values: NDArray[Any], name: str) -> NDArray[np.int32]:
    """Return token ids, refusing what is no list of them."""
    if values.ndim != 1 or values.dtype.kind not in "iu" or (values < 0).any():
        raise ValueError(f"{name} of shape {values.shape} and type {values.dtype} are no token ids")
    return values.astype(np.int32)
