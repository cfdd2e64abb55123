"""Tolerance bands for figures, and the literal comparison of one window.

The literal comparison asks whether train loss fell by more than 0.005 nats beyond
what the holdout gained. It is an **observation**: healthy runs make it at most of their
windows, so no finding, verdict or alert rests on it. Those come from
:mod:`evalmon.detectors`.
"""

from dataclasses import dataclass

import numpy as np

from evalmon.types import FloatArray, IntArray, Series, ToleranceBand

__all__ = [
    "LITERAL_TOLERANCE_NATS",
    "WindowComparison",
    "around",
    "compare_window",
    "last_window",
    "unmatched",
]

LITERAL_TOLERANCE_NATS = 0.005
"""The tolerance of the literal comparison."""

_ROUNDING = 1e-9  # losses near 10 carry float64 errors below 1e-14; logs print six digits


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """Train and holdout loss at both ends of one token window.

    Attributes:
        train_drop_nats: train loss at the start minus at the end.
        holdout_gain_nats: the same of the holdout.
    """

    train_drop_nats: float
    holdout_gain_nats: float

    @property
    def shortfall_nats(self) -> float:
        """What the holdout lacks of the train drop."""
        return self.train_drop_nats - self.holdout_gain_nats


def unmatched(window: WindowComparison) -> bool:
    """Tell whether the train drop exceeds the holdout gain by more than 0.005 nats.

    Example:
        >>> unmatched(WindowComparison(2.505 - 2.5, 0.0))
        False
        >>> unmatched(WindowComparison(2.5051 - 2.5, 0.0))
        True
    """
    return window.shortfall_nats > LITERAL_TOLERANCE_NATS + _ROUNDING


def compare_window(train: Series, holdout: Series, start: int, stop: int) -> WindowComparison:
    """Compare two evaluations of a run.

    Args:
        train: windowed train CE at the evaluations.
        holdout: holdout CE at the same evaluations.
        start: position of the earlier evaluation.
        stop: position of the later one.

    Returns:
        Train drop and holdout gain between them.
    """
    return WindowComparison(
        float(train.values[start] - train.values[stop]),
        float(holdout.values[start] - holdout.values[stop]),
    )


def last_window(train: FloatArray, holdout: FloatArray) -> WindowComparison | None:
    """Compare the last evaluation with the one before, None without two.

    Args:
        train: [n] windowed train CE at the evaluations, in nats.
        holdout: [n] holdout CE there.

    Example:
        >>> import numpy as np
        >>> last_window(np.array([2.5, 2.25]), np.array([2.75, 2.75])).shortfall_nats
        0.25
    """
    if len(train) < 2:
        return None
    return WindowComparison(float(train[-2] - train[-1]), float(holdout[-2] - holdout[-1]))


def around(tokens: IntArray, center: FloatArray, tolerance: FloatArray) -> ToleranceBand:
    """Return the band ``center ± tolerance``.

    Example:
        >>> import numpy as np
        >>> band = around(np.array([1]), np.array([2.0]), np.array([0.5]))
        >>> band.low.tolist(), band.high.tolist()
        ([1.5], [2.5])
    """
    return ToleranceBand(tokens, np.subtract(center, tolerance), np.add(center, tolerance))
