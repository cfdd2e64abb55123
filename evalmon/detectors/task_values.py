"""Two accuracy curves before they are compared: whether they are alike, and their values.

Both are read at equal tokens: the run at its last evaluations, the reference between its own,
linearly in log tokens, never beyond its range or across a hole in its points.
"""

from dataclasses import dataclass
from statistics import fmean

import numpy as np

from evalmon import tags
from evalmon.equivalence import FEWEST_POINTS, Spread, checkpoint_spread
from evalmon.errors import DataError
from evalmon.series import align
from evalmon.types import Curve, Series

__all__ = ["PairedItems", "Values", "items_stated", "recent_spread", "unlike", "values_at"]

_MOST_AVERAGED, _AVERAGED_SHARE = 5, 0.02  # checkpoints, share of the run's tokens
_LONGEST_HOLE = 2.0  # median spacings of the reference that are bridged


@dataclass(frozen=True, slots=True)
class PairedItems:
    """Answers of run and reference to the same items, each at one checkpoint.

    Attributes:
        ids: [n] one id an item, distinct.
        run: [n] 1 where the run's answer is right, else 0; or its partial credit.
        reference: [n] the same of the reference.

    Raises:
        DataError: lengths differ, an id stands twice, or fewer than two items.
    """

    ids: tuple[str, ...]
    run: tuple[float, ...]
    reference: tuple[float, ...]

    @property
    def values(self) -> "Values":
        """Return both accuracies, each of one checkpoint."""
        return Values(fmean(self.run), fmean(self.reference), 1, 1)

    def __post_init__(self) -> None:
        counts = len(self.ids), len(self.run), len(self.reference)
        if len({*counts, len(set(self.ids))}) > 1 or counts[0] < 2:
            raise DataError(
                f"{counts[0]} ids ({len(set(self.ids))} distinct) with {counts[1]} and {counts[2]} "
                "answers: each item needs an id of its own and both answers, and two items at least"
            )


@dataclass(frozen=True, slots=True)
class Values:
    """Both accuracies at equal tokens.

    Attributes:
        run: mean of the run's last evaluations.
        reference: mean of the reference at the same tokens.
        run_evaluations: evaluations in the one.
        reference_evaluations: evaluations in the other.
    """

    run: float
    reference: float
    run_evaluations: int
    reference_evaluations: int

    @property
    def difference(self) -> float:
        """Return run minus reference."""
        return self.run - self.reference

    def __str__(self) -> str:
        if self.run_evaluations == 1:
            return "one checkpoint each"
        return f"mean of the last {self.run_evaluations} checkpoints"


def unlike(mine: Curve, theirs: Curve) -> str:
    """Say how two curves differ in meaning, "" where nothing known differs.

    Numbers of items that both state and that are unequal mean other items.
    """
    named = [
        f"{item.fact} differs ({item.mine!r} against {item.theirs!r})"
        for item in tags.differences(mine.facts, theirs.facts)
    ]
    ours, other = items_stated(mine), items_stated(theirs)
    if ours and other and ours != other:
        named.append(f"items differ ({ours:,} against {other:,})")
    for which, curve in (("run", mine), ("reference", theirs)):
        values = curve.series.values
        if len(values) and (values.min() < 0 or values.max() > 1):
            named.append(
                f"the {which}'s values reach from {values.min():g} to {values.max():g}; "
                "an accuracy lies between 0 and 1"
            )
    return "; ".join(named)


def items_stated(curve: Curve) -> int | None:
    """Return the number of items a curve states, None where it states none."""
    stated = curve.facts.get("items")
    return stated if isinstance(stated, int) and stated > 0 else None


def values_at(mine: Series, theirs: Series, at_tokens: int) -> Values | str:
    """Return both accuracies at the run's last evaluations, or why there are none.

    Args:
        mine: the run's curve.
        theirs: the reference's.
        at_tokens: tokens up to which the run is looked at: its last evaluation counts, with
            those in the 2 % of tokens before it, five at most.
    """
    end = int(np.searchsorted(mine.tokens, at_tokens, side="right"))
    if not end:
        return f"the run has no evaluation at or before {at_tokens:,} tokens"
    last = int(mine.tokens[end - 1])
    start = int(np.searchsorted(mine.tokens, last * (1 - _AVERAGED_SHARE), side="left"))
    start = max(start, end - _MOST_AVERAGED)
    at = mine.tokens[start:end]
    where, values = align(theirs, at, longest_gap=_LONGEST_HOLE)
    if not len(where) or where[-1] != len(at) - 1:
        return f"the reference has no evaluations around the run's last, at {last:,} tokens"
    inside = int(((theirs.tokens >= at[where[0]]) & (theirs.tokens <= last)).sum())
    count = len(where)
    return Values(
        run=float(mine.values[start:end][where].mean()),
        reference=float(values.mean()),
        run_evaluations=count,
        reference_evaluations=min(count, max(1, inside)),
    )


def recent_spread(series: Series, at_tokens: int) -> Spread | None:
    """Return the spread between checkpoints in the last half of a curve's evaluations.

    Early on accuracies move faster and vary more.

    Args:
        series: the whole curve.
        at_tokens: tokens up to which it is looked at.

    Returns:
        None with fewer than ``FEWEST_POINTS`` evaluations up to there.
    """
    end = int(np.searchsorted(series.tokens, at_tokens, side="right"))
    part = slice(max(0, end - max(FEWEST_POINTS, end // 2)), end)
    return checkpoint_spread(
        Series(series.metric, series.steps[part], series.tokens[part], series.values[part])
    )
