"""CSV exports of a W&B run, in both shapes that users have.

A **history** (``run.history``, ``run.scan_history``, a downloaded table) has one row a logged
step, a column a metric, and empty cells where a metric was not logged. A **chart** export has a
column ``Step`` and three columns a run: ``NAME - METRIC`` and the same with ``__MIN`` and
``__MAX``. Metrics are read each by itself and joined by step, never by row.

What neither can show: the service drops values that come at a step it already has. After a restart
from an earlier checkpoint the steps up to the crash are those of the branch that was given up, and
nothing in the export says so but a pause of the clock, which is noted. A column ``resumed_from``
(step of the checkpoint, in the first row after the restart or in all) or the argument
``restarts`` says it, and those steps are left out. Not-a-number values that pandas wrote as empty
cells are gone too: export with ``na_rep="NaN"``.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalmon import restarts as restart_rows
from evalmon import tags
from evalmon.errors import DataError
from evalmon.logs import columns
from evalmon.logs.curves import curves_of, unknown_note
from evalmon.logs.points import NO_TOKENS, Points, Reading
from evalmon.types import FloatArray, IntArray, RunCurves

__all__ = ["read", "recognizes"]

_STEPS = ("_step", "Step", "step", "global_step", "trainer/global_step", "iteration_step")
"""Columns that count steps, the first that is there counts; a chart has no other than these."""
_OTHER_AXES = ("Relative Time (Wall)", "Relative Time (Process)", "Wall Time", "_timestamp")
"""First columns of a chart that was drawn over something else than steps."""
_CLOCKS = ("_timestamp", "_runtime")
_RESUMED = ("resumed_from", "resumed_from_step")
_EDGES = ("__MIN", "__MAX")
_ZERO_BASED = frozenset({"maxtext"})
"""Trainers whose step n is the n-th batch counted from 0: the state after n + 1 updates."""
_PAUSE = 20.0
"""A pause this many times longer than a step's usual time may be a restart."""
_FEW_PAUSES = 5
"""More than these are evaluations or checkpoints, not restarts."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns that all metrics share, one entry a row."""

    steps: IntArray
    clock: FloatArray | None
    tokens: IntArray | None
    keep: "np.ndarray[Any, np.dtype[np.bool_]]"
    notes: tuple[str, ...]
    seams: tuple[int, ...]


def recognizes(path: Path) -> bool:
    """Return whether a file is an export of W&B, by its header.

    Raises:
        DataError: the file cannot be read.
    """
    names = columns.header(path)
    if "_step" in names or (_step_column(names) and (_charted(names) or _known(names))):
        return True
    return names[0] in _OTHER_AXES and bool(_charted(names))


def read(
    path: Path,
    run: str | None = None,
    *,
    thinned: bool = False,
    tokens_per_step: int | None = None,
    restarts: Mapping[int, int] | None = None,
) -> RunCurves:
    """Read one run of an export.

    Args:
        path: CSV, gzipped CSV or Parquet.
        run: name of the run in a chart of several; a history holds one run, named by its file.
        thinned: the user declares the train loss thinned by a rule that does not see the values.
        tokens_per_step: tokens of one step, where no column counts tokens.
        restarts: last step before a crash -> step of the checkpoint the run resumed from, for
            exports that lack the steps logged again.

    Returns:
        One curve a known metric. A history drawn at random, one of rows that hold several keys,
        and a chart that shows buckets are labelled SAMPLED, with the reason.

    Raises:
        DataError: no such run, no step column, no known metric, no tokens, or whatever a tidy
            table is refused for.
    """
    names = columns.header(path)
    step = _step_column(names)
    if not step:
        raise DataError(
            f"{path}: line 1: no column of steps ({', '.join(_STEPS)}) among "
            f"{', '.join(names)[:200]!r}; export with Step as x axis"
        )
    charted = _charted(names)
    cells = _chosen(path, charted, run) if charted else {name: name for name in _known(names)}
    if not cells:
        named = [name for name in names if not name.startswith("_") and name != step]
        near = tags.nearest(named[0]) if named else ("train/ce_nats",)
        raise DataError(
            f"{path}: line 1: no known metric among {', '.join(named)[:200]!r}; nearest to the "
            f"first are {', '.join(near)}: rename its column"
        )
    unknown = [name for name in names if not charted and name not in cells]
    unknown = [name for name in unknown if tags.holdout_meant(name)]
    source = _trainer(list(cells))
    shared = _shared(path, names, step, source, dict(restarts or {}))
    points, partial = _points(path, cells, names, shared)
    if not points:
        raise DataError(f"{path}: no value in {', '.join(cells)}; were these metrics logged yet?")
    reading = Reading(
        name=(run or next(iter(charted))) if charted else _stem(path, run),
        source=str(path),
        place=functools.partial(columns.place, path),
        tokens_per_step=tokens_per_step,
        thinned=thinned,
        both_keys=not charted,
        partial=partial,
        notes=(*([unknown_note(unknown)] if unknown else []), *shared.notes),
        seams=shared.seams,
        superseded=sum(int(np.count_nonzero(~shared.keep[part.rows])) for part in points),
    )
    return curves_of(
        reading, [part.take(np.flatnonzero(shared.keep[part.rows])) for part in points]
    )


