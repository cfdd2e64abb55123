"""The channels of the curve rule: evidence at each evaluation, from it and those before.

All functions are vectorized over evaluations and causal: the value at evaluation k is a
function of evaluations 0..k. Evidence is of an unmatched drop; the mirrored rule
passes the same series with its sign changed.
"""

from bisect import insort
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from evalmon.detectors.curve import Points
from evalmon.detectors.profiles import (
    BaselineSettings,
    FastSettings,
    HoldSettings,
    LagSettings,
    LevelSettings,
    ShiftSettings,
    SlowSettings,
)
from evalmon.series import medians
from evalmon.types import FloatArray, IntArray

__all__ = [
    "BoolArray",
    "Evidence",
    "Lagged",
    "baseline_span",
    "fast",
    "hold",
    "lagged",
    "level",
    "running_median",
    "shift",
    "slow",
    "without_outliers",
]

BoolArray = NDArray[np.bool_]
_MEDIAN_VARIANCE = 1.57  # variance of a median of normals over that of their mean, pi / 2
_ROBUST_SD = 1.4826
_OUTLIER_WINDOW = 5
_OUTLIER_LEAST = 0.0025  # nats
_MOVED_WINDOW = 3
_MOSTLY = 2 / 3
_OWN_NOISE = (0.25, 4.0)  # variance of a window's own error over the mean one


@dataclass(frozen=True, slots=True)
class Evidence:
    """One channel's statistic against its limit.

    Attributes:
        channel: the channel's name.
        statistic: [n] value compared.
        limit: [n] value above which it alarms.
        ready: [n] whether the channel can judge.
    """

    channel: str
    statistic: FloatArray
    limit: FloatArray
    ready: BoolArray

    def fires(self, held: BoolArray) -> BoolArray:
        """Return [n] whether the channel alarms."""
        return self.ready & ~held & (self.statistic > self.limit)


@dataclass(frozen=True, slots=True)
class Lagged:
    """Local mean and noise from the lagged window.

    Attributes:
        mean: [n] mean x.
        moved: [m, n] mean of each series that the slope tolerance looks at.
        sigma: [n] noise of one x, autocorrelation included.
        explained: [n] how far the spread inside train windows accounts for it: 1 where two thirds
            of its square are the error of few train points, 0 where it is all of another kind.
    """

    mean: FloatArray
    moved: FloatArray
    sigma: FloatArray
    explained: FloatArray


def baseline_span(
    tokens: IntArray, planned: int, warmup: int, settings: BaselineSettings
) -> tuple[int, int]:
    """Return first position of the baseline and the position after its last.

    The second may lie beyond the evaluations at hand: then the baseline is not complete.
    """
    begin = max(settings.start_fraction * planned, settings.warmups * warmup)
    first = int(np.searchsorted(tokens, begin, side="left"))
    end = int(np.searchsorted(tokens, settings.end_fraction * planned, side="right"))
    complete = end < len(tokens) or bool(
        len(tokens) and tokens[-1] >= settings.end_fraction * planned
    )
    return first, max(end if complete else len(tokens) + 1, first + settings.evaluations)


def running_median(values: FloatArray, window: int) -> FloatArray:
    """Return [n] median of the last ``window`` values, of fewer at the beginning.

    Example:
        >>> import numpy as np
        >>> running_median(np.array([1.0, 5.0, 2.0, 9.0]), 3).tolist()
        [1.0, 3.0, 2.0, 5.0]
    """
    result = values.astype(np.float64)
    for k in range(min(window - 1, len(values))):
        result[k] = medians(values[: k + 1])
    if window > 1 and len(values) >= window:
        result[window - 1 :] = medians(sliding_window_view(values, window))
    return result


