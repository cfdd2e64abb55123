"""Findings become alert episodes: told once, followed until they resolve. Pure.

One episode per run and cause. The policy, for the verdicts of a run in rising order of step:

- a finding of a cause without a live episode opens one, and only that is told;
- while it lives, the cause may come and go: nothing is told again;
- ``resolve_after`` evaluations in a row without a finding of its cause resolve it; a
  finding after that opens a new episode, with another id;
- a verdict without enough data is no evidence of quiet: it resolves nothing;
- an acknowledged episode resolves like an open one; a muted one stays until a person
  reopens it, and its cause is not told meanwhile;
- a verdict applied twice, or one earlier than what an episode has seen, changes nothing.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalmon.types import Alert, AlertStatus, Finding, Verdict, VerdictName

__all__ = ["AlertChanges", "AlertPolicy", "update"]

_WHAT = {
    "repeated_instances": "training text is read again beyond plan",
    "memorization": "train loss falls and holdout loss does not follow",
    "leakage": "holdout loss falls and train loss does not follow",
    "evaluator": "the evaluation itself changed",
    "evaluator_suspect": "the evaluator is suspect",
    "same_scores": "different weights got the same scores to the last bit",
    "zero_stderr": "a score is stored with a standard error of 0",
    "untrained_model": "the model looks untrained",
    "same_weights": "two checkpoints hold the same weights",
    "checkpoint": "a checkpoint is not what it should be",
    "divergence": "training diverged",
    "data": "the data stream is not as planned",
}
_NEXT = {
    "memorization": "stop the run or hold its checkpoints, look at the data loader's sharding"
    " and resume position",
    "leakage": "search the training data for the holdout's documents, score a second holdout",
    "evaluator": "score the same checkpoint again, compare evaluator versions and settings",
    "checkpoint": "compare the checkpoint's weights with its trainer's, save or copy it again",
    "divergence": "go back to the last checkpoint with a finite loss, look at learning rate"
    " and gradient norms",
    "data": "look at the data loader's sharding and resume position",
}
_UNDECIDED = (VerdictName.NOT_ENOUGH_DATA, VerdictName.RECIPE_DIFFERS)


@dataclass(frozen=True, slots=True)
class AlertPolicy:
    """When an episode ends.

    Attributes:
        resolve_after: evaluations in a row without a finding of its cause, at least 1.
    """

    resolve_after: int = 10


@dataclass(frozen=True, slots=True)
class AlertChanges:
    """What one verdict changes; empty when it changes nothing.

    Attributes:
        opened: new episodes: every receiver is told of them.
        updated: live episodes with new facts or another count of quiet evaluations.
        resolved: episodes that ended.
    """

    opened: tuple[Alert, ...] = ()
    updated: tuple[Alert, ...] = ()
    resolved: tuple[Alert, ...] = ()


def update(episodes: Sequence[Alert], verdict: Verdict, policy: AlertPolicy) -> AlertChanges:
    """Return what a verdict changes among the alert episodes.

    Args:
        episodes: episodes so far, of any run.
        verdict: the verdict at one evaluation.
        policy: when an episode ends.

    Returns:
        The changed episodes only.

    Example:
        >>> from evalmon.types import Finding, Verdict, VerdictName
        >>> seen = Finding("unmatched_drop", "memorization", "r", 70, 700, 530, "fast", 0.3, "...")
        >>> verdict = Verdict(
        ...     "r", VerdictName.MEMORIZATION_SUSPECTED, 70, 700, None, "short", 530, 700, "fast",
        ...     None, None, 0.3, 0.2, 0.4, None, 0.1, None, None, None, (), (seen,))
        >>> changes = update([], verdict, AlertPolicy())
        >>> [(alert.cause, alert.opened_step) for alert in changes.opened]
        [('memorization', 70)]
        >>> update(changes.opened, verdict, AlertPolicy())
        AlertChanges(opened=(), updated=(), resolved=())
    """
    mine = [episode for episode in episodes if episode.run == verdict.run]
    findings = _by_cause(verdict)
    opened: list[Alert] = []
    updated: list[Alert] = []
    resolved: list[Alert] = []
    for cause, finding in findings.items():
        known = [episode for episode in mine if episode.cause == cause]
        live = any(episode.status is not AlertStatus.RESOLVED for episode in known)
        if not live and all(verdict.step > episode.updated_step for episode in known):
            opened.append(_open(verdict, cause, finding))
    for episode in mine:
        if episode.status is AlertStatus.RESOLVED or verdict.step < episode.updated_step:
            continue
        finding = findings.get(episode.cause)
        after = _go_on(episode, verdict, finding) if finding else _quiet(episode, verdict, policy)
        if after.status is AlertStatus.RESOLVED:
            resolved.append(after)
        elif after != episode:
            updated.append(after)
    return AlertChanges(tuple(opened), tuple(updated), tuple(resolved))


def _by_cause(verdict: Verdict) -> dict[str, Finding]:
    """Return the first finding of each cause that the verdict does not refute."""
    causes: dict[str, Finding] = {}
    for finding in verdict.findings:
        refuted = verdict.verdict is VerdictName.TRAIN_SHIFT and finding.kind == "memorization"
        if not refuted:
            causes.setdefault(finding.kind, finding)
    return causes


def _open(verdict: Verdict, cause: str, finding: Finding) -> Alert:
    """Begin an episode."""
    key = json.dumps([verdict.run, cause, verdict.step])
    return Alert(
        id=hashlib.blake2b(key.encode(), digest_size=8).hexdigest(),
        run=verdict.run,
        cause=cause,
        status=AlertStatus.OPEN,
        opened_step=verdict.step,
        opened_tokens=verdict.tokens,
        quiet=0,
        title=_title(finding, verdict.step, verdict.tokens),
        message=_message(verdict, cause, finding),
        verdict=verdict.verdict,
        updated_step=verdict.step,
    )


def _go_on(episode: Alert, verdict: Verdict, finding: Finding) -> Alert:
    """Bring a live episode up to date; its title stays what it was opened for."""
    return replace(
        episode,
        quiet=0,
        message=_message(verdict, episode.cause, finding),
        verdict=verdict.verdict,
        updated_step=verdict.step,
    )


def _quiet(episode: Alert, verdict: Verdict, policy: AlertPolicy) -> Alert:
    """Count a verdict without the episode's cause; enough of them end it."""
    if verdict.step == episode.updated_step or verdict.verdict in _UNDECIDED:
        return episode
    quiet = episode.quiet + 1
    ends = quiet >= policy.resolve_after and episode.status is not AlertStatus.MUTED
    status = AlertStatus.RESOLVED if ends else episode.status
    return replace(
        episode, quiet=quiet, status=status, verdict=verdict.verdict, updated_step=verdict.step
    )


