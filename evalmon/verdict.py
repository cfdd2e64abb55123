"""A case becomes one verdict, with the evidence that each identifier needs.

Policy:

- The curve alone can only suspect. It is confirmed by repeats above plan, or by a probe
  whose lower bound exceeds the limit of the profile.
- Unplanned repeats alone are suspect before any curve shows them.
- A probe counts only while the id log it drew from can be read and is the same.
- Where nothing points to memorization and the evaluator is suspect at the evaluation
  judged, it is an evaluator fault; where the model looks untrained, there is no verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from evalmon import bands, detectors
from evalmon.config import ComparisonSettings
from evalmon.detectors import Observations, probe, task_differences
from evalmon.detectors.curve import Alarm, CurveResult, Points
from evalmon.detectors.profiles import profile_named
from evalmon.evidence import Case, build_case
from evalmon.run_evidence import RunEvidence
from evalmon.types import Finding, FloatArray, Json, Verdict, VerdictName

__all__ = ["judge", "judge_run"]

_MATCHED = 0.75  # least matched fraction of a gain that is called real
_EPOCH = 0.01  # an onset this near a planned epoch boundary is said to lie at it


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
    numbers = _Numbers.of(curve)
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
        reasons=_reasons(case, name, numbers, found),
        findings=_kept(name, found),
        basis="holdout only" if curve.mode == "holdout" else "train and holdout",
        slope=_slope(curve.points),
        tasks=case.tasks,
        literal=_literal(case.literal),
        evidence=_evidence(case),
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
    train, holdout = _moved(curve, curve.points.train_gap), _moved(curve, curve.points.holdout_gap)
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


def _moved(curve: CurveResult, gaps: FloatArray) -> float:
    """Return a gap to the reference now: since the baseline, or as it stands.

    It stands for itself at equal recipes, and where holdout losses are all there is.
    """
    now = float(np.median(gaps[-3:]))
    if curve.mode in ("level", "holdout"):
        return now
    return now - float(np.median(gaps[slice(*curve.span)]))


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers of a verdict at its last judged evaluation."""

    train_gap: float | None = None
    holdout_gap: float | None = None
    unmatched: float | None = None
    low: float | None = None
    high: float | None = None
    matched_fraction: float | None = None
    tolerance: float | None = None

    @classmethod
    def of(cls, curve: CurveResult) -> "_Numbers":
        """Read them from the curve's last row."""
        points = curve.points
        if not len(points):
            return cls()
        if curve.mode == "holdout":
            return cls(holdout_gap=float(points.holdout_gap[-1]))
        if curve.mode == "free":
            train = float(points.train[-1] - curve.train_baseline)
            holdout = float(points.holdout[-1] - curve.holdout_baseline)
        else:
            train, holdout = float(points.train_gap[-1]), float(points.holdout_gap[-1])
        unmatched = float(curve.unmatched[-1])
        tolerance = float(curve.tolerance[-1])
        return cls(
            train_gap=train,
            holdout_gap=holdout,
            unmatched=unmatched,
            low=float(curve.low[-1]),
            high=float(curve.high[-1]),
            matched_fraction=1 + unmatched / train if train < 0 else None,
            tolerance=tolerance if np.isfinite(tolerance) else None,
        )


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


