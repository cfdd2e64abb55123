"""What one run left behind, wherever it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    "EPOCH_METRIC", "POSITION_METRIC", "RATE_METRIC", "TRAIN_METRIC", "RunEvidence", "curves_of",
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
