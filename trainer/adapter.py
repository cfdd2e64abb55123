"""The trainer's model as an evalmon ``LanguageModel``.

Texts come as forests (``evalmon.types.TokenForest``): what they share is computed once
(``trainer.branches``). Each shape is compiled once for all weights; there are few, because
rows have few lengths, prefixes few sizes, and the head takes a fixed number of states at a
time. Only the states that predict a token that is asked for go through the head.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from evalmon.errors import CheckpointError, ConfigError, EvaluationError
from evalmon.types import ROW_TOKENS, ForestScores, ModelDescription, TokenForest
from trainer import generation
from trainer.architecture import Olmo3Config
from trainer.branches import Branches, KeysValues, Prefix, read, stacked, unembed, unstacked
from trainer.generation import Ids
from trainer.model import ParameterTree, bind, parameter_shapes
from trainer.sharding import MeshShape, make_mesh, parse_mesh, place, require_fits

__all__ = ["Olmo3LanguageModel", "open_model"]

_HEAD_ROWS: Final = 512
"""States that go through the head at a time; the last ones go a quarter as many."""

_STATE_ROWS: Final = 2048
"""States of a batch are padded to a multiple, so that the head meets one shape."""

_PRECISION: Final = "highest"
"""Of products: GPUs and TPUs take fewer bits of float32 operands by default."""

_STORED: Final = ("bfloat16", "float16", "float32", "float64")
"""Dtypes that parameters may have been stored in."""


def open_model(
    description: ModelDescription, dtype: str | None = None, mesh: str = ""
) -> "Olmo3LanguageModel":
    """Build the model of a run or of a weights folder, without weights.

    Args:
        description: what the model is.
        dtype: compute dtype, None for the one described.
        mesh: devices the parameters are split over (``fsdp=4,tensor=2``), "" for one.

    Raises:
        ConfigError: it does not describe an OLMo 3, the compute dtype cannot be had, or the
            mesh does not fit the model or the machine.
    """
    file = f"{description.path}: field 'model'"
    config = Olmo3Config.from_record(description.model, file)
    if config.vocab_size != description.vocab_size:
        raise ConfigError(
            f"{file}: 'vocab_size' is {config.vocab_size}, but the file's own is "
            f"{description.vocab_size}; use the trainer that wrote it"
        )
    if dtype is not None:
        config = replace(config, dtype=dtype)
        config.require_valid("compute dtype")
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ConfigError(
            f"{file}: computes in float64, which JAX has only with JAX_ENABLE_X64=1; set it, or "
            "compute in float32"
        )
    try:
        return Olmo3LanguageModel(config, description.max_length, parse_mesh(mesh or "data=1"))
    except ConfigError as error:
        reason = str(error).removeprefix("--mesh").lstrip(": ")
        raise ConfigError(f"evaluation.mesh {mesh!r} does not fit: {reason}") from error


@dataclass(frozen=True, slots=True)
class _Text:
    """A text that others continue from, computed with one set of weights."""

    prefix: Prefix
    tokens: int
    weights: int


class Olmo3LanguageModel:
    """OLMo 3 that scores and continues token ids.

    Args:
        config: shapes.
        max_length: longest text it reads, in tokens: the length it was trained on.
        mesh: devices that the parameters, and the rows of a batch, are split over; None for one.

    Matrices stored wider than the compute dtype are held in the compute dtype, as every use
    of them would cast them; narrower ones stay as they are stored, and so do norm weights
    (float64 as float32 where JAX has no float64). Float32 means products in float32, also on
    devices whose default is fewer bits.

    Raises:
        ConfigError: the mesh does not fit the model or the machine.
    """

    def __init__(self, config: Olmo3Config, max_length: int, mesh: MeshShape | None = None) -> None:
        shape = mesh or MeshShape()
        self.vocab_size = config.vocab_size
        self.max_length = max_length
        self.dtype = config.dtype
        self.stored_dtype = ""
        self.row_multiple = shape.rows
        require_fits(shape, config, shape.rows)
        self._mesh = make_mesh(shape) if shape.devices > 1 else None
        self._shapes = _by_name(parameter_shapes(config))
        self._parameters: ParameterTree | None = None
        self._loads = 0

        def rows(
            parameters: ParameterTree, branches: Branches, prefix: Prefix | None
        ) -> Float[Array, "S d"]:
            states, _ = read(config, parameters, branches, prefix)
            missing = -states.shape[0] % _STATE_ROWS
            return jnp.pad(states, ((0, missing), (0, 0)))

        def grow(
            parameters: ParameterTree, branches: Branches, prefix: Prefix | None
        ) -> KeysValues:
            _, (keys, values) = read(config, parameters, branches, prefix)
            return keys[:, 0], values[:, 0]

        def append(held: KeysValues, new: KeysValues, at: Int[Array, ""]) -> KeysValues:
            return jax.tree.map(
                lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, at, axis=1), held, new
            )

        def hidden(parameters: ParameterTree, ids: Int[Array, "R T"]) -> Float[Array, "RT d"]:
            states = bind(config, unstacked(parameters, config.layers)).hidden(ids)
            return states.reshape(-1, states.shape[-1])

        def head(
            parameters: ParameterTree,
            states: Float[Array, "S d"],
            places: Int[Array, " C"],
            asked: tuple[Int[Array, " P"], Int[Array, " P"]],
        ) -> tuple[Float[Array, " P"], Int[Array, " C"]]:
            values = unembed(config, parameters, states[places])
            total = jax.nn.logsumexp(values, axis=-1)
            return values[asked] - total[asked[0]], jnp.argmax(values, axis=-1)

        def every(parameters: ParameterTree, states: Float[Array, "P d"]) -> Float[Array, "P V"]:
            return jax.nn.log_softmax(unembed(config, parameters, states), axis=-1)

        self._rows, self._grow, self._append = jax.jit(rows), jax.jit(grow), jax.jit(append)
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
        tree = stacked(jax.tree.map(self._held, dict(parameters)))
        self._parameters = jax.device_put(tree) if self._mesh is None else place(tree, self._mesh)
        self.stored_dtype = stored
        self._loads += 1

    def extend(self, ids: Sequence[int], prefix: Any = None) -> Any:
        before = self._text(prefix)
        if not ids:
            raise EvaluationError("a shared beginning without a token; give at least one")
        self._check_ids("a shared beginning", ids)
        keys_values = None if before is None else (before.prefix.keys, before.prefix.values)
        tokens = 0 if before is None else before.tokens
        for start in range(0, len(ids), ROW_TOKENS):
            part = np.array(ids[start : start + ROW_TOKENS], np.int32)
            branches = self._chain(part, tokens)
            with self._computing() as parameters:
                known = None
                if keys_values is not None:
                    known = Prefix(keys_values[0], keys_values[1], jnp.int32(tokens))
                new = self._grow(parameters, branches, known)
                room = _capacity(tokens + ROW_TOKENS)
                keys_values = self._append(_widened(keys_values, new, room), new, jnp.int32(tokens))
            tokens += len(part)
        assert keys_values is not None
        return _Text(Prefix(keys_values[0], keys_values[1], jnp.int32(tokens)), tokens, self._loads)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        before = self._text(prefix)
        for values in (forest.ids, forest.targets):
            self._check_ids("a forest", (values.min(initial=0), values.max(initial=0)))
        branches = _branches(forest.ids, forest.positions, forest.ends)
        with self._computing() as parameters:
            states = self._rows(parameters, branches, None if before is None else before.prefix)
            return self._through_head(states, forest.picks, forest.targets)

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        """Continue each prompt greedily, at most until ``max_length`` tokens in all.

        Raises:
            EvaluationError: a prompt that is empty, too long or outside the vocabulary.
        """
        for number, prompt in enumerate(prompts):
            if not 0 < len(prompt) < self.max_length:
                raise EvaluationError(
                    f"prompt {number}: {len(prompt)} tokens; give 1 to {self.max_length - 1}, so "
                    f"that one can follow within {self.max_length}"
                )
            self._check_ids(f"prompt {number}", prompt)
        return generation.generate(self._next, prompts, stop_ids, max_new_tokens, self.max_length)

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
        padded = np.zeros((self.row_multiple, length), np.int32)
        padded[0, : len(text)] = text
        rows = min(length, _HEAD_ROWS)
        with self._computing() as parameters:
            states = self._hidden(parameters, padded)

        def parts() -> Iterator[NDArray[np.float32]]:
            for start in range(0, len(text), rows):
                with self._computing() as parameters:
                    values = self._every(parameters, states[start : start + rows])
                yield np.asarray(values, np.float32)[: len(text) - start]

        return parts()

    def _held(self, value: Any) -> Array:
        """Return a stored tensor as it is kept in memory."""
        stored, compute = jnp.dtype(value.dtype), jnp.dtype(self.dtype)
        if value.ndim > 1 and stored.itemsize > compute.itemsize:
            return jnp.asarray(np.asarray(value).astype(compute))
        kept = jax.dtypes.canonicalize_dtype(stored)
        return jnp.asarray(np.asarray(value).astype(kept, copy=False))

    def _check_ids(self, place: str, ids: Sequence[int]) -> None:
        """Raise when an id is outside the vocabulary."""
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise EvaluationError(
                    f"{place}: token id {token} outside the vocabulary of "
                    f"{self.vocab_size}; was it made with the run's tokenizer?"
                )

    def _text(self, prefix: Any) -> _Text | None:
        """Return a prefix as this model made it, with the present weights."""
        if prefix is None:
            return None
        if not isinstance(prefix, _Text) or prefix.weights != self._loads:
            raise EvaluationError(
                "the prefix was computed by another model or with other weights; extend it again"
            )
        return prefix

    def _chain(self, ids: NDArray[np.int32], first: int) -> Branches:
        """Lay one text out as the first row of a batch, at positions from ``first`` on."""
        shape = (self.row_multiple, ROW_TOKENS)
        rows, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        ends = np.tile(np.arange(ROW_TOKENS, dtype=np.int32), (shape[0], 1))
        rows[0, : len(ids)] = ids
        positions[0, : len(ids)] = first + np.arange(len(ids))
        ends[0, : len(ids)] = len(ids) - 1
        return _branches(rows, positions, ends)

    def _through_head(
        self, states: Float[Array, "S d"], picks: NDArray[np.int32], targets: NDArray[np.int32]
    ) -> ForestScores:
        """Score what is asked for at some states, each state going through the head once."""
        order = np.argsort(picks, kind="stable")
        places, index = np.unique(picks[order], return_inverse=True)
        logprobs = np.empty(len(picks), np.float32)
        likeliest = np.empty(len(picks), np.int32)
        for first, last, count in _parts(index):
            low, high = index[first], index[last - 1] + 1
            held = np.zeros(count, np.int32)
            held[: high - low] = places[low:high]
            asked = np.zeros((2, 2 * count), np.int32)
            asked[:, : last - first] = index[first:last] - low, targets[order[first:last]]
            with self._computing() as parameters:
                found, best = self._head(parameters, states, held, (asked[0], asked[1]))
            logprobs[order[first:last]] = np.asarray(found)[: last - first]
            likeliest[order[first:last]] = np.asarray(best)[index[first:last] - low]
        return ForestScores(logprobs, likeliest)

    def _next(self, texts: Sequence[Ids]) -> list[int]:
        """Return the likeliest next id of each text."""
        found: dict[Ids, int] = {}
        for batch in generation.batches(list(dict.fromkeys(texts)), self.row_multiple):
            width = batch.ids.shape[1]
            picks = [row * width + len(text) - 1 for row, text in enumerate(batch.texts)]
            with self._computing() as parameters:
                states = self._hidden(parameters, batch.ids)
            zeros = np.zeros(len(picks), np.int32)
            best = self._through_head(states, np.array(picks, np.int32), zeros).likeliest
            found.update(zip(batch.texts, best.tolist(), strict=True))
        return [found[text] for text in texts]

    @contextmanager
    def _computing(self) -> Generator[ParameterTree]:
        """Give the weights, on the mesh and with full products."""
        if self._parameters is None:
            raise EvaluationError("no weights loaded; call load(parameters) first")
        mesh = nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)
        with mesh, jax.default_matmul_precision(_PRECISION):
            yield self._parameters


def _branches(*rows: NDArray[np.int32]) -> Branches:
    """Return ids, positions and ends of rows as a compiled call takes them."""
    ids, positions, ends = (jnp.asarray(each) for each in rows)
    return Branches(ids, positions, ends)


def _parts(index: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Cut picks, sorted by the number of their state, into parts that the head takes.

    A part has few states, and of tokens asked for at most twice as many as it has room for.

    Args:
        index: [P] number of each pick's state, rising.

    Yields:
        First pick of a part, the first one after it, and the states it has room for.
    """
    first = 0
    while first < len(index):
        left = int(index[-1] - index[first]) + 1
        states = _HEAD_ROWS if left >= _HEAD_ROWS else _HEAD_ROWS // 4
        last = min(int(np.searchsorted(index, index[first] + states)), first + 2 * states)
        yield first, last, states
        first = last


def _capacity(tokens: int) -> int:
    """Return the room for a prefix of so many tokens: a power of two of least rows, or 1.5."""
    rows = -(-tokens // ROW_TOKENS)
    power = 1 << (rows - 1).bit_length()
    return ROW_TOKENS * (power * 3 // 4 if power > 3 and rows <= power * 3 // 4 else power)


def _widened(held: KeysValues | None, new: KeysValues, room: int) -> KeysValues:
    """Return keys and values [L, room, K, D]: those held so far, zeros behind them."""
    if held is None:
        shape = (new[0].shape[0], room, *new[0].shape[2:])
        return jnp.zeros(shape, new[0].dtype), jnp.zeros(shape, new[1].dtype)
    missing = room - held[0].shape[1]
    if missing <= 0:
        return held
    keys, values = (jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0))) for x in held)
    return keys, values


def _padded_length(length: int) -> int:
    """Return the compiled length of one text: a power of two, or whole parts of the head."""
    if length <= _HEAD_ROWS:
        return generation.power_of_two(length, 32)
    return -(-length // _HEAD_ROWS) * _HEAD_ROWS


def _by_name(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to names joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(_by_name(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat
