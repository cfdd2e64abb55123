"""The trainer's model as an evalmon ``LanguageModel``.

Requests are padded to few shapes, because each shape is compiled once: rows to a power
of two, lengths to a power of two. Padding stands to the right, where causal attention
never looks. Only the states that predict a continuation token go through the head.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from evalmon.errors import CheckpointError, ConfigError, EvaluationError
from evalmon.types import ModelDescription, ScoreRequest, TokenScores
from trainer.architecture import Olmo3Config
from trainer.model import ParameterTree, bind, parameter_shapes

__all__ = ["Olmo3LanguageModel", "open_model"]

_ROWS: Final = 32
_LEAST_ROWS: Final = 4
_LEAST_LENGTH: Final = 32
_HEAD_ROWS: Final = 512

_PRECISION: Final = "highest"
"""Of products: GPUs and TPUs take fewer bits of float32 operands by default."""

_STORED: Final = ("bfloat16", "float16", "float32", "float64")
"""Dtypes that parameters may have been stored in."""

_Ids: TypeAlias = tuple[int, ...]


def open_model(description: ModelDescription, dtype: str | None = None) -> "Olmo3LanguageModel":
    """Build the model of a run or of a weights folder, without weights.

    Args:
        description: what the model is.
        dtype: compute dtype, None for the one described.

    Raises:
        ConfigError: it does not describe an OLMo 3, or the compute dtype cannot be had.
    """
    place = f"{description.path}: field 'model'"
    config = Olmo3Config.from_record(description.model, place)
    if config.vocab_size != description.vocab_size:
        raise ConfigError(
            f"{place}: 'vocab_size' is {config.vocab_size}, but the file's own is "
            f"{description.vocab_size}; use the trainer that wrote it"
        )
    if dtype is not None:
        config = replace(config, dtype=dtype)
        config.require_valid("compute dtype")
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ConfigError(
            f"{place}: computes in float64, which JAX has only with JAX_ENABLE_X64=1; set it, or "
            "compute in float32"
        )
    return Olmo3LanguageModel(config, description.max_length)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Inputs of one compiled call: padded ids [R, T] and the inputs each row holds."""

    ids: NDArray[np.int32]
    inputs: list[_Ids]


