"""What a verdict says of itself: its numbers, and sentences for a person."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evalmon.detectors import probe, task_differences
from evalmon.detectors.curve import CurveResult
from evalmon.detectors.profiles import profile_named
from evalmon.evidence import Case
from evalmon.types import Finding, FloatArray, VerdictName

__all__ = ["Numbers", "moved", "reasons"]

_BEFORE = 5  # evaluations that the last one is held against
_STANDS_OUT_NATS = 0.05  # five times the largest bump of a sound 7B run
_STANDS_OUT_SPREADS = 8.0
_EPOCH = 0.01  # an onset this near a planned epoch boundary is said to lie at it

_LEAST_DROP_NATS = 0.005  # of a smaller one no share is worth telling


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a verdict at its last judged evaluation."""

    train_gap: float | None = None
    holdout_gap: float | None = None
    train_change: float | None = None
    holdout_change: float | None = None
    unmatched: float | None = None
    low: float | None = None
    high: float | None = None
    matched_fraction: float | None = None
    tolerance: float | None = None

    @classmethod
    def of(cls, curve: CurveResult) -> "Numbers":
        """Read them from the curve's last row."""
        points = curve.points
        if not len(points):
            return cls()
        if curve.mode == "holdout":
            return cls(holdout_gap=float(points.holdout_gap[-1]))
        unmatched = float(curve.unmatched[-1])
        if curve.mode == "free":
            train = float(points.train[-1] - curve.train_baseline)
            holdout = float(points.holdout[-1] - curve.holdout_baseline)
        else:
            train, holdout = float(points.train_gap[-1]), float(points.holdout_gap[-1])
        change: tuple[float | None, float | None] = train, holdout
        share = _share(train, train + unmatched)
        if curve.mode == "reference":
            change = (
                _since_baseline(curve, points.train_gap),
                _since_baseline(curve, points.holdout_gap),
            )
            share = _share(*change)
        tolerance = float(curve.tolerance[-1])
        return cls(
            train_gap=train,
            holdout_gap=holdout,
            train_change=change[0],
            holdout_change=change[1],
            unmatched=unmatched,
            low=_end(curve.low),
            high=_end(curve.high),
            matched_fraction=share,
            tolerance=tolerance if np.isfinite(tolerance) else None,
        )


def moved(curve: CurveResult, gaps: FloatArray) -> float:
    """Return a gap to the reference now: since the baseline, or as it stands.

    It stands for itself at equal recipes, and where holdout losses are all there is.
    """
    now = float(np.median(gaps[-profile_named(curve.profile).gap_evaluations :]))
    if curve.mode in ("level", "holdout"):
        return now
    return now - float(np.median(gaps[slice(*curve.span)]))


def _since_baseline(curve: CurveResult, gaps: FloatArray) -> float | None:
    """Return how far a gap has moved since the baseline, None while there is none."""
    begin, end = curve.span
    return moved(curve, gaps) if begin < min(end, len(gaps)) else None


def _share(train: float | None, holdout: float | None) -> float | None:
    """Return the share of a drop of train loss that the holdout followed, None without a drop."""
    if train is None or holdout is None or train > -_LEAST_DROP_NATS:
        return None
    return holdout / train


def _end(bounds: FloatArray) -> float | None:
    """Return an end of the interval now, None where fewer than three evaluations tell of noise."""
    return float(bounds[-1]) if len(bounds) > 2 and np.isfinite(bounds[-1]) else None


def _stands_out(case: Case) -> str:
    """Say that the last holdout loss lies far from those just before it, or ""."""
    values = case.curve.points.holdout
    if len(values) < _BEFORE + 1:
        return ""
    before = values[-_BEFORE - 1 : -1]
    away = float(values[-1] - np.median(before))
    spread = float(np.median(np.abs(before - np.median(before))))
    if abs(away) <= max(_STANDS_OUT_NATS, _STANDS_OUT_SPREADS * spread):
        return ""
    return (
        f"the last evaluation stands out: holdout loss {away:+.3f} nats off the {_BEFORE} "
        "before it; score it again before anything is concluded"
    )


def _both_rose(case: Case, numbers: Numbers) -> str:
    """Say that both losses of a run judged alone lie above its baseline, or ""."""
    train, holdout = numbers.train_gap or 0.0, numbers.holdout_gap or 0.0
    if case.curve.mode != "free" or min(train, holdout) <= case.gap_nats:
        return ""
    return (
        f"both losses are higher than at the baseline (train {train:+.3f}, holdout {holdout:+.3f} "
        "nats): no divergence of the two, but look at the run"
    )


def _opening(case: Case, name: VerdictName, numbers: "Numbers") -> list[str]:
    """Return what a verdict says of itself, before the findings."""
    curve = case.curve
    if name is VerdictName.EVALUATOR_FAULT and not (curve.alarm and curve.alarm.active):
        return []  # the findings say what is wrong
    if name is VerdictName.RECIPE_DIFFERS:
        return list(case.incomparable)
    if name is VerdictName.NOT_ENOUGH_DATA:
        return [curve.reason]
    if name is VerdictName.HEALTHY and (curve.mode == "holdout" or numbers.unmatched is not None):
        return [_close(numbers, case) if curve.mode == "holdout" else _within(numbers, curve)]
    if name in (VerdictName.AHEAD_OF_REFERENCE, VerdictName.BEHIND_REFERENCE):
        lost = name is VerdictName.BEHIND_REFERENCE and task_differences.summary(case.tasks)
        tasks = f"{_lost(case)}; " if lost == "loss" else ""
        return [f"{_HEADLINES[name]}: {tasks}{_gaps(curve)}"]
    return [_HEADLINES[name]] if name in _HEADLINES else []


