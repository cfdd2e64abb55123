"""Tidy tables ``run,metric,step,tokens,value``: CSV, gzipped CSV and Parquet.

One row is one value of one metric at one step of one run. A column ``wall_time`` (seconds since the
epoch) is read where there is one: it tells which of two copies of a step is the later.
"""

import difflib
import functools
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evalmon.errors import DataError
from evalmon.logs import columns
from evalmon.logs.curves import curves_of
from evalmon.logs.points import NO_TOKENS, Points, Reading
from evalmon.series import together
from evalmon.types import FloatArray, IntArray, RunCurves

__all__ = ["COLUMNS", "meant", "read", "read_all", "runs"]

COLUMNS = ("run", "metric", "step", "tokens", "value")
"""Columns of a tidy table, in the order in which they are written."""

_NEEDED = ("metric", "step", "value")
_CLOCK = "wall_time"
_SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}
_KINDS: dict[str, columns.Kind] = {
    "run": "name",
    "metric": "name",
    "step": "whole",
    "tokens": "whole",
    "value": "number",
    _CLOCK: "number",
}


@dataclass(frozen=True, slots=True)
class _Table:
    """A whole table in memory, its names as small numbers.

    ``run`` and ``metric`` are indices into ``runs`` and ``metrics``; ``run``, ``tokens``,
    ``empty`` (cells without a value) and ``clock`` are None where there are none.
    """

    path: Path
    runs: tuple[str, ...]
    run: IntArray | None
    metrics: tuple[str, ...]
    metric: IntArray
    step: IntArray
    tokens: IntArray | None
    value: FloatArray
    empty: "np.ndarray[Any, np.dtype[np.bool_]] | None"
    clock: FloatArray | None


def runs(path: Path) -> tuple[str, ...]:
    """Return the names of the runs in a tidy table, in order of appearance.

    Args:
        path: the table.

    Raises:
        DataError: the file is no tidy table.
    """
    return _table(path).runs


def read(
    path: Path, run: str | None = None, *, thinned: bool = False, tokens_per_step: int | None = None
) -> RunCurves:
    """Read one run of a tidy table.

    Args:
        path: CSV, gzipped CSV or Parquet with the columns metric, step, value, and run where
            there are several; tokens (trained on, padding excluded) unless ``tokens_per_step``
            is given; other columns are not looked at.
        run: name of the run, None for the only one.
        thinned: the user declares the train loss thinned by a rule that does not see the values.
        tokens_per_step: tokens of one step, for rows without tokens.

    Returns:
        One curve a known metric, steps rising; ``notes`` says what was left out.

    Raises:
        DataError: no such run, several and none named, a column missing, no known metric, two
            names of one metric, a cell that is no number, a step twice with other values,
            no tokens, or tokens that do not rise with the steps.
    """
    table = _table(path)
    return _curves(table, _chosen(table, run), thinned=thinned, tokens_per_step=tokens_per_step)


def read_all(
    path: Path,
    names: Collection[str] | None = None,
    *,
    thinned: bool = False,
    tokens_per_step: int | None = None,
) -> dict[str, RunCurves]:
    """Read several runs of a tidy table, from one reading of the file.

    Args:
        path: as for ``read``.
        names: the runs, None for all.
        thinned: as for ``read``, for each run.
        tokens_per_step: as for ``read``, for each run.

    Returns:
        run -> its curves, in order of appearance, or as named.

    Raises:
        DataError: as for ``read``.
    """
    table = _table(path)
    chosen = table.runs if names is None else tuple(_chosen(table, name) for name in names)
    return {
        name: _curves(table, name, thinned=thinned, tokens_per_step=tokens_per_step)
        for name in chosen
    }


def _table(path: Path) -> _Table:
    """Return a table, read again only when the file has changed."""
    try:
        state = path.stat()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give the path of a table"
        ) from error
    return _load(path, state.st_mtime_ns, state.st_size)


# Two tables: a run and its reference, in one file or in two.
@functools.lru_cache(maxsize=2)
def _load(path: Path, _changed_ns: int, _size: int) -> _Table:
    """Read a table whole."""
    found = columns.header(path)
    given = {name.strip(): name for name in found}
    _check_header(path, given, found)
    kinds: dict[str, columns.Kind] = {
        given[name]: kind for name, kind in _KINDS.items() if name in given
    }
    read = columns.read(path, kinds)
    cells = {name: read[given[name]] for name in _KINDS if name in given}
    metrics, metric = columns.names_of(path, "metric", cells["metric"])
    names, run = (path.name.split(".")[0],), None
    if "run" in cells:
        names, run = columns.names_of(path, "run", cells["run"])
    value, empty = columns.numbers_of(cells["value"])
    clock = columns.numbers_of(cells[_CLOCK])[0] if _CLOCK in cells else None
    if clock is not None and not bool(np.isfinite(clock).all()):
        at = int(np.flatnonzero(~np.isfinite(clock))[0])
        raise DataError(
            f"{path}: {columns.place(path, at)}: {_CLOCK} is empty or no number; give seconds in "
            "every row, or remove the column"
        )
    return _Table(
        path=path,
        runs=names,
        run=None if len(names) == 1 else run,
        metrics=metrics,
        metric=metric,
        step=columns.whole_of(path, "step", cells["step"], None),
        tokens=(
            columns.whole_of(path, "tokens", cells["tokens"], NO_TOKENS)
            if "tokens" in cells
            else None
        ),
        value=value,
        empty=empty,
        clock=clock,
    )


