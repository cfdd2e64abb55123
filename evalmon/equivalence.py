"""Two accuracies compared: is one better, are they the same within 0.005, or can nobody say?

"No significant difference" is not "no difference". Each comparison gives an interval, a
p-value of no difference, whether equivalence is shown (two one-sided tests: the 90 %
interval lies inside the margin), and the least difference it could have found.

**Paired**, where both were scored on the same items and each answer is kept
(:mod:`evalmon.paired_counts`).

**Unpaired**, where only accuracies are known: from the number of items, or, where that is not
known either, from how much each accuracy moves between checkpoints.

Source: Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657 (two one-sided tests); Miller,
Adding Error Bars to Evals, arXiv 2411.00640.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from evalmon.metrics import Interval, paired_difference, wilson_interval
from evalmon.paired_counts import (
    MARGIN_ACC,
    detectable_paired,
    mcnemar,
    score_interval,
    shows_equivalence,
    wald_stderr,
)
from evalmon.types import Series

__all__ = [
    "FEWEST_POINTS",
    "Comparison",
    "Spread",
    "checkpoint_spread",
    "compare_counts",
    "compare_means",
    "compare_shares",
    "compare_values",
    "holm",
    "mean_of",
    "newcombe_interval",
    "p_value_of",
    "stderr_for_equivalence",
]

FEWEST_POINTS = 8
"""Evaluations that the spread between checkpoints is estimated from at least."""

_NORMAL = NormalDist()
_Z95, _Z90 = _NORMAL.inv_cdf(0.975), _NORMAL.inv_cdf(0.95)
_SECOND_DIFFERENCE_EXCESS = 35 / 18  # 1 + 2 sum rho^2 of residuals with rho = -2/3, 1/6


@dataclass(frozen=True, slots=True)
class Comparison:
    """One accuracy minus another, with what can be said of the difference.

    Attributes:
        value: the difference.
        low: lower end of its 95 % interval.
        high: upper end.
        p_value: of no difference, two-sided, not adjusted.
        stderr: standard error of the difference.
        equivalent: whether the 90 % interval lies within ``MARGIN_ACC`` of 0.
        df: degrees of freedom of the standard error, infinite where a normal law is used.
        items: items of each, None where not known.
        discordance: share of items on which the two differ, None unless paired and 0 or 1.
    """

    value: float
    low: float
    high: float
    p_value: float
    stderr: float
    equivalent: bool
    df: float = math.inf
    items: int | None = None
    discordance: float | None = None

    def detectable(self, alpha: float, power: float = 0.8) -> float:
        """Return the least true difference found with a given power.

        Args:
            alpha: two-sided level of the test, in (0, 1).
            power: chance to find it, in (0, 1).
        """
        if self.discordance is not None and self.items is not None:
            return detectable_paired(self.items, self.discordance, alpha, power)
        return (_quantile(1 - alpha / 2, self.df) + _quantile(power, self.df)) * self.stderr


@dataclass(frozen=True, slots=True)
class Spread:
    """How much a curve moves between neighboring evaluations beside its trend.

    Attributes:
        sd: standard deviation of one evaluation about a smooth trend.
        df: degrees of freedom it is known with.
    """

    sd: float
    df: float


def stderr_for_equivalence(margin: float = MARGIN_ACC, power: float = 0.8) -> float:
    """Return the standard error at which equal accuracies are found equivalent.

    margin / (z(0.95) + z((1 + power) / 2)): both one-sided tests at 5 % must pass.

    Example:
        >>> round(stderr_for_equivalence(), 5)
        0.00171
    """
    return margin / (_Z90 + _NORMAL.inv_cdf((1 + power) / 2))


def compare_counts(b: int, c: int, n: int) -> Comparison:
    """Compare two accuracies on the same items, from the items on which they differ.

    Args:
        b: items the first alone answered rightly.
        c: items the second alone answered rightly.
        n: all items.
    """
    found = score_interval(b, c, n)
    return Comparison(
        value=found.value,
        low=found.low,
        high=found.high,
        p_value=mcnemar(b, c),
        stderr=wald_stderr(b, c, n),
        equivalent=shows_equivalence(b, c, n),
        items=n,
        discordance=(b + c) / n,
    )


def compare_values(first: ArrayLike, second: ArrayLike) -> Comparison:
    """Compare two columns of numbers on the same items by the paired t test.

    For scores an item that are not 0 or 1: partial credit, nats, bits per byte.

    Args:
        first: [n] one value an item, at least two.
        second: [n] the same of the other, in the same order.

    Raises:
        ValueError: fewer than two pairs, or lengths differ.
    """
    found = paired_difference(first, second)
    df = found.items - 1
    stderr = (found.high - found.low) / 2 / _quantile(0.975, df)
    return _student(found.value, stderr, df, found.items)


def newcombe_interval(first: Interval, second: Interval) -> Interval:
    """Return the interval of first - second from the intervals of both, which are independent.

    Of the distances l and u from each estimate to its ends: first - second minus
    sqrt(l1**2 + u2**2), plus sqrt(u1**2 + l2**2). With Wilson's intervals this is Newcombe's
    hybrid score interval.

    Source: Newcombe, Statist. Med. 17 (1998) 873, method 10.

    Example:
        >>> found = newcombe_interval(wilson_interval(56, 70), wilson_interval(48, 80))
        >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
        (0.2, 0.0524, 0.3339)
    """
    value = first.value - second.value
    down = math.hypot(first.value - first.low, second.high - second.value)
    up = math.hypot(first.high - first.value, second.value - second.low)
    return Interval(value, value - down, value + up, min(first.items, second.items))


def compare_shares(first: float, second: float, items: int) -> Comparison:
    """Compare two accuracies of which only the number of items is known.

    Items count as independent between the two. On the same items the answers agree more
    often than that, so the interval is wider than need be, never narrower.

    Args:
        first: accuracy in [0, 1], of one checkpoint or a mean of several.
        second: the other.
        items: items of each, at least 1.

    Source: :func:`newcombe_interval`; the p-value is that of the pooled score test.

    Example:
        >>> round(compare_shares(0.8, 0.6, 70).p_value, 4)
        0.0098
    """
    counts = round(first * items), round(second * items)

    def around(confidence: float) -> tuple[float, float]:
        """Return the ends about the difference itself, with the widths of whole counts."""
        left, right = (wilson_interval(count, items, confidence) for count in counts)
        found = newcombe_interval(left, right)
        return value - (found.value - found.low), value + (found.high - found.value)

    value, pooled = first - second, (first + second) / 2
    stderr = math.sqrt((first * (1 - first) + second * (1 - second)) / items)
    null = math.sqrt(2 * max(0.0, pooled * (1 - pooled)) / items)
    low, high = around(0.95)
    low90, high90 = around(0.90)
    return Comparison(
        value=value,
        low=low,
        high=high,
        p_value=_two_sided(value / null) if null else 1.0,
        stderr=stderr,
        equivalent=low90 > -MARGIN_ACC and high90 < MARGIN_ACC,
        items=items,
    )


def checkpoint_spread(series: Series) -> Spread | None:
    """Return the spread of single evaluations about the trend of a curve.

    Each inner point is compared with the line through its two neighbors, in log tokens:
    e = y - w1 y1 - w2 y2, whose variance is sd**2 (1 + w1**2 + w2**2) whatever the trend.

    Args:
        series: evaluations at distinct, rising tokens.

    Returns:
        The spread, None with fewer than ``FEWEST_POINTS``.

    Source: Gasser, Sroka and Jennen-Steinmetz, Biometrika 73 (1986) 625.

    Example:
        >>> import numpy as np
        >>> at, noise = np.arange(100, 109), np.array([0, 1, 0, 1, 0, 1, 0, 1, 0]) * 0.01
        >>> round(checkpoint_spread(Series("x", at, at, 0.5 + noise)).sd, 4)
        0.0082
    """
    if len(series) < FEWEST_POINTS:
        return None
    x, y = np.log1p(series.tokens), series.values
    after = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    before = 1 - after
    residual = y[1:-1] - before * y[:-2] - after * y[2:]
    variance = float(np.mean(residual**2 / (1 + before**2 + after**2)))
    return Spread(math.sqrt(variance), len(residual) / _SECOND_DIFFERENCE_EXCESS)


def compare_means(value: float, parts: Sequence[tuple[float, Spread]]) -> Comparison:
    """Compare accuracies of which only the spread between checkpoints is known.

    Args:
        value: the difference.
        parts: of each accuracy, the factor of its sd**2 in the variance (1 / m for a mean of
            m checkpoints) and its spread.

    Raises:
        ValueError: none of them has any spread.

    Source: Welch, Biometrika 34 (1947) 28 (degrees of freedom of a sum).
    """
    shares = [(factor * spread.sd**2, spread.df) for factor, spread in parts]
    total = sum(share for share, _ in shares)
    if not total:
        raise ValueError("values that never move say nothing of how sure they are")
    df = total**2 / sum(share**2 / df for share, df in shares)
    return _student(value, math.sqrt(total), df, None)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for their number: each at most 0.05 is found with 5 % error in all.

    Sorted from the smallest of k, the i-th is multiplied by k - i, and is at least the one
    before it.

    Source: Holm, Scand. J. Statist. 6 (1979) 65.

    Example:
        >>> [round(p, 3) for p in holm([0.04, 0.01, 0.03])]
        [0.06, 0.03, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return tuple(adjusted)


def mean_of(parts: Sequence[Interval]) -> Interval:
    """Return the interval of the mean of independent estimates, from theirs.

    The mean minus sqrt(sum of squared distances to the lower ends) / k, and so above.

    Args:
        parts: [k] 95 % intervals, at least one.

    Source: Zou and Donner, Statist. Med. 27 (2008) 1693.

    Example:
        >>> found = mean_of([Interval(0.1, 0.07, 0.14, 9), Interval(0.3, 0.26, 0.33, 9)])
        >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
        (0.2, 0.175, 0.225)
    """
    count = len(parts)
    value = sum(part.value for part in parts) / count
    down = math.hypot(*(part.value - part.low for part in parts)) / count
    up = math.hypot(*(part.high - part.value for part in parts)) / count
    return Interval(value, value - down, value + up, sum(part.items for part in parts))


def p_value_of(interval: Interval) -> float:
    """Return the two-sided p-value of 0 by which a 95 % interval ends where it does.

    Example:
        >>> round(p_value_of(Interval(0.02, 0.0, 0.05, 9)), 4)
        0.05
    """
    side = interval.value - interval.low if interval.value > 0 else interval.high - interval.value
    if side <= 0:
        return 0.0 if interval.value else 1.0
    return _two_sided(_Z95 * interval.value / side)


def _student(value: float, stderr: float, df: float, items: int | None) -> Comparison:
    """Compare by Student's t."""
    from scipy.special import stdtr

    wide, narrow = _quantile(0.975, df) * stderr, _quantile(0.95, df) * stderr
    return Comparison(
        value=value,
        low=value - wide,
        high=value + wide,
        p_value=2 * float(stdtr(df, -abs(value) / stderr)) if stderr else float(value == 0),
        stderr=stderr,
        equivalent=abs(value) + narrow < MARGIN_ACC,
        df=df,
        items=items,
    )


def _quantile(share: float, df: float) -> float:
    """Return a quantile of Student's t, of the normal law at infinite degrees of freedom."""
    from scipy.special import stdtrit

    return _NORMAL.inv_cdf(share) if math.isinf(df) else float(stdtrit(df, share))


def _two_sided(z: float) -> float:
    """Return the chance of a normal deviate at least as far from 0."""
    return math.erfc(abs(z) / math.sqrt(2))
