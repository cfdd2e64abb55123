"""What a run and its reference left behind, made into a case that can be judged.

The curve rule is applied and repeats are counted here, so that a verdict is a pure
reading of the case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from evalmon import bands, withheld
from evalmon.config import ComparisonSettings
from evalmon.detectors import (
    epochs,
    evaluator_trust,
    holdout_gap,
    learning_rate,
    pre_alarm,
    quantized_loss,
    unmatched_drop,
)
from evalmon.detectors.curve import CurveInputs, CurveResult
from evalmon.detectors.learning_rate import RateDifference
from evalmon.detectors.pre_alarm import PreAlarm
from evalmon.detectors.profiles import Profile, choose, widened
from evalmon.detectors.trust_evidence import TrustEvidence
from evalmon.likeness import Likeness, curves_alike, runs_alike
from evalmon.run_evidence import (
    EPOCH_METRIC,
    POSITION_METRIC,
    RATE_METRIC,
    TRAIN_METRIC,
    RunEvidence,
)
from evalmon.types import (
    CheckpointRef,
    ProbeResult,
    RepeatSummary,
    RunCurves,
    RunDescription,
    Sampling,
    Series,
    TaskDifference,
)

if TYPE_CHECKING:
    from evalmon.id_logs import IdLog

__all__ = ["Case", "build_case"]

_NOT_TRUSTED = "the holdout loss of this evaluation cannot be trusted, so no verdict is given"
_NO_TRAIN_LOSS = (
    "the reference has no train loss: the run's two losses are judged against its own earlier "
    "evaluations, its holdout loss alone against the reference"
)
_NOTHING_RESTS = (
    "no verdict rests on what came before. Look for the step at which the run or its evaluator "
    "broke"
)
_NAMED = 5  # steps named in a note


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a verdict rests on.

    Attributes:
        run: the run's name.
        step: evaluation judged.
        tokens: the same in tokens.
        tokens_per_step: tokens trained on by one step, None where steps differ or it is not known.
        curve: result of the curve rule.
        reference: name of the reference, None when judged alone.
        repeats: counts of the id log, None without one.
        probe: the probe's result, None without.
        probe_checkpoint: where it was taken.
        ids_fingerprint: fingerprint of the id log's records up to there, None without a log.
        tasks: see RunEvidence.
        nonfinite: (step, metric) of logged values that were not finite.
        incomparable: why a reference that was asked for could not be used, one a reason.
        gap_nats: profile's margin for calling run and reference different.
        epoch_tokens: tokens of one planned pass, None when it is not known.
        trust: see RunEvidence.
        rates: tokens from which the learning rates of run and reference differ, None where they
            do not, or are not known.
        literal: the literal comparison of the last evaluation with the one before, None without
            two.
        notes: what else a reader must know of how the curves were judged.
        pre_alarm: a train-only drop of the last windows, None without.
        broken_off: from where on a loss is no number up to its end, "" where none is.
        causes: what happened to the data's order where an unmatched drop began.
    """

    run: str
    step: int
    tokens: int
    tokens_per_step: int | None
    curve: CurveResult
    reference: str | None = None
    repeats: RepeatSummary | None = None
    probe: ProbeResult | None = None
    probe_checkpoint: CheckpointRef | None = None
    ids_fingerprint: str | None = None
    tasks: tuple[TaskDifference, ...] = ()
    nonfinite: tuple[tuple[int, str], ...] = ()
    incomparable: tuple[str, ...] = ()
    gap_nats: float = 0.02
    epoch_tokens: int | None = None
    trust: TrustEvidence | None = None
    rates: RateDifference | None = None
    literal: bands.WindowComparison | None = None
    notes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    pre_alarm: PreAlarm | None = None
    broken_off: str = ""

    @property
    def counted_probe(self) -> ProbeResult | None:
        """The probe, while the id log it drew from is at hand."""
        if self.probe is None or self.ids_fingerprint != self.probe.ids_fingerprint:
            return None
        return self.probe