def _evidence(case: Case) -> dict[str, Json]:
    """Return further numbers behind a verdict, as JSON values."""
    curve, repeats, probed = case.curve, case.repeats, case.counted_probe
    spoken = curve.alarm or curve.mirrored
    return {
        "evaluations": len(curve.points),
        "mode": curve.mode,
        "first_tokens": int(curve.points.tokens[0]) if len(curve.points) else None,
        "last_tokens": int(curve.points.tokens[-1]) if len(curve.points) else None,
        "held": int(curve.held.sum()),
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


def _opening(case: Case, name: VerdictName, numbers: "_Numbers") -> list[str]:
    """Return what a verdict says of itself, before the findings."""
    curve = case.curve
    if name is VerdictName.EVALUATOR_FAULT and not (curve.alarm and curve.alarm.active):
        return []  # the findings say what is wrong
    if name is VerdictName.RECIPE_DIFFERS:
        return list(case.incomparable)
    if name is VerdictName.NOT_ENOUGH_DATA:
        return [curve.reason]
    if name is VerdictName.HEALTHY and curve.mode == "holdout":
        return [_close(numbers, case)]
    if name is VerdictName.HEALTHY and numbers.unmatched is not None:
        return [_within(numbers, curve)]
    return [_HEADLINES[name]] if name in _HEADLINES else []


def _reasons(
    case: Case, name: VerdictName, numbers: _Numbers, found: Mapping[str, Finding]
) -> tuple[str, ...]:
    """Return sentences for a person, most important first."""
    curve = case.curve
    alarmed = curve.alarm is not None and curve.alarm.active
    reasons = _opening(case, name, numbers)
    order = ("repeated_instances", "unmatched_drop", "memorization_probe", *_DOUBTS)
    if alarmed:
        order = ("unmatched_drop", "repeated_instances", "memorization_probe", *_DOUBTS)
    elif name in (VerdictName.EVALUATOR_FAULT, VerdictName.NOT_ENOUGH_DATA):
        doubts = [found[detector].message for detector in _DOUBTS if detector in found]
        reasons, order = [*doubts, *reasons], order[: -len(_DOUBTS)]
    reasons.extend(found[detector].message for detector in order if detector in found)
    spoken = curve.alarm or curve.mirrored
    if spoken and not spoken.active:
        reasons.append("the change has since gone back by more than half")
    if spoken and _at_epoch(spoken.onset_tokens, case):
        reasons.append("planned repeat: the onset lies at a planned epoch boundary")
    probed = case.counted_probe
    if probed and probe.refutes(probed) and spoken:
        reasons.append(
            f"the probe finds no memory of the text trained on: at most {probed.high_nats:.3f} nats"
        )
    if case.probe and not probed:
        reasons.append(
            f"a probe of {case.probe.mean_nats:+.3f} nats can no longer be verified: the id log it "
            "drew from is missing or has changed, so it does not count"
        )
    if case.rates:
        reasons.append(_rates_apart(case))
    if case.incomparable and name is not VerdictName.RECIPE_DIFFERS:
        reasons.extend(case.incomparable)
    if not curve.enough_data and name is not VerdictName.NOT_ENOUGH_DATA and curve.reason:
        reasons.append(curve.reason)
    if "nonfinite_loss" in found:
        reasons.append(found["nonfinite_loss"].message)
    return (*reasons, *case.notes)


_DOUBTS = ("untrained_model", "evaluator_suspect", "same_scores", "same_weights", "zero_stderr")
"""Detectors that doubt the scores themselves: told before what rests on them."""


_HEADLINES = {
    VerdictName.AHEAD_OF_REFERENCE: "the run is ahead of its reference, on the holdout too",
    VerdictName.BEHIND_REFERENCE: "the run is behind its reference",
    VerdictName.TRAIN_SHIFT: (
        "train loss moved without the holdout, but the model does not remember its text: look for "
        "an easier mix, a changed loss normalization, tokenizer or mask"
    ),
    VerdictName.TRAIN_RISE: (
        "train loss rose without the holdout: look for a harder mix or a changed normalization"
    ),
    VerdictName.LEAKAGE_SUSPECTED: (
        "holdout loss fell without train loss: look for holdout text in the training data"
    ),
    VerdictName.HOLDOUT_REGRESSION: (
        "holdout loss rose while train loss did not: score the same checkpoint again"
    ),
    VerdictName.EVALUATOR_FAULT: (
        "holdout loss jumped between two evaluations and stayed: score an earlier checkpoint "
        "again, the evaluation itself may have changed"
    ),
}


def _within(numbers: _Numbers, curve: CurveResult) -> str:
    """State what was tolerated."""
    against = "the reference" if curve.mode != "free" else "its own earlier evaluations"
    return (
        f"no unmatched drop against {against}: r = {numbers.unmatched:+.3f} nats (95 % interval "
        f"{numbers.low:+.3f} to {numbers.high:+.3f}); the {curve.profile} profile tolerates "
        f"{numbers.tolerance:.3f}"
    )


def _close(numbers: _Numbers, case: Case) -> str:
    """State what was tolerated where holdout losses are all there is."""
    return (
        f"holdout loss differs from the reference's by {numbers.holdout_gap:+.3f} nats, within "
        f"{case.gap_nats:g}; without both train losses nothing can be said of memorization"
    )


def _rates_apart(case: Case) -> str:
    """Say from where on the learning rates differ."""
    assert case.rates is not None
    counted = "; the gap is not counted as a gain" if case.rates.annealed else ""
    return (
        f"LR differs from {case.rates.since_tokens:,} tokens on: {case.rates.run_fraction:.0%} of "
        f"its peak against {case.rates.reference_fraction:.0%} of the reference's{counted}"
    )


def _at_epoch(onset: int, case: Case) -> bool:
    """Tell whether an onset lies within 1 % of a planned epoch boundary."""
    if not case.epoch_tokens or case.repeats is None:
        return False
    nearest = round(onset / case.epoch_tokens)
    planned = 1 <= nearest < case.repeats.planned_passes
    return planned and abs(onset - nearest * case.epoch_tokens) <= _EPOCH * case.epoch_tokens
