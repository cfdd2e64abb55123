"""What verdicts rest on, read from the store and the run directory.

Everything at hand is gathered at once; :class:`Grounds` then tells what of it counts for
a checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from evalmon import reference
from evalmon.config import ComparisonSettings
from evalmon.detectors.trust_evidence import EqualScores, MetricHistory, TrustEvidence
from evalmon.errors import ConfigError, DataError
from evalmon.id_logs import IdLog, IdLogReader
from evalmon.logs import jsonl
from evalmon.logs.jsonl import RunLog
from evalmon.run_evidence import (
    RATE_METRIC,
    TRAIN_METRIC,
    RunEvidence,
    curves_of,
    holdout_facts,
)
from evalmon.store import ProbePoint, Store
from evalmon.types import (
    CheckpointRef,
    Curve,
    MetricIdentity,
    RunCurves,
    RunDescription,
    Series,
)

__all__ = ["Grounds", "GroundsReader", "holdout_metric"]

_SELF_CHECK = ("self_check", "EvaluationError")
"""Evaluator and error of a failure that makes the other scores of its checkpoint suspect."""

_CONTINUOUS = ("/ce_nats", "/bpb")


def holdout_metric(name: str) -> str:
    """Return the metric of a holdout that is laid against train loss.

    Example:
        >>> holdout_metric("c4_en")
        'eval/lm/c4_en-validation/ce_nats'
    """
    return f"eval/lm/{name}-validation/ce_nats"


@dataclass(frozen=True, slots=True)
class Grounds:
    """Everything at hand for judging a run.

    Attributes:
        run: what the run is.
        log: its run log.
        ids: its id log, None without one.
        holdout: the holdout's scores.
        identity: what they mean.
        probes: probe results, by rising step.
        reference: what the reference left behind, None when the run is judged alone.
        notes: what could not be read, one sentence each.
        checkpoints: every checkpoint that was found, by rising step.
        trust: what tells whether the scores can be believed.
        lost: steps whose checkpoint could not be restored.
    """

    run: RunDescription
    log: RunLog
    ids: IdLog | None
    holdout: Series
    identity: MetricIdentity | None
    probes: tuple[ProbePoint, ...]
    reference: RunEvidence | None
    notes: tuple[str, ...]
    checkpoints: tuple[CheckpointRef, ...]
    trust: TrustEvidence
    lost: frozenset[int] = frozenset()

    def reaches(self, ref: CheckpointRef) -> bool:
        """Return whether the run log tells all that led to a checkpoint."""
        return self.log.ended or self.log.last_step >= max(ref.step, 1)

    def referenced(self, ref: CheckpointRef) -> bool:
        """Return whether the reference, if there is to be one, covers a checkpoint."""
        if self.reference is None:
            return True
        train = self.reference.curves.curves.get(TRAIN_METRIC)
        return all(
            curve is not None and len(curve) > 0 and int(curve.tokens[-1]) >= ref.tokens
            for curve in (self.reference.holdout, train.series if train else None)
        )

    def probe(self, ref: CheckpointRef) -> ProbePoint | None:
        """Return the last probe up to a checkpoint."""
        points = [point for point in self.probes if point.step <= ref.step]
        return points[-1] if points else None

    def diverged_after(self, ref: CheckpointRef) -> bool:
        """Return whether training ended in non-finite losses after all usable checkpoints."""
        last = all(at.step <= ref.step or at.step in self.lost for at in self.checkpoints)
        return last and self.log.ended and any(step > ref.step for step, _ in self.log.nonfinite)

    def evidence(self, ref: CheckpointRef) -> RunEvidence:
        """Return what the run left behind up to a checkpoint."""
        probe = self.probe(ref)
        return RunEvidence(
            curves=curves_of(self.run, self.log),
            holdout=self.holdout.until(ref.step),
            description=self.run,
            holdout_facts=holdout_facts(self.identity),
            holdout_identity=self.identity,
            latest=ref.step >= int(self.holdout.steps[-1]),
            ids=self.ids,
            probe=None if probe is None else probe.result,
            probe_checkpoint=next(
                (at for at in self.checkpoints if probe and at.step == probe.step), None
            ),
            trust=self.trust.until(ref.step),
        )

    def reference_evidence(self, ref: CheckpointRef) -> RunEvidence | None:
        """Return what the reference left behind up to the same tokens, nothing later."""
        if self.reference is None:
            return None
        curves = {
            metric: replace(curve, series=_cut(curve.series, ref.tokens))
            for metric, curve in self.reference.curves.curves.items()
        }
        holdout = _cut(self.reference.holdout, ref.tokens)
        trust = self.reference.trust
        last = int(holdout.steps[-1]) if len(holdout) else 0
        return replace(
            self.reference,
            holdout=holdout,
            curves=replace(self.reference.curves, curves=curves),
            trust=trust and trust.until(last),
        )


class GroundsReader:
    """Reads grounds, a run log only when it has grown, of an id log only what is new.

    Args:
        run: the run. What a restart changes in its ``run.json`` is read again.
        store: holds its scores, and those of its reference.
        settings: how it is compared; ``holdout`` names the holdout.
        rate: of the id log one text in so many is kept, 1 for all; None to keep all where
            the whole schedule has at most ``id_logs.EXACT_DRAWS`` draws, else
            1 in ``id_logs.SAMPLED_RATE``.
    """

    def __init__(
        self,
        run: RunDescription,
        store: Store,
        settings: ComparisonSettings,
        rate: int | None = None,
    ) -> None:
        self._run, self._store = run, store
        self._ids = IdLogReader(rate)
        self._reference, self._metric = settings.reference, holdout_metric(settings.holdout)
        self._logs: dict[Path, tuple[int, RunLog]] = {}
        self._size = -1
        self._equal: dict[tuple[str, int, int], int] = {}

    def read(self) -> Grounds | None:
        """Gather what is at hand; None before the run's first holdout score.

        Raises:
            DataError: the run log is missing or broken.
            CheckpointError: ``run.json`` is broken.
        """
        run = _described_now(self._run)
        holdout = self._store.series(run.name, self._metric)
        if holdout is None:
            return None
        log = self._log(run)
        notes: list[str] = []
        try:
            ids = self._ids.read(run)
        except DataError as error:
            ids = None
            notes.append(f"the id log cannot be used: {error}")
        # Read after the run log, and written before each step: a whole one reaches as far.
        if ids is not None and ids.last_step < log.last_step:
            notes.append(
                f"{ids.path} ends at step {ids.last_step}, the run log at {log.last_step}: repeats "
                "after it cannot be seen; restore the whole file"
            )
        return Grounds(
            run=run,
            log=log,
            ids=ids,
            holdout=holdout,
            identity=self._store.identity(run.name, self._metric),
            probes=self._store.probes(run.name),
            reference=self._read_reference(notes) if self._reference else None,
            notes=tuple(notes),
            checkpoints=self._store.checkpoints(run.name),
            trust=self._trust(run, holdout),
            lost=self._lost(run.name, holdout),
        )

    def quiet(self) -> bool:
        """Return whether the run log has not grown since the last call."""
        size = _size(self._run)
        before, self._size = self._size, size
        return size == before != -1

    def ended(self) -> bool:
        """Return whether the run log says that training has ended.

        Raises:
            DataError: the run log is missing or broken.
        """
        return self._log(self._run).ended

    def reference_goes_on(self) -> bool:
        """Return whether the reference is still trained or evaluated."""
        if self._reference not in self._store.runs():
            return False
        try:
            trained = self._log(self._store.describe(self._reference)).ended
        except DataError:
            trained = True
        beats = self._store.heartbeats(self._reference)
        return not trained or any(beat.alive for beat in beats)

    def _read_reference(self, notes: list[str]) -> RunEvidence:
        """Return what the reference left behind; one that is not there has no points."""
        name = self._reference
        absent = _absent(name, self._metric)
        if name not in self._store.runs():
            return self._published(name, notes) or absent
        run = _described_now(self._store.describe(name))
        try:
            log = self._log(run)
        except DataError as error:
            notes.append(f"the reference's train loss cannot be read: {error}")
            return absent
        holdout = self._store.series(name, self._metric)
        if holdout is None:
            notes.append(f"the reference run {name!r} has no score of {self._metric} yet")
            return absent
        identity = self._store.identity(name, self._metric)
        return RunEvidence(
            curves_of(run, log),
            holdout,
            holdout_facts=holdout_facts(identity),
            description=run,
            holdout_identity=identity,
            trust=self._trust(run, holdout),
        )

    def _published(self, name: str, notes: list[str]) -> RunEvidence | None:
        """Return a reference curve of that name, None and a note where it cannot serve."""
        try:
            entry = reference.find(name)
        except ConfigError:
            notes.append(
                f"the reference {name!r} is not a run of the store yet, nor a reference curve: "
                "watch it too, or name one of `evalmon reference list`"
            )
            return None
        curves = reference.load(name, (TRAIN_METRIC, RATE_METRIC, self._metric))
        found = curves.curves.get(self._metric)
        if found is None:
            held = ", ".join(sorted(metric for metric in entry.curves if "/lm/" in metric))
            notes.append(f"the reference {name} has no {self._metric}; it has {held}")
            return None
        return RunEvidence(curves, found.series, found.facts)

    def _lost(self, run: str, holdout: Series) -> frozenset[int]:
        """Return the steps that failed to restore and have no score."""
        failures = (item.failure for item in self._store.failures(run))
        failed = {item.checkpoint.step for item in failures if item.evaluator == "restore"}
        return frozenset(failed - set(holdout.steps.tolist()))

    def _trust(self, run: RunDescription, holdout: Series) -> TrustEvidence:
        """Gather what tells whether a run's scores can be believed."""
        histories = tuple(
            MetricHistory(
                metric,
                tuple(point.step for point in points),
                tuple(point.value for point in points),
                tuple(point.stderr for point in points),
                tuple(point.items for point in points),
            )
            for metric, points in self._store.histories(run.name).items()
            if metric.startswith("eval/")
        )
        weights = self._store.weights(run.name)
        failures = (item for item in self._store.failures(run.name) if not item.superseded)
        return TrustEvidence(
            step=int(holdout.steps[-1]),
            vocab_size=run.vocab_size,
            holdout=holdout,
            histories=histories,
            weights=weights,
            equal_scores=self._equal_scores(run.name, histories, weights),
            self_check={
                item.failure.checkpoint.step: item.failure.message
                for item in failures
                if (item.failure.evaluator, item.failure.error) == _SELF_CHECK
            },
            tokens={ref.step: ref.tokens for ref in self._store.checkpoints(run.name)},
        )

    def _equal_scores(
        self, run: str, histories: Sequence[MetricHistory], weights: Mapping[int, str]
    ) -> tuple[EqualScores, ...]:
        """Return the continuous metrics that two steps of different weights agree in, bit by bit.

        Items are read only where two means agree to the last bit already.
        """
        found: list[EqualScores] = []
        for item in histories:
            if not item.metric.endswith(_CONTINUOUS):
                continue
            seen: dict[float, int] = {}
            for step, value in zip(item.steps, item.values, strict=True):
                earlier = seen.setdefault(value, step)
                if earlier == step or weights.get(earlier) == weights.get(step):
                    continue
                count = self._equal_items(run, item.metric, earlier, step)
                if count:
                    found.append(EqualScores(item.metric, earlier, step, count))
        return tuple(found)

    def _equal_items(self, run: str, metric: str, earlier: int, later: int) -> int:
        """Return how many items are equal to the last bit, 0 where not all of several are."""
        if (metric, earlier, later) not in self._equal:
            values = [
                next(score.item_values for score in scores if score.metric == metric)
                for scores in (self._store.scores(run, earlier), self._store.scores(run, later))
            ]
            equal = len(values[0]) > 1 and values[0] == values[1]
            self._equal[metric, earlier, later] = len(values[0]) if equal else 0
        return self._equal[metric, earlier, later]

    def _log(self, run: RunDescription) -> RunLog:
        """Read a run log, again only when it has grown."""
        size = _size(run)
        if run.path not in self._logs or self._logs[run.path][0] != size:
            self._logs[run.path] = (size, jsonl.read(run))
        return self._logs[run.path][1]


def _described_now(run: RunDescription) -> RunDescription:
    """Return what ``run.json`` says now: a restart may have changed batch or data."""
    if not (run.path / "run.json").is_file():
        return run
    now = RunDescription.load(run.path)
    return now if now.name == run.name else run


def _size(run: RunDescription) -> int:
    """Return the size of a run log in bytes, -1 without one."""
    path = run.path / jsonl.LOG_NAME
    return path.stat().st_size if path.is_file() else -1


def _cut(curve: Series, tokens: int) -> Series:
    """Return a curve up to its first point at or after ``tokens``: what interpolation needs."""
    end = int(np.searchsorted(curve.tokens, tokens, side="left")) + 1
    return curve.pick(slice(end))


def _absent(name: str, metric: str) -> RunEvidence:
    """Return a reference without points."""
    none = np.empty(0, np.int64)
    nothing = Series(TRAIN_METRIC, none, none, np.empty(0, np.float64))
    curves = RunCurves(name=name, source="", curves={TRAIN_METRIC: Curve(nothing)})
    return RunEvidence(curves, replace(nothing, metric=metric))
