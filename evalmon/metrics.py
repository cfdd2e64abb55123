"""Pure numbers: what a score is, how sure it is, and how paired values differ.

An estimate carries its standard error, or None where one item gives none; it is never 0
for "unknown" (EleutherAI/lm-evaluation-harness issue 4070).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Estimate",
    "Interval",
    "accuracy",
    "bits_per_byte",
    "mean",
    "paired_difference",
    "perplexity",
    "pooled_ratio",
    "unweighted_mean",
    "wilson_interval",
]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its standard error.

    Attributes:
        value: the estimate.
        stderr: its standard error in the same unit, None where it cannot be told.
        items: independent items it rests on.
    """

    value: float
    stderr: float | None
    items: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A value between the ends of its confidence interval.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
        items: items it rests on.
    """

    value: float
    low: float
    high: float
    items: int


def bits_per_byte(nats: float, utf8_bytes: int) -> float:
    """Return bits per UTF-8 byte: nats / (ln 2 * bytes), comparable across tokenizers.

    Args:
        nats: summed negative log-probability of the text.
        utf8_bytes: bytes of the raw text, at least 1.

    Raises:
        ValueError: no bytes.

    Example:
        >>> round(bits_per_byte(6.0, 8), 4)  # "a bb ccc"
        1.082
    """
    if utf8_bytes < 1:
        raise ValueError(f"bits per byte of {utf8_bytes} bytes; a text has at least one")
    return nats / (math.log(2) * utf8_bytes)


def perplexity(nats: float, units: int) -> float:
    """Return exp(nats / units): of a token, a word or a byte, as the units are.

    Args:
        nats: summed negative log-probability of the text.
        units: its tokens, words or bytes, at least 1.

    Raises:
        ValueError: no units.

    Example:
        >>> [round(perplexity(6.0, n), 4) for n in (5, 3, 8)]  # "a bb ccc" in 5 tokens
        [3.3201, 7.3891, 2.117]
    """
    if units < 1:
        raise ValueError(f"perplexity over {units} units; a text has at least one")
    return math.exp(nats / units)


def mean(values: ArrayLike) -> Estimate:
    """Return the mean of independent items, with the standard error sd / sqrt(n).

    Args:
        values: [n] at least one.

    Raises:
        ValueError: no values.

    Example:
        >>> mean([1, 0, 1, 1])
        Estimate(value=0.75, stderr=0.25, items=4)
    """
    array = _column(values)
    count = len(array)
    stderr = float(array.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    return Estimate(float(array.mean()), stderr, count)


def accuracy(correct: Sequence[bool | int | float]) -> Estimate:
    """Return the share of items answered correctly.

    Args:
        correct: [n] 1 or 0 an item.

    Returns:
        The fraction in [0, 1]. Where all items agree the standard error of the mean is 0
        and says nothing: see :func:`wilson_interval`.

    Raises:
        ValueError: no items, or a value other than 0 and 1.
    """
    array = _column(correct)
    if not np.isin(array, (0.0, 1.0)).all():
        raise ValueError("accuracy needs one 0 or 1 an item")
    return mean(array)


def wilson_interval(successes: int, items: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a share, sound at 0 and at 1.

    Args:
        successes: items answered correctly.
        items: all items, at least 1.
        confidence: coverage, in (0, 1).

    Source: Wilson, Probable Inference, JASA 22 (1927) 209.

    Example:
        >>> round(wilson_interval(0, 25).high, 4)
        0.1332
    """
    if items < 1 or not 0 <= successes <= items:
        raise ValueError(f"{successes} successes of {items} items")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / items
    shrink = 1 + z * z / items
    center = (share + z * z / (2 * items)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / items + z * z / (4 * items * items))
    # At 0 and 1 the ends meet the share itself, which rounding could just miss.
    low, high = min(share, max(0.0, center - half)), max(share, min(1.0, center + half))
    return Interval(share, low, high, items)


def pooled_ratio(totals: ArrayLike, sizes: ArrayLike) -> Estimate:
    """Return sum(totals) / sum(sizes) over documents, with a cluster-robust error.

    The ratio estimator: each document is one cluster, so tokens of one document need
    not be independent. With r the ratio and e = total - r * size,
    stderr = sqrt(n / (n - 1) * sum(e**2)) / sum(sizes).

    Args:
        totals: [n] summed nats (or bits) of each document.
        sizes: [n] its tokens (or bytes), each above 0.

    Returns:
        The pooled value (never the mean of per-document values), its standard error and
        the number of documents.

    Raises:
        ValueError: lengths differ, or a size is not positive.

    Source: Cochran, Sampling Techniques, 3rd ed., section 6.4.

    Example:
        >>> pooled_ratio([6.0, 3.0], [5, 1]).value  # 9 nats over 6 tokens
        1.5
    """
    total, size = _column(totals), _column(sizes)
    if len(total) != len(size) or (size <= 0).any():
        raise ValueError(f"{len(total)} totals and {len(size)} sizes; each needs a positive size")
    ratio = float(total.sum() / size.sum())
    count = len(total)
    if count < 2:
        return Estimate(ratio, None, count)
    residual = total - ratio * size
    scatter = count / (count - 1) * float(residual @ residual)
    return Estimate(ratio, math.sqrt(scatter) / float(size.sum()), count)


def unweighted_mean(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent estimates, each counting the same.

    stderr = sqrt(sum(stderr**2)) / k, the error of this mean and not of the pooled one.

    Args:
        estimates: [k] at least one.

    Example:
        >>> group = unweighted_mean([Estimate(0.8, 0.0402, 100), Estimate(0.4, 0.1633, 10)])
        >>> round(group.value, 4), round(group.stderr, 4)
        (0.6, 0.0841)
    """
    if not estimates:
        raise ValueError("the mean of no estimates")
    count = len(estimates)
    known = [item.stderr for item in estimates if item.stderr is not None]
    stderr = math.sqrt(sum(error * error for error in known)) / count
    return Estimate(
        value=sum(item.value for item in estimates) / count,
        stderr=stderr if len(known) == count else None,
        items=sum(item.items for item in estimates),
    )


def paired_difference(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean of first - second over pairs, with Student's t interval.

    Args:
        first: [n] one value a pair, at least two.
        second: [n] the other value of the same pair.
        confidence: coverage, in (0, 1).

    Raises:
        ValueError: fewer than two pairs, or lengths differ.

    Example:
        >>> found = paired_difference([2.0, 3.0, 4.0], [1.0, 2.0, 2.0])
        >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
        (1.3333, -0.1009, 2.7676)
    """
    from scipy.special import stdtrit

    left, right = _column(first), _column(second)
    if len(left) != len(right) or len(left) < 2:
        raise ValueError(f"{len(left)} and {len(right)} values; pairs are needed, at least two")
    found = mean(left - right)
    half = float(stdtrit(len(left) - 1, 0.5 + confidence / 2)) * (found.stderr or 0.0)
    return Interval(found.value, found.value - half, found.value + half, found.items)


def _column(values: ArrayLike) -> NDArray[np.float64]:
    """Return values as one column of float64, at least one."""
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(array):
        raise ValueError("no values")
    return array
