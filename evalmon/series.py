"""Pure arithmetic on series: alignment by tokens, windows between evaluations, noise.

Two runs are compared at equal tokens, never at equal steps. Between two points a
series is taken as linear in the logarithm of tokens; it says nothing outside its
range or across a hole in its points.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evalmon.types import FloatArray, IntArray, Series

__all__ = [
    "Windows",
    "align",
    "gap",
    "medians",
    "noise_of",
    "reaching",
    "together",
    "usual_spacing",
    "window_medians",
    "window_moves",
    "windows",
]

_BLOCK_STEPS = 1000
_MEDIAN_TO_SD = 1.4826  # of a normal distribution's median absolute value
_MEDIAN_EXCESS = float(np.sqrt(np.pi / 2))  # standard error of a median over that of a mean


@dataclass(frozen=True, slots=True)
class Windows:
    """The train points between each evaluation and the one before it.

    Attributes:
        evaluations: [n] positions of the evaluations whose window holds a point.
        start: [n] position of the window's first train point.
        stop: [n] position after its last.
    """

    evaluations: IntArray
    start: IntArray
    stop: IntArray

    def __len__(self) -> int:
        return len(self.evaluations)


def align(
    series: Series,
    tokens: IntArray,
    *,
    longest_gap: float | None = None,
    usual_tokens: float | None = None,
) -> tuple[IntArray, FloatArray]:
    """Read a series at given tokens, linearly in log tokens.

    Args:
        series: points at distinct, rising tokens.
        tokens: [m] positions, in any order, >= 0.
        longest_gap: widest hole that is bridged, in usual spacings of the series; None
            bridges any.
        usual_tokens: its usual spacing where that is known already, of :func:`usual_spacing`.

    Returns:
        Positions in ``tokens`` that the series covers, and its values there.

    Example:
        >>> import numpy as np
        >>> points = np.array([99, 9_999])
        >>> curve = Series("train/ce_nats", points, points, np.array([4.0, 2.0]))
        >>> where, values = align(curve, np.array([9, 999, 9_999]))
        >>> where.tolist(), values.round(3).tolist()
        ([1, 2], [3.0, 2.0])
    """
    if not len(series) or not len(tokens):
        return np.empty(0, np.int64), np.empty(0, np.float64)
    begin = max(int(np.searchsorted(series.tokens, tokens.min(), side="right")) - 1, 0)
    end = int(np.searchsorted(series.tokens, tokens.max(), side="left")) + 1
    known, values = series.tokens[begin:end], series.values[begin:end]
    if np.array_equal(tokens, known):  # of one batch size: nothing lies between points
        return np.arange(len(known)), values
    covered = (tokens >= known[0]) & (tokens <= known[-1])
    if longest_gap is not None and len(known) > 1:
        usual = usual_spacing(series) if usual_tokens is None else usual_tokens
        holes = np.diff(known) > longest_gap * usual
        if holes.any():
            after = np.searchsorted(known, tokens, side="left").clip(1, len(known) - 1)
            inside = holes[after - 1]
            covered &= ~inside | (known[after] == tokens) | (known[after - 1] == tokens)
    where = np.flatnonzero(covered)
    # log1p, because a series may begin at 0 tokens
    return where, np.interp(np.log1p(tokens[together(where)]), np.log1p(known), values)


def reaching(series: Series, tokens: int) -> Series:
    """Return a series up to its first point at or after ``tokens``: what :func:`align` reads there.

    Args:
        series: points at rising tokens.
        tokens: position, >= 0.

    Example:
        >>> import numpy as np
        >>> points = np.array([10, 20, 30])
        >>> curve = Series("train/ce_nats", points, points, np.array([4.0, 3.0, 2.0]))
        >>> [reaching(curve, at).tokens.tolist() for at in (5, 20, 21)]
        [[10], [10, 20], [10, 20, 30]]
    """
    end = int(np.searchsorted(series.tokens, tokens, side="left")) + 1
    return series.pick(slice(end))


def together(where: IntArray) -> slice | IntArray:
    """Return rising positions as a slice where none is left out: it picks without a copy.

    Args:
        where: [n] positions, strictly rising, >= 0.

    Example:
        >>> import numpy as np
        >>> together(np.array([3, 4, 5])), together(np.array([3, 5])).tolist()
        (slice(3, 6, None), [3, 5])
    """
    if len(where) and where[-1] - where[0] + 1 == len(where):
        return slice(int(where[0]), int(where[-1]) + 1)
    return where


def usual_spacing(series: Series) -> float:
    """Return the median spacing of a series in tokens; 0 of two points, which tell of none."""
    return float(medians(np.diff(series.tokens))) if len(series) > 2 else 0.0


def medians(values: FloatArray | IntArray) -> FloatArray:
    """Return the medians over the last axis, four times as fast as ``numpy.median``.

    Args:
        values: [..., n] finite numbers, n >= 1.

    Returns:
        [...] medians, equal to numpy's: one partition finds the upper middle, and the lower is
        the largest below it.

    Example:
        >>> import numpy as np
        >>> medians(np.array([[3, 9, 2], [8, 1, 5]])).tolist()
        [3.0, 5.0]
    """
    half = values.shape[-1] // 2
    parted = np.partition(values, half, axis=-1)
    upper = parted[..., half].astype(np.float64)
    if values.shape[-1] % 2:
        return upper
    return (parted[..., :half].max(axis=-1) + upper) / 2


def gap(
    run: Series,
    reference: Series,
    *,
    longest_gap: float | None = None,
    usual_tokens: float | None = None,
) -> Series:
    """Return run minus reference at the run's tokens, where the reference covers them.

    Example:
        >>> import numpy as np
        >>> points = np.array([1, 2])
        >>> low, high = np.array([2.0, 1.5]), np.array([2.25, 2.0])
        >>> difference = gap(Series("x", points, points, low), Series("x", points, points, high))
        >>> difference.values.tolist()
        [-0.25, -0.5]
    """
    where, values = align(reference, run.tokens, longest_gap=longest_gap, usual_tokens=usual_tokens)
    return Series(run.metric, run.steps[where], run.tokens[where], run.values[where] - values)


def windows(
    train: Series, evaluations: Series, *, least: int = 1, landmarks: IntArray | None = None
) -> Windows:
    """Return the train points after each evaluation's predecessor up to itself.

    Args:
        train: train series.
        evaluations: series whose steps end the windows.
        least: points a window needs; an evaluation with fewer has no window, and its points
            join the next one's.
        landmarks: [m] rising tokens, of which a window needs one between its first point and
            its evaluation, both included; None to need none.

    Returns:
        One window an evaluation that has train points enough.

    Example:
        >>> import numpy as np
        >>> points = np.arange(1, 5)
        >>> train = Series("train/ce_nats", points, points, np.ones(4))
        >>> at = np.array([1, 3, 4])
        >>> found = windows(train, Series("h", at, at, np.ones(3)), least=2)
        >>> found.evaluations.tolist(), found.start.tolist(), found.stop.tolist()
        ([1], [0], [3])
    """
    stop = np.searchsorted(train.steps, evaluations.steps, side="right").astype(np.int64)
    start = np.concatenate([[0], stop[:-1]]).astype(np.int64)
    filled = np.flatnonzero(stop > start)
    passed = first = None
    if landmarks is not None and len(train):
        first = np.searchsorted(landmarks, train.tokens, side="left")
        passed = np.searchsorted(landmarks, evaluations.tokens, side="right")
        if bool((passed[filled] > first[start[filled]]).all()):
            passed = first = None
    if least > 1 or passed is not None:
        return _joined(stop, least, passed, first)
    return Windows(filled, start[filled], stop[filled])


def _joined(stop: IntArray, least: int, passed: IntArray | None, first: IntArray | None) -> Windows:
    """Return windows of at least so many points and a landmark, others joined with the next.

    Args:
        stop: [n] position after the last train point of each evaluation.
        least: points of a window.
        passed: [n] landmarks up to each evaluation, None to need none.
        first: [m] landmarks before each train point.
    """
    found: list[tuple[int, int, int]] = []
    begin = 0
    for n, end in enumerate(stop.tolist()):
        if end - begin < least:
            continue
        if passed is None or first is None or passed[n] > first[begin]:
            found.append((n, begin, end))
            begin = end
    columns = np.array(found, np.int64).reshape(-1, 3)
    return Windows(columns[:, 0], columns[:, 1], columns[:, 2])


def window_medians(steps: IntArray, values: FloatArray, within: Windows) -> FloatArray:
    """Return the median of each window; of 1,000-step medians where it is longer.

    Args:
        steps: [m] steps of the train points.
        values: [m] their values.
        within: n windows.

    Returns:
        [n] medians, in the unit of ``values``.

    Example:
        >>> import numpy as np
        >>> one = Windows(np.array([0]), np.array([0]), np.array([3]))
        >>> window_medians(np.array([1, 2, 3]), np.array([3.0, 9.0, 2.0]), one).tolist()
        [3.0]
    """
    result = np.empty(len(within), np.float64)
    for where, rows in _by_length(values, within):
        if rows.shape[1] < 2 * _BLOCK_STEPS:
            result[where] = medians(rows)
            continue
        for n, row in zip(where, rows, strict=True):
            at = steps[within.start[n] : within.stop[n]]
            block = (at - at[0]) // _BLOCK_STEPS
            pieces = np.split(row, np.flatnonzero(np.diff(block)) + 1)
            result[n] = medians(np.array([medians(piece) for piece in pieces]))
    return result


def window_moves(values: FloatArray, within: Windows) -> FloatArray:
    """Return [n] median |difference of neighbors| in each window, NaN in those of one point."""
    typical = np.full(len(within), np.nan)
    for where, rows in _by_length(values, within):
        if rows.shape[1] > 1:
            moves = np.diff(rows, axis=1)
            typical[where] = medians(np.abs(moves, out=moves))
    return typical


def noise_of(moves: FloatArray, counts: IntArray, known: FloatArray | None = None) -> FloatArray:
    """Return the standard error of each window's median, from the points seen so far.

    The spread of one point is estimated from differences of neighbors inside windows,
    which a trend does not enter: 1.4826 x median |difference| / sqrt 2 in each window, and
    of these the median over this window and all before it.

    Args:
        moves: [n] median |difference of neighbors| of each window, of :func:`window_moves`.
        counts: [n] points of each window.
        known: [m] what this gave for the first m windows, m <= n; None where nothing is known.

    Returns:
        [n] standard errors in the unit of ``moves``; 0 while no window has held two points.
    """
    first = 0 if known is None else len(known)
    middles = np.zeros(len(moves) - first, np.float64)
    seen: list[float] = np.sort(moves[:first][counts[:first] > 1]).tolist()
    middle = 0.0
    for n, (move, count) in enumerate(
        zip(moves[first:].tolist(), counts[first:].tolist(), strict=True)
    ):
        if count > 1:
            insort(seen, move)
        if seen:
            half = len(seen) // 2
            middle = seen[half] if len(seen) % 2 else (seen[half - 1] + seen[half]) / 2
        middles[n] = middle
    excess = np.where(counts[first:] > 2, _MEDIAN_EXCESS, 1.0)
    new = excess * _MEDIAN_TO_SD * middles / np.sqrt(2 * np.maximum(counts[first:], 1))
    return new if known is None else np.concatenate([known, new])


def _by_length(values: FloatArray, within: Windows) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield windows of one length together: their positions, and [k, length] values."""
    counts = within.stop - within.start
    for count in np.unique(counts):
        where = np.flatnonzero(counts == count)
        start = within.start[where]
        if (np.diff(start) == count).all():  # windows side by side need no copy
            yield where, values[start[0] : start[-1] + count].reshape(-1, count)
        else:
            yield where, values[start[:, None] + np.arange(count)]
