"""A case becomes one verdict, with the evidence that each identifier needs.

Policy:

- The curve alone can only suspect. It is confirmed by repeats above plan, or by a probe
  whose lower bound exceeds the limit of the profile.
- Unplanned repeats alone are suspect before any curve shows them.
- A probe counts only while the id log it drew from can be read and is the same.
- An alarm stands where a loss is no number from some evaluation on; a verdict without findings
  does not.
- Where nothing points to memorization and the evaluator is suspect at the evaluation
  judged, it is an evaluator fault; where the model looks untrained, there is no verdict.
"""

from collections.abc import Mapping
from dataclasses import replace

from evalmon import bands, detectors
from evalmon.config import ComparisonSettings
from evalmon.detectors import Observations, probe, task_differences
from evalmon.detectors.curve import Alarm, Points
from evalmon.detectors.profiles import profile_named
from evalmon.evidence import Case, build_case
from evalmon.reasons import Numbers, moved, reasons
from evalmon.run_evidence import RunEvidence
from evalmon.types import Finding, Json, Verdict, VerdictName

__all__ = ["judge", "judge_run"]

_MATCHED = 0.75  # least matched fraction of a gain that is called real


def judge_run(
    evidence: RunEvidence, settings: ComparisonSettings, reference: RunEvidence | None = None
) -> Verdict:
    """Judge a run at the last evaluation of its holdout series.

    Args:
        evidence: what the run left behind.
        settings: profile, and whether recipes count as equal.
        reference: what the reference left behind, None to judge the run alone.

    Returns:
        The verdict.

    Raises:
        ConfigError: the profile is unknown.
    """
    return judge(build_case(evidence, settings, reference))


def judge(case: Case) -> Verdict:
    """Decide the verdict of a case.

    Args:
        case: everything it rests on.

    Returns:
        The identifier with numbers and reasons, most important reason first.
    """
    curve = case.curve
    probed = case.counted_probe
    found = detectors.find(
        Observations(
            run=case.run,
            tokens_per_step=case.tokens_per_step,
            curve=curve,
            repeats=case.repeats,
            probe=(case.probe_checkpoint, probed) if case.probe_checkpoint and probed else None,
            nonfinite=case.nonfinite,
            trust=case.trust,
        )
    )
    name = _decide(case, found)
    if case.broken_off and not name.exit_code:
        name = VerdictName.NOT_ENOUGH_DATA
    numbers = Numbers.of(curve)
    spoken = curve.alarm or curve.mirrored
    repeats = case.repeats
    return Verdict(
        run=case.run,
        verdict=name,
        step=case.step,
        tokens=case.tokens,
        reference=case.reference,
        profile=curve.profile,
        onset_tokens=curve.onset_tokens,
        alarm_tokens=spoken.tokens if spoken else None,
        channel=curve.channel,
        train_gap_nats=numbers.train_gap,
        holdout_gap_nats=numbers.holdout_gap,
        unmatched_nats=numbers.unmatched,
        unmatched_low_nats=numbers.low,
        unmatched_high_nats=numbers.high,
        matched_fraction=numbers.matched_fraction,
        tolerance_nats=numbers.tolerance,
        first_repeat_tokens=repeats.first_repeat_tokens if repeats else None,
        repeated_fraction=repeats.repeated_fraction if repeats else None,
        probe=probed,
        reasons=reasons(case, name, numbers, found),
        findings=_kept(name, found),
        basis="holdout only" if curve.mode == "holdout" else "train and holdout",
        slope=_slope(curve.points),
        tasks=case.tasks,
        literal=_literal(case.literal),
        evidence=_evidence(case, numbers),
    )


def _decide(case: Case, found: Mapping[str, Finding]) -> VerdictName:
    """Return the identifier; evidence of memorization goes before everything else."""
    curve, repeated = case.curve, "repeated_instances" in found
    alarm, mirrored = curve.alarm, curve.mirrored
    if alarm and alarm.active:
        return _decide_alarm(case, alarm, repeated=repeated)
    if repeated:
        return VerdictName.MEMORIZATION_SUSPECTED
    if mirrored and mirrored.active:
        rise = mirrored.by_train
        return VerdictName.TRAIN_RISE if rise else VerdictName.LEAKAGE_SUSPECTED
    if _evaluator_at_fault(case, found):
        return VerdictName.EVALUATOR_FAULT
    return _decide_gaps(case, untrained="untrained_model" in found)


def _evaluator_at_fault(case: Case, found: Mapping[str, Finding]) -> bool:
    """Tell whether the scores of the evaluation judged cannot be the model's own."""
    if "evaluator_suspect" in found:
        return True
    return case.trust is not None and any(
        item.later == case.step for item in case.trust.equal_scores
    )


