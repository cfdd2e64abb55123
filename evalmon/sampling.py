"""Whether a history holds every n-th step, or a selection nobody can account for."""

import numpy as np

from evalmon.types import IntArray, Sampling

__all__ = ["recognize"]

_PRESENT = 0.9
"""Share of a grid's steps that must be there; below it steps were selected, not lost."""
_LEVEL_STRETCH = 10
"""Equal gaps in a row that make a stretch of one interval: a selection that leaves out one step in
ten holds few of them, a trainer whose interval changed holds nothing else."""


def recognize(
    steps: IntArray, *, evaluations: IntArray | None = None, both_keys: bool = False
) -> tuple[Sampling, str]:
    """Tell a full history from a selection, by its steps alone.

    A trainer logs every n-th step. A service that draws 500 rows at random leaves gaps of every
    length, and one that is asked for rows holding two keys returns only the evaluations.

    Args:
        steps: [n] rising steps of one metric.
        evaluations: [m] steps of the evaluations of the same source.
        both_keys: the source is one that may have been asked for rows holding several keys.

    Returns:
        FULL with "", or SAMPLED with a note that gives counts, gaps, first and last step.

    Example:
        >>> recognize(np.arange(1, 2001))
        (<Sampling.FULL: 'full'>, '')
        >>> recognize(np.array([3, 4, 9, 11, 12, 30, 31, 40]))[1]
        '8 points of steps 3 to 40, gaps of 1 to 18 steps: 21 percent of every 1st step; first and \
last step may be missing'
    """
    if len(steps) < 3:
        return Sampling.FULL, ""
    gaps = np.diff(steps)
    even = int(gaps.min()) == int(gaps.max())  # the usual case, without sorting a million gaps
    lengths, counts = np.unique(gaps[:1] if even else gaps, return_counts=True)
    interval = int(lengths[np.argmax(counts)])
    only_evaluations = (
        both_keys
        and interval > 1
        and evaluations is not None
        and bool(np.isin(steps, evaluations).all())
    )
    if only_evaluations:
        return Sampling.SAMPLED, (
            f"all {len(steps)} train points (steps {steps[0]} to {steps[-1]}) lie on "
            "evaluations: rows that lack one of the keys were left out, or the train loss is "
            "logged only there (then say that it is thinned)"
        )
    if even:
        return Sampling.FULL, ""
    present = _share_of_grid(steps, gaps, interval)
    if present >= _PRESENT or _share_in_stretches(gaps) >= _PRESENT:
        return Sampling.FULL, ""
    return Sampling.SAMPLED, (
        f"{len(steps)} points of steps {steps[0]} to {steps[-1]}, gaps of {lengths[0]} to "
        f"{lengths[-1]} steps: {100 * present:.0f} percent of every {_ordinal(interval)} step; "
        "first and last step may be missing"
    )


def _share_of_grid(steps: IntArray, gaps: IntArray, interval: int) -> float:
    """Return the share of a regular grid's steps that is there, 0 where they do not lie on it.

    An interval that is no whole number (an epoch of 190.7 steps) lets gaps differ by one step.
    """
    slack = 1 if interval >= 20 else 0
    multiples = np.maximum(np.rint(gaps / interval), 1)
    fits = np.abs(gaps - multiples * interval) <= slack * multiples
    fits[-1] |= gaps[-1] < interval  # the last step of a run is logged wherever it falls
    fits[0] |= gaps[0] < interval  # and so are step 0 or 1
    points = int(np.count_nonzero(fits)) + 1
    span = max(round((int(steps[-1]) - int(steps[0])) / interval), 1) + 1
    return min(points / span, points / len(steps))


def _share_in_stretches(gaps: IntArray) -> float:
    """Return the share of gaps that stand among many equal ones."""
    edges = np.flatnonzero(np.diff(gaps)) + 1
    lengths = np.diff(np.concatenate(([0], edges, [len(gaps)])))
    return float(lengths[lengths >= _LEVEL_STRETCH].sum() / len(gaps))


def _ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in {11, 12, 13} else 0)
    return f"{number}{ending or 'th'}"
