"""Rows of one run, put into the order in which they were logged, each step once.

Every metric of a run is settled by the same restarts: where the train loss goes back, what any
metric logged on the branch that was given up does not count. A step that stands there twice with
two values and no restart to explain it is refused, with both places.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from evalmon import restarts
from evalmon.errors import DataError
from evalmon.types import FloatArray, IntArray

__all__ = ["NO_TOKENS", "Found", "Points", "Reading", "settled"]

NO_TOKENS = int(np.iinfo(np.int64).min)
"""Stands for an empty cell in a column of tokens."""

_REWINDS = 1 / 3
"""More rows than this share going back is no order a run was logged in."""


@dataclass(frozen=True, slots=True)
class Points:
    """Rows of one metric, in the order of the file.

    Attributes:
        tag: the metric's name in the file.
        rows: [n] row of each point, for messages, and for what was logged before what.
        steps: [n] optimizer steps.
        tokens: [n] tokens trained on, ``NO_TOKENS`` in an empty cell; None where the file has none.
        values: [n] values, some of them perhaps not finite.
        clock: [n] wall time of each row in seconds, None where the file has none.
    """

    tag: str
    rows: IntArray
    steps: IntArray
    tokens: IntArray | None
    values: FloatArray
    clock: FloatArray | None = None

    def take(self, at: IntArray) -> "Points":
        """Return the points at these positions, in this order."""
        return Points(
            self.tag,
            self.rows[at],
            self.steps[at],
            None if self.tokens is None else self.tokens[at],
            self.values[at],
            None if self.clock is None else self.clock[at],
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What holds for every metric of the run that is read.

    Attributes:
        name: the run's name.
        source: the file, for messages.
        place: row -> where that is in the file, such as ``line 3``.
        tokens_per_step: given by the user for files without tokens, else None.
        thinned: the user declares the train loss thinned by a rule.
        both_keys: the file is from a service that may leave out rows lacking one of several keys.
        partial: why the whole file counts as sampled, "" where it does not.
        notes: what the reader itself has to say.
        seams: steps a restart went on from, as far as the reader knows.
        superseded: points the reader left behind for a restart.
    """

    name: str
    source: str
    place: Callable[[int], str]
    tokens_per_step: int | None = None
    thinned: bool = False
    both_keys: bool = False
    partial: str = ""
    notes: tuple[str, ...] = ()
    seams: tuple[int, ...] = ()
    superseded: int = 0


@dataclass(slots=True)
class Found:
    """What has been learned while reading."""

    notes: list[str] = field(default_factory=list[str])
    seams: set[int] = field(default_factory=set[int])
    nonfinite: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    superseded: int = 0


@dataclass(frozen=True, slots=True)
class _Rewind:
    """A place at which the train metric's steps go back.

    ``before`` and ``after`` are the row, or the wall time, of the last point before it and of the
    first after it; ``step`` is where it goes on, ``reached`` how far the log had come.
    """

    before: float
    after: float
    step: int
    reached: int


def settled(
    reading: Reading, parts: Mapping[str, Points], lead: str, found: Found
) -> dict[str, Points]:
    """Keep the last copy of each step of every metric, by rising step.

    Args:
        reading: what holds for the whole file.
        parts: canonical name -> rows as they stand in the file.
        lead: the metric whose steps tell of restarts, "" where the trainer logs none.
        found: notes, seams and the number of points left behind are added here.

    Returns:
        name -> its points, steps strictly rising; values may still be not finite.

    Raises:
        DataError: a negative step, or a step twice with other values that no restart explains.
    """
    result: dict[str, Points] = {}
    rewinds: tuple[_Rewind, ...] = ()
    if lead:
        part = _in_order(reading, parts[lead], found, by_clock=True)
        rewinds = _rewinds(part)
        result[lead] = _resolved(_without_copies(reading, part, rewinds, found), found)
    for name in parts:
        if name == lead:
            continue
        part = _in_order(reading, parts[name], found, by_clock=False)
        if lead:
            part = _without_abandoned(part, rewinds, int(result[lead].steps[-1]), found)
        part = _without_copies(reading, part, rewinds, found)
        result[name] = _last_copies(part, found) if lead else _resolved(part, found)
    return {name: result[name] for name in parts}


def _in_order(reading: Reading, part: Points, found: Found, *, by_clock: bool) -> Points:
    """Put rows into the order in which they were logged, as far as the file tells.

    A training loop logs by rising step, so what its clock says goes back is a restart. An
    evaluation may come late: where no step stands there twice, its points go by step.
    """
    if (low := int(part.steps.min())) < 0:
        row = int(part.rows[int(np.argmin(part.steps))])
        raise DataError(
            f"{reading.source}: {reading.place(row)}: step {low} of {part.tag}: steps are whole "
            "numbers >= 0; correct or remove this row"
        )
    rise = np.diff(part.steps)
    if bool((rise > 0).all()) and (part.clock is None or bool((np.diff(part.clock) >= 0).all())):
        return part
    if part.clock is not None and by_clock:
        return part.take(np.argsort(part.clock, kind="stable"))
    if bool((rise < 0).all()):
        found.notes.append(f"{part.tag}: rows are in reversed order of step, and were sorted")
        return part.take(np.arange(len(part.steps) - 1, -1, -1))
    order = np.argsort(part.steps, kind="stable")
    if bool((np.diff(part.steps[order]) > 0).all()):  # no step twice: nothing was logged again
        if part.clock is None:
            found.notes.append(f"{part.tag}: rows are not in order of step, and were sorted")
        return part.take(order)
    return part if part.clock is None else part.take(np.argsort(part.clock, kind="stable"))


