"""The curve rule: train loss falls and the holdout does not follow.

The unmatched drop is r = (holdout gap) - (train gap), gaps being run minus reference at
equal tokens; without a reference r = holdout - b x train. Channels of the profile turn r
into evidence, against the run's own baseline or, where recipes are equal, as it stands.
The same rule on -r finds leakage and rises of train loss alone.

The rule is causal: the verdict at an evaluation rests on it and those before, so more
evaluations never move an alarm. Only the place of the onset is improved by later ones.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from evalmon.detectors import channels
from evalmon.detectors.alarms import first_alarm
from evalmon.detectors.curve import CurveInputs, CurveResult, Plan, Points
from evalmon.detectors.direction import Direction, look
from evalmon.detectors.measuring import measure
from evalmon.detectors.profiles import Profile
from evalmon.types import Finding, FloatArray, IntArray, Series

__all__ = ["baseline_missing", "decide", "detect", "finding", "judge_points", "reference_until"]

_INTERVAL = 1.96
_CHANNEL_MEANING = {
    "fast": "sequential sum against a lagged tenth of the plan",
    "slow": "running median against the run's baseline",
    "level": "running median against the reference",
    "shift": "last evaluations against all earlier ones",
}


def detect(inputs: CurveInputs, profile: Profile) -> CurveResult:
    """Judge the curves of a run at every evaluation.

    Args:
        inputs: curves of run and reference.
        profile: constants of the rule.

    Returns:
        The result; ``enough_data`` is False when the last evaluation cannot be judged.
    """
    if inputs.reference_holdout is None:
        return decide(inputs, profile, *_measured(inputs, profile), None)
    own = reference_until(inputs, inputs.holdout)
    with ThreadPoolExecutor(1) as pool:  # numpy works on both at once
        vetting = pool.submit(measure, own, profile)
        points, reason = _measured(inputs, profile)
        vetted = judge_points(vetting.result()[0], profile, _plan(own, profile))
    return decide(inputs, profile, points, reason, vetted)


def _measured(inputs: CurveInputs, profile: Profile) -> tuple[Points, str]:
    """Return the evaluations that can be judged, and why the last one cannot, or ""."""
    points, reason, uncovered = measure(inputs, profile)
    return points, reason or baseline_missing(points, uncovered, inputs, profile)


def decide(
    inputs: CurveInputs,
    profile: Profile,
    points: Points,
    reason: str,
    vetted: CurveResult | None,
) -> CurveResult:
    """Apply the rule to measured evaluations, and withhold what a bad reference spoils.

    Args:
        inputs: the curves they were measured from.
        profile: constants of the rule.
        points: one row an evaluation.
        reason: why the run's last evaluation is not among them, or "".
        vetted: the rule's result on the reference alone, None without a reference.

    Returns:
        The result.
    """
    plan = _plan(inputs, profile)
    result = judge_points(points, profile, plan, reason)
    disturbed = "" if vetted is None else _disturbed(vetted, profile, plan)
    if not disturbed or vetted is None:
        return result
    # At equal recipes a disturbed reference can hide or mimic the opposite sign alone.
    kept = result.alarm if plan.mode == "level" and vetted.mirrored is None else None
    return replace(result, alarm=kept, mirrored=None, enough_data=False, reason=disturbed)


def baseline_missing(
    points: Points, uncovered: IntArray, inputs: CurveInputs, profile: Profile
) -> str:
    """Say that the reference lacks most of the baseline that the run has, or "".

    Args:
        points: evaluations that can be judged.
        uncovered: tokens of those at which the reference has no holdout loss.
        inputs: the schedule.
        profile: where the baseline lies.
    """
    settings, plan = profile.baseline, inputs.planned_tokens
    begin = max(settings.start_fraction * plan, settings.warmups * inputs.warmup_tokens)
    end = settings.end_fraction * plan
    missing = int(((uncovered >= begin) & (uncovered <= end)).sum())
    if missing <= int(((points.tokens >= begin) & (points.tokens <= end)).sum()):
        return ""
    return (
        f"the reference has no points for {missing} of the run's evaluations in the baseline "
        f"({begin:,.0f} to {end:,.0f} tokens): choose one that reaches back as far"
    )


def reference_until(inputs: CurveInputs, holdout: Series) -> CurveInputs:
    """Return the reference alone, up to the tokens of the last evaluation of a holdout."""
    train, other = inputs.reference_train, inputs.reference_holdout
    assert train is not None
    assert other is not None
    end = int(holdout.tokens[-1]) if len(holdout) else 0
    last = int(np.searchsorted(other.tokens, end, side="right"))
    step = int(other.steps[last - 1]) if last else -1
    return CurveInputs(
        train=train.until(step),
        holdout=other.until(step),
        planned_tokens=inputs.planned_tokens,
        warmup_tokens=inputs.warmup_tokens,
        thinned=inputs.reference_thinned,
    )


def _plan(inputs: CurveInputs, profile: Profile) -> Plan:
    """Return the schedule, and how the run is judged: by level only where the profile can."""
    mode = "reference" if inputs.mode == "level" and profile.level is None else inputs.mode
    return Plan(inputs.planned_tokens, inputs.warmup_tokens, mode)


def judge_points(points: Points, profile: Profile, plan: Plan, reason: str = "") -> CurveResult:
    """Apply the rule to measured evaluations.

    Args:
        points: one row an evaluation.
        profile: constants of the rule.
        plan: the schedule and the mode.
        reason: why the run's last evaluation is not among the points, or "".

    Returns:
        The result.
    """
    held = channels.hold(points.train, profile.hold)
    rise = look(points, profile, plan, held, sign=1.0)
    fall = look(points, profile, plan, held, sign=-1.0)
    ready = np.zeros(len(points), np.bool_)
    tolerance = np.full(len(points), np.inf)
    for evidence in rise.evidence:
        ready |= evidence.ready
        if evidence.channel != "fast":
            tolerance = np.where(evidence.ready, np.minimum(tolerance, evidence.limit), tolerance)
    if not reason and not (len(points) and ready[-1]):
        reason = _waiting(points, profile, plan)
    return CurveResult(
        mode=plan.mode,
        profile=profile.name,
        points=points,
        unmatched=rise.unmatched,
        low=rise.unmatched - _INTERVAL * rise.sigma,
        high=rise.unmatched + _INTERVAL * rise.sigma,
        tolerance=tolerance,
        held=held,
        baseline=rise.baseline,
        span=(rise.start, rise.after),
        train_baseline=_own_baseline(points.train, rise, plan),
        holdout_baseline=_own_baseline(points.holdout, rise, plan),
        alarm=first_alarm(points, rise, held, plan, profile),
        mirrored=first_alarm(points, fall, held, plan, profile, mirrored=True),
        enough_data=not reason,
        reason=reason,
    )


def _disturbed(alone: CurveResult, profile: Profile, plan: Plan) -> str:
    """Say why the reference is no standard to judge against, or ""."""
    alarm = alone.alarm or alone.mirrored
    if alarm:
        what = "an unmatched drop" if alone.alarm else "an unmatched rise"
        return (
            f"the reference itself shows {what} from {alarm.onset_tokens:,} tokens on: choose "
            "another reference"
        )
    span = channels.baseline_span(
        alone.points.tokens, plan.planned_tokens, plan.warmup_tokens, profile.baseline
    )
    if plan.mode == "reference" and alone.held[slice(*span)].any():
        return "the reference's train loss spikes inside the baseline: choose another reference"
    return ""


def finding(run: str, result: CurveResult) -> Finding | None:
    """Return the alarm of an unmatched drop, or the mirrored one, as a finding."""
    alarm = result.alarm or result.mirrored
    if alarm is None:
        return None
    mirrored = result.alarm is None
    by_train = alarm.by_train
    if mirrored:
        kind = "data" if by_train else "leakage"
        what = "train loss rose unmatched" if by_train else "holdout loss fell unmatched"
    else:
        kind = "memorization" if by_train else "evaluator"
        what = "train loss fell unmatched" if by_train else "holdout loss rose unmatched"
    return Finding(
        detector="unmatched_drop",
        kind=kind,
        run=run,
        alarm_step=alarm.step,
        alarm_tokens=alarm.tokens,
        onset_tokens=alarm.onset_tokens,
        channel=alarm.channel,
        magnitude_nats=alarm.magnitude_nats,
        message=(
            f"{what}: {abs(alarm.magnitude_nats):.3f} nats since "
            f"{alarm.onset_tokens:,} tokens, seen at {alarm.tokens:,} by the {alarm.channel} "
            f"channel ({_CHANNEL_MEANING[alarm.channel]})"
        ),
        evidence={
            "mode": result.mode,
            "profile": result.profile,
            "train_share": round(alarm.train_share, 4),
            "active": alarm.active,
        },
    )


def _own_baseline(values: FloatArray, judged: Direction, plan: Plan) -> float:
    """Return the run's own standard for train or holdout loss; 0 against a reference."""
    if plan.mode != "free" or not len(values):
        return 0.0
    earlier = values[judged.start : judged.after]
    return float(np.median(earlier if len(earlier) else values))


def _waiting(points: Points, profile: Profile, plan: Plan) -> str:
    """Say what is missing before the rule can judge."""
    if profile.shift:
        first = profile.shift.start_fraction * plan.planned_tokens
        return (
            f"{len(points)} evaluations so far; the {profile.name} profile judges from the "
            f"{profile.shift.points}th on, with at least "
            f"{profile.shift.earlier + profile.shift.recent} after {first:,.0f} tokens"
        )
    end = max(
        profile.baseline.end_fraction * plan.planned_tokens,
        profile.baseline.warmups * plan.warmup_tokens,
    )
    return (
        f"the baseline is not complete: {len(points)} evaluations so far, it needs "
        f"{profile.baseline.evaluations} up to {end:,.0f} tokens or later"
    )