def _check_header(path: Path, given: dict[str, str], found: tuple[str, ...]) -> None:
    """Refuse a header that lacks a column or has one twice."""
    missing = [name for name in _NEEDED if name not in given]
    if missing and (slip := _slip(found)):
        raise DataError(f"{path}: {slip}")
    if missing:
        near = difflib.get_close_matches(missing[0], [n for n in given if n not in COLUMNS], n=1)
        hint = f" (nearest is {near[0]!r})" if near else ""
        binary = columns.is_parquet(path)
        raise DataError(
            f"{path}: {'' if binary else 'line 1: '}column {', '.join(missing)} missing{hint}; "
            f"found {', '.join(found)[:200]!r}: a tidy table has the columns "
            f"{', '.join(COLUMNS)}{'' if binary else ', separated by commas'}"
        )
    twice = [name for name in _KINDS if sum(n.strip() == name for n in found) > 1]
    if twice:
        raise DataError(f"{path}: line 1: column {twice[0]!r} stands there twice; remove one")


def meant(path: Path) -> bool:
    """Return whether a file is a tidy table but for its separator or the capitals of its header.

    ``read`` says what to change.

    Raises:
        DataError: the file cannot be read.
    """
    return bool(_slip(columns.header(path)))


def _slip(found: tuple[str, ...]) -> str:
    """Return what keeps a header from being a tidy table's, "" where it is another thing."""
    for separator, shown in _SEPARATORS.items():
        names = [name.strip(' "') for name in separator.join(found).split(separator)]
        if separator in "".join(found) and {name.lower() for name in names} >= set(_NEEDED):
            return f"line 1: the separator is {shown}, use ','"
    lower = {name.strip().lower(): name.strip() for name in found}
    wrong = [lower[name] for name in COLUMNS if lower.get(name, name) != name]
    if wrong and lower.keys() >= set(_NEEDED):
        return (
            f"column {', '.join(wrong)}: write the names of columns in lower case, as in "
            f"{','.join(COLUMNS)}"
        )
    return ""


def _chosen(table: _Table, run: str | None) -> str:
    """Return the run that is meant."""
    if run is None:
        if len(table.runs) == 1:
            return table.runs[0]
        raise DataError(
            f"{table.path}: {len(table.runs)} runs and none named; give --run with one of "
            f"{_listed(table.runs)}"
        )
    if run in table.runs:
        return run
    near = difflib.get_close_matches(run, table.runs, n=1)
    hint = f"nearest is {near[0]!r}, of" if near else "there are"
    raise DataError(f"{table.path}: no run {run!r}; {hint} {_listed(table.runs)}")


def _listed(names: tuple[str, ...]) -> str:
    """Return names for a message, the first of very many."""
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return ", ".join(names[:30]) + more


def _curves(table: _Table, name: str, *, thinned: bool, tokens_per_step: int | None) -> RunCurves:
    """Make the curves of one run of a table."""
    rows = np.arange(len(table.step))
    if table.run is not None:
        rows = np.flatnonzero(table.run == table.runs.index(name))
    notes: list[str] = []
    if table.empty is not None and len(blank := rows[table.empty[rows]]):
        notes.append(
            f"{len(blank)} rows without a value were left out, the first in "
            f"{columns.place(table.path, int(blank[0]))}; write NaN for a value that is no number"
        )
        rows = rows[~table.empty[rows]]
    if len(rows) == 0:
        raise DataError(f"{table.path}: run {name!r} has no row with a value; was it logged yet?")
    reading = Reading(
        name=name,
        source=str(table.path),
        place=functools.partial(columns.place, table.path),
        tokens_per_step=tokens_per_step,
        thinned=thinned,
        notes=tuple(notes),
    )
    return curves_of(reading, _points(table, rows))


def _points(table: _Table, rows: IntArray) -> list[Points]:
    """Part the rows of a run by metric, by order of appearance."""
    points: list[Points] = []
    for metric, mine in zip(table.metrics, _by_metric(table, rows), strict=True):
        if len(mine) == 0:
            continue
        at: Any = together(mine)
        points.append(
            Points(
                metric,
                mine,
                table.step[at],
                None if table.tokens is None else table.tokens[at],
                table.value[at],
                None if table.clock is None else table.clock[at],
            )
        )
    return points


def _by_metric(table: _Table, rows: IntArray) -> list[IntArray]:
    """Part rows by the table's metrics, each in the order of the file."""
    codes = table.metric[rows]
    starts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    mine = [rows[:0]] * len(table.metrics)
    if len(starts) <= len(mine) + 1:
        blocks = [int(codes[start]) for start in starts[:-1]]
        if len(set(blocks)) == len(blocks):  # one metric after another: nothing to sort
            for code, (start, stop) in zip(blocks, pairwise(starts), strict=True):
                mine[code] = rows[start:stop]
            return mine
    if len(mine) < np.iinfo(np.int16).max:
        codes = codes.astype(np.int16)  # sorted by digits: many times quicker
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(mine) + 1))
    return [rows[order[start:stop]] for start, stop in pairwise(bounds.tolist())]