def _title(finding: Finding, step: int, tokens: int) -> str:
    """Say in one line what was seen, and since when it is known."""
    what = _WHAT.get(finding.detector) or _WHAT.get(finding.kind, finding.kind)
    return f"{finding.run}: {what} (step {step:,}, {tokens:,} tokens)"


def _message(verdict: Verdict, cause: str, finding: Finding) -> str:
    """Write what a reader needs, the facts first: a receiver may cut the end."""
    onset = "not known" if finding.onset_tokens is None else f"{finding.onset_tokens:,} tokens"
    lines = [
        f"run {verdict.run} | step {verdict.step:,} | {_measured(verdict, finding)}",
        f"onset {onset} | alarm {finding.alarm_tokens:,} tokens | verdict {verdict.verdict}",
        f"next: {_NEXT.get(cause, 'read the report')}; evidence: evalmon report {verdict.run}",
        finding.message,
    ]
    rest = [item.message for item in verdict.findings if item is not finding]
    return "\n".join([*lines, *rest])


def _measured(verdict: Verdict, finding: Finding) -> str:
    """Name what was measured, with its value."""
    if finding.detector == "repeated_instances" and verdict.repeated_fraction is not None:
        return f"repeated draws {verdict.repeated_fraction:.1%}"
    if finding.magnitude_nats is None:
        return finding.detector.replace("_", " ")
    return f"{finding.detector.replace('_', ' ')} {finding.magnitude_nats:+.4f} nats"
