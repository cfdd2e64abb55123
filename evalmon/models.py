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
from evalmon.types import ForestScores, ModelDescription, TokenForest

__all__ = ["ENTRY_POINT_GROUP", "LanguageModel", "find_model"]

ENTRY_POINT_GROUP = "evalmon.models"


@runtime_checkable
class LanguageModel(Protocol):
    """A causal language model: token ids in, log-probabilities out.

    One object serves all checkpoints of a run: ``load`` replaces the weights, compiled
    code is kept.

    Attributes:
        vocab_size: ids are in [0, vocab_size).
        max_length: longest text it reads, in tokens. The last token of a request is only
            predicted, so context and continuation may have one more.
        dtype: compute dtype, as ``float32``.
        stored_dtype: dtype the loaded parameters were stored in, empty before ``load``;
            where it is not ``dtype``, the caller says so beside every number.
        row_multiple: a forest's rows are a multiple of it (devices that rows are split over).
    """

    vocab_size: int
    max_length: int
    dtype: str
    stored_dtype: str
    row_multiple: int

    def load(self, parameters: Mapping[str, Any]) -> None:
        """Use these parameters from now on.

        Args:
            parameters: nested mapping of numpy arrays, as restored from a checkpoint.

        Raises:
            CheckpointError: a tensor is missing, extra or misshaped, or two are of different
                dtypes; its name is given.
        """
        ...

    def extend(self, ids: Sequence[int], prefix: Any = None) -> Any:
        """Compute a text that others continue from.

        Args:
            ids: its tokens, at least one.
            prefix: what this text continues, as returned from here; None for nothing.

        Returns:
            The model's own record of the text, for ``extend`` and ``score``; it counts only
            until the next ``load``.

        Raises:
            EvaluationError: a token id outside the vocabulary, or no weights.
        """
        ...

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        """Score the picks of a forest; how texts are laid out changes rounding alone.

        Values that are not finite are returned as they are.

        Args:
            forest: the texts.
            prefix: what all of them continue, as ``extend`` returned it; None for nothing.

        Raises:
            EvaluationError: a token id outside the vocabulary, or no weights.
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


def find_model(
    description: ModelDescription, dtype: str | None = None, mesh: str = ""
) -> LanguageModel:
    """Build a model, without weights, through the entry point its description names.

    Args:
        description: what the model is.
        dtype: compute dtype, None for the one of the description.
        mesh: devices its parameters are split over, in the trainer's own words
            (``fsdp=4,tensor=2``); "" for one device.

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
        "Callable[[ModelDescription, str | None, str], LanguageModel]",
        found[description.adapter].load(),
    )
    return factory(description, dtype, mesh)
