"""What a run and its reference left behind, made into a case that can be judged.

The curve rule is applied and repeats are counted here, so that a verdict is a pure
reading of the case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from evalmon.audit import repeats
from evalmon.config import ComparisonSettings
from evalmon.detectors import evaluator_trust, quantized_loss, unmatched_drop
from evalmon.detectors.curve import CurveInputs, CurveResult
from evalmon.detectors.profiles import Profile, profile_named, widened
from evalmon.detectors.trust_evidence import TrustEvidence
from evalmon.id_logs import IdLog
from evalmon.logs.jsonl import RunLog
from evalmon.types import (
    CheckpointRef,
    MetricIdentity,
    ProbeResult,
    RepeatSummary,
    RunDescription,
    Series,
)

__all__ = ["TRAIN_METRIC", "Case", "RunEvidence", "build_case", "identity_differences"]

TRAIN_METRIC = "train/ce_nats"
"""The train loss that is judged: cross-entropy without z-loss."""

_NOT_TRUSTED = "the holdout loss of this evaluation cannot be trusted, so no verdict is given"
_NAMED = 5  # steps named in a note


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What one run left behind, up to the evaluation judged.

    Attributes:
        run: what the run is.
        log: its run log.
        holdout: holdout CE at its checkpoints; the last one is judged.
        holdout_identity: what that metric means, None if not known.
        ids: its id log, None when there is none.
        probe: result of the seen-against-fresh probe, None without.
        probe_checkpoint: the checkpoint it was taken at.
        tasks: what the task accuracies say against the reference: ``gain``, ``loss``,
            ``equivalent``, ``inconclusive``, or "" when not compared.
        trust: what tells whether the scores can be believed, None without any.
    """

    run: RunDescription
    log: RunLog
    holdout: Series
    holdout_identity: MetricIdentity | None = None
    ids: IdLog | None = None
    probe: ProbeResult | None = None
    probe_checkpoint: CheckpointRef | None = None
    tasks: str = ""
    trust: TrustEvidence | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a verdict rests on.

    Attributes:
        run: the run's name.
        step: evaluation judged.
        tokens: the same in tokens.
        tokens_per_step: tokens trained on by one step.
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
        notes: what else a reader must know of how the curves were judged.
    """

    run: str
    step: int
    tokens: int
    tokens_per_step: int
    curve: CurveResult
    reference: str | None = None
    repeats: RepeatSummary | None = None
    probe: ProbeResult | None = None
    probe_checkpoint: CheckpointRef | None = None
    ids_fingerprint: str | None = None
    tasks: str = ""
    nonfinite: tuple[tuple[int, str], ...] = ()
    incomparable: tuple[str, ...] = ()
    gap_nats: float = 0.02
    epoch_tokens: int | None = None
    trust: TrustEvidence | None = None
    notes: tuple[str, ...] = ()

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
    run, holdout = evidence.run, evidence.holdout
    step = int(holdout.steps[-1]) if len(holdout) else 0
    tokens = int(holdout.tokens[-1]) if len(holdout) else 0
    incomparable = _incomparable(evidence, reference) if reference else ()
    changed = _changed(run, step) or (_changed_reference(reference, tokens) if reference else "")
    if changed:  # of what is not judged, nothing else is to be said
        incomparable = ()
    used = None if incomparable else reference
    profile, notes = _profile(settings, _train(evidence).until(step), used)
    left_out = evaluator_trust.untrusted_steps(evidence.trust) if evidence.trust else ()
    if left_out:
        notes = (*notes, _left_out(left_out))
    curve = unmatched_drop.detect(
        CurveInputs(
            train=_train(evidence).until(step),
            holdout=_without(holdout, left_out),
            planned_tokens=run.planned_tokens,
            warmup_tokens=run.tokens_at(run.warmup_steps),
            reference_train=_train(used) if used else None,
            reference_holdout=_trusted_holdout(used) if used else None,
            same_recipe=_same_recipe(settings, run, used),
        ),
        profile,
    )
    if step in left_out:
        curve = replace(curve, enough_data=False, reason=_NOT_TRUSTED)
    if changed:
        curve = replace(curve, alarm=None, mirrored=None, enough_data=False, reason=changed)
    ids = evidence.ids.until(step) if evidence.ids else None
    probed = evidence.probe_checkpoint
    return Case(
        run=run.name,
        step=step,
        tokens=tokens,
        tokens_per_step=run.tokens_per_step,
        curve=curve,
        reference=used.run.name if used else None,
        repeats=None if ids is None else repeats.summarize(ids, run, _resumes(evidence.log, step)),
        probe=evidence.probe,
        probe_checkpoint=probed,
        ids_fingerprint=ids.until(probed.step).fingerprint if ids and probed else None,
        tasks=evidence.tasks,
        nonfinite=tuple(item for item in evidence.log.nonfinite if item[0] <= step),
        incomparable=incomparable,
        gap_nats=profile.gap_nats,
        epoch_tokens=run.source_instances * run.sequence_length,
        trust=evidence.trust,
        notes=notes,
    )


def identity_differences(mine: MetricIdentity, theirs: MetricIdentity) -> tuple[str, ...]:
    """Say in which fields two metric identities differ, with both values.

    Example:
        >>> one = MetricIdentity("c4", "bpb", None, "", "validation", None, "bytes", "t",
        ...                      "float32", 0, "d", 8)
        >>> identity_differences(one, replace(one, prefix_token=2))
        ("'prefix_token': 0 against 2",)
    """
    return tuple(
        f"{item.name!r}: {getattr(mine, item.name)!r} against {getattr(theirs, item.name)!r}"
        for item in fields(mine)
        if getattr(mine, item.name) != getattr(theirs, item.name)
    )


def _profile(
    settings: ComparisonSettings, train: Series, reference: RunEvidence | None
) -> tuple[Profile, tuple[str, ...]]:
    """Return the constants of the rule, wider where a train loss was rounded, and say so."""
    profile = profile_named(settings.profile)
    own = quantized_loss.grid_nats(train.values)
    other = quantized_loss.grid_nats(_train(reference).values) if reference else 0.0
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
    settings: ComparisonSettings, run: RunDescription, reference: RunEvidence | None
) -> bool:
    """Return whether levels may be compared."""
    if settings.same_recipe is not None:
        return settings.same_recipe
    return reference is not None and reference.run.recipe == run.recipe


def _without(holdout: Series, steps: Sequence[int]) -> Series:
    """Return a holdout series without the steps that cannot be trusted."""
    kept = ~np.isin(holdout.steps, np.array(steps, np.int64))
    return Series(holdout.metric, holdout.steps[kept], holdout.tokens[kept], holdout.values[kept])


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


def _train(evidence: RunEvidence) -> Series:
    """Return the run's train loss, empty before its first step."""
    return evidence.log.series.get(TRAIN_METRIC) or Series(
        TRAIN_METRIC, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64)
    )


