"""The only orchestration: one pass over a run's checkpoints, and the loop of passes.

A pass finds committed checkpoints, scores what is not stored, judges, and tells. Every
result is stored when it is there, so that a pass may be killed anywhere: the next one
goes on where the store ends, and repeats nothing that is in it. While one checkpoint is
scored, the next is restored; the order of results does not change.

Weights that were scored at another step or in another run are scored again: that two
checkpoints give the same numbers is evidence, and evidence is computed, not copied.
"""

import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from evalmon import checkpoints, evaluators, models, scorers, sinks
from evalmon.alerts import AlertPolicy
from evalmon.config import ComparisonSettings, Settings
from evalmon.courier import Courier
from evalmon.errors import CheckpointError, ConfigError, EvalmonError, EvaluationError, StoreError
from evalmon.evaluators import Evaluator
from evalmon.judging import Judge
from evalmon.restoring import Ahead
from evalmon.sinks import Sink
from evalmon.store import ResponseFile, Store
from evalmon.types import CheckpointRef, Failure, RunDescription

__all__ = ["ATTEMPTS", "Monitor", "PassSummary", "StepResult"]

ATTEMPTS = 3
"""Tries of an evaluator at a checkpoint, one a pass."""

_LEASE_SECONDS = 1800.0
_UNFINISHED_SECONDS = 300.0