def build_case(
    evidence: RunEvidence, settings: ComparisonSettings, reference: RunEvidence | None = None
) -> Case:
    """Apply the curve rule and count repeats.

    Args:
        evidence: what the run left behind.
        settings: profile, and whether recipes count as equal.
        reference: what the reference left behind, None to judge the run alone.

    Returns:
        The case at the last evaluation of the run's holdout series.

    Raises:
        ConfigError: the profile is unknown.
    """
    curves, holdout = evidence.curves, evidence.holdout
    step = int(holdout.steps[-1]) if len(holdout) else 0
    tokens = int(holdout.tokens[-1]) if len(holdout) else 0
    likeness = _likeness(evidence, reference) if reference else Likeness()
    unjudged = withheld.data_changed(evidence, step) or (
        withheld.reference_changed(reference, tokens) if reference else ""
    )
    if unjudged:  # of what is not judged, nothing else is to be said
        likeness = Likeness()
    used = None if likeness.refusals else reference
    train = evidence.train.until(step)
    planned = settings.planned_tokens or curves.planned_tokens or _last_tokens(curves)
    profile, notes = _profile(settings, train, used, holdout, planned)
    same_recipe = _same_recipe(settings, evidence, used)
    if likeness.offsets and used:
        notes = (*notes, *likeness.offsets)
        profile = widened(profile, likeness.offset_nats) if same_recipe else profile
    if used and len(train) and not len(used.train):
        notes = (*notes, _NO_TRAIN_LOSS)
    left_out = evaluator_trust.untrusted_steps(evidence.trust) if evidence.trust else ()
    if left_out:
        notes = (*notes, _left_out(left_out))
    trusted = _without(holdout, left_out)
    curve = _judge_curves(
        CurveInputs(
            train=train,
            holdout=trusted,
            planned_tokens=planned,
            warmup_tokens=curves.warmup_tokens,
            reference_train=used.train if used else None,
            reference_holdout=_trusted_holdout(used) if used else None,
            same_recipe=same_recipe,
            thinned=_sampling(curves) is Sampling.THINNED,
            reference_thinned=used is not None and _sampling(used.curves) is Sampling.THINNED,
        ),
        profile,
    )
    if step in left_out:
        curve = replace(curve, enough_data=False, reason=_NOT_TRUSTED)
    unjudged = (
        unjudged
        or evidence.withheld
        or (used.withheld if used else "")
        or withheld.nowhere_finite(evidence, step)
        or withheld.other_unit(evidence, used, trusted, curve)
        or withheld.sampled(evidence, used, profile)
        or withheld.broken(evidence, used)
    )
    broken_off = "" if unjudged else withheld.broken_off(evidence, step, curve)
    if unjudged:
        curve = replace(curve, alarm=None, mirrored=None, enough_data=False, reason=unjudged)
    elif broken_off:  # an alarm before it stands
        curve = replace(curve, enough_data=False, reason=f"{broken_off}; {_NOTHING_RESTS}")
    ids = evidence.ids.until(step) if evidence.ids else None
    probed, described = evidence.probe_checkpoint, evidence.description
    return Case(
        run=curves.name,
        step=step,
        tokens=tokens,
        tokens_per_step=curves.tokens_per_step,
        curve=curve,
        reference=used.curves.name if used else None,
        repeats=_repeats(ids, described, tuple(n for n in curves.seams if n < step)),
        probe=evidence.probe,
        probe_checkpoint=probed,
        ids_fingerprint=ids.until(probed.step).fingerprint if ids and probed else None,
        tasks=evidence.tasks,
        nonfinite=tuple(item for item in curves.nonfinite if item[0] <= step),
        incomparable=likeness.refusals,
        gap_nats=profile.gap_nats,
        epoch_tokens=(
            described.source_instances * described.sequence_length if described else None
        ),
        trust=evidence.trust,
        rates=_rates(evidence, used, tokens),
        literal=bands.last_window(curve.points.train, curve.points.holdout),
        notes=notes,
        causes=_causes(curves, curve),
        pre_alarm=None if unjudged or broken_off else _pre_alarm(evidence, used, planned, step),
        broken_off=broken_off,
    )


def _pre_alarm(
    evidence: RunEvidence, reference: RunEvidence | None, planned: int, step: int
) -> PreAlarm | None:
    """Return what train loss alone shows, of the latest evaluation also after it."""
    train = evidence.train if evidence.latest else evidence.train.until(step)
    return pre_alarm.detect(train, reference.train if reference else None, planned)


def _causes(curves: RunCurves, judged: CurveResult) -> tuple[str, ...]:
    """Return what happened to the data's order where an unmatched drop began."""
    if judged.alarm is None:
        return ()
    found = (curves.curves.get(metric) for metric in (EPOCH_METRIC, POSITION_METRIC))
    epoch, position = (item.series if item else None for item in found)
    return epochs.causes(epoch, position, judged.alarm.onset_tokens, judged.alarm.tokens)


def _repeats(
    ids: "IdLog | None", described: RunDescription | None, seams: tuple[int, ...]
) -> RepeatSummary | None:
    """Count repeats, where the run kept the ids of what it read."""
    if ids is None or described is None:
        return None
    from evalmon.audit import repeats

    return repeats.summarize(ids, described, seams)


