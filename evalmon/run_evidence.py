"""What one run left behind, wherever it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from evalmon.detectors.trust_evidence import TrustEvidence
from evalmon.types import (
    CheckpointRef,
    Curve,
    Json,
    MetricIdentity,
    ProbeResult,
    RunCurves,
    RunDescription,
    Series,
    TaskDifference,
)

if TYPE_CHECKING:
    from evalmon.id_logs import IdLog
    from evalmon.logs.jsonl import RunLog

__all__ = [
    "EPOCH_METRIC", "POSITION_METRIC", "RATE_METRIC", "TRAIN_METRIC", "RunEvidence", "by_divisor",
    "curves_of", "holdout_facts", "of_all_tokens", "score_facts", "train_facts",
]  # fmt: skip

TRAIN_METRIC = "train/ce_nats"
"""The train loss that is judged: cross-entropy without z-loss."""

_DIVISORS = {"ce_nats": "predicted_tokens", "olmo_core_ce_nats": "all_tokens"}

RATE_METRIC = "optim/lr"
"""The learning rate."""

EPOCH_METRIC = "data/epoch"
"""Passes over the data, counted from 0 or from 1."""

POSITION_METRIC = "data/position"
"""Instances of the data's order consumed so far."""


_NORMALIZATION = {
    "acc": "none",
    "len_norm": "characters_with_space",
    "len_norm_no_space": "characters",
    "len_norm_bytes": "bytes_with_space",
}
"""What each accuracy divides an answer's log-probability by, in the words of the tag dictionary."""


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What one run left behind, up to the evaluation judged.

    Attributes:
        curves: what its log, table or store says of it.
        holdout: holdout CE at its checkpoints; the last one is judged.
        holdout_facts: what that metric means, as far as it is known.
        description: what the run is, where a run directory says so.
        holdout_identity: what the holdout metric means in full, where evalmon scored it.
        ids: its id log, None when there is none.
        probe: result of the seen-against-fresh probe, None without.
        probe_checkpoint: the checkpoint it was taken at.
        tasks: how its task accuracies stand against the reference's, none when not compared.
        trust: what tells whether the scores can be believed, None without any.
        withheld: why no verdict may rest on it, "" where one may.
        latest: whether nothing was evaluated after it: then the rest of the log may be looked at.
    """

    curves: RunCurves
    holdout: Series
    holdout_facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    description: RunDescription | None = None
    holdout_identity: MetricIdentity | None = None
    ids: "IdLog | None" = None
    probe: ProbeResult | None = None
    probe_checkpoint: CheckpointRef | None = None
    tasks: tuple[TaskDifference, ...] = ()
    trust: TrustEvidence | None = None
    withheld: str = ""
    latest: bool = False

    @property
    def train(self) -> Series:
        """The run's train loss, empty where there is none."""
        found = self.curves.curves.get(TRAIN_METRIC)
        if found is not None:
            return found.series
        none = np.empty(0, np.int64)
        return Series(TRAIN_METRIC, none, none, np.empty(0, np.float64))


def train_facts(run: RunDescription) -> dict[str, Json]:
    """Return what a run's train loss means, as far as published curves state the same."""
    facts: dict[str, Json] = {"divisor": "predicted_tokens"}
    included = run.loss.get("z_loss_included")
    if included is not None:
        facts["z_loss"] = "included" if included else "excluded"
    return facts


def holdout_facts(identity: MetricIdentity | None) -> dict[str, Json]:
    """Return what a scored metric means, as far as published curves state the same.

    Tokenizer and text are known by their hashes alone, which nobody publishes.
    """
    facts: dict[str, Json] = {"z_loss": "excluded"}
    if identity is None:
        return facts
    if identity.split:
        facts["split"] = identity.split
    if identity.metric in _DIVISORS:
        facts["divisor"] = _DIVISORS[identity.metric]
    return facts


def of_all_tokens(metric: str) -> str:
    """Return the metric of a holdout's loss that divides as OLMo-core does.

    Example:
        >>> of_all_tokens("eval/lm/c4_en-validation/ce_nats")
        'eval/lm/c4_en-validation/olmo_core_ce_nats'
    """
    return metric.replace("/ce_nats", "/olmo_core_ce_nats")


def by_divisor(run: Mapping[str, Curve], reference: Curve | None, metric: str) -> Curve:
    """Return a run's holdout loss by the mean that its reference is published in.

    OLMo-core's evaluator divides by all tokens of a document, so AI2's curves are laid over
    ``olmo_core_ce_nats``, not over the mean of predicted tokens. The evaluations stay the same:
    where one of them lacks that mean, the other one is judged, at an offset that is known.

    Args:
        run: the run's curves, canonical metric -> curve; ``metric`` among them.
        reference: the reference's curve of ``metric``, None when judged alone.
        metric: the holdout's loss.

    Returns:
        The run's curve of ``metric``, or in its place the other mean, named and placed like it.
    """
    own, other = run[metric], run.get(of_all_tokens(metric))
    if reference is None or other is None or reference.facts.get("divisor") != "all_tokens":
        return own
    kept = other.series.pick(np.isin(other.series.steps, own.series.steps))
    if len(kept) != len(own.series):
        return own
    facts = {**own.facts, "divisor": "all_tokens"}
    return replace(other, series=replace(kept, metric=metric), facts=facts)


def curves_of(run: RunDescription, log: "RunLog") -> RunCurves:
    """Return what a run directory says of its run, apart from what evaluators found.

    Args:
        run: its description.
        log: its log.

    Returns:
        Every logged series; the facts of its train loss are those other sources state too.
    """
    facts = train_facts(run)
    return RunCurves(
        name=run.name,
        source=str(log.path),
        curves={
            name: Curve(points, facts if name == TRAIN_METRIC else {})
            for name, points in log.series.items()
        },
        tokens_per_step=run.tokens_per_step,
        planned_tokens=run.planned_tokens,
        warmup_tokens=run.tokens_at(run.warmup_steps),
        recipe=run.recipe,
        seams=_resumes(log),
        data_changes=tuple(run.data_changes),
        nonfinite=log.nonfinite,
        superseded=log.superseded,
    )


def _resumes(log: "RunLog") -> tuple[int, ...]:
    """Return the steps that the run went on from."""
    starts = (segment.resumed_from_step for segment in log.segments)
    return tuple(start for start in starts if start is not None)


def score_facts(metric: str, identity: MetricIdentity | None, items: int) -> dict[str, Json]:
    """Return what a stored metric means, as far as published curves state the same.

    Args:
        metric: canonical name.
        identity: what it means in full, None where that is not known.
        items: number of its items.
    """
    found: dict[str, Json] = {"items": items}
    kind = metric.rpartition("/")[2]
    if metric.startswith("eval/downstream/") and kind in _NORMALIZATION:
        found["normalization"] = _NORMALIZATION[kind]
    if identity is None:
        return found
    # Of two runs of a store all of it is compared; what is published states no such hash.
    found["identity"] = identity.fingerprint
    if identity.shots is not None:
        found["shots"] = identity.shots
    if identity.split:
        found["split"] = identity.split
    return found
