"""Paired answers: of n items, b were right by the first alone and c by the second alone.

The difference of the two accuracies is (b - c) / n. Items both answered alike say nothing of
its sign, only how small it can be.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evalmon.metrics import Interval

__all__ = [
    "MARGIN_ACC",
    "detectable_paired",
    "discordant",
    "mcnemar",
    "score_interval",
    "shows_equivalence",
    "wald_stderr",
]

MARGIN_ACC = 0.005
"""Differences up to this count as equal."""

_EXACT_UP_TO = 25  # discordant items: below, the normal approximation of McNemar's test is rough
_NORMAL = NormalDist()
_Z90 = _NORMAL.inv_cdf(0.95)


def discordant(first: ArrayLike, second: ArrayLike) -> tuple[int, int, int]:
    """Return (b, c, n): right by the first alone, right by the second alone, all items.

    Args:
        first: [n] 1 or 0 an item, at least one.
        second: [n] the same of the other, in the same order.

    Raises:
        ValueError: lengths differ, no items, or a value other than 0 and 1.

    Example:
        >>> discordant([1, 1, 0, 1], [1, 0, 1, 0])
        (2, 1, 4)
    """
    left, right = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if left.shape != right.shape or left.ndim != 1 or not len(left):
        raise ValueError(f"{left.shape} and {right.shape} answers; pairs are needed, at least one")
    if not np.isin([left, right], (0.0, 1.0)).all():
        raise ValueError("an answer is neither 0 nor 1; use compare_values for other numbers")
    return int((left > right).sum()), int((left < right).sum()), len(left)


def mcnemar(b: int, c: int) -> float:
    """Return the two-sided p-value of McNemar's test that b and c are equally likely.

    Exact (binomial) below 25 discordant items, else from z = (b - c) / sqrt(b + c).

    Source: McNemar, Psychometrika 12 (1947) 153.

    Example:
        >>> mcnemar(6, 0), mcnemar(0, 0), round(mcnemar(60, 40), 4)
        (0.03125, 1.0, 0.0455)
    """
    from scipy.special import bdtr

    if b + c < _EXACT_UP_TO:
        return min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5))) if b != c else 1.0
    return math.erfc(abs(b - c) / math.sqrt(2 * (b + c)))


def wald_stderr(b: int, c: int, n: int) -> float:
    """Return sqrt(b + c - (b - c)**2 / n) / n, the standard error of (b - c) / n.

    It is 0 where nothing differs, which is not certainty: see :func:`score_interval`.
    """
    return math.sqrt(max(0.0, b + c - (b - c) ** 2 / n)) / n


def score_interval(b: int, c: int, n: int, confidence: float = 0.95) -> Interval:
    """Return Tango's score interval of the paired difference (b - c) / n.

    The differences that a score test does not reject; sound at b + c = 0, where it is
    ±z**2 / (n + z**2), and wherever b or c is 0.

    Args:
        b: items the first alone answered rightly.
        c: items the second alone answered rightly.
        n: all items, at least b + c and 1.
        confidence: coverage, in (0, 1).

    Raises:
        ValueError: counts that cannot be.

    Source: Tango, Statist. Med. 17 (1998) 891.

    Example:
        >>> found = score_interval(9, 3, 32)
        >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
        (0.1875, -0.0271, 0.3897)
    """
    if min(b, c) < 0 or n < max(1, b + c):
        raise ValueError(f"{b} and {c} discordant items of {n}")
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    value = (b - c) / n
    low, high = -1.0, 1.0
    if value > -1:
        low = _root(lambda at: _score(b, c, n, at) - z, -1.0, value)
    if value < 1:
        high = _root(lambda at: _score(b, c, n, at) + z, value, 1.0)
    return Interval(value, low, high, n)


def shows_equivalence(b: int, c: int, n: int, margin: float = MARGIN_ACC) -> bool:
    """Tell whether two one-sided score tests at 5 % place the difference within the margin.

    The same as: the 90 % score interval lies inside ±margin.

    Example:
        >>> shows_equivalence(150, 150, 10_042), shows_equivalence(59, 59, 1172)
        (True, False)
    """
    return _score(b, c, n, -margin) > _Z90 and _score(b, c, n, margin) < -_Z90


def detectable_paired(n: int, discordance: float, alpha: float, power: float = 0.8) -> float:
    """Return the least paired difference d that McNemar's test finds with a given power.

    Solves d sqrt(n) = z(1 - alpha/2) sqrt(psi) + z(power) sqrt(psi - d**2), psi being the
    discordance, or d where that is larger: fewer items than d cannot differ.

    Args:
        n: items.
        discordance: share of items on which the two differ, in [0, 1].
        alpha: two-sided level.
        power: chance to find it.

    Returns:
        The difference, 1 where n items are too few for any.

    Source: Connor, Biometrics 43 (1987) 207.

    Example:
        >>> round(detectable_paired(1172, 0.10, 0.05), 4)
        0.0259
    """
    level, chance = _NORMAL.inv_cdf(1 - alpha / 2), _NORMAL.inv_cdf(power)

    def excess(difference: float) -> float:
        """Return by how much a difference is larger than needed, in standard errors."""
        psi = max(discordance, difference)
        spread = math.sqrt(max(0.0, psi - difference * difference))
        return difference * math.sqrt(n) - level * math.sqrt(psi) - chance * spread

    return _root(excess, 1e-12, 1.0) if excess(1.0) > 0 else 1.0


def _score(b: int, c: int, n: int, difference: float) -> float:
    """Return Tango's score statistic of a true difference, falling from +inf at -1."""
    if difference in (-1.0, 1.0):
        return -math.inf * difference
    linear = -b - c + (2 * n - b + c) * difference
    constant = -c * difference * (1 - difference)
    share = (math.sqrt(max(0.0, linear * linear - 8 * n * constant)) - linear) / (4 * n)
    variance = n * (2 * share + difference * (1 - difference))
    distance = b - c - n * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a monotone function, which may be infinite at the ends, crosses 0."""
    from scipy.optimize import bisect

    found: Any = bisect(function, low, high, xtol=1e-12)
    return float(found)