def _rewinds(part: Points) -> tuple[_Rewind, ...]:
    """Return where a metric's steps go back, in the order it was logged."""
    back = np.flatnonzero(np.diff(part.steps) < 0)
    if len(back) == 0 or not _is_log_order(part):
        return ()
    at = part.rows if part.clock is None else part.clock
    reached = np.maximum.accumulate(part.steps)
    return tuple(
        _Rewind(float(at[i]), float(at[i + 1]), int(part.steps[i + 1]), int(reached[i]))
        for i in back
    )


def _without_abandoned(
    part: Points, rewinds: tuple[_Rewind, ...], last_step: int, found: Found
) -> Points:
    """Leave out what a metric logged on a branch that a restart of the trainer gave up.

    That is known where the file tells what was logged before what, by wall time or because the
    metric's rows stand among those of the train loss; and of steps the run has not come to again.
    """
    at = part.rows if part.clock is None else part.clock
    keep = np.ones(len(at), np.bool_)
    for rewind in rewinds:
        if part.clock is not None or at.min() < rewind.after < at.max():
            keep &= (at > rewind.before) | (part.steps < rewind.step)
        keep &= (part.steps <= last_step) | (part.steps > rewind.reached)
    if bool(keep.all()):
        return part
    found.superseded += int(np.count_nonzero(~keep))
    return part.take(np.flatnonzero(keep))


def _last_copies(part: Points, found: Found) -> Points:
    """Keep the last copy of each step, whatever came before it."""
    order = np.argsort(part.steps, kind="stable")
    steps = part.steps[order]
    last = np.flatnonzero(np.diff(steps, append=-1) != 0)
    if len(last) < len(steps):
        found.superseded += len(steps) - len(last)
        found.notes.append(
            f"{part.tag}: {len(steps) - len(last)} steps were logged again; the last copy counts"
        )
    elif bool((np.diff(part.steps) > 0).all()):
        return part
    return part.take(order[last])


def _without_copies(
    reading: Reading, part: Points, rewinds: tuple[_Rewind, ...], found: Found
) -> Points:
    """Drop rows that stand there twice alike; refuse a step with two values no restart explains."""
    if bool((np.diff(part.steps) > 0).all()):
        return part
    logged = _is_log_order(part)
    # In the order of a log only neighbors are unexplained copies; in any other, all are.
    order = np.arange(len(part.steps)) if logged else np.argsort(part.steps, kind="stable")
    one, two = order[:-1], order[1:]
    twice = part.steps[one] == part.steps[two]
    one, two = one[twice], two[twice]
    values = part.values
    alike = (values[one] == values[two]) | (np.isnan(values[one]) & np.isnan(values[two]))
    if part.tokens is not None:
        alike &= part.tokens[one] == part.tokens[two]
    repeated = np.zeros(len(one), np.bool_)
    for rewind in rewinds:
        repeated |= (part.steps[one] >= rewind.step) & (part.steps[one] <= rewind.reached)
    for i in np.flatnonzero(~alike & ~repeated)[:1]:
        a, b = sorted((int(one[i]), int(two[i])))
        raise DataError(
            f"{reading.source}: {reading.place(int(part.rows[a]))} and "
            f"{reading.place(int(part.rows[b]))}: step {part.steps[a]} of {part.tag} twice, with "
            f"{_point(part, a)} and {_point(part, b)}: keep the one that counts; if a restart "
            "logged it again, keep the rows in the order they were logged or add a column "
            "'wall_time' in seconds"
        )
    dropped = one[alike & ~repeated]
    if len(dropped):
        found.notes.append(f"{part.tag}: {len(dropped)} rows that repeat another were left out")
    part = part if logged else part.take(order)
    if not logged:
        found.notes.append(f"{part.tag}: rows are not in order of step, and were sorted")
        dropped = np.flatnonzero(np.diff(part.steps) == 0)
    return part.take(np.delete(np.arange(len(part.steps)), dropped))


def _is_log_order(part: Points) -> bool:
    """Return whether rows may stand in the order a run with restarts logged them."""
    if part.clock is not None:
        return True
    back = np.flatnonzero(np.diff(part.steps) < 0) + 1
    return len(back) <= _REWINDS * len(part.steps) and bool(
        (part.steps[back] >= part.steps[0]).all()
    )


def _point(part: Points, at: int) -> str:
    """Return a point's value and tokens for a message."""
    if part.tokens is None or part.tokens[at] == NO_TOKENS:
        return f"value {part.values[at]:g}"
    return f"value {part.values[at]:g} ({part.tokens[at]} tokens)"


def _resolved(part: Points, found: Found) -> Points:
    """Keep the last copy of every step."""
    if bool((np.diff(part.steps) > 0).all()):
        return part
    resolved = restarts.resolve(part.steps)
    found.superseded += len(resolved.superseded)
    found.seams.update(resolved.seams)
    found.notes.append(
        f"{part.tag}: steps go back after {', '.join(str(step) for step in resolved.seams[:5])}: "
        f"the last copy of each step counts, {len(resolved.superseded)} rows were left behind"
        + _continuity(part, resolved)
    )
    return part.take(resolved.kept)


def _continuity(part: Points, resolved: restarts.Resolved) -> str:
    """Return how the two branches compare at the steps both logged."""
    found = restarts.continuity(part.steps, part.values, resolved)
    if found is None:
        return ""
    return f"; at {len(found.steps)} steps logged twice the later value is {found.difference:+.4g}"