def _decide_alarm(case: Case, alarm: Alarm, *, repeated: bool) -> VerdictName:
    """Tell memorization from what else makes train loss run ahead of the holdout."""
    probed = case.counted_probe
    if repeated or (
        probed and probe.confirms(probed, profile_named(case.curve.profile).probe_nats)
    ):
        return VerdictName.MEMORIZATION_CONFIRMED
    if not alarm.by_train:
        if alarm.one_evaluation:
            return VerdictName.EVALUATOR_FAULT
        return VerdictName.HOLDOUT_REGRESSION
    if probed and probe.refutes(probed):
        return VerdictName.TRAIN_SHIFT
    return VerdictName.MEMORIZATION_SUSPECTED


def _decide_gaps(case: Case, *, untrained: bool) -> VerdictName:
    """Compare both losses with the reference where they can be, given that the rule is silent."""
    curve = case.curve
    if case.incomparable and not untrained:
        return VerdictName.RECIPE_DIFFERS
    if untrained or not curve.enough_data:
        return VerdictName.NOT_ENOUGH_DATA
    if curve.mode == "free":
        return VerdictName.HEALTHY
    margin = case.gap_nats + float(curve.high[-1] - curve.low[-1]) / 2
    train, holdout = moved(curve, curve.points.train_gap), moved(curve, curve.points.holdout_gap)
    if curve.mode == "holdout":
        train = holdout
    lost = task_differences.summary(case.tasks) == "loss"
    if lost or min(train, holdout) > margin:
        return VerdictName.BEHIND_REFERENCE
    matched = curve.mode == "holdout" or (holdout - train) <= (1 - _MATCHED) * -train
    # An annealed run lies lower: that is its schedule, and no gain over a reference that goes on.
    annealed = case.rates is not None and case.rates.annealed
    if max(train, holdout) < -margin and matched and not annealed:
        return VerdictName.AHEAD_OF_REFERENCE
    return VerdictName.HEALTHY


def _slope(points: Points) -> float | None:
    """Return d(holdout) / d(train) over the evaluations judged, None where train did not move."""
    if len(points) < 3:
        return None
    train = points.train - points.train.mean()
    power = float(train @ train)
    return float(train @ points.holdout) / power if power > 0 else None


def _literal(window: bands.WindowComparison | None) -> dict[str, Json] | None:
    """Return the literal comparison of the last window as JSON values."""
    if window is None:
        return None
    return {
        "train_drop_nats": window.train_drop_nats,
        "holdout_gain_nats": window.holdout_gain_nats,
        "shortfall_nats": window.shortfall_nats,
        "tolerance_nats": bands.LITERAL_TOLERANCE_NATS,
        "unmatched": bands.unmatched(window),
    }


def _evidence(case: Case, numbers: Numbers) -> dict[str, Json]:
    """Return further numbers behind a verdict, as JSON values."""
    curve, repeats, probed = case.curve, case.repeats, case.counted_probe
    spoken = curve.alarm or curve.mirrored
    return {
        "evaluations": len(curve.points),
        "mode": curve.mode,
        "first_tokens": int(curve.points.tokens[0]) if len(curve.points) else None,
        "last_tokens": int(curve.points.tokens[-1]) if len(curve.points) else None,
        "held": int(curve.held.sum()),
        "since_baseline": {
            "train_nats": numbers.train_change,
            "holdout_nats": numbers.holdout_change,
        },
        "train_share": round(spoken.train_share, 4) if spoken else None,
        "alarm_active": spoken.active if spoken else None,
        "fingerprints": None if repeats is None else {
            "draws": repeats.draws,
            "repeated": repeats.repeated,
            "repeated_fraction": repeats.repeated_fraction,
            "first_repeat_tokens": repeats.first_repeat_tokens,
        },
        "probe": None if probed is None else {
            "mean_nats": probed.mean_nats,
            "low_nats": probed.low_nats,
            "high_nats": probed.high_nats,
            "pairs": probed.pairs,
        },
        "pre_alarm": (
            None
            if case.pre_alarm is None
            else {"tokens": case.pre_alarm.tokens, "drop_nats": case.pre_alarm.drop_nats}
        ),
        "learning_rates_differ_from_tokens": case.rates.since_tokens if case.rates else None,
    }  # fmt: skip


def _kept(name: VerdictName, found: Mapping[str, Finding]) -> tuple[Finding, ...]:
    """Return the findings that bear the verdict, and those of their own kind."""
    kept = dict(found)
    if name.exit_code != 1:  # refuted, ended, or no sign of a fault
        kept.pop("unmatched_drop", None)
        kept.pop("memorization_probe", None)
    elif not name.startswith("memorization"):
        kept.pop("memorization_probe", None)
    elif "unmatched_drop" in kept:  # one cause, whichever loss moved more
        kept["unmatched_drop"] = replace(kept["unmatched_drop"], kind="memorization")
    return tuple(kept.values())