def _judge_curves(inputs: CurveInputs, profile: Profile) -> CurveResult:
    """Apply the rule that the curves at hand allow: without a train loss, to the holdout alone."""
    train, holdout = inputs.reference_train, inputs.reference_holdout
    bare = train is not None and not len(train) and holdout is not None and len(holdout)
    if len(inputs.train) and not bare:
        return unmatched_drop.detect(inputs, profile)
    result = holdout_gap.detect(inputs, profile)
    if not len(inputs.train):
        return result
    alone = unmatched_drop.detect(
        replace(inputs, reference_train=None, reference_holdout=None, same_recipe=False), profile
    )
    return alone if alone.alarm or alone.mirrored else result


def _likeness(evidence: RunEvidence, reference: RunEvidence) -> Likeness:
    """Return what stands between the curves of a run and its reference."""
    mine, theirs = evidence.description, reference.description
    if mine and theirs:
        identities = evidence.holdout_identity, reference.holdout_identity
        return runs_alike(mine, theirs, evidence.holdout.metric, identities, TRAIN_METRIC)
    name = reference.curves.name
    own, other = (item.curves.curves.get(TRAIN_METRIC) for item in (evidence, reference))
    found = curves_alike(
        evidence.holdout.metric, evidence.holdout_facts, reference.holdout_facts, name
    )
    if own and other:
        found = curves_alike(TRAIN_METRIC, own.facts, other.facts, name) + found
    return found


def _sampling(curves: RunCurves) -> Sampling:
    """Return how the train loss was sampled."""
    found = curves.curves.get(TRAIN_METRIC)
    return found.sampling if found else Sampling.FULL


def _rates(
    evidence: RunEvidence, reference: RunEvidence | None, tokens: int
) -> RateDifference | None:
    """Return where the learning rates of run and reference part, None where they do not."""
    if reference is None:
        return None
    own, other = (item.curves.curves.get(RATE_METRIC) for item in (evidence, reference))
    if own is None or other is None:
        return None
    return learning_rate.difference(own.series, other.series, tokens)


def _last_tokens(curves: RunCurves) -> int:
    """Return the last tokens of any curve, at least 1."""
    return (
        max(
            (int(item.series.tokens[-1]) for item in curves.curves.values() if len(item.series)),
            default=1,
        )
        or 1
    )


def _profile(
    settings: ComparisonSettings,
    train: Series,
    reference: RunEvidence | None,
    holdout: Series,
    planned: int,
) -> tuple[Profile, tuple[str, ...]]:
    """Return the constants of the rule, wider where a train loss was rounded, and say so."""
    profile = choose(settings.profile, holdout.tokens, planned)
    own = quantized_loss.grid_nats(train.values)
    other = quantized_loss.grid_nats(reference.train.values) if reference else 0.0
    if not own and not other:
        return profile, ()
    whose = "both train losses lie"
    if not own or not other:
        whose = f"the train loss{'' if own else ' of the reference'} lies"
    said = (
        f"{whose} on a grid of {max(own, other):g} nats, as bfloat16 rounds it: every tolerance is "
        f"widened by {own + other:g} nats; log the loss in float32"
    )
    return widened(profile, own + other), (said,)


def _same_recipe(
    settings: ComparisonSettings, evidence: RunEvidence, reference: RunEvidence | None
) -> bool:
    """Return whether levels may be compared."""
    if settings.same_recipe is not None:
        return settings.same_recipe
    recipe = evidence.curves.recipe
    return reference is not None and bool(recipe) and reference.curves.recipe == recipe


def _without(holdout: Series, steps: Sequence[int]) -> Series:
    """Return a holdout series without the steps that cannot be trusted."""
    return holdout.pick(~np.isin(holdout.steps, np.array(steps, np.int64)))


def _trusted_holdout(evidence: RunEvidence) -> Series:
    """Return a run's holdout series without what of it cannot be trusted."""
    if evidence.trust is None:
        return evidence.holdout
    return _without(evidence.holdout, evaluator_trust.untrusted_steps(evidence.trust))


def _left_out(steps: Sequence[int]) -> str:
    """Say which evaluations enter no curve."""
    named = ", ".join(f"{step:,}" for step in steps[:_NAMED])
    more = f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else ""
    several = len(steps) > 1
    return (
        f"the evaluation{'s' if several else ''} of step{'s' if several else ''} {named}{more} "
        f"enter{'' if several else 's'} no curve: {'their' if several else 'its'} scores cannot be "
        "trusted"
    )
