"""Which column of a W&B export counts the trainer's steps.

``_step`` is the trainer's step only where the trainer hands it to W&B. Lightning, Hugging Face's
trainer, nanotron and what is taken over from TensorBoard log their step in a column of its own,
and ``_step`` then counts how often something was logged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalmon.errors import DataError
from evalmon.logs import columns
from evalmon.logs.points import NO_TOKENS
from evalmon.types import IntArray

__all__ = ["ALL", "NO_STEP", "Steps", "column_of", "kinds", "read", "whole_numbers"]

NO_STEP = NO_TOKENS
"""Stands for a row in which the trainer's step is not logged."""

_SERVICE = ("_step", "Step")
"""W&B's own: in a history, and first column of a chart."""
_TRAINERS = (
    "trainer/global_step",  # Lightning
    "train/global_step",  # Hugging Face
    "global_step",  # Levanter, TensorBoard
    "iteration_step",  # nanotron
    "step",
)
"""The trainer's own step, by whoever writes it; the first that is there counts."""
ALL = (*_SERVICE, *_TRAINERS)
"""Columns that count steps."""

_EXACT = 1 << 53


@dataclass(frozen=True, slots=True)
class Steps:
    """The trainer's step of each row.

    Attributes:
        steps: [n] as it stands in the file, ``NO_STEP`` where the row has none.
        column: the column it is from.
        note: what to say where W&B counts otherwise, else "".
    """

    steps: IntArray
    column: str
    note: str = ""


def column_of(names: tuple[str, ...]) -> str:
    """Return the first column that counts steps, "" where there is none."""
    return next((name for name in ALL if name in names), "")


def kinds(names: tuple[str, ...]) -> dict[str, columns.Kind]:
    """Return the columns that :func:`read` needs, and what they hold.

    Args:
        names: a header, with at least one column of steps.
    """
    found: dict[str, columns.Kind] = {name: "number" for name in _TRAINERS if name in names}
    service = next((name for name in _SERVICE if name in names), "")
    return {**found, service: "whole"} if service else found


def read(path: Path, cells: Mapping[str, columns.Column], tokens: IntArray | None) -> Steps:
    """Read the trainer's steps.

    Args:
        path: CSV, gzipped CSV or Parquet, for messages.
        cells: its columns of steps, by :func:`kinds`, perhaps among others.
        tokens: [n] tokens of each row, ``NO_TOKENS`` where it has none; None without a column.

    Returns:
        The trainer's own step where a column holds it and W&B counts otherwise, else W&B's.

    Raises:
        DataError: a cell that is no whole number, two columns of a trainer that count differently,
            or one that falls where tokens rise.
    """
    service = next((name for name in _SERVICE if name in cells), "")
    trainers = [name for name in _TRAINERS if name in cells]
    counted = {name: whole_numbers(path, name, cells[name]) for name in trainers}
    counted = {name: steps for name, steps in counted.items() if bool((steps != NO_STEP).any())}
    if not counted and not service:
        raise DataError(f"{path}: no step in {', '.join(trainers)}; were steps logged yet?")
    rows = columns.whole_of(path, service, cells[service], None) if service else None
    if not counted:
        assert rows is not None
        return Steps(rows, service)
    own, *others = counted
    steps = counted[own]
    for other in others:
        _check_alike(path, (own, steps), (other, counted[other]))
    if rows is None:
        return Steps(steps, own)
    there = steps != NO_STEP
    apart = steps[there] - rows[there]
    if not bool(apart.any()):
        return Steps(rows, service)
    _check_rise(path, own, steps, tokens)
    told = steps[there]
    note = (
        f"steps are those of {own} ({told.min():,} to {told.max():,}), the trainer's own; "
        f"{service} counts otherwise ({rows.min():,} to {rows.max():,}) and is not used"
    )
    if bool((apart == apart[0]).all()):  # so the rows between are known too
        return Steps(rows + apart[0], own, note)
    return Steps(steps, own, note)


def whole_numbers(path: Path, name: str, column: columns.Column) -> IntArray:
    """Return a column of whole numbers read as numbers.

    Args:
        path: the file, for messages.
        name: the column's name, for messages.
        column: pyarrow chunked array of float64.

    Returns:
        [n] whole numbers, ``NO_STEP`` (which is ``NO_TOKENS``) for empty cells and NaN.

    Raises:
        DataError: a number that is not whole, or above 2**53, where it is no longer exact.
    """
    values, _ = columns.numbers_of(column)
    there = ~np.isnan(values)
    exact = (np.abs(values) <= _EXACT) & (values == np.rint(values))
    wrong = np.flatnonzero(there & ~exact)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{path}: {columns.place(path, row)}: column {name!r}: {values[row]!s} is not a whole "
            f"number of at most {_EXACT:,}; correct it, or remove the column"
        )
    return np.where(there, np.where(there, values, 0).astype(np.int64), NO_STEP)


def _check_alike(path: Path, own: tuple[str, IntArray], other: tuple[str, IntArray]) -> None:
    """Refuse two columns of the trainer's step that count differently.

    One of them may count from 0 and the other from 1.
    """
    apart = np.where((own[1] == NO_STEP) | (other[1] == NO_STEP), 0, own[1] - other[1])
    wrong = np.flatnonzero(np.abs(apart) > 1)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{path}: {columns.place(path, row)}: {own[0]} is {own[1][row]} and {other[0]} "
            f"{other[1][row]}: both may be the trainer's step; keep the one that counts updates "
            "of the weights and remove the other column"
        )


def _check_rise(path: Path, name: str, steps: IntArray, tokens: IntArray | None) -> None:
    """Refuse steps that fall where tokens rise: they are no count of the run's updates."""
    if tokens is None:
        return
    rows = np.flatnonzero((steps != NO_STEP) & (tokens != NO_TOKENS))
    falls = np.flatnonzero((np.diff(steps[rows]) < 0) & (np.diff(tokens[rows]) > 0))
    if len(falls):
        before, after = int(rows[falls[0]]), int(rows[falls[0] + 1])
        raise DataError(
            f"{path}: {columns.place(path, after)}: {name} falls from {steps[before]} to "
            f"{steps[after]} where tokens rise from {tokens[before]} to {tokens[after]}: it does "
            "not count the run's updates; remove the column, or correct it"
        )
