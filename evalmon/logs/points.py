"""Rows of one run, put into the order in which they were logged, each step once.

Every metric of a run is settled by the same restarts: where the train loss goes back, what any
metric logged on the branch that was given up does not count. A step that stands there twice with
two values and no restart to explain it is refused, with both places.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from evalmon import restarts
from evalmon.errors import DataError
from evalmon.logs import clocks
from evalmon.logs.log_order import distinct, is_log_order
from evalmon.types import FloatArray, IntArray

__all__ = ["NO_TOKENS", "Found", "Points", "Reading", "nonfinite_note", "settled"]

NO_TOKENS = int(np.iinfo(np.int64).min)
"""Stands for an empty cell in a column of tokens."""


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
    """What has been learned while reading; ``clock`` says why the clock was not used."""

    notes: list[str] = field(default_factory=list[str])
    seams: set[int] = field(default_factory=set[int])
    nonfinite: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    superseded: int = 0
    clock: str = ""


@dataclass(frozen=True, slots=True)
class _Rewind:
    """A place at which the train metric's steps go back.

    ``before`` and ``after`` are the row, or the wall time, of the last point before it and of the
    first after it; ``step`` is where it goes on, ``seam`` the last one logged below that (a run
    may be evaluated there again when it resumes), ``reached`` how far the log had come.
    """

    before: float
    after: float
    step: int
    seam: int
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
    parts = _with_true_clock(reading, parts, lead, found)
    result: dict[str, Points] = {}
    rewinds: tuple[_Rewind, ...] = ()
    if lead:
        part = _in_order(reading, parts[lead], found, by_clock=True)
        logged = part.clock is not None or is_log_order(part.steps)
        rewinds = _rewinds(part) if logged else ()
        part = _without_copies(reading, part, rewinds, found, neighbors=logged)
        result[lead] = _resolved(part, found)
    for name in parts:
        if name == lead:
            continue
        part = _in_order(reading, parts[name], found, by_clock=False)
        logged = part.clock is not None or (not lead and is_log_order(part.steps))
        if lead:
            part = _without_abandoned(part, rewinds, int(result[lead].steps[-1]), found)
        part = _without_copies(reading, part, rewinds, found, neighbors=logged)
        result[name] = _last_copies(part, found) if lead else _resolved(part, found)
    return {name: result[name] for name in parts}


def _with_true_clock(
    reading: Reading, parts: Mapping[str, Points], lead: str, found: Found
) -> Mapping[str, Points]:
    """Take the clock away from all metrics where it is none, and note that."""
    wrong = _clock_fault(parts, lead)
    if wrong is None:
        return parts
    part, fault = wrong
    found.clock = (
        f"{reading.place(int(part.rows[fault.at]))} of {part.tag}: {fault.why}: the clock is not "
        "used; wall_time (in an export of W&B '_timestamp') must be seconds since one moment such "
        "as the epoch, also after a restart"
    )
    found.notes.append(found.clock)
    return {name: replace(part, clock=None) for name, part in parts.items()}


def _clock_fault(parts: Mapping[str, Points], lead: str) -> tuple[Points, clocks.Fault] | None:
    """Return the metric whose steps contradict its clock, and where, None where none does.

    Evaluations may come late, so without a train metric only those logged twice need a clock.
    """
    for part in [parts[lead]] if lead else parts.values():
        needed = not _rises(part) and (lead or len(distinct(part.steps)) < len(part.steps))
        if part.clock is None or not needed:
            continue
        if (fault := clocks.fault(part.steps, part.clock)) is not None:
            return part, fault
        for other in parts.values() if lead else ():
            if other is part or other.clock is None:
                continue
            fault = clocks.early(other.steps, other.clock, (part.steps, part.clock))
            if fault is not None:
                return other, fault
    return None


def _rises(part: Points) -> bool:
    """Return whether steps and clock, where there is one, both rise."""
    rise = bool((np.diff(part.steps) > 0).all())
    return rise and (part.clock is None or bool((np.diff(part.clock) >= 0).all()))


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
    if _rises(part):
        return part
    if part.clock is not None and by_clock:
        return part.take(np.argsort(part.clock, kind="stable"))
    if bool((np.diff(part.steps) < 0).all()):
        found.notes.append(f"{part.tag}: rows are in reversed order of step, and were sorted")
        return part.take(np.arange(len(part.steps) - 1, -1, -1))
    order = np.argsort(part.steps, kind="stable")
    if bool((np.diff(part.steps[order]) > 0).all()):  # no step twice: nothing was logged again
        if part.clock is None:
            found.notes.append(f"{part.tag}: rows are not in order of step, and were sorted")
        return part.take(order)
    return part if part.clock is None else part.take(np.argsort(part.clock, kind="stable"))


def _rewinds(part: Points) -> tuple[_Rewind, ...]:
    """Return where a metric's steps go back, of rows in the order they were logged."""
    back = np.flatnonzero(np.diff(part.steps) < 0)
    at = part.rows if part.clock is None else part.clock
    reached = np.maximum.accumulate(part.steps)
    found: list[_Rewind] = []
    for i in back.tolist():
        step = int(part.steps[i + 1])
        below = part.steps[: i + 1][part.steps[: i + 1] < step]
        seam = int(below.max(initial=-1))
        found.append(_Rewind(float(at[i]), float(at[i + 1]), step, seam, int(reached[i])))
    return tuple(found)


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
    left = int(np.count_nonzero(~keep))
    found.superseded += left
    found.notes.append(
        f"{part.tag}: {left} points of a branch that a restart gave up were left behind"
    )
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
    reading: Reading,
    part: Points,
    rewinds: tuple[_Rewind, ...],
    found: Found,
    *,
    neighbors: bool,
) -> Points:
    """Drop rows that stand there twice alike; refuse a step with two values no restart explains.

    In the order of a log (``neighbors``) only neighbors are unexplained copies; else all are.
    """
    if bool((np.diff(part.steps) > 0).all()):
        return part
    order = np.arange(len(part.steps)) if neighbors else np.argsort(part.steps, kind="stable")
    one, two = order[:-1], order[1:]
    twice = part.steps[one] == part.steps[two]
    one, two = one[twice], two[twice]
    values = part.values
    alike = (values[one] == values[two]) | (np.isnan(values[one]) & np.isnan(values[two]))
    if part.tokens is not None:
        alike &= part.tokens[one] == part.tokens[two]
    repeated = np.zeros(len(one), np.bool_)
    seam = np.zeros(len(one), np.bool_)
    for rewind in rewinds:
        repeated |= (part.steps[one] >= rewind.step) & (part.steps[one] <= rewind.reached)
        seam |= part.steps[one] == rewind.seam
    explained = repeated | (seam & (not neighbors))
    if part.clock is not None:  # it says which copy is the later
        explained |= part.clock[one] < part.clock[two]
    wrong = np.flatnonzero(~alike & ~explained)
    if len(wrong):
        at = (int(one[wrong[0]]), int(two[wrong[0]]))
        raise _two_values(reading, part, at, len(wrong), found.clock)
    dropped = one[alike & ~repeated]
    if len(dropped):
        found.notes.append(f"{part.tag}: {len(dropped)} rows that repeat another were left out")
        part = part.take(np.delete(np.arange(len(part.steps)), dropped))
    if not neighbors and not rewinds and bool((np.diff(part.steps) < 0).any()):
        found.notes.append(f"{part.tag}: rows are not in order of step, and were sorted")
        part = part.take(np.argsort(part.steps, kind="stable"))
    return part


