"""One verdict a checkpoint, stored with the alerts that follow from it.

A verdict at step s is reached from data up to s only, so that it does not depend on when
it is reached: an evaluator that was killed and started again, or that came late, ends
with the verdicts of one that watched from the start. What may come later is part of a
verdict's key, and the step is judged again when it is there: a score or self-check that
failed at first, the reference or a task of it reaching s, and non-finite losses of a training
that failed after its last checkpoint.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from evalmon import alerts
from evalmon.alerts import AlertPolicy
from evalmon.config import ComparisonSettings
from evalmon.evidence import build_case
from evalmon.grounds import Grounds, GroundsReader
from evalmon.store import Store
from evalmon.types import CheckpointRef, RunDescription, Verdict
from evalmon.verdict import judge

__all__ = ["Judge", "Judged", "rejudge"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of judging.

    Attributes:
        verdicts: verdicts stored.
        waiting: whether a step waits for the run log or for a reference that goes on.
    """

    verdicts: int
    waiting: bool


class Judge:
    """Judges the checkpoints of one run.

    Args:
        run: the run.
        store: holds its scores, and those of its reference.
        settings: how it is compared; ``holdout`` names the holdout.
        policy: when an alert episode ends.
        sinks: keys of the receivers told of a new episode.
    """

    def __init__(
        self,
        run: RunDescription,
        store: Store,
        settings: ComparisonSettings,
        policy: AlertPolicy,
        sinks: Sequence[str],
    ) -> None:
        self.reader = GroundsReader(run, store, settings)
        self._run, self._store, self._settings = run, store, settings
        self._policy, self._sinks = policy, sinks

    def judge_before(self, step: int | None) -> Judged:
        """Judge, by rising step, what is not judged on the same grounds already.

        Args:
            step: the first checkpoint that is not to be judged yet, None for none.

        Raises:
            DataError: the run log is missing or broken.
            CheckpointError: ``run.json`` is broken.
            ConfigError: the profile is unknown.
            StoreError: the store cannot be read or written.
        """
        grounds = self.reader.read()
        if grounds is None:
            return Judged(0, waiting=False)
        known, stored = self._store.judged(self._run.name), 0
        waiting = uncovered = False
        for ref in grounds.checkpoints:
            if step is not None and ref.step >= step:
                break
            if ref.step not in grounds.holdout.steps:
                continue
            if not grounds.reaches(ref):
                waiting = True
                break
            uncovered = uncovered or not grounds.referenced(ref) or grounds.tasks_awaited(ref)
            key = _key(self._settings, grounds, ref)
            if (ref.step, key) not in known:
                verdict = _verdict(self._settings, grounds, ref)
                _append(self._store, verdict, key, self._policy, self._sinks)
                stored += 1
        return Judged(stored, waiting or (uncovered and self.reader.reference_goes_on()))


def rejudge(
    run: RunDescription, store: Store, settings: ComparisonSettings | None = None
) -> Verdict | None:
    """Judge a run's last evaluation again from what is at hand now, and store the verdict.

    Args:
        run: the run.
        store: its store.
        settings: how it is compared; None for the settings it was watched with.

    Returns:
        The verdict, None before the first holdout score.

    Raises:
        StoreError: the run is not in the store.
        DataError: the run log is missing or broken.
    """
    settings = settings or ComparisonSettings(**store.comparison(run.name))
    grounds = GroundsReader(run, store, settings).read()
    if grounds is None:
        return None
    last = int(grounds.holdout.steps[-1])
    ref = next(ref for ref in grounds.checkpoints if ref.step == last)
    verdict = _verdict(settings, grounds, ref)
    # A key of its own: the evaluator may not have finished this checkpoint and still judges it.
    _append(store, verdict, f"now-{_key(settings, grounds, ref)}", AlertPolicy(), ())
    return verdict


def _key(settings: ComparisonSettings, grounds: Grounds, ref: CheckpointRef) -> str:
    """Return what a verdict at a checkpoint rests on: it is judged again when that differs."""
    probe, meaning = grounds.probe(ref), grounds.meaning(ref)
    facts = [
        asdict(settings),
        grounds.referenced(ref),
        grounds.ids is not None,
        grounds.diverged_after(ref),
        None if meaning is None else meaning.fingerprint,
        len(grounds.holdout.until(ref.step)),
        None if probe is None else probe.step,
    ]
    changes = [step for step in grounds.run.data_changes if step < ref.step]
    facts += [changes] if changes else []
    tasks = grounds.tasks_extent(ref)
    facts += [tasks] if tasks else []
    facts += [grounds.trust.extent(ref.step)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()


def _verdict(settings: ComparisonSettings, grounds: Grounds, ref: CheckpointRef) -> Verdict:
    """Judge a checkpoint that has a holdout score."""
    tasks = grounds.compared_tasks(ref)
    evidence = replace(grounds.evidence(ref), tasks=tasks.differences)
    case = build_case(evidence, settings, grounds.reference_evidence(ref))
    if grounds.diverged_after(ref):
        case = replace(case, nonfinite=grounds.log.nonfinite)
    verdict = judge(case)
    left_out = [tasks.note] if tasks.note else []
    return replace(verdict, reasons=(*grounds.notes, *verdict.reasons, *left_out))


def _append(
    store: Store, verdict: Verdict, key: str, policy: AlertPolicy, sinks: Sequence[str]
) -> None:
    """Store a verdict with the alert changes that follow from it."""
    store.append_verdict(
        verdict, key, lambda episodes: alerts.update(episodes, verdict, policy), sinks
    )