def _stem(path: Path, run: str | None) -> str:
    """Return the name of a history's one run."""
    name = path.name.split(".")[0]
    if run is not None and run != name:
        raise DataError(f"{path}: no run {run!r}; a W&B history holds one run, here {name!r}")
    return name


def _step_column(names: tuple[str, ...]) -> str:
    """Return the column that counts steps, "" where there is none."""
    return next((name for name in _STEPS if name in names), "")


def _known(names: tuple[str, ...]) -> list[str]:
    """Return the columns whose names the dictionary knows."""
    return [name for name in names if tags.sources_of(name)]


def _charted(names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return run -> metric -> column of a chart export; empty for a history."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        run, between, metric = name.rpartition(" - ")
        if between and not name.endswith(_EDGES):
            found.setdefault(run, {})[metric] = name
    return found


def _chosen(
    path: Path, charted: Mapping[str, Mapping[str, str]], run: str | None
) -> dict[str, str]:
    """Return metric -> column of the run that is meant."""
    if run is None and len(charted) > 1:
        raise DataError(
            f"{path}: {len(charted)} runs and none named; give --run with one of "
            f"{', '.join(charted)}"
        )
    name = run or next(iter(charted))
    if name not in charted:
        raise DataError(f"{path}: no run {name!r}; there are {', '.join(charted)}")
    return dict(charted[name])


def _trainer(names: list[str]) -> str:
    """Return the only trainer that writes all of these names, "" where there is none or several."""
    sources = [tags.sources_of(name) for name in names if tags.sources_of(name)]
    common = frozenset.intersection(*sources) if sources else frozenset[str]()
    return next(iter(common)) if len(common) == 1 else ""


def _shared(
    path: Path, names: tuple[str, ...], step: str, source: str, crashes: dict[int, int]
) -> _Rows:
    """Read what all metrics share: steps, clock, tokens, and what restarts left behind."""
    clock_name = next((name for name in _CLOCKS if name in names), "")
    token_name = next((name for name in tags.token_tags() if name in names), "")
    resumed_name = next((name for name in _RESUMED if name in names), "")
    kinds: dict[str, columns.Kind] = {step: "whole"}
    kinds |= {name: "number" for name in (clock_name, resumed_name) if name}
    kinds |= {token_name: "whole"} if token_name else {}
    cells = columns.read(path, kinds)
    steps = columns.whole_of(path, step, cells[step], None)
    notes: list[str] = []
    if source in _ZERO_BASED:
        steps = steps + 1
        notes.append(f"{source} counts steps from 0: each is taken one higher")
    clock = columns.numbers_of(cells[clock_name])[0] if clock_name else None
    if clock is not None and not bool(np.isfinite(clock).all()):
        clock = None
        notes.append(f"{clock_name} has gaps and was not used")
    tokens = None
    if token_name:
        tokens = _filled(steps, columns.whole_of(path, token_name, cells[token_name], NO_TOKENS))
    left = np.empty(0, np.int64)
    seams: set[int] = set()
    if resumed_name:
        resumed = columns.numbers_of(cells[resumed_name])[0]
        left = restart_rows.abandoned(steps, resumed, clock)
        seams = {int(at) for at in resumed[resumed >= steps.min()]}  # before it: a fresh start
    keep = np.ones(len(steps), np.bool_)
    keep[left] = False
    for crash, checkpoint in sorted(crashes.items()):
        keep &= (steps <= checkpoint) | (steps > crash)
        seams.add(checkpoint)
    gone = np.unique(steps[~keep])
    if len(gone):
        notes.append(
            f"steps {gone[0]} to {gone[-1]} hold an abandoned branch, given up at a restart from "
            f"{', '.join(str(seam) for seam in sorted(seams))}: they are not used"
        )
    elif not seams:
        notes += _pauses(steps, clock)
    return _Rows(steps, clock, tokens, keep, tuple(notes), tuple(sorted(seams)))


def _filled(steps: IntArray, tokens: IntArray) -> IntArray:
    """Give rows without tokens those of their step, or of the constant batch they lie in."""
    there = tokens != NO_TOKENS
    if bool(there.all()) or not bool(there.any()):
        return tokens
    known, first = np.unique(steps[there], return_index=True)
    counted = tokens[there][first]
    at = np.minimum(np.searchsorted(known, steps), len(known) - 1)
    filled = np.where(there, tokens, np.where(known[at] == steps, counted[at], NO_TOKENS))
    if len(known) > 1:
        each, rest = divmod(int(counted[-1] - counted[0]), int(known[-1] - known[0]))
        if not rest and bool((counted - counted[0] == each * (known - known[0])).all()):
            filled = np.where(there, tokens, counted[0] + each * (steps - known[0]))
    return filled


def _pauses(steps: IntArray, clock: FloatArray | None) -> list[str]:
    """Note where the clock stood still for long: there a restart may have lost steps."""
    if clock is None or len(steps) < 3:
        return []
    order = np.argsort(steps, kind="stable")
    passed, seconds = np.diff(steps[order]), np.diff(clock[order])
    usual = float(np.median(seconds[passed > 0] / passed[passed > 0])) if passed.any() else 0.0
    long = np.flatnonzero((passed > 0) & (seconds > _PAUSE * usual * passed) & (usual > 0))
    if not 0 < len(long) <= _FEW_PAUSES:
        return []
    places = ", ".join(f"{steps[order[i]]} ({seconds[i]:.0f} s)" for i in long)
    note = (
        f"the clock pauses after step {places}: if the run was restarted there from an earlier "
        "checkpoint, the steps since that checkpoint are of an abandoned branch; name it in a "
        "column 'resumed_from' to leave them out"
    )
    return [note]


def _points(
    path: Path, cells: Mapping[str, str], names: tuple[str, ...], shared: _Rows
) -> tuple[list[Points], str]:
    """Read each metric by itself; return its points, and why all of them count as sampled."""
    edges = [column + edge for column in cells.values() for edge in _EDGES]
    kinds: dict[str, columns.Kind] = dict.fromkeys(cells.values(), "number")
    kinds |= {name: "number" for name in edges if name in names}
    read = columns.read(path, kinds)
    points: list[Points] = []
    partial = ""
    for metric, column in cells.items():
        values, empty = columns.numbers_of(read[column])
        rows = np.arange(len(values)) if empty is None else np.flatnonzero(~empty)
        if len(rows) == 0:
            continue
        for name in (column + edge for edge in _EDGES if column + edge in read):
            apart = columns.numbers_of(read[name])[0][rows] != values[rows]
            if bool((apart & np.isfinite(values[rows])).any()):
                at = int(shared.steps[rows[np.flatnonzero(apart)[0]]])
                partial = (
                    f"the chart shows buckets of steps: {name} differs from the value, first at "
                    f"step {at}; export the run's whole history"
                )
        points.append(
            Points(
                metric,
                rows,
                shared.steps[rows],
                None if shared.tokens is None else shared.tokens[rows],
                values[rows],
                None if shared.clock is None else shared.clock[rows],
            )
        )
    return points, partial
