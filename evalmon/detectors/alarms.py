"""What can be said about an alarm: where it began, and which loss moved."""

import numpy as np

from evalmon.detectors.channels import BoolArray
from evalmon.detectors.curve import Alarm, Plan, Points
from evalmon.detectors.direction import Direction
from evalmon.detectors.onset import onset_tokens
from evalmon.detectors.profiles import Profile
from evalmon.types import FloatArray

__all__ = ["first_alarm"]

_NEAR = 3  # evaluations averaged on each side of a change
_ONE_EVALUATION = 0.7  # share of a rise between two neighbors that makes it a jump
_HALF = 0.5
_ALONE = 0.75, 0.4  # without a reference: what both learn adds to the share of a drop, about 0.2
_BARELY = 0.2  # share of a change below which train loss is said not to have moved


def first_alarm(
    points: Points,
    judged: Direction,
    held: BoolArray,
    plan: Plan,
    profile: Profile,
    *,
    mirrored: bool = False,
) -> Alarm | None:
    """Return the first alarm of any channel with what can be said about it.

    Args:
        points: the evaluations.
        judged: r in the alarm's direction.
        held: [n] whether a spike holds the evidence back.
        plan: the schedule and the mode.
        profile: constants of the rule.
        mirrored: whether the direction is that of the mirrored rule.

    Returns:
        The alarm, or None. Step, tokens and channel never change with later evaluations; nor does
        which loss moved, but in short runs. Onset and size are as they appear at the last one.
    """
    firing = [(evidence, evidence.fires(held)) for evidence in judged.evidence]
    first = [(int(np.argmax(fires)), evidence.channel) for evidence, fires in firing if fires.any()]
    if not first:
        return None
    index, channel = min(first, key=lambda item: item[0])
    values = judged.unmatched
    n = len(values)
    reach = (profile.lag.distance_fraction + profile.lag.length_fraction) * plan.planned_tokens
    short = profile.fast is None
    begin = judged.start
    if not short:
        begin = int(np.searchsorted(points.tokens, points.tokens[index] - reach, side="left"))

    def onset_by(end: int) -> int:
        """Return where the change began, as the evaluations before ``end`` tell."""
        return onset_tokens(
            points.tokens[begin:end],
            judged.raw[begin:end],
            start=0.0 if judged.anchored else None,
            before=int(points.tokens[index]),
        )

    onset = onset_by(n if short else min(n, index + 1 + (index - begin) // 2))
    # What both losses learn after the alarm would be taken for train loss's share of the change;
    # the few, noisy evaluations of a short run are all needed.
    seen = n if short else index + 1
    by_then = onset if short else onset_by(seen)
    share, moved, jump = _attribute(points, by_then, seen, plan, mirrored=mirrored, short=short)
    now = float(np.median(values[max(0, n - _NEAR) :]))
    then = float(np.median(values[max(0, index + 1 - _NEAR) : index + 1]))
    active = now >= _HALF * then or any(bool(fires[-1]) for _, fires in firing)
    return Alarm(
        index=index,
        step=int(points.steps[index]),
        tokens=int(points.tokens[index]),
        channel=channel,
        magnitude_nats=-now if mirrored else now,
        onset_tokens=onset,
        train_share=share,
        by_train=moved,
        one_evaluation=jump,
        active=active,
    )


def _attribute(
    points: Points, onset: int, seen: int, plan: Plan, *, mirrored: bool, short: bool
) -> tuple[float, bool, bool]:
    """Return train loss's share of a change, whether it made it, and whether it came at once.

    Only the first ``seen`` evaluations are looked at.

    Repeats cost the run fresh text, so its holdout falls behind the reference's while it
    still falls: holdout loss is only blamed when train loss barely moved, or moved less
    and the run's own holdout loss rose. Without a reference both losses hold what the run
    learns meanwhile, which counts as train loss's share of a drop and against it in a rise.
    """
    alone = plan.mode == "free"
    train = (points.train if alone else points.train_gap)[:seen]
    holdout = (points.holdout if alone else points.holdout_gap)[:seen]
    before = min(int(np.searchsorted(points.tokens, onset, side="right")), seen - 1)
    left = slice(max(0, before - _NEAR), max(before, 1))
    right = slice(max(seen - _NEAR, before), seen)

    def moved(values: FloatArray, *, leveled: bool = False) -> float:
        """Change since the onset; at equal recipes since equality."""
        start = 0.0 if leveled else float(np.median(values[left]))
        return float(np.median(values[right])) - start

    leveled = plan.mode == "level"
    train_moved, holdout_moved = moved(train, leveled=leveled), moved(holdout, leveled=leveled)
    change = holdout_moved - train_moved
    share = -train_moved / change if change else 0.0
    if alone and not short:
        by_train = share >= _ALONE[mirrored]
    elif mirrored:
        by_train = share >= _HALF
    else:
        rose = moved(points.holdout[:seen]) >= _HALF * change
        by_train = share >= _HALF or (share >= _BARELY and not rose)
    steps = np.diff(holdout[max(0, before - 1) :])
    largest = float(steps.min() if mirrored else steps.max()) if len(steps) else 0.0
    jump = abs(holdout_moved) > 0 and largest / holdout_moved >= _ONE_EVALUATION
    return share, by_train, jump
