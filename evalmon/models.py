"""The seam to any trainer's model: a protocol, and look-up by entry point.

A trainer registers a factory in the entry-point group ``evalmon.models``; a run's
``run.json``, or the ``model.json`` of a weights folder, names it. evalmon hands the
factory the model's description and, for each checkpoint, the restored parameters, and
gets token scores back. evalmon never imports a trainer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import ConfigError
from evalmon.types import ModelDescription, ScoreRequest, TokenScores

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
        stored_dtype: dtype the loaded parameters were stored in, empty before ``load``;
            where it is not ``dtype``, the caller says so beside every number.
    """

    vocab_size: int
    max_length: int
    dtype: str
    stored_dtype: str

    def load(self, parameters: Mapping[str, Any]) -> None:
        """Use these parameters from now on.

        Args:
            parameters: nested mapping of numpy arrays, as restored from a checkpoint.

        Raises:
            CheckpointError: a tensor is missing, extra or misshaped, or two are of different
                dtypes; its name is given.
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

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yield the log-probabilities of the next token after each position, part by part.

        Only one part is in memory at a time. ``max_length`` is no limit here. The sum of
        exponentials is at least float32 whatever ``dtype`` is, and values that are not
        finite are yielded as they are.

        Args:
            ids: text, at least one token.

        Returns:
            Parts [t, vocab_size] whose t add up to the length of ``ids``.

        Raises:
            EvaluationError: no token, or a token id outside the vocabulary.
        """
        ...


def find_model(description: ModelDescription, dtype: str | None = None) -> LanguageModel:
    """Build a model, without weights, through the entry point its description names.

    Args:
        description: what the model is.
        dtype: compute dtype, None for the one of the description.

    Raises:
        ConfigError: no such entry point is installed, or the model cannot be built.

    Source: Python packaging's entry points specification.
    """
    found = entry_points(group=ENTRY_POINT_GROUP)
    if description.adapter not in found.names:
        raise ConfigError(
            f"{description.path}: model adapter {description.adapter!r} is not installed; "
            f"installed are {sorted(found.names)}. Install the trainer that wrote it."
        )
    factory = cast(
        "Callable[[ModelDescription, str | None], LanguageModel]",
        found[description.adapter].load(),
    )
    return factory(description, dtype)