def _resumes(log: RunLog, step: int) -> tuple[int, ...]:
    """Return the steps before ``step`` that the run went on from."""
    starts = (segment.resumed_from_step for segment in log.segments)
    return tuple(start for start in starts if start is not None and start < step)


def _changed(run: RunDescription, step: int) -> str:
    """Say at which step before ``step`` a run went on with other data, or ""."""
    before = [change for change in run.data_changes if change < step]
    if not before:
        return ""
    return (
        f"data changed at step {before[0]:,}: train loss before and after it is of different text, "
        "so no verdict is given across it"
    )


def _changed_reference(reference: RunEvidence, tokens: int) -> str:
    """Say that the reference went on with other data within so many tokens, or ""."""
    run = reference.run
    if all(run.tokens_at(change) >= tokens for change in run.data_changes):
        return ""
    return (
        f"data of the reference {run.name} changed at step {min(run.data_changes):,}: no verdict "
        "is given across it; choose another reference"
    )


def _incomparable(evidence: RunEvidence, reference: RunEvidence) -> tuple[str, ...]:
    """Return why the curves of two runs must not be laid over each other."""
    reasons: list[str] = []
    loss, other = evidence.run.loss, reference.run.loss
    fields = sorted(key for key in {*loss, *other} if loss.get(key) != other.get(key))
    reasons.extend(
        f"{TRAIN_METRIC} differs from {reference.run.name}'s in {key!r}: {loss.get(key)!r} against "
        f"{other.get(key)!r}"
        for key in fields
    )
    mine, theirs = evidence.holdout_identity, reference.holdout_identity
    if mine is not None and theirs is not None:
        reasons.extend(
            f"{evidence.holdout.metric} differs from {reference.run.name}'s in {field}"
            for field in identity_differences(mine, theirs)
        )
        if mine.tokenizer != theirs.tokenizer:
            reasons.append(
                "nats per token of different tokenizers cannot be compared: compare bits per byte, "
                f"{evidence.holdout.metric.replace('ce_nats', 'bpb')}"
            )
        elif mine != theirs:
            reasons.append("score both runs with the same settings")
    return tuple(reasons)
