"""The literal ±0.005 comparison of each window of a run, to be shown as an observation."""

import numpy as np

from evalmon import bands
from evalmon.report.view import LiteralTrace
from evalmon.types import Series

__all__ = ["trace"]


def trace(train: Series | None, holdout: Series | None) -> LiteralTrace | None:
    """Compare every evaluation with the one before.

    Args:
        train: windowed train CE at the evaluations, None where it cannot be read.
        holdout: holdout CE at the evaluations. One without a train loss, as at step 0, ends no
            window.

    Returns:
        One entry a window; None with fewer than two evaluations that have both losses.

    Example:
        >>> import numpy as np
        >>> at = np.array([10, 20])
        >>> found = trace(Series("t", at, at, np.array([3.0, 2.5])),
        ...               Series("h", at, at, np.array([3.5, 3.25])))
        >>> found.shortfall_nats, found.unmatched
        ((0.25,), (True,))
    """
    if train is None or holdout is None:
        return None
    steps, own, other = np.intersect1d(train.steps, holdout.steps, return_indices=True)
    if len(steps) < 2:
        return None
    trains = Series(train.metric, steps, train.tokens[own], train.values[own])
    holdouts = Series(holdout.metric, steps, holdout.tokens[other], holdout.values[other])
    found = [bands.compare_window(trains, holdouts, n - 1, n) for n in range(1, len(steps))]
    return LiteralTrace(
        tokens=tuple(holdouts.tokens[1:].tolist()),
        train_drop_nats=tuple(item.train_drop_nats for item in found),
        holdout_gain_nats=tuple(item.holdout_gain_nats for item in found),
        shortfall_nats=tuple(item.shortfall_nats for item in found),
        unmatched=tuple(bands.unmatched(item) for item in found),
        tolerance_nats=bands.LITERAL_TOLERANCE_NATS,
    )
