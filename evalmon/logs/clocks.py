"""Whether a column of wall time tells in which order a run logged its rows.

It does where it counts seconds since one moment, such as the epoch. One that starts anew with each
process, or stands still, would put rows of two processes among each other, and what was logged
once would pass for a branch that a restart gave up.
"""

from dataclasses import dataclass

import numpy as np

from evalmon.logs.log_order import too_many
from evalmon.types import FloatArray, IntArray

__all__ = ["Fault", "early", "fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a clock is none.

    Attributes:
        at: position of the row at which it shows.
        why: what the clock does there, to follow "at line 3".
    """

    at: int
    why: str


def fault(steps: IntArray, clock: FloatArray) -> Fault | None:
    """Look for the place where a clock contradicts the steps it stands beside.

    Args:
        steps: [n] steps of the metric that tells of restarts, as they stand in the file.
        clock: [n] wall time of each, in seconds, finite.

    Returns:
        The first place that shows it, None where the clock can be trusted: by its order a step
        that stands there once comes after no later one, and steps go back at a few places only.

    Example:
        >>> fault(np.array([1, 2, 3, 4]), np.array([10.0, 20.0, 0.0, 10.0])).why
        'the clock falls from 20 to 0 while the steps go on from 2 to 3'
        >>> fault(np.array([3, 4, 1, 2, 3]), np.array([30.0, 40.0, 0.0, 10.0, 20.0])) is None
        True
    """
    back, passed = np.flatnonzero(np.diff(steps) < 0), np.diff(clock)
    falls = np.flatnonzero(passed < 0)
    if len(falls) == 0:  # the file is in the order of its clock
        still = back[passed[back] == 0]
        if len(still):
            return _fault(steps, clock, int(still[0]))
        return _fault(steps, clock, int(back[0])) if too_many(len(back), len(steps)) else None
    order = np.argsort(clock, kind="stable")
    logged = steps[order]
    rewinds = np.flatnonzero(np.diff(logged) < 0)
    if len(rewinds) == 0:
        return None
    if (
        too_many(len(rewinds), len(steps))
        or bool((np.diff(clock[order])[rewinds] == 0).any())
        or _late_singles(logged)
        or (len(back) > 0 and _overlapping(steps, clock))
    ):
        rising = falls[steps[falls] < steps[falls + 1]]
        return _fault(steps, clock, int((rising if len(rising) else falls)[0]))
    return None


def early(steps: IntArray, clock: FloatArray, at: tuple[IntArray, FloatArray]) -> Fault | None:
    """Look whether most points are older than what was trained for them: another clock's.

    Args:
        steps: [n] steps of a metric.
        clock: [n] its wall time.
        at: [m] steps and [m] wall time of the trainer's metric.

    Returns:
        The first such point, None where at most half of them are.
    """
    order = np.argsort(at[0], kind="stable")
    trained, when = at[0][order], at[1][order]
    below = np.searchsorted(trained, steps) - 1
    first = np.minimum.accumulate(when[::-1])[::-1]  # the earliest at this step or a later one
    there = np.flatnonzero((below >= 0) & (clock < first[np.maximum(below, 0)]))
    if 2 * len(there) <= len(steps):
        return None
    row, before = int(there[0]), int(below[there[0]])
    return Fault(
        row,
        f"the clock says {clock[row]:.15g} at step {steps[row]}, and {when[before]:.15g} at the "
        f"train loss of step {trained[before]}",
    )


def _late_singles(logged: IntArray) -> bool:
    """Return whether a step that stands there once comes, by the clock, after a later one.

    Between the first and the last step logged twice a run may log more often than before.
    """
    ordered = np.sort(logged)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    late = logged[logged < np.maximum.accumulate(logged)]
    if len(twice) == 0:
        return len(late) > 0
    return bool(((late < twice[0]) | (late > twice[-1])).any())


def _overlapping(steps: IntArray, clock: FloatArray) -> bool:
    """Return whether stretches of the file in which steps and clock rise overlap by the clock."""
    joints = np.flatnonzero((np.diff(steps) <= 0) | (np.diff(clock) < 0))
    starts, ends = clock[np.r_[0, joints + 1]], clock[np.r_[joints, len(clock) - 1]]
    if too_many(len(joints), len(clock)):  # shuffled rows: the file's own order tells nothing
        return False
    order = np.argsort(starts, kind="stable")
    return bool((np.maximum.accumulate(ends[order])[:-1] > starts[order][1:]).any())


def _fault(steps: IntArray, clock: FloatArray, at: int) -> Fault:
    """Say what the clock does between a row and the next."""
    one, two = float(clock[at]), float(clock[at + 1])
    does = "stands still at" if one == two else "falls from" if one > two else "rises from"
    seconds = f"{one:.15g}" if one == two else f"{one:.15g} to {two:.15g}"
    goes = (
        "go on"
        if steps[at] < steps[at + 1]
        else "stay"
        if steps[at] == steps[at + 1]
        else "go back"
    )
    return Fault(
        at + 1,
        f"the clock {does} {seconds} while the steps {goes} from {steps[at]} to {steps[at + 1]}",
    )
