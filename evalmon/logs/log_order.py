"""Whether rows may stand in the order in which a run with restarts logged them."""

import numpy as np

from evalmon.types import IntArray

__all__ = ["distinct", "is_log_order", "too_many"]

_REWINDS = 1 / 3
"""More rows than this share going back is no order a run was logged in."""
_MOST_RESTARTS = 200
"""More places that go back than this are no restarts of one run."""
_GOOD_PART = 1 / 2
"""Share of what a restart would throw away that it must have logged again by the end of the file.
Rows pasted behind a table hold less of it; a run that has just resumed needs a clock to be told."""


def is_log_order(steps: IntArray) -> bool:
    """Return whether steps may be of a run that resumed wherever they go back.

    Args:
        steps: [n] steps as they stand in the file.

    Example:
        >>> is_log_order(np.array([1, 2, 3, 2, 3, 4])), is_log_order(np.array([2, 3, 1, 2]))
        (True, False)
    """
    back = np.flatnonzero(np.diff(steps) < 0) + 1
    if too_many(len(back), len(steps)) or not bool((steps[back] >= steps[0]).all()):
        return False
    return all(_goes_on(steps[:at], steps[at:]) for at in back.tolist())


def too_many(rewinds: int, rows: int) -> bool:
    """Return whether steps go back at more places than restarts explain."""
    return rewinds > min(_REWINDS * rows, _MOST_RESTARTS)


def distinct(steps: IntArray) -> IntArray:
    """Return each step once, rising; of steps that rise already without sorting them."""
    return steps if bool((np.diff(steps) > 0).all()) else np.unique(steps)


def _goes_on(old: IntArray, new: IntArray) -> bool:
    """Return whether rows logged after the steps went back are a run that resumed.

    A run that resumed logs again what it threw away, at every step or more seldom, and runs on.
    Rows pasted behind others do not, nor does a whole table that stands there twice.
    """
    first, reached = int(new[0]), int(old.max())
    before = len(distinct(old[old >= first]))
    again = distinct(new[(new >= first) & (new <= reached)])
    if first <= int(old.min()) and int(new.max()) == reached and len(again) == before:
        return False
    if len(again) >= _GOOD_PART * before:
        return True
    beyond = new > reached
    if len(again) < 2 or not bool(beyond.any()):
        return False
    joint = int(np.argmax(beyond))  # logged more seldom than before, yet without a hole
    stretch = distinct(new[:joint])
    return len(stretch) > 1 and int(new[joint] - stretch[-1]) <= 2 * int(np.diff(stretch).max())
