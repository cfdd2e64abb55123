"""Evaluators: checkpoint to scores.

Each evaluator is named, versioned by everything that changes its numbers, and knows
nothing of the others: one that fails or does not apply stops none of them.
"""

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from evalmon.config import EvaluationSettings
from evalmon.errors import ConfigError
from evalmon.evaluators import downstream_tasks, holdout_loss, memorization_probe, self_check
from evalmon.scoring import Scorer
from evalmon.types import CheckpointRef, Evaluation, RunDescription

__all__ = ["EVALUATORS", "Evaluator", "build"]


class Evaluator(Protocol):
    """Scores one thing at one checkpoint.

    Attributes:
        name: unique among a monitor's evaluators, as ``downstream_tasks:piqa``.
        version: hash of its code version, settings, data and tokenizer; a score of
            another version is not this one's.
    """

    name: str
    version: str

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        """Return why this checkpoint has nothing for it to score, or "" when it has.

        Not being applicable is no failure: there is nothing to store and nothing to retry.
        """
        ...

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Score the weights loaded into the scorer's model.

        Args:
            scorer: scores requests with the checkpoint's parameters.
            checkpoint: what is scored.
            run: the run it belongs to.
            weights: fingerprint of the parameters.

        Raises:
            EvaluationError: it cannot be scored.
        """
        ...


EVALUATORS: dict[str, Callable[[EvaluationSettings, RunDescription], Sequence[Evaluator]]] = {
    "self_check": self_check.build,
    "holdout_loss": holdout_loss.build,
    "downstream_tasks": downstream_tasks.build,
    "memorization_probe": memorization_probe.build,
}
"""Name in ``evaluation.evaluators`` to what builds its evaluators."""


def build(settings: EvaluationSettings, run: RunDescription) -> list[Evaluator]:
    """Build the evaluators that the settings name, in their order.

    Raises:
        ConfigError: an unknown evaluator or task; the nearest known name is given.
        DataError: a holdout's file or the tokenizer cannot be used.
        FetchError: a holdout had to be fetched and could not be.
    """
    for name in settings.evaluators:
        if name not in EVALUATORS:
            raise ConfigError(_unknown("evaluation.evaluators", "evaluator", name, EVALUATORS))
    return [item for name in settings.evaluators for item in EVALUATORS[name](settings, run)]


def _unknown(place: str, kind: str, name: str, known: Collection[str]) -> str:
    """Say that a name is not known, and which one may have been meant."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {list(known)[:20]}"
    return f"{place}: unknown {kind} {name!r}; {hint}"
