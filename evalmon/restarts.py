"""Steps logged again after a restart: which copy of each counts.

A run that crashes at step 212 and resumes from the checkpoint of step 200 logs 201 to 212 twice.
The later copies are what the weights of today have seen; the earlier ones belong to a branch
that was given up, together with every step of that branch that was never reached again.
"""

from dataclasses import dataclass

import numpy as np

from evalmon.types import FloatArray, IntArray

__all__ = ["Continuity", "Resolved", "abandoned", "continuity", "resolve"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Rows of a log, parted into those that count and those left behind.

    Attributes:
        kept: [n] positions of the rows that count, by rising step.
        seams: steps from which a restart went on (the last kept step before each restart; the
            step before the first kept one where nothing earlier is left).
        superseded: [m] positions of the rows a restart left behind, ascending.
    """

    kept: IntArray
    seams: tuple[int, ...]
    superseded: IntArray


@dataclass(frozen=True, slots=True)
class Continuity:
    """How a restart's values compare with those it replaced, at the same steps.

    Attributes:
        steps: [n] steps that both branches logged.
        difference: mean of later minus earlier value over these steps.
        standard_error: of that mean, infinite for a single step.
    """

    steps: IntArray
    difference: float
    standard_error: float


def resolve(steps: IntArray, order: IntArray | FloatArray | None = None) -> Resolved:
    """Keep the last copy of each step, and drop what a restart left behind.

    A row counts when every row logged after it has a higher step. That is one running minimum
    from the end, so a log of a million rows takes milliseconds.

    Args:
        steps: [n] optimizer steps in the order they were logged, or in any order with ``order``.
        order: [n] sort key that tells when each row was logged, such as wall time; rows of one
            key keep their order. None where the rows already are in the order they were logged.

    Returns:
        The rows to keep, the seams and the rows left behind.

    Example:
        >>> found = resolve(np.array([1, 2, 3, 4, 3, 4, 5]))
        >>> found.kept.tolist(), found.seams, found.superseded.tolist()
        ([0, 1, 4, 5, 6], (2,), [2, 3])
    """
    if len(steps) == 0:
        return Resolved(np.empty(0, np.int64), (), np.empty(0, np.int64))
    rank = np.arange(len(steps)) if order is None else np.argsort(order, kind="stable")
    logged = steps if order is None else steps[rank]
    later = np.minimum.accumulate(logged[::-1])[::-1]
    counts = np.ones(len(steps), np.bool_)
    counts[:-1] = logged[:-1] < later[1:]
    at = np.flatnonzero(counts)
    joints = np.flatnonzero(np.diff(at) > 1)
    seams = [int(step) for step in logged[at[joints]]]
    if at[0] > 0:
        seams.insert(0, max(int(logged[at[0]]) - 1, 0))
    return Resolved(
        kept=rank[at].astype(np.int64),
        seams=tuple(seams),
        superseded=np.sort(rank[~counts]).astype(np.int64),
    )


def abandoned(
    steps: IntArray, resumed_from: FloatArray, order: IntArray | FloatArray | None = None
) -> IntArray:
    """Find what a restart left behind where the log names the checkpoint it resumed from.

    For exports in which a service kept the values of the branch that was given up and dropped the
    later ones: no step stands there twice, and nothing but the checkpoint's step tells that what
    remains between it and the crash is of the abandoned branch.

    Args:
        steps: [n] steps as exported.
        resumed_from: [n] step of the checkpoint that the row's part of the run resumed from, NaN
            where none is given. Giving it in the first row after the restart is enough.
        order: as for ``resolve``.

    Returns:
        [m] positions of the rows left behind, ascending.

    Example:
        >>> abandoned(np.array([199, 200, 201, 212, 213]), np.array([np.nan] * 4 + [200]))
        array([2, 3])
    """
    rank = np.arange(len(steps)) if order is None else np.argsort(order, kind="stable")
    named = rank[np.isfinite(resumed_from[rank])]
    place = np.empty(len(steps), np.int64)
    place[rank] = np.arange(len(steps))
    left = np.zeros(len(steps), np.bool_)
    changes = np.flatnonzero(np.diff(resumed_from[named], prepend=np.nan) != 0)
    for row in named[changes]:
        left |= (place < place[row]) & (steps > resumed_from[row])
    return np.flatnonzero(left).astype(np.int64)


def continuity(steps: IntArray, values: FloatArray, resolved: Resolved) -> Continuity | None:
    """Compare the two branches of a restart at the steps both have logged.

    The last value before a crash and the first after it are of different steps and different
    batches; only values of the same step can show that a restart changed the run.

    Args:
        steps: [n] steps of all rows.
        values: [n] values of all rows, nats.
        resolved: what ``resolve`` said of these rows.

    Returns:
        The mean difference, None where no finite step was logged twice.
    """
    left = resolved.superseded[np.isfinite(values[resolved.superseded])]
    kept = resolved.kept[np.isfinite(values[resolved.kept])]
    places = np.searchsorted(steps[kept], steps[left])
    inside = places < len(kept)
    left, places = left[inside], places[inside]
    same = steps[kept[places]] == steps[left]
    left, again = left[same], kept[places[same]]
    if len(left) == 0:
        return None
    apart = values[again] - values[left]
    error = float(apart.std(ddof=1) / np.sqrt(len(apart))) if len(apart) > 1 else float("inf")
    return Continuity(np.unique(steps[left]), float(apart.mean()), error)