def hold(train: FloatArray, settings: HoldSettings) -> BoolArray:
    """Return [n] whether train CE stands out upwards, or did just before.

    Held while T_k exceeds the median of the windows before by more than
    max(floor, sigmas x sd), for at most ``longest`` windows, and ``after`` more. The sd
    is 1.4826 x median |difference of neighbors| / sqrt 2, which the spike's own first
    windows do not widen.
    """
    n, width = len(train), settings.history
    standing_out = np.zeros(n, np.bool_)
    if n > width:
        before = sliding_window_view(train, width)[: n - width]
        spread = _ROBUST_SD * medians(np.abs(np.diff(before, axis=1))) / np.sqrt(2)
        excess = np.maximum(settings.floor_nats, settings.sigmas * spread)
        standing_out[width:] = train[width:] > medians(before) + excess
    held = np.zeros(n, np.bool_)
    running = quiet = 0
    for k in range(n):
        running = running + 1 if standing_out[k] else 0
        if 0 < running <= settings.longest:
            held[k], quiet = True, settings.after
        elif quiet:
            held[k], quiet = True, quiet - 1
    return held


def without_outliers(r: FloatArray, sigmas: float) -> FloatArray:
    """Return r, what lies far from the running median of 5 being drawn to so many sigmas of it.

    The spread is 1.4826 x median |difference of neighbors| / sqrt 2 of all evaluations so far;
    less than 0.0025 nats is never taken for far.
    """
    middle = running_median(r, _OUTLIER_WINDOW)
    limit = np.empty(len(r))
    seen: list[float] = []
    for k, move in enumerate(np.abs(np.diff(r, prepend=r[:1])).tolist()):
        if k:
            insort(seen, move)
        half = seen[len(seen) // 2] if seen else 0.0
        limit[k] = sigmas * max(_ROBUST_SD * half / np.sqrt(2), _OUTLIER_LEAST)
    return np.clip(r, middle - limit, middle + limit)


def lagged(
    x: FloatArray,
    moved: FloatArray,
    points: Points,
    span: tuple[int, int],
    planned: int,
    settings: LagSettings,
) -> Lagged:
    """Return mean of x and of ``moved`` [m, n], and the noise of x, in each lagged window.

    The noise is the residual spread about a least-squares line, times
    sqrt((1 + phi) / (1 - phi)) with phi = 1 - sum d^2 / (2 n v), d the differences of
    neighboring residuals and v their variance. Before the lagged window holds enough
    evaluations the baseline stands in; before that is complete the values mean nothing. Where
    windows hold different numbers of train points, the noise follows: it is multiplied by the
    root of the window's own error variance over the mean one of the lagged window, within a
    factor of 2.
    """
    n, tokens = len(x), points.tokens
    first, after = span
    stop = np.searchsorted(tokens, tokens - settings.distance_fraction * planned, side="right")
    length = settings.distance_fraction + settings.length_fraction
    start = np.searchsorted(tokens, tokens - length * planned, side="left")
    start = np.maximum(start, first)
    thin = stop - start < settings.evaluations
    start = np.where(thin, min(first, n), start)
    stop = np.where(thin, min(after, n), stop)
    count = np.maximum(stop - start, 1)

    def total(values: FloatArray) -> FloatArray:
        """Sum over each window."""
        summed = np.concatenate([[0.0], np.cumsum(values)])
        return summed[stop] - summed[start]

    def neighbors(values: FloatArray) -> FloatArray:
        """Sum over each window's neighboring pairs; values[i] belongs to (i - 1, i)."""
        summed = np.concatenate([[0.0], np.cumsum(values)])
        return summed[stop] - summed[np.minimum(start + 1, stop)]

    t = tokens / planned
    mean_x, mean_t = total(x) / count, total(t) / count
    tt = total(t * t) - count * mean_t**2
    tx = total(t * x) - count * mean_t * mean_x
    slope = np.divide(tx, tt, out=np.zeros(n), where=tt > 0)
    rss = np.maximum(total(x * x) - count * mean_x**2 - slope * tx, 0.0)
    variance = rss / np.maximum(count - 2, 1)
    dx, dt = np.diff(x, prepend=x[:1]), np.diff(t, prepend=t[:1])
    squared = neighbors(dx * dx) - 2 * slope * neighbors(dx * dt) + slope**2 * neighbors(dt * dt)
    ratio = np.divide(squared, 2 * rss, out=np.ones(n), where=rss > 0)
    phi = np.clip(1.0 - ratio, 0.0, settings.phi_limit)
    sigma = np.sqrt(variance * (1 + phi) / (1 - phi))
    errors = total(points.noise**2) / count
    own = np.divide(points.noise**2, errors, out=np.ones(n), where=errors > 0)
    sigma = np.maximum(sigma, settings.sigma_floor_nats)
    sigma = np.maximum(sigma, np.sqrt(settings.earlier_share * _mean_so_far(sigma**2, after)))
    explained = np.minimum(errors / (_MOSTLY * sigma**2), 1.0)
    scaled = np.maximum(sigma * np.sqrt(np.clip(own, *_OWN_NOISE)), settings.sigma_floor_nats)
    return Lagged(mean_x, np.stack([total(row) / count for row in moved]), scaled, explained)


def _mean_so_far(values: FloatArray, start: int) -> FloatArray:
    """Return [n] mean of the values from ``start`` up to each; before it the value itself."""
    result = values.copy()
    tail = values[start:]
    result[start:] = np.cumsum(tail) / np.arange(1, len(tail) + 1)
    return result


def fast(
    x: FloatArray,
    moved: FloatArray,
    local: Lagged,
    held: BoolArray,
    ready_from: int,
    settings: FastSettings,
) -> Evidence:
    """Return the sequential sum S_k = max(0, S_{k-1} + clip((x - m - kappa) / sigma, +-4)).

    kappa = max(least tolerance, slope x |median of the last 3 of a row of ``moved`` - its lagged
    mean|), of the row that moved most.
    """
    now = np.stack([running_median(row, _MOVED_WINDOW) for row in moved])
    movement = np.abs(now - local.moved).max(axis=0)
    kappa = np.maximum(settings.tolerance_nats, settings.slope * movement)
    steps = np.clip((x - local.mean - kappa) / local.sigma, -settings.clip, settings.clip)
    steps = np.where(held, np.minimum(steps, 0.0), steps)
    steps[:ready_from] = 0.0
    walk = np.cumsum(steps)
    sums = walk - np.minimum(np.minimum.accumulate(walk), 0.0)
    ready = np.arange(len(x)) >= ready_from
    eased = settings.threshold - settings.explained_threshold
    return Evidence("fast", sums, settings.threshold - eased * local.explained, ready)


def slow(
    x: FloatArray,
    sigma: FloatArray,
    window: int,
    span: tuple[int, int],
    settings: SlowSettings,
    tolerance: FloatArray,
) -> Evidence:
    """Return the running median of x against tolerance + z standard errors."""
    error = sigma * np.sqrt(_MEDIAN_VARIANCE / window + 1 / max(span[1] - span[0], 1))
    ready = np.arange(len(x)) >= span[1]
    return Evidence("slow", running_median(x, window), tolerance + settings.z * error, ready)


def level(
    r: FloatArray, sigma: FloatArray, window: int, start: int, settings: LevelSettings
) -> Evidence:
    """Return the running median of the raw r, of evaluations from ``start`` on only."""
    median = np.zeros(len(r), np.float64)
    median[start:] = running_median(r[start:], window)
    limit = settings.tolerance_nats + settings.z * sigma * np.sqrt(_MEDIAN_VARIANCE / window)
    return Evidence("level", median, limit, np.arange(len(r)) >= start + window - 1)


def shift(r: FloatArray, noise: FloatArray, start: int, settings: ShiftSettings) -> Evidence:
    """Return mean of the last r minus median of those before, from ``start`` on only."""
    n, recent = len(r), settings.recent
    statistic, limit = np.zeros(n), np.full(n, np.inf)
    ready = np.zeros(n, np.bool_)
    for k in range(start + recent, n):
        past = r[start : k - recent + 1]
        statistic[k] = r[k - recent + 1 : k + 1].mean() - medians(past)
        one = np.hypot(noise[k], settings.holdout_noise_nats)
        error = one * np.sqrt(1 / recent + _MEDIAN_VARIANCE / len(past))
        limit[k] = settings.tolerance_nats + settings.z * error
        ready[k] = len(past) >= settings.earlier and k + 1 >= settings.points
    return Evidence("shift", statistic, limit, ready)
