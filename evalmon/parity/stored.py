"""A reference's log-probabilities kept in one file, so that parity is checked without running it.

The file is a NumPy archive without pickled objects: the texts, the positions that were kept,
their log-probabilities in float32, and a JSON record of where they are from.
"""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, cast, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import CheckpointError, ConfigError, WriteError
from evalmon.parity.prompts import Prompts
from evalmon.parity.reference import Reference, ReferenceFacts, Rows

__all__ = ["Recorder", "open_stored"]

_FORMAT: Final = 1
_BYTES: Final = 256 * 10**6
"""Log-probabilities kept at most."""

_ARRAYS: Final = {"tokens": 1, "lengths": 1, "prompt": 1, "position": 1, "log_probabilities": 2}
"""Dimensions of each array of the file."""


class Recorder:
    """Keeps a reference's log-probabilities while a model is held against it.

    Where all of them are too many, positions evenly spaced over all texts are kept, the last
    one among them.

    Args:
        target: file to write.
        prompts: the texts.
        vocab_size: entries of a row.
        budget_bytes: log-probabilities kept at most.

    Raises:
        ConfigError: the file exists, or not even one row fits the budget.
    """

    def __init__(
        self, target: Path, prompts: Prompts, vocab_size: int, budget_bytes: int = _BYTES
    ) -> None:
        if target.exists():
            raise ConfigError(f"--save-reference {target}: exists; give a file that does not")
        self._target, self._prompts = target, prompts
        self.positions = sum(map(len, prompts))
        rows = budget_bytes // (4 * vocab_size)
        if rows < 1:
            raise ConfigError(f"--save-reference: {vocab_size} entries do not fit in the file")
        kept = np.arange(self.positions)
        if rows < self.positions:
            kept = self.positions - 1 - np.arange(rows) * self.positions // rows
        self._kept = np.zeros(self.positions, bool)
        self._kept[kept] = True
        self._starts = np.cumsum([0, *map(len, prompts)])
        self._rows: list[NDArray[np.float32]] = []

    @property
    def kept(self) -> int:
        """Positions that are kept, of ``positions``."""
        return int(self._kept.sum())

    def add(self, prompt: int, positions: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Keep what belongs into the file; texts and positions come in rising order."""
        self._rows.append(rows[self._kept[self._starts[prompt] + positions]])

    def save(self, facts: ReferenceFacts, weights_hash: str, numpy_version: str) -> None:
        """Write the file whole or not at all.

        Raises:
            WriteError: it cannot be written.
        """
        at = np.flatnonzero(self._kept)
        prompt = np.searchsorted(self._starts, at, side="right") - 1
        facts = replace(
            facts, weights_hash=weights_hash, versions={**facts.versions, "numpy": numpy_version}
        )
        record = json.dumps({"format": _FORMAT, **asdict(facts)}, allow_nan=False)
        partial = self._target.with_name(f"{self._target.name}.partial")
        try:
            with partial.open("wb") as file:
                np.savez(
                    file,
                    allow_pickle=False,
                    record=np.frombuffer(record.encode(), np.uint8),
                    tokens=np.array([i for ids in self._prompts for i in ids], np.int64),
                    lengths=np.array([len(ids) for ids in self._prompts], np.int64),
                    prompt=prompt.astype(np.int64),
                    position=(at - self._starts[prompt]).astype(np.int64),
                    log_probabilities=np.concatenate(self._rows),
                )
            partial.replace(self._target)
        except OSError as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise WriteError(
                f"{self._target}: cannot be written ({error.strerror}); free some space"
            ) from error


def open_stored(file: Path) -> Reference:
    """Read a stored reference; no library but NumPy is needed.

    Raises:
        CheckpointError: the file is not one, is cut off, or contradicts itself.
    """
    try:
        with file.open("rb") as content, np.load(content, allow_pickle=False) as archive:
            record = json.loads(bytes(archive["record"]))
            arrays = {name: archive[name] for name in _ARRAYS}
        is_ours = isinstance(record, dict) and record.pop("format", None) == _FORMAT
        _require(is_ours, f"not format {_FORMAT}")
        facts = ReferenceFacts(**cast("dict[str, Any]", record))
        for name, kind in get_type_hints(ReferenceFacts).items():
            value = getattr(facts, name)
            _require(type(value) is (get_origin(kind) or kind), f"{name} is {value!r:.60}")
        _check(arrays, facts)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{file}: no stored reference ({reason[:200]}); give a folder of published weights or "
            "a file that --save-reference wrote"
        ) from error
    splits = np.cumsum(arrays["lengths"])[:-1]
    prompts = [part.tolist() for part in np.split(arrays["tokens"], splits)]

    def read(number: int, ids: list[int]) -> Rows:
        assert ids == prompts[number]
        mine = np.flatnonzero(arrays["prompt"] == number)
        positions, rows = arrays["position"][mine], arrays["log_probabilities"]

        def between(start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            low, high = np.searchsorted(positions, [start, stop])
            return positions[low:high], rows[mine[low:high]]

        return between

    facts = replace(facts, form="stored", stored_in=str(file))
    return Reference(facts, read, prompts, lambda: facts.weights_hash)


def _check(arrays: Mapping[str, NDArray[Any]], facts: ReferenceFacts) -> None:
    """Raise a ValueError where the arrays do not belong together."""
    for name, dimensions in _ARRAYS.items():
        kind = np.float32 if name == "log_probabilities" else np.int64
        if arrays[name].ndim != dimensions or arrays[name].dtype != kind:
            raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}")
    lengths, prompt, position = arrays["lengths"], arrays["prompt"], arrays["position"]
    _require(len(lengths) > 0 and bool((lengths > 0).all()), "a text without a token")
    _require(int(lengths.sum()) == len(arrays["tokens"]), "lengths and tokens differ")
    shape = (len(prompt), facts.vocab_size)
    _require(arrays["log_probabilities"].shape == shape, "rows, positions and vocabulary differ")
    _require(len(prompt) > 0 and len(position) == len(prompt), "positions and texts differ")
    inside = (prompt >= 0) & (prompt < len(lengths))
    _require(bool(inside.all()), "a position of no text")
    order: Sequence[bool] = (np.diff(prompt * (lengths.max() + 1) + position) > 0).tolist()
    _require(all(order), "positions out of order")
    _require(bool(((position >= 0) & (position < lengths[prompt])).all()), "a position of no token")


def _require(holds: bool, otherwise: str) -> None:
    """Raise a ValueError that says what does not hold."""
    if not holds:
        raise ValueError(otherwise)
