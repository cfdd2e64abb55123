"""Why data may have come again: a new epoch, or a data loader that went back.

A cause is told beside an alarm, never without one: that a pass ends is no fault, and the
curve rule alone says whether it shows.

Source: huggingface/transformers issue 18730 (loss drops at each epoch); paiml/entrenar issue
294 (a resume that goes back to the first shard).
"""

from typing import Final

import numpy as np

from evalmon.types import IntArray, Series

__all__ = ["causes"]

_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def causes(
    epoch: Series | None, position: Series | None, onset_tokens: int, alarm_tokens: int
) -> tuple[str, ...]:
    """Say which changes of the data's order lie at the onset of an alarm.

    The place of an onset is known about as well as the alarm is quick: what happened from as
    long before the onset as the alarm came after it, up to the alarm, counts as being there. Of
    several changes of one kind the nearest to the onset is told.

    Args:
        epoch: passes over the data, counted from 0 or from 1; fractions count as begun.
        position: instances of the data's order consumed so far.
        onset_tokens: where the change that alarmed began.
        alarm_tokens: the evaluation that alarmed.

    Returns:
        At most one sentence a kind, epochs first; none where neither curve tells of a change.

    Example:
        >>> steps = np.arange(98, 103)
        >>> counter = Series("data/epoch", steps, steps * 10, np.array([1.0, 1, 2, 2, 2]))
        >>> causes(counter, None, 990, 1_010)
        ('second epoch begins at step 100',)
        >>> consumed = Series("data/position", steps, steps * 10, np.array([784.0, 792, 0, 8, 16]))
        >>> causes(None, consumed, 990, 1_010)
        ('data position went back to 0 at step 100',)
    """
    found: list[str] = []
    if epoch is not None and len(epoch):
        whole = np.floor(epoch.values).astype(np.int64)
        at = _nearest(epoch, np.flatnonzero(np.diff(whole) > 0) + 1, onset_tokens, alarm_tokens)
        if at is not None:
            # A counter that has shown a value below 1 counts from 0.
            number = int(whole[at]) + int(whole[0] < 1)
            found.append(f"{_ordinal(number)} epoch begins at step {epoch.steps[at]:,}")
    if position is not None and len(position):
        back = np.flatnonzero(np.diff(position.values) < 0) + 1
        at = _nearest(position, back, onset_tokens, alarm_tokens)
        if at is not None:
            found.append(
                f"data position went back to {position.values[at]:,.0f} at step "
                f"{position.steps[at]:,}"
            )
    return tuple(found)


def _nearest(series: Series, at: IntArray, onset: int, alarm: int) -> int | None:
    """Return which of some changes is nearest to an onset, None where none is at it.

    A change lies between its point and the one before, and is there if that stretch is.
    """
    begins, ends = series.tokens[at - 1], series.tokens[at]
    there = at[(ends >= onset - max(alarm - onset, 0)) & (begins < max(alarm, onset))]
    if not len(there):
        return None
    return int(there[np.argmin(np.abs(series.tokens[there] - onset))])


def _ordinal(number: int) -> str:
    """Return second, third, 12th."""
    if 1 <= number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in {11, 12, 13} else 0)
    return f"{number}{ending or 'th'}"