@dataclass(slots=True)
class PassSummary:
    """What one pass did, and what is left.

    Attributes:
        evaluated: evaluations stored.
        failed: attempts that failed.
        judged: verdicts stored.
        waiting: committed steps that are not scored to the end: another evaluator holds
            them, or a failed attempt will be repeated.
        unfinished: checkpoint folders that have been unfinished for minutes.
        pending: deliveries still to be made.
        done: training has ended and there is nothing left to do.
    """

    evaluated: int = 0
    failed: int = 0
    judged: int = 0
    waiting: tuple[int, ...] = ()
    unfinished: tuple[Path, ...] = ()
    pending: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What scoring one checkpoint came to.

    Attributes:
        asked: name and version of the evaluators that it was to be scored by.
        failures: those of this call, in order.
    """

    asked: frozenset[tuple[str, str]]
    failures: tuple[Failure, ...]


@dataclass
class Monitor:
    """Watches one run.

    Attributes:
        run: the run.
        store: where results go.
        settings: what is scored, how it is judged, who is told.
        evaluators: replace those of the settings.
        model: replaces the one that the run names.
        sinks: replace those of the settings.
        clock: returns Unix seconds.

    Raises:
        ConfigError: a setting cannot be used.
        StoreError: another run of this name is stored.
    """

    run: RunDescription
    store: Store
    settings: Settings
    evaluators: Sequence[Evaluator] | None = None
    model: models.LanguageModel | None = None
    sinks: Sequence[Sink] | None = None
    clock: Callable[[], float] = time.time
    _judge: Judge = field(init=False)
    _courier: Courier = field(init=False)
    _responses: ResponseFile | None = field(init=False)
    _summary: PassSummary = field(init=False, default_factory=PassSummary)
    _tried: set[int] = field(init=False, default_factory=set[int])
    _settled: set[int] = field(init=False, default_factory=set[int])
    _behind: bool = field(init=False, default=True)
    _tries: float = field(init=False, default=ATTEMPTS)

    def __post_init__(self) -> None:
        receivers = sinks.build(self.settings.alerts) if self.sinks is None else self.sinks
        self._courier = Courier(self.run.name, self.store, receivers, self.clock)
        self._responses = scorers.response_file(
            self.settings.evaluation, self.store.file, self.clock
        )
        comparison = _with_holdout(self.settings)
        self.store.register(self.run, asdict(comparison))
        policy = AlertPolicy(self.settings.alerts.resolve_after)
        self._judge = Judge(self.run, self.store, comparison, policy, self._courier.keys)

    def follow(
        self,
        sleep: Callable[[float], None] = time.sleep,
        progress: "tqdm[Any] | None" = None,
    ) -> PassSummary:
        """Pass after pass until training has ended and all is scored, judged and told.

        Args:
            sleep: waits between passes.
            progress: bar that counts checkpoints, None for one on standard error.
        """
        if progress is None:
            progress = tqdm(desc=self.run.name, unit="checkpoint", disable=None)
        with progress as bar:
            while not self.one_pass(bar).done:
                sleep(self.settings.poll_seconds)
        self.store.beat(self.run.name, "ended")
        return self._summary

    def one_pass(self, progress: "tqdm[Any] | None" = None) -> PassSummary:
        """Score, judge and tell what there is now.

        Raises:
            StoreError: the store cannot be read or written.
            CheckpointError: two folders claim the same step.
            ConfigError: the run's model is not installed, or a profile is unknown.
            DataError: the run log is broken.
        """
        # Asked before the checkpoints are listed: all those of a run that has ended are there.
        ended = self._judge.reader.quiet() and self._judge.reader.ended()
        self._summary = PassSummary()
        listing = checkpoints.find(self.run)
        self.store.note_checkpoints(listing.committed)
        with Ahead() as ahead:
            for number, ref in enumerate(listing.committed, start=1):
                if ref.step not in self._settled:
                    self._score(ref, ahead, listing.committed[number:])
                    self._judge_and_tell(listing.committed)
                if progress is not None:
                    progress.update(len(self._settled) - progress.n)
        self._note_vanished(listing.committed)
        if ended:
            self._note_unfinished(listing.unfinished)
        if self._behind or ended:
            self._judge_and_tell(listing.committed)
        self._tell()
        return self._summarize(listing, ended=ended)

    def evaluate_step(self, step: int) -> StepResult:
        """Score one checkpoint, also what has failed too often for a pass to try again.

        Raises:
            CheckpointError: it is not there, or not finished.
            ConfigError: the settings leave nothing to score.
            EvaluationError: another process is scoring it.
        """
        self._tries = math.inf
        found = {ref.step: ref for ref in checkpoints.find(self.run).committed}
        if step not in found:
            raise CheckpointError(
                f"{self.run.path}: no finished checkpoint of step {step}; there are {list(found)}"
            )
        known = len(self.store.failures(self.run.name))
        with Ahead() as ahead:
            self._score(found[step], ahead, ())
        if step not in self._tried:
            raise EvaluationError(f"step {step} is being scored by another process; wait for it")
        asked = [item for item in self._built() if not item.not_applicable(found[step], self.run)]
        if not asked:
            raise ConfigError(
                "evaluation: nothing to score; name evaluators, and a task or a holdout"
            )
        new = self.store.failures(self.run.name)[known:]
        return StepResult(
            frozenset((item.name, item.version) for item in asked),
            tuple(item.failure for item in new),
        )

    def _built(self) -> Sequence[Evaluator]:
        """Return the evaluators, building those of the settings the first time."""
        if self.evaluators is None:
            self.evaluators = evaluators.build(self.settings.evaluation, self.run)
        return self.evaluators

    def _missing(self, ref: CheckpointRef) -> list[Evaluator]:
        """Return the evaluators still to run at a checkpoint."""
        built = self._built()
        failed = self.store.attempts(self.run.name, ref.step)
        stored = self.store.stored(self.run.name, ref.step)
        return [
            item
            for item in built
            if failed["restore", ""] < self._tries
            and failed[item.name, item.version] < self._tries
            and (item.name, item.version) not in stored
            and not item.not_applicable(ref, self.run)
        ]

    def _score(self, ref: CheckpointRef, ahead: Ahead, later: Sequence[CheckpointRef]) -> None:
        """Run what is missing at a checkpoint, unless another process is at it."""
        if self._missing(ref):
            if not self.store.lease(self._lease(ref), _LEASE_SECONDS):
                return
            try:
                missing = self._missing(ref)  # again, now that nobody else can be at it
                if missing:
                    weights = self._restore(ref, ahead)
                    self._restore_next(ahead, later)
                    if weights:
                        self._evaluate(missing, ref, weights)
            finally:
                self.store.release(self._lease(ref))
        self._tried.add(ref.step)
        if not self._missing(ref):
            self._settled.add(ref.step)

    def _restore(self, ref: CheckpointRef, ahead: Ahead) -> str:
        """Load a checkpoint's weights and return their fingerprint, "" where it failed."""
        if self.model is None:
            mesh = self.settings.evaluation.mesh
            self.model = models.find_model(self.run.model_description, mesh=mesh)
        self.store.beat(self.run.name, f"restore step {ref.step}")
        try:
            parameters = ahead.take(ref)
            self.store.note_weights(ref, parameters.fingerprint)
            self.model.load(parameters.tree)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - stored; the other checkpoints go on
            self._fail("restore", "", ref, error)
            return ""
        return parameters.fingerprint

    def _restore_next(self, ahead: Ahead, later: Sequence[CheckpointRef]) -> None:
        """Begin to restore the next checkpoint that this process will likely score."""
        for ref in later:
            waits = ref.step not in self._settled and self._missing(ref)
            if waits and not self.store.leased_elsewhere(self._lease(ref)):
                ahead.begin(ref)
                return

    def _evaluate(self, missing: Sequence[Evaluator], ref: CheckpointRef, weights: str) -> None:
        """Run each missing evaluator; a failure stops none of the others."""
        assert self.model is not None
        settings, responses = self.settings.evaluation, self._responses
        try:
            for evaluator in missing:
                self.store.beat(self.run.name, f"{evaluator.name} at step {ref.step}")
                self.store.lease(self._lease(ref), _LEASE_SECONDS)
                about = f"{self.run.name} step {ref.step} {evaluator.name}"
                scorer = scorers.scorer(self.model, self.run, settings, weights, responses, about)
                try:
                    found = evaluator.evaluate(scorer, ref, self.run, weights)
                    self._summary.evaluated += self.store.append_evaluation(found)
                except StoreError:
                    raise
                except Exception as error:  # noqa: BLE001 - stored; the other evaluators go on
                    self._fail(evaluator.name, evaluator.version, ref, error)
            if responses and not self._missing(ref):
                responses.drop(weights)
        finally:
            if responses:
                responses.close()

    def _lease(self, ref: CheckpointRef) -> str:
        """Name the lease on a checkpoint."""
        return f"{self.run.name}/{ref.step}"

    def _fail(self, name: str, version: str, ref: CheckpointRef, error: Exception) -> None:
        """Store a failed attempt."""
        self._summary.failed += 1
        failure = Failure(name, ref, type(error).__name__, _explain(error))
        self.store.append_failure(failure, version)

    def _note_vanished(self, committed: Sequence[CheckpointRef]) -> None:
        """Store a failure for each checkpoint that went away before it was scored."""
        there = {ref.step for ref in committed}
        for ref in self.store.checkpoints(self.run.name):
            if ref.step not in there and ref.step not in self._settled:
                self._settled.add(ref.step)
                failed = self.store.attempts(self.run.name, ref.step)
                if self._missing(ref) and not failed["restore", ""]:
                    reason = "vanished before it was scored; keep checkpoints longer"
                    self._fail("restore", "", ref, CheckpointError(f"{ref.path}: {reason}"))

    def _note_unfinished(self, left: Sequence[Path]) -> None:
        """Store a failure for each checkpoint that nobody will finish any more."""
        for path in left:
            step = checkpoints.step_of(path)
            if not self.store.attempts(self.run.name, step)["restore", ""]:
                ref = CheckpointRef(self.run.name, step, step * self.run.tokens_per_step, path)
                reason = "unfinished or damaged, and training has ended; copy it again or remove it"
                self._fail("restore", "", ref, CheckpointError(f"{path}: {reason}"))

    def _judge_and_tell(self, committed: Sequence[CheckpointRef]) -> None:
        """Judge in rising order of step up to the first checkpoint not yet tried; then tell."""
        untried = [ref.step for ref in committed if ref.step not in self._tried]
        try:
            judged = self._judge.judge_before(min(untried, default=None))
            self._summary.judged += judged.verdicts
            self._behind = judged.waiting
        except (StoreError, ConfigError):
            raise
        except Exception as error:  # noqa: BLE001 - stored; scoring goes on
            self._behind = False
            last = self.store.checkpoints(self.run.name)[-1]
            if self.store.attempts(self.run.name, last.step)["judge", ""] < ATTEMPTS:
                self._fail("judge", "", last, error)
        self._tell()

    def _tell(self) -> None:
        """Try every delivery that is due; a broken sink stops neither another nor scoring."""
        for sink, due in self._courier.due():
            try:
                self._courier.deliver(sink, due)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - stored; tried again later
                self._courier.give_up_for_now(sink, due, _explain(error))

    def _summarize(self, listing: checkpoints.CheckpointListing, *, ended: bool) -> PassSummary:
        """Say what is left to do."""
        summary, pending = self._summary, self._courier.pending()
        summary.waiting = tuple(r.step for r in listing.committed if r.step not in self._settled)
        summary.unfinished = tuple(path for path in listing.unfinished if self._overdue(path))
        summary.pending = len(pending)
        told = all(delivery.attempts for delivery in pending)
        summary.done = ended and told and not summary.waiting and not self._behind
        names = ", ".join(path.name for path in summary.unfinished)
        self.store.beat(self.run.name, f"waiting; unfinished: {names}" if names else "waiting")
        return summary

    def _overdue(self, path: Path) -> bool:
        """Return whether an unfinished checkpoint is older than any save takes."""
        try:
            return self.clock() - path.stat().st_mtime > _UNFINISHED_SECONDS
        except OSError:  # finished or removed just now
            return False


def _with_holdout(settings: Settings) -> ComparisonSettings:
    """Name the holdout that is laid against train loss: the one set, C4, or the only one."""
    names = [holdout.name for holdout in settings.evaluation.holdouts]
    chosen = settings.comparison.holdout
    if not chosen and "c4_en" in names:
        chosen = "c4_en"
    if not chosen and len(names) == 1:
        chosen = names[0]
    if names and chosen not in names:
        reason = f"{chosen!r} is not scored" if chosen else "several are scored"
        raise ConfigError(f"comparison.holdout: {reason}; name one of {names}")
    return replace(settings.comparison, holdout=chosen)


def _explain(error: Exception) -> str:
    """Return an error's message; one that was not raised on purpose is located too."""
    if isinstance(error, EvalmonError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error or type(error).__name__} ({frame.filename}:{frame.lineno})"