def _lost(case: Case) -> str:
    """Name the tasks by which a run is behind."""
    lost = [item for item in case.tasks if item.outcome == "loss"]
    named = (
        f"{item.task.removeprefix('eval/downstream/')} {item.difference_acc:+.3f}" for item in lost
    )
    return f"tasks lost ({', '.join(named)})"


def _gaps(curve: CurveResult) -> str:
    """Say how run and reference stand to each other."""
    holdout = moved(curve, curve.points.holdout_gap)
    if curve.mode == "holdout":
        return f"holdout loss {holdout:+.3f} nats"
    train = moved(curve, curve.points.train_gap)
    since = "" if curve.mode == "level" else ", since the baseline"
    return f"train loss {train:+.3f}, holdout loss {holdout:+.3f} nats{since}"


def reasons(
    case: Case, name: VerdictName, numbers: Numbers, found: Mapping[str, Finding]
) -> tuple[str, ...]:
    """Return sentences for a person, most important first."""
    curve = case.curve
    alarmed = curve.alarm is not None and curve.alarm.active
    said = _opening(case, name, numbers)
    order = ("repeated_instances", "unmatched_drop", "memorization_probe", *_DOUBTS)
    if alarmed:
        order = ("unmatched_drop", "repeated_instances", "memorization_probe", *_DOUBTS)
    elif name in (VerdictName.EVALUATOR_FAULT, VerdictName.NOT_ENOUGH_DATA):
        doubts = [found[detector].message for detector in _DOUBTS if detector in found]
        said, order = [*doubts, *said], order[: -len(_DOUBTS)]
    said.extend(found[detector].message for detector in order if detector in found)
    said.extend(case.causes)
    spoken = curve.alarm or curve.mirrored
    if spoken and not spoken.active:
        said.append("the change has since gone back by more than half")
    if spoken and _at_epoch(spoken.onset_tokens, case):
        said.append("planned repeat: the onset lies at a planned epoch boundary")
    probed = case.counted_probe
    if probed and probe.refutes(probed) and spoken:
        said.append(
            f"the probe finds no memory of the text trained on: at most {probed.high_nats:.3f} nats"
        )
    if case.probe and not probed:
        said.append(
            f"a probe of {case.probe.mean_nats:+.3f} nats can no longer be verified: the id log it "
            "drew from is missing or has changed, so it does not count"
        )
    said.extend(filter(None, (_both_rose(case, numbers), _stands_out(case))))
    if case.pre_alarm and not alarmed:
        said.append(
            f"pre-alarm: train loss alone fell by {case.pre_alarm.drop_nats:.3f} nats since about "
            f"{case.pre_alarm.tokens:,} tokens; score the last checkpoints now, with the probe"
        )
    if case.rates:
        said.append(_rates_apart(case))
    if case.incomparable and name is not VerdictName.RECIPE_DIFFERS:
        said.extend(case.incomparable)
    if not curve.enough_data and name is not VerdictName.NOT_ENOUGH_DATA and curve.reason:
        said.append(
            _judged_before(case) if case.broken_off and name.exit_code == 1 else curve.reason
        )
    if "nonfinite_loss" in found:
        said.append(found["nonfinite_loss"].message)
    return (*said, *case.notes)


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


def _judged_before(case: Case) -> str:
    """Say that what is judged comes before a loss that is no number any more."""
    last = int(case.curve.points.steps[-1]) if len(case.curve.points) else case.step
    return (
        f"{case.broken_off}; what is said here is of step {last:,}, before that. Look for the step "
        "at which the run or its evaluator broke"
    )


def _within(numbers: Numbers, curve: CurveResult) -> str:
    """State what was tolerated."""
    against = "the reference" if curve.mode != "free" else "its own earlier evaluations"
    between = ""
    if numbers.low is not None and numbers.high is not None:
        between = f" (95 % interval {numbers.low:+.3f} to {numbers.high:+.3f})"
    return (
        f"no unmatched drop against {against}: r = {numbers.unmatched:+.3f} nats{between}; the "
        f"{curve.profile} profile tolerates {numbers.tolerance:.3f}"
    )


def _close(numbers: Numbers, case: Case) -> str:
    """State what was tolerated where holdout losses are all there is."""
    gap = numbers.holdout_gap or 0.0
    alone = "without both train losses nothing can be said of memorization"
    if abs(gap) > case.gap_nats and case.rates is not None:
        return f"holdout loss lies {gap:+.3f} nats off, where the learning rates differ; {alone}"
    return f"holdout loss is within {case.gap_nats:g} nats of the reference's ({gap:+.3f}); {alone}"


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
