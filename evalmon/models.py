"""The seam to any trainer's model: a protocol, and look-up by entry point.

A trainer registers a factory in the entry-point group ``evalmon.models``; a run's
``run.json`` names it. evalmon hands the factory the run's description and, for each
checkpoint, the restored parameters, and gets token scores back. evalmon never
imports a trainer.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol, cast, runtime_checkable

from evalmon.errors import ConfigError
from evalmon.types import RunDescription, ScoreRequest, TokenScores

__all__ = ["ENTRY_POINT_GROUP", "LanguageModel", "find_model"]

ENTRY_POINT_GROUP = "evalmon.models"


@runtime_checkable
class LanguageModel(Protocol):
    """A causal language model: token ids in, log-probabilities out.

    One object serves all checkpoints of a run: ``load`` replaces the weights, compiled
    code is kept.

    Attributes:
        vocab_size: ids are in [0, vocab_size).
        max_length: longest context plus continuation it scores, in tokens.
        dtype: compute dtype, as ``float32``.
    """

    vocab_size: int
    max_length: int
    dtype: str

    def load(self, parameters: Mapping[str, Any]) -> None:
        """Use these parameters from now on.

        Args:
            parameters: nested mapping of numpy arrays, as restored from a checkpoint.

        Raises:
            CheckpointError: a tensor is missing, extra or misshaped; its name is given.
        """
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
        """Score requests, in their order; the result does not depend on batching.

        Raises:
            EvaluationError: a token id outside the vocabulary, a request longer than
                ``max_length``, or log-probabilities that are not finite.
        """
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        """Continue each prompt greedily until a stop id or ``max_new_tokens``."""
        ...


def find_model(run: RunDescription) -> LanguageModel:
    """Build the model of a run through the entry point its ``run.json`` names.

    Raises:
        ConfigError: no such entry point is installed.

    Source: Python packaging's entry points specification.
    """
    found = entry_points(group=ENTRY_POINT_GROUP)
    if run.adapter not in found.names:
        raise ConfigError(
            f"{run.path / 'run.json'}: model adapter {run.adapter!r} is not installed; "
            f"installed are {sorted(found.names)}. Install the trainer that wrote the run."
        )
    factory = cast("Callable[[RunDescription], LanguageModel]", found[run.adapter].load())
    return factory(run)
