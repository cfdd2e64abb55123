"""What verdicts rest on, read from the store and the run directory.

Everything at hand is gathered at once; :class:`Grounds` then tells what of it counts for
a checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from evalmon import comparing_tasks, reference, stored_scores
from evalmon.comparing_tasks import ComparedTasks, TaskScores
from evalmon.config import ComparisonSettings
from evalmon.detectors.task_differences import is_accuracy
from evalmon.detectors.trust_evidence import TrustEvidence
from evalmon.errors import ConfigError, DataError
from evalmon.id_logs import IdLog, IdLogReader
from evalmon.logs import jsonl
from evalmon.logs.jsonl import RunLog
from evalmon.run_evidence import (
    RATE_METRIC,
    TRAIN_METRIC,
    RunEvidence,
    by_divisor,
    curves_of,
    holdout_facts,
    of_all_tokens,
)
from evalmon.series import reaching
from evalmon.store import ProbePoint, ScorePoint, Store
from evalmon.trust_reading import TrustReader
from evalmon.types import (
    CheckpointRef,
    Curve,
    Json,
    MetricIdentity,
    RunCurves,
    RunDescription,
    Series,
)

__all__ = ["Grounds", "GroundsReader", "holdout_metric"]


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
        losses: the holdout's scores, and those that divide as OLMo-core does where there are any.
        identities: what the run's scores mean, by metric.
        metric: the holdout's loss, of ``losses``.
        probes: probe results, by rising step.
        reference: what the reference left behind, None when the run is judged alone.
        notes: what could not be read, one sentence each.
        checkpoints: every checkpoint that was found, by rising step.
        trust: what tells whether the scores can be believed.
        lost: steps whose checkpoint could not be restored.
        tasks: the run's task accuracies.
        reference_tasks: those of the reference, none without one.
    """

    run: RunDescription
    log: RunLog
    ids: IdLog | None
    losses: Mapping[str, Curve]
    identities: Mapping[str, MetricIdentity]
    metric: str
    probes: tuple[ProbePoint, ...]
    reference: RunEvidence | None
    notes: tuple[str, ...]
    checkpoints: tuple[CheckpointRef, ...]
    trust: TrustEvidence
    lost: frozenset[int] = frozenset()
    tasks: TaskScores = field(default_factory=lambda: TaskScores({}))
    reference_tasks: TaskScores = field(default_factory=lambda: TaskScores({}))

    @property
    def holdout(self) -> Series:
        """The holdout's scores, per token predicted."""
        return self.losses[self.metric].series

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

    def judged(self, ref: CheckpointRef) -> Curve:
        """Return the holdout curve up to a checkpoint, by the mean of the reference's."""
        losses = {
            metric: replace(curve, series=curve.series.until(ref.step))
            for metric, curve in self.losses.items()
        }
        theirs = self.reference
        other = theirs and Curve(theirs.holdout, theirs.holdout_facts)
        return by_divisor(losses, other, self.metric)

    def meaning(self, ref: CheckpointRef) -> MetricIdentity | None:
        """Return what the numbers of :meth:`judged` mean."""
        chosen = self.judged(ref).facts.get("divisor") == "all_tokens"
        return self.identities.get(of_all_tokens(self.metric) if chosen else self.metric)

    def compared_tasks(self, ref: CheckpointRef) -> ComparedTasks:
        """Compare the tasks of run and reference at a checkpoint; without a reference none."""
        return comparing_tasks.compare(self.tasks, self.reference_tasks, ref.step, ref.tokens)

    def tasks_awaited(self, ref: CheckpointRef) -> bool:
        """Return whether the reference's tasks do not reach yet what is compared with them."""
        return comparing_tasks.awaited(self.tasks, self.reference_tasks, ref.tokens)

    def tasks_extent(self, ref: CheckpointRef) -> list[Json]:
        """Return, in JSON values, what :meth:`compared_tasks` rests on."""
        return comparing_tasks.extent(self.tasks, self.reference_tasks, ref.tokens)

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
        probe, judged = self.probe(ref), self.judged(ref)
        return RunEvidence(
            curves=curves_of(self.run, self.log),
            holdout=judged.series,
            description=self.run,
            holdout_facts=judged.facts,
            holdout_identity=self.meaning(ref),
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
            metric: replace(curve, series=reaching(curve.series, ref.tokens))
            for metric, curve in self.reference.curves.curves.items()
        }
        holdout = reaching(self.reference.holdout, ref.tokens)
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
        self._trust = TrustReader(store)

    def read(self) -> Grounds | None:
        """Gather what is at hand; None before the run's first holdout score.

        Raises:
            DataError: the run log is missing or broken.
            CheckpointError: ``run.json`` is broken.
        """
        run = _described_now(self._run)
        histories = self._store.histories(run.name)
        if self._metric not in histories:
            return None
        identities = self._store.identities(run.name)
        scored = self._curves(histories, identities)
        core = of_all_tokens(self._metric)
        losses = {name: scored[name] for name in (self._metric, core) if name in scored}
        tasks = TaskScores.of(scored, partial(stored_scores.answers, self._store, run.name))
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
        other, their_tasks = None, TaskScores({})
        if self._reference:
            other, their_tasks = self._read_reference(notes, with_tasks=bool(tasks.curves))
        holdout = losses[self._metric].series
        return Grounds(
            run=run,
            log=log,
            ids=ids,
            losses=losses,
            identities=identities,
            metric=self._metric,
            probes=self._store.probes(run.name),
            reference=other,
            notes=tuple(notes),
            checkpoints=self._store.checkpoints(run.name),
            trust=self._trust.read(run, holdout, histories),
            lost=self._lost(run.name, holdout),
            tasks=tasks,
            reference_tasks=their_tasks,
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

    def _curves(
        self,
        histories: Mapping[str, Sequence[ScorePoint]],
        identities: Mapping[str, MetricIdentity],
    ) -> dict[str, Curve]:
        """Return the holdout's losses and the task accuracies of a run of the store."""
        losses = (self._metric, of_all_tokens(self._metric))
        wanted = {
            name: points
            for name, points in histories.items()
            if name in losses or is_accuracy(name)
        }
        curves = stored_scores.curves(wanted, identities)
        for name in losses:
            if name in curves:
                facts = holdout_facts(identities.get(name))
                curves[name] = replace(curves[name], facts=facts)
        return curves

    def _read_reference(
        self, notes: list[str], *, with_tasks: bool
    ) -> tuple[RunEvidence, TaskScores]:
        """Return what the reference left behind; one that is not there has no points."""
        name, metric = self._reference, self._metric
        nothing = _absent(name, metric), TaskScores({})
        if name not in self._store.runs():
            return self._published(name, notes, with_tasks=with_tasks) or nothing
        run = _described_now(self._store.describe(name))
        try:
            log = self._log(run)
        except DataError as error:
            notes.append(f"the reference's train loss cannot be read: {error}")
            return nothing
        histories = self._store.histories(name)
        if metric not in histories:
            notes.append(f"the reference run {name!r} has no score of {metric} yet")
            return nothing
        identities = self._store.identities(name)
        scored = self._curves(histories, identities)
        holdout = scored[metric]
        found = RunEvidence(
            curves_of(run, log),
            holdout.series,
            holdout_facts=holdout.facts,
            description=run,
            holdout_identity=identities.get(metric),
            trust=self._trust.read(run, holdout.series, histories),
        )
        return found, TaskScores.of(scored, partial(stored_scores.answers, self._store, name))

    def _published(
        self, name: str, notes: list[str], *, with_tasks: bool
    ) -> tuple[RunEvidence, TaskScores] | None:
        """Return a reference curve of that name, None and a note where it cannot serve."""
        try:
            entry = reference.find(name)
        except ConfigError:
            notes.append(
                f"the reference {name!r} is not a run of the store yet, nor a reference curve: "
                "watch it too, or name one of `evalmon reference list`"
            )
            return None
        tasks = [metric for metric in entry.curves if with_tasks and is_accuracy(metric)]
        curves = reference.load(name, (TRAIN_METRIC, RATE_METRIC, self._metric, *tasks))
        found = curves.curves.get(self._metric)
        if found is None:
            held = ", ".join(sorted(metric for metric in entry.curves if "/lm/" in metric))
            notes.append(f"the reference {name} has no {self._metric}; it has {held}")
            return None
        return RunEvidence(curves, found.series, found.facts), TaskScores.of(curves.curves)

    def _lost(self, run: str, holdout: Series) -> frozenset[int]:
        """Return the steps that failed to restore and have no score."""
        failures = (item.failure for item in self._store.failures(run))
        failed = {item.checkpoint.step for item in failures if item.evaluator == "restore"}
        return frozenset(failed - set(holdout.steps.tolist()))

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


def _absent(name: str, metric: str) -> RunEvidence:
    """Return a reference without points."""
    none = np.empty(0, np.int64)
    nothing = Series(TRAIN_METRIC, none, none, np.empty(0, np.float64))
    curves = RunCurves(name=name, source="", curves={TRAIN_METRIC: Curve(nothing)})
    return RunEvidence(curves, replace(nothing, metric=metric))
