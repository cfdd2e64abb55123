"""Guards on the evaluator: scores that the model cannot have earned.

A model looks untrained when its holdout loss is that of guessing evenly, ln(vocabulary),
long after training began: its weights were left as they were initialized. The evaluator is
suspect when its self-check failed, and when most tasks fall to chance at one checkpoint
while holdout loss does not rise: a model that forgets what it could do does not keep its
loss. Both say that the numbers are wrong, and neither that the model is worse.

Source: allenai/OLMo issue 583 (weights left random); marin-community/levanter issue 860
(all tasks at chance, perplexity good); EleutherAI/lm-evaluation-harness issues 3966 and 4070
(standard errors of zero).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from evalmon.detectors.trust_evidence import MetricHistory, TrustEvidence
from evalmon.types import Finding, Json

__all__ = [
    "CHANCE",
    "Fall",
    "chance_of",
    "fall",
    "looks_untrained",
    "suspect",
    "untrained",
    "untrusted_steps",
    "zero_stderr",
]

CHANCE: MappingProxyType[str, float] = MappingProxyType(
    {
        "arc_easy": 0.25,
        "arc_challenge": 0.25,
        "boolq": 0.5,
        "hellaswag": 0.25,
        "openbookqa": 0.25,
        "piqa": 0.5,
        "sciq": 0.25,
        "winogrande": 0.5,
    }
)
"""Accuracy of guessing by task: one over its choices, averaged over items."""

_CONSTANT: Final = {"boolq": 0.6217}  # share of "yes" in BoolQ's validation split
_ACCURACY: Final = re.compile(r"eval/downstream/(?P<task>.+)_\d+shot/(?:acc|len_norm)\w*")
_UNTRAINED_NATS: Final = 0.1
_UNTRAINED_AFTER: Final = 100  # steps
_AT_CHANCE: Final = 2.0  # standard errors
_CLEARLY_ABOVE: Final = 4.0
_LEAST_FALLEN: Final = 2  # tasks
_HOLDOUT_RISE_NATS: Final = 0.05  # five times the largest bump of a healthy 7B run


@dataclass(frozen=True, slots=True)
class Fall:
    """Tasks that fell to chance together.

    Attributes:
        since: the last step at which they stood.
        before: accuracy there of each fallen task.
        now: accuracy of each at the step judged.
        stood: tasks that stood clearly above chance there.
        holdout_move_nats: holdout loss now minus then.
    """

    since: int
    before: Mapping[str, float]
    now: Mapping[str, float]
    stood: int
    holdout_move_nats: float


def chance_of(task: str) -> float | None:
    """Return the accuracy of guessing, None where the task is not known.

    Example:
        >>> chance_of("piqa"), chance_of("olmes_arc_challenge"), chance_of("my_task")
        (0.5, 0.25, None)
    """
    name = _known(task)
    return None if name is None else CHANCE[name]


def looks_untrained(step: int, holdout_nats: float, vocab_size: int) -> bool:
    """Tell whether a holdout loss is that of guessing evenly, after more than 100 steps.

    Args:
        step: optimizer updates completed.
        holdout_nats: holdout CE, nats per token.
        vocab_size: rows of the embedding, 0 where not known.

    Example:
        >>> looks_untrained(200, 11.45, 100_352), looks_untrained(100, 11.45, 100_352)
        (True, False)
    """
    if step <= _UNTRAINED_AFTER or vocab_size < 2:
        return False
    return abs(holdout_nats - math.log(vocab_size)) <= _UNTRAINED_NATS


def untrained(run: str, seen: TrustEvidence) -> Finding | None:
    """Return a finding of kind ``checkpoint`` when the model judged looks untrained."""
    value = _holdout_at(seen, seen.step)
    if value is None or not looks_untrained(seen.step, value, seen.vocab_size):
        return None
    even = math.log(seen.vocab_size)
    return _finding(
        run,
        seen,
        detector="untrained_model",
        message=(
            f"the model looks untrained at step {seen.step:,}: holdout loss {value:.4f} nats, "
            f"guessing evenly among {seen.vocab_size:,} tokens costs {even:.4f}; look for weights "
            "that were not in the checkpoint, or not restored from it"
        ),
        evidence={"holdout_nats": value, "even_nats": even, "vocab_size": seen.vocab_size},
    )


def suspect(run: str, seen: TrustEvidence) -> Finding | None:
    """Return a finding of kind ``evaluator`` when the scores judged cannot be trusted."""
    said = seen.self_check.get(seen.step)
    if said is not None:
        return _finding(
            run,
            seen,
            detector="evaluator_suspect",
            message=f"evaluator suspect: the self-check of step {seen.step:,} failed: {said}",
            evidence={"self_check": "failed"},
        )
    found = fall(seen)
    if found is None:
        return None
    return _finding(
        run,
        seen,
        detector="evaluator_suspect",
        message=(
            f"evaluator suspect: {len(found.now)} of {found.stood} tasks that stood above chance "
            f"at step {found.since:,} are at chance at step {seen.step:,}, while holdout loss "
            f"moved by {found.holdout_move_nats:+.4f} nats; score both steps again"
        ),
        evidence={
            "accuracies_before": dict(found.before),
            "accuracies_now": dict(found.now),
            "last_good_step": found.since,
            "holdout_move_nats": round(found.holdout_move_nats, 6),
        },
    )


def fall(seen: TrustEvidence) -> Fall | None:
    """Return the tasks that are at chance at the step judged and stood before, if they are most.

    A task stands when an accuracy of it exceeds chance by more than 4 binomial standard
    errors; it is at chance within 2, where BoolQ's chance reaches up to what "yes" to every
    question gives. Most means more than half of the tasks that stood, and at least two. Once
    they have fallen, later steps are compared with the last one at which they stood.
    """
    accuracies = [item for item in seen.histories if _task(item.metric)]
    before: int | None = None
    found: Fall | None = None
    for step in sorted({step for item in accuracies for step in item.steps}):
        found = None if before is None else _fall_between(seen, accuracies, before, step)
        if found is None:
            before = step
        if step == seen.step:
            return found
    return None


def zero_stderr(run: str, seen: TrustEvidence) -> Finding | None:
    """Return a finding of kind ``evaluator`` when an error bar of 0 is stored with a share.

    Where items are right and wrong, their mean cannot be known exactly: who wrote the score
    wrote 0 for "not computed".
    """
    wrong: dict[str, float] = {}
    for item in seen.histories:
        place = item.place(seen.step)
        if place is not None and _ACCURACY.fullmatch(item.metric):
            value = item.values[place]
            if item.stderrs[place] == 0 and 0 < value < 1:
                wrong[item.metric] = value
    if not wrong:
        return None
    metric, value = next(iter(wrong.items()))
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return _finding(
        run,
        seen,
        detector="zero_stderr",
        message=(
            f"bad input at step {seen.step:,}: {metric}{more} is {value:.4f} with a stored "
            "standard error of 0; import it again with its items, or without a standard error"
        ),
        evidence={"scores": dict(wrong)},
    )


def untrusted_steps(seen: TrustEvidence) -> tuple[int, ...]:
    """Return the steps whose holdout loss enters no curve, by rising step.

    Those are the steps that look untrained, that failed their self-check, and the later of
    two steps of different weights whose holdout scores are bit-equal.
    """
    steps = {*seen.self_check}
    steps |= {item.later for item in seen.equal_scores if item.metric == seen.holdout.metric}
    steps |= {
        int(step)
        for step, value in zip(seen.holdout.steps, seen.holdout.values, strict=True)
        if looks_untrained(int(step), float(value), seen.vocab_size)
    }
    return tuple(sorted(steps & set(seen.holdout.steps.tolist())))


def _fall_between(
    seen: TrustEvidence, accuracies: list[MetricHistory], before: int, now: int
) -> Fall | None:
    """Compare two steps."""
    stood: dict[str, float] = {}
    fallen: dict[str, float] = {}
    up: set[str] = set()
    for item in accuracies:
        first, last, task = item.place(before), item.place(now), _task(item.metric)
        if first is None or last is None or not _exceeds(item, first, task, _CLEARLY_ABOVE):
            continue
        stood.setdefault(task, item.values[first])
        if _exceeds(item, last, task, _AT_CHANCE):
            up.add(task)
        else:
            fallen.setdefault(task, item.values[last])
    for task in up:
        fallen.pop(task, None)
    then, value = _holdout_at(seen, before, exactly=False), _holdout_at(seen, now)
    if then is None or value is None or value - then > _HOLDOUT_RISE_NATS:
        return None
    if len(fallen) < _LEAST_FALLEN or 2 * len(fallen) <= len(stood):
        return None
    return Fall(before, {task: stood[task] for task in fallen}, fallen, len(stood), value - then)


def _exceeds(item: MetricHistory, place: int, task: str, errors: float) -> bool:
    """Tell whether an accuracy exceeds chance by more than so many binomial standard errors."""
    name = _known(task)
    assert name is not None
    chance = _CONSTANT.get(name, CHANCE[name])
    error = math.sqrt(chance * (1 - chance) / item.items[place])
    return item.values[place] > chance + errors * error


def _task(metric: str) -> str:
    """Return the task of an accuracy whose chance is known, or ""."""
    match = _ACCURACY.fullmatch(metric)
    return match["task"] if match and _known(match["task"]) else ""


def _known(task: str) -> str | None:
    """Return the name of the table that a task is, or bears within its own."""
    if task in CHANCE:
        return task
    return next((name for name in CHANCE if re.search(rf"(^|[^a-z0-9]){name}(_|\W|$)", task)), None)


def _holdout_at(seen: TrustEvidence, step: int, *, exactly: bool = True) -> float | None:
    """Return holdout loss at a step, or the last before it."""
    end = int(np.searchsorted(seen.holdout.steps, step, side="right"))
    if not end or (exactly and int(seen.holdout.steps[end - 1]) != step):
        return None
    return float(seen.holdout.values[end - 1])


def _finding(
    run: str,
    seen: TrustEvidence,
    detector: str,
    message: str,
    evidence: Mapping[str, Json],
) -> Finding:
    """Return a finding at the step judged."""
    tokens = seen.tokens.get(seen.step, 0)
    return Finding(
        detector=detector,
        kind="checkpoint" if detector == "untrained_model" else "evaluator",
        run=run,
        alarm_step=seen.step,
        alarm_tokens=tokens,
        onset_tokens=tokens,
        channel="",
        magnitude_nats=None,
        message=message,
        evidence=evidence,
    )