class Olmo3LanguageModel:
    """OLMo 3 that scores and continues token ids.

    Args:
        config: shapes.
        max_length: longest context plus continuation, in tokens: the length it was
            trained on.

    Matrices stored wider than the compute dtype are held in the compute dtype, as every use
    of them would cast them; narrower ones stay as they are stored, and so do norm weights
    (float64 as float32 where JAX has no float64). Float32 means products in float32, also on
    devices whose default is fewer bits.
    """

    def __init__(self, config: Olmo3Config, max_length: int) -> None:
        self.vocab_size = config.vocab_size
        self.max_length = max_length
        self.dtype = config.dtype
        self.stored_dtype = ""
        self._shapes = _by_name(parameter_shapes(config))
        self._parameters: ParameterTree | None = None

        def hidden(parameters: ParameterTree, ids: Int[Array, "R T"]) -> Float[Array, "RT d"]:
            with jax.default_matmul_precision(_PRECISION):
                states = bind(config, parameters).hidden(ids)
            return states.reshape(-1, states.shape[-1])

        def logits(parameters: ParameterTree, states: Float[Array, "P d"]) -> Float[Array, "P V"]:
            with jax.default_matmul_precision(_PRECISION):
                return bind(config, parameters).unembed(states)

        def head(
            parameters: ParameterTree, states: Float[Array, "P d"], targets: Int[Array, " P"]
        ) -> tuple[Float[Array, " P"], Int[Array, " P"]]:
            values = logits(parameters, states)
            chosen = jnp.take_along_axis(values, targets[:, None], axis=-1)[:, 0]
            return chosen - jax.nn.logsumexp(values, axis=-1), jnp.argmax(values, axis=-1)

        def every(parameters: ParameterTree, states: Float[Array, "P d"]) -> Float[Array, "P V"]:
            return jax.nn.log_softmax(logits(parameters, states), axis=-1)

        self._hidden, self._head, self._every = jax.jit(hidden), jax.jit(head), jax.jit(every)

    def load(self, parameters: Mapping[str, Any]) -> None:
        found = _by_name(parameters)
        missing, extra = (
            sorted(set(self._shapes) - set(found)),
            sorted(set(found) - set(self._shapes)),
        )
        if missing or extra:
            raise CheckpointError(
                f"checkpoint parameters: missing {missing or 'none'}, unknown {extra or 'none'}; "
                "is it of this run's model?"
            )
        first, stored = next((name, str(value.dtype)) for name, value in found.items())
        for name, expected in self._shapes.items():
            value = found[name]
            if tuple(value.shape) != expected.shape or str(value.dtype) not in _STORED:
                raise CheckpointError(
                    f"checkpoint parameter {name}: {value.dtype} {tuple(value.shape)}, expected "
                    f"{expected.shape} in one of {_STORED}; is it of this run's model?"
                )
            if str(value.dtype) != stored:
                raise CheckpointError(
                    f"checkpoint parameters: {first} is {stored}, but {name} is {value.dtype}; "
                    "store all of them in one dtype"
                )
        self.stored_dtype = stored
        self._parameters = jax.tree.map(self._held, dict(parameters))

    def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
        for number, request in enumerate(requests):
            self._check(number, request)
        inputs = [(*r.context, *r.continuation[:-1]) for r in requests]
        wanted: dict[_Ids, list[int]] = {}
        for number, ids in enumerate(inputs):
            wanted.setdefault(ids, []).append(number)
        results: dict[int, TokenScores] = {}
        for batch in _batches(list(wanted)):
            numbers = [(row, n) for row, ids in enumerate(batch.inputs) for n in wanted[ids]]
            results.update(self._score_batch(batch, [(row, n, requests[n]) for row, n in numbers]))
        return [results[number] for number in range(len(requests))]

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        """Continue each prompt greedily, at most until ``max_length`` tokens in all.

        Raises:
            EvaluationError: a prompt that is empty, too long or outside the vocabulary.
        """
        for number, prompt in enumerate(prompts):
            self._check(number, ScoreRequest(tuple(prompt), tuple(prompt[-1:])), generated=1)
        texts = [list(prompt) for prompt in prompts]
        open_rows = set(range(len(texts))) if max_new_tokens > 0 else set[int]()
        while open_rows:
            rows = sorted(open_rows)
            for row, token in zip(rows, self._next([tuple(texts[r]) for r in rows]), strict=True):
                texts[row].append(token)
                new = len(texts[row]) - len(prompts[row])
                full = len(texts[row]) >= self.max_length or new >= max_new_tokens
                if token in stop_ids or full:
                    open_rows.discard(row)
        return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Yield the log-probabilities after each position, ``_HEAD_ROWS`` of them at a time.

        Raises:
            EvaluationError: no token, a token id outside the vocabulary, or no weights.
        """
        text = tuple(ids)
        if not text:
            raise EvaluationError("text 0: no token; give at least one")
        self._check_ids("text 0", text)
        length = _padded_length(len(text))
        padded = np.zeros((1, length), np.int32)
        padded[0, : len(text)] = text
        states = self._hidden(self._loaded(), padded)
        rows = min(length, _HEAD_ROWS)

        def parts() -> Iterator[NDArray[np.float32]]:
            for start in range(0, len(text), rows):
                values = self._every(self._loaded(), states[start : start + rows])
                yield np.asarray(values, np.float32)[: len(text) - start]

        return parts()

    def _held(self, value: Any) -> Array:
        """Return a stored tensor as it is kept in memory."""
        stored, compute = jnp.dtype(value.dtype), jnp.dtype(self.dtype)
        if value.ndim > 1 and stored.itemsize > compute.itemsize:
            return jnp.asarray(np.asarray(value).astype(compute))
        kept = jax.dtypes.canonicalize_dtype(stored)
        return jnp.asarray(np.asarray(value).astype(kept, copy=False))

    def _check(self, number: int, request: ScoreRequest, generated: int = 0) -> None:
        """Raise when a request is empty, too long, or holds an id outside the vocabulary."""
        continuation = () if generated else request.continuation
        length = len(request.context) + len(continuation) + generated
        if not request.context or not request.continuation:
            raise EvaluationError(f"request {number}: context and continuation need a token each")
        if length > self.max_length:
            raise EvaluationError(
                f"request {number}: {length} tokens, at most {self.max_length}; shorten its context"
            )
        self._check_ids(f"request {number}", (*request.context, *continuation))

    def _check_ids(self, place: str, ids: Sequence[int]) -> None:
        """Raise when an id is outside the vocabulary."""
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise EvaluationError(
                    f"{place}: token id {token} outside the vocabulary of "
                    f"{self.vocab_size}; was it made with the run's tokenizer?"
                )

    def _score_batch(
        self, batch: _Batch, members: Sequence[tuple[int, int, ScoreRequest]]
    ) -> dict[int, TokenScores]:
        """Score requests (row, number, request) whose inputs stand in the rows of a batch."""
        width = batch.ids.shape[1]
        places = [
            row * width + len(request.context) - 1 + i
            for row, _, request in members
            for i in range(len(request.continuation))
        ]
        targets = [token for *_, request in members for token in request.continuation]
        states = self._hidden(self._loaded(), batch.ids)
        logprobs, best = self._through_head(states, np.array(places), np.array(targets))
        scores: dict[int, TokenScores] = {}
        start = 0
        for _, number, request in members:
            end = start + len(request.continuation)
            part = logprobs[start:end]
            if not np.isfinite(part).all():
                raise EvaluationError(
                    f"request {number}: log-probabilities are not finite; the weights are broken"
                )
            greedy = bool((best[start:end] == np.array(request.continuation)).all())
            scores[number] = TokenScores(part, greedy)
            start = end
        return scores

    def _through_head(
        self, states: Float[Array, "RT d"], places: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return log-probability of each target and the likeliest id, in fixed-size parts."""
        logprobs: list[NDArray[np.float32]] = []
        best: list[NDArray[np.int64]] = []
        for start in range(0, len(places), _HEAD_ROWS):
            part = slice(start, start + _HEAD_ROWS)
            count = len(places[part])
            padded = np.zeros((2, _HEAD_ROWS), np.int32)
            padded[:, :count] = places[part], targets[part]
            values, tops = self._head(self._loaded(), states[padded[0]], padded[1])
            logprobs.append(np.asarray(values)[:count])
            best.append(np.asarray(tops)[:count])
        return np.concatenate(logprobs), np.concatenate(best)

    def _next(self, texts: Sequence[_Ids]) -> list[int]:
        """Return the likeliest next id of each text."""
        found: dict[_Ids, int] = {}
        for batch in _batches(list(dict.fromkeys(texts))):
            width = batch.ids.shape[1]
            places = np.array([row * width + len(t) - 1 for row, t in enumerate(batch.inputs)])
            states = self._hidden(self._loaded(), batch.ids)
            _, best = self._through_head(states, places, np.zeros(len(places), np.int64))
            found.update(zip(batch.inputs, map(int, best), strict=True))
        return [found[text] for text in texts]

    def _loaded(self) -> ParameterTree:
        """Return the weights, or say that there are none."""
        if self._parameters is None:
            raise EvaluationError("no weights loaded; call load(parameters) first")
        return self._parameters


def _batches(inputs: Sequence[_Ids]) -> Iterator[_Batch]:
    """Pad inputs to compiled shapes, longest first, so that only the last batch is not full."""
    ordered = sorted(inputs, key=len, reverse=True)
    for start in range(0, len(ordered), _ROWS):
        rows = ordered[start : start + _ROWS]
        shape = (_power_of_two(len(rows), _LEAST_ROWS), _power_of_two(len(rows[0]), _LEAST_LENGTH))
        ids = np.zeros(shape, np.int32)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
        yield _Batch(ids, rows)


def _padded_length(length: int) -> int:
    """Return the compiled length of one text: a power of two, or whole parts of the head."""
    if length <= _HEAD_ROWS:
        return _power_of_two(length, _LEAST_LENGTH)
    return -(-length // _HEAD_ROWS) * _HEAD_ROWS


def _power_of_two(number: int, least: int) -> int:
    """Return the least power of two at or above both."""
    return max(1 << (number - 1).bit_length(), least)


def _by_name(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to names joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(_by_name(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat
