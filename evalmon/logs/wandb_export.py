"""CSV exports of a W&B run, in both shapes that users have.

A **history** (``run.history``, ``run.scan_history``, a downloaded table) has one row a logged
step, a column a metric, and empty cells where a metric was not logged. A **chart** export has a
column ``Step`` and three columns a run: ``NAME - METRIC`` and the same with ``__MIN`` and
``__MAX``. Metrics are read each by itself and joined by step, never by row.

What neither can show: the service drops values that come at a step it already has. After a restart
from an earlier checkpoint the steps up to the crash are those of the branch that was given up, and
nothing in the export says so but a pause of the clock, which is noted. A column ``resumed_from``
(step of the checkpoint, in the first row after the restart or in all) or the argument
``restarts`` says it, and those steps are left out.

An empty cell is a metric that was not logged, NaN is a value. pandas has one mark for both, so
that a history it wrote has either no NaN left, or no empty cell; in the latter case the pattern of
rows decides (:mod:`evalmon.logs.wandb_cells`). ``csv.DictWriter`` over ``run.scan_history()``
keeps both: a key that is missing is an empty cell. Which column counts steps is told in
:mod:`evalmon.logs.wandb_steps`.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalmon import restarts as restart_rows
from evalmon import tags
from evalmon.errors import DataError
from evalmon.logs import columns, wandb_cells, wandb_steps
from evalmon.logs.curves import curves_of, unknown_note
from evalmon.logs.points import NO_TOKENS, Points, Reading
from evalmon.types import FloatArray, IntArray, RunCurves

__all__ = ["read", "recognizes", "runs"]

_OTHER_AXES = ("Relative Time (Wall)", "Relative Time (Process)", "Wall Time", "_timestamp")
"""First columns of a chart that was drawn over something else than steps."""
_CLOCKS = ("_timestamp", "_runtime")
_RESUMED = ("resumed_from", "resumed_from_step")
_EDGES = ("__MIN", "__MAX")
_SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}
_EVALUATED = re.compile(
    r"(?:.*[/_.])?(?:eval|evaluation|val|valid|validation|test|dev|holdout)[/_.].*"
    r"(?:loss|ce|nats|nll|ppl|perplexity|bpb|bits_per_byte|entropy)",
    re.IGNORECASE,
)
"""Names of what may be a holdout's loss, whatever its text."""
_HOLDOUT = re.compile(r"eval/lm/.+/ce_nats")
_PAUSE = 20.0
"""A pause this many times longer than a step's usual time may be a restart."""
_FEW_PAUSES = 5
"""More than these are evaluations or checkpoints, not restarts."""


_Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns that all metrics share, one entry a row."""

    steps: IntArray
    clock: FloatArray | None
    tokens: IntArray | None
    keep: _Mask
    notes: tuple[str, ...]
    seams: tuple[int, ...]
    column: str


def recognizes(path: Path) -> bool:
    """Return whether a file is an export of W&B, by its header.

    Raises:
        DataError: the file cannot be read.
    """
    names = columns.header(path)
    return _is_export(names) or bool(_separator(names))


def runs(path: Path) -> tuple[str, ...]:
    """Return the names of the runs of a chart; none for a history, which holds one run.

    Raises:
        DataError: the file cannot be read.
    """
    return tuple(_charted(columns.header(path)))


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
    if separator := _separator(names):
        raise DataError(f"{path}: line 1: the separator is {separator}, use ','")
    if not wandb_steps.column_of(names):
        raise DataError(
            f"{path}: line 1: no column of steps ({', '.join(wandb_steps.ALL)}) among "
            f"{', '.join(names)[:200]!r}; export with Step as x axis"
        )
    charted = _charted(names)
    cells = _chosen(path, charted, run) if charted else {name: name for name in _known(names)}
    if not cells:
        named = [n for n in names if not n.startswith("_") and n not in wandb_steps.ALL]
        near = tags.nearest(named[0]) if named else ("train/ce_nats",)
        raise DataError(
            f"{path}: line 1: no known metric among {', '.join(named)[:200]!r}; nearest to the "
            f"first are {', '.join(near)}: rename its column"
        )
    said = _holdout_notes(names, cells, charted=bool(charted))
    shared = _shared(path, names, tags.counts_from_zero(cells), dict(restarts or {}))
    points, partial, nan = _points(path, cells, names, shared)
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
        notes=(*said, *shared.notes, *([nan] if nan else [])),
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


def _is_export(names: tuple[str, ...]) -> bool:
    """Return whether a header is that of an export."""
    if "_step" in names:
        return True
    stepped = bool(wandb_steps.column_of(names))
    if stepped and (_charted(names) or _known(names)):
        return True
    return names[0] in _OTHER_AXES and bool(_charted(names))


def _separator(names: tuple[str, ...]) -> str:
    """Return what separates the columns of an export instead of commas, "" where commas do."""
    if _is_export(names):
        return ""
    whole = ",".join(names)
    for separator, shown in _SEPARATORS.items():
        split = tuple(name.strip(' "') for name in whole.split(separator))
        if len(split) > 1 and _is_export(split):
            return shown
    return ""


def _holdout_notes(names: tuple[str, ...], cells: Mapping[str, str], *, charted: bool) -> list[str]:
    """Say which columns may hold a holdout's loss and are not known; all where none is known."""
    found = [tag for name in cells if (tag := tags.look_up(name, _source(name)))]
    known = any(_HOLDOUT.fullmatch(tag.metric) for tag in found)
    if charted:
        if known or any(_EVALUATED.fullmatch(name) for name in cells):
            return []
        drawn = ", ".join(cells)[:200]
        note = (
            f"the chart draws {drawn} alone, so that evaluations are not known: export them in the "
            "same chart, or the run's whole history"
        )
        return [note]
    unknown = [name for name in names if name not in cells and not name.startswith("_")]
    meant = [name for name in unknown if tags.holdout_meant(name)]
    if not known:
        meant = [name for name in unknown if name in meant or _EVALUATED.fullmatch(name)]
    return [unknown_note(meant)] if meant else []


def _source(name: str) -> str:
    """Return one of the trainers that write a name, "" without."""
    return min(tags.sources_of(name), default="")


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


def _shared(path: Path, names: tuple[str, ...], zero_based: str, crashes: dict[int, int]) -> _Rows:
    """Read what all metrics share: steps, clock, tokens, and what restarts left behind."""
    clock_name = next((name for name in _CLOCKS if name in names), "")
    token_name = next((name for name in tags.token_tags() if name in names), "")
    resumed_name = next((name for name in _RESUMED if name in names), "")
    named = [name for name in (clock_name, resumed_name, token_name) if name]
    kinds: dict[str, columns.Kind] = dict.fromkeys(named, "number")
    cells = columns.read(path, wandb_steps.kinds(names) | kinds)
    tokens = None
    if token_name:
        tokens = wandb_steps.whole_numbers(path, token_name, cells[token_name])
    counted = wandb_steps.read(path, cells, tokens)
    steps, notes = counted.steps, [counted.note] if counted.note else []
    there = steps != wandb_steps.NO_STEP
    if zero_based:
        steps = np.where(there, steps + 1, steps)
        notes.append(f"{zero_based} counts steps from 0: each is taken one higher")
    clock = columns.numbers_of(cells[clock_name])[0] if clock_name else None
    if clock is not None and not bool(np.isfinite(clock).all()):
        clock = None
        notes.append(f"{clock_name} has gaps and was not used")
    if tokens is not None:
        tokens = np.where(there, _filled(steps, tokens, there), tokens)
    seams: set[int] = set()
    keep = there.copy()
    if resumed_name:
        rows = np.flatnonzero(there)
        resumed = columns.numbers_of(cells[resumed_name])[0][rows]
        left = restart_rows.abandoned(steps[rows], resumed, None if clock is None else clock[rows])
        keep[rows[left]] = False
        first = steps[rows].min()
        seams = {int(at) for at in resumed[resumed >= first]}  # before it: a fresh start
    for crash, checkpoint in sorted(crashes.items()):
        keep &= (steps <= checkpoint) | (steps > crash)
        seams.add(checkpoint)
    gone = np.unique(steps[there & ~keep])
    if len(gone):
        notes.append(
            f"steps {gone[0]} to {gone[-1]} hold an abandoned branch, given up at a restart from "
            f"{', '.join(str(seam) for seam in sorted(seams))}: they are not used"
        )
    elif not seams:
        notes += _pauses(steps[there], None if clock is None else clock[there])
    return _Rows(steps, clock, tokens, keep, tuple(notes), tuple(sorted(seams)), counted.column)


def _filled(steps: IntArray, tokens: IntArray, stepped: _Mask) -> IntArray:
    """Give rows without tokens those of their step, or of the constant batch they lie in."""
    there = stepped & (tokens != NO_TOKENS)
    if bool(there[stepped].all()) or not bool(there.any()):
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
) -> tuple[list[Points], str, str]:
    """Read each metric by itself; return points, why all count as sampled, and a note of NaN."""
    edges = [column + edge for column in cells.values() for edge in _EDGES]
    kinds: dict[str, columns.Kind] = dict.fromkeys(cells.values(), "number")
    kinds |= {name: "number" for name in edges if name in names}
    read = columns.read(path, kinds)
    numbers = {metric: columns.numbers_of(read[column]) for metric, column in cells.items()}
    empty: Mapping[str, _Mask] = {m: gaps for m, (_, gaps) in numbers.items() if gaps is not None}
    said = ""
    if not empty:
        every = {metric: values for metric, (values, _) in numbers.items()}
        empty, said = wandb_cells.not_logged(shared.steps, every)
    points: list[Points] = []
    partial = ""
    for metric, column in cells.items():
        values = numbers[metric][0]
        rows = np.flatnonzero(~empty[metric]) if metric in empty else np.arange(len(values))
        if len(rows) == 0:
            continue
        _check_steps(path, shared, column, rows)
        partial = _bucketed(column, read, shared.steps, rows) or partial
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
    return points, partial, said


def _check_steps(path: Path, shared: _Rows, column: str, rows: IntArray) -> None:
    """Refuse values in rows without the trainer's step, which nothing else tells."""
    lost = rows[shared.steps[rows] == wandb_steps.NO_STEP]
    if len(lost):
        raise DataError(
            f"{path}: {columns.place(path, int(lost[0]))}: {column} has a value and "
            f"{shared.column} none (the first of {len(lost)} such rows): at which step was it "
            f"logged? fill in {shared.column}, or log both in one call"
        )


def _bucketed(
    column: str, read: Mapping[str, columns.Column], steps: IntArray, rows: IntArray
) -> str:
    """Return why a chart's column shows buckets of steps, "" where it shows each."""
    values = columns.numbers_of(read[column])[0][rows]
    for name in (column + edge for edge in _EDGES if column + edge in read):
        apart = columns.numbers_of(read[name])[0][rows] != values
        if bool((apart & np.isfinite(values)).any()):
            at = int(steps[rows[np.flatnonzero(apart)[0]]])
            return (
                f"the chart shows buckets of steps: {name} differs from the value, first at "
                f"step {at}; export the run's whole history"
            )
    return ""