def _two_values(
    reading: Reading, part: Points, at: tuple[int, int], count: int, clock: str
) -> DataError:
    """Return the refusal of a step with two values that no restart explains."""
    a, b = sorted(at)
    more = f" (the first of {count} such steps)" if count > 1 else ""
    return DataError(
        f"{reading.source}: {reading.place(int(part.rows[a]))} and "
        f"{reading.place(int(part.rows[b]))}: step {part.steps[a]} of {part.tag} twice{more}, with "
        f"{_point(part, a)} and {_point(part, b)}, and no restart that goes on from there: remove "
        f"one copy; if a restart logged it again, {'give' if clock else 'add'} a column "
        "'wall_time' in seconds since the epoch (in an export of W&B '_timestamp')"
        + (f"; {clock}" if clock else "")
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


def nonfinite_note(metric: str, steps: IntArray, *, every: bool) -> str:
    """Return what to say of a metric's values that are not finite.

    Args:
        metric: canonical name.
        steps: [n] the steps of these values, n >= 1, rising.
        every: the metric has no other value.

    Example:
        >>> nonfinite_note("train/ce_nats", np.array([1000, 2000]), every=False)
        'train/ce_nats: 2 values are NaN or infinite, from step 1,000 to 2,000; they are left out'
    """
    first, last = int(steps[0]), int(steps[-1])
    where = f"from step {first:,} to {last:,}" if len(steps) > 1 else f"at step {first:,}"
    if every:
        all_of = f"all {len(steps):,} values are" if len(steps) > 1 else "its one value is"
        return f"{metric}: {all_of} NaN or infinite, {where}: it has no curve"
    if len(steps) > 1:
        return f"{metric}: {len(steps):,} values are NaN or infinite, {where}; they are left out"
    return f"{metric}: 1 value is NaN or infinite, {where}; it is left out"
