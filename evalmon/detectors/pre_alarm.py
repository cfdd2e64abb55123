"""The pre-alarm: train loss alone falls away, before any evaluation can tell why.

It is no finding and changes no verdict: it asks for an evaluation of the last checkpoints out
of turn, and for the probe. Only a dense log can give it.

dT is the median difference to the reference's train loss in windows of 1/1414 of the plan (1,000
steps of a full run). The pre-alarm begins where the median of the last 3 windows lies below the
median of the windows 12 to 42 back by more than 0.015 nats, three windows in a row. Without a
reference it reads train loss itself, from 30 % of the plan on, and meets the annealing too.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from evalmon import series
from evalmon.detectors.measuring import TRAIN_HOLE
from evalmon.types import FloatArray, IntArray, Series

__all__ = ["PreAlarm", "detect"]

_WINDOWS: Final = 1414  # of the whole plan
_LEAST_POINTS: Final = 100  # train points a window needs
_FROM, _TO = 12, 42  # windows back
_DROP_NATS: Final = 0.015
_IN_A_ROW: Final = 3
_FREE_FROM: Final = 0.30  # of the plan: before, train loss falls by as much by itself


@dataclass(frozen=True, slots=True)
class PreAlarm:
    """A train-only drop that the last windows show.

    Attributes:
        tokens: end of the window at which it began.
        drop_nats: how far the last 3 windows lie below those 12 to 42 back.
    """

    tokens: int
    drop_nats: float


def detect(train: Series, reference: Series | None, planned_tokens: int) -> PreAlarm | None:
    """Return the pre-alarm that stands at the last window.

    Args:
        train: train CE of the run, as far as its log goes.
        reference: train CE of the reference, None to read the run's own.
        planned_tokens: tokens of the whole schedule.

    Returns:
        None where there is none, or where the log is too thin to tell: a window needs 100 points.
    """
    if len(train) < _TO * _LEAST_POINTS:
        return None
    width = max(planned_tokens // _WINDOWS, 1)
    since = train.tokens[-1] - 2 * (_TO + _IN_A_ROW) * width
    train = train.pick(train.tokens >= since)
    gap = train
    if reference is not None and len(reference):
        gap = series.gap(train, reference, longest_gap=TRAIN_HOLE)
    windows, medians = _medians(gap, width)
    if len(windows) <= _TO or not _successive(windows):
        return None
    drops = np.array([_drop(medians, at) for at in range(_TO, len(medians))])
    below = drops > _DROP_NATS
    if reference is None or not len(reference):
        below &= windows[_TO:] * width >= _FREE_FROM * planned_tokens
    standing = int(np.argmin(below[::-1])) if not below.all() else len(below)
    if standing < _IN_A_ROW:
        return None
    first = len(medians) - standing
    return PreAlarm(int((windows[first] + 1) * width), float(drops[-1]))


def _medians(points: Series, width: int) -> tuple[IntArray, FloatArray]:
    """Return the number and median of each window that is dense."""
    number = points.tokens // width
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    ends = np.append(starts, len(points))[1:]
    kept = [
        (int(number[begin]), float(np.median(points.values[begin:end])))
        for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if end - begin >= _LEAST_POINTS
    ]
    return np.array([item[0] for item in kept], np.int64), np.array([item[1] for item in kept])


def _successive(windows: IntArray) -> bool:
    """Tell whether the windows compared follow each other without a hole."""
    return bool(windows[-1] - windows[-_TO - 1] <= _TO + _IN_A_ROW)


def _drop(medians: FloatArray, at: int) -> float:
    """Return how far the 3 windows up to one lie below those 12 to 42 before it."""
    return float(
        np.median(medians[at - _TO : at - _FROM + 1]) - np.median(medians[at - 2 : at + 1])
    )
