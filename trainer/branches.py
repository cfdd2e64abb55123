"""OLMo 3 over token trees: each shared token is computed once, and its branches see it.

The layers are those of :mod:`trainer.model`; only what a token attends to differs. A token
of a row sees the prefix of the whole forest and the tokens of its own branch
(``evalmon.types.TokenForest``), by position through a sliding window where the layer has
one. Layers run as one scan over stacked parameters, so that any depth compiles once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from evalmon.types import inverse_frequencies
from trainer.architecture import Execution, Olmo3Config
from trainer.model import Embedding, Layer, Linear, ParameterTree, RMSNorm

__all__ = ["Branches", "KeysValues", "Prefix", "read", "stacked", "unembed", "unstacked"]

KeysValues: TypeAlias = tuple[Array, Array]
"""Keys and values of a text in every layer: two of [L, S, K, D]."""

_M = TypeVar("_M", bound=nnx.Module)

_GROUPS: Final = 4
"""Parts a long row is taken in, each with the keys up to its own end alone."""

_LONG_ROW: Final = 1024

_SCORES: Final = 1 << 25
"""Attention scores in memory at a time, at most (128 MiB in float32)."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Rows of trees, as arrays of one compiled call.

    Attributes:
        ids: [R, T] token ids.
        positions: [R, T] places in their texts.
        ends: [R, T] last place that continues each.
    """

    ids: Int[Array, "R T"]
    positions: Int[Array, "R T"]
    ends: Int[Array, "R T"]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a text left behind that others continue from.

    Attributes:
        keys: [L, S, K, D] of every layer (of one layer [S, K, D]), padded.
        values: the same.
        length: tokens that count.
    """

    keys: Float[Array, "*L S K D"]
    values: Float[Array, "*L S K D"]
    length: Int[Array, ""]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the queries of a row may see of it in one layer: keys and values [R, T, K, D]."""

    keys: Float[Array, "R T K D"]
    values: Float[Array, "R T K D"]
    rows: Branches

    def until(self, stop: int) -> "_Seen":
        """Return the first ``stop`` places alone."""
        near = jax.tree.map(lambda x: x[:, :stop], self.rows)
        return _Seen(self.keys[:, :stop], self.values[:, :stop], near)


jax.tree_util.register_dataclass(Branches, ["ids", "positions", "ends"], [])
jax.tree_util.register_dataclass(Prefix, ["keys", "values", "length"], [])


def stacked(parameters: Mapping[str, Any]) -> ParameterTree:
    """Return canonical parameters with the layers stacked along a leading axis, in numpy.

    Args:
        parameters: tree of numpy arrays with layers by number, as checkpoints hold them.
    """
    layers = [parameters["layers"][str(i)] for i in range(len(parameters["layers"]))]
    return {**parameters, "layers": jax.tree.map(lambda *each: np.stack(each), *layers)}


def unstacked(parameters: Mapping[str, Any], count: int) -> ParameterTree:
    """Return stacked parameters layer by layer; under ``jax.jit`` nothing is copied.

    Args:
        parameters: as ``stacked`` returned them.
        count: layers.
    """
    layers = parameters["layers"]
    each = {str(i): jax.tree.map(lambda x, i=i: x[i], layers) for i in range(count)}
    return {**parameters, "layers": each}


def read(
    config: Olmo3Config,
    parameters: ParameterTree,
    rows: Branches,
    prefix: Prefix | None = None,
) -> tuple[Float[Array, "RT d"], KeysValues]:
    """Return the normalized states that the head reads, and the rows' keys and values.

    Args:
        config: shapes.
        parameters: stacked parameters.
        rows: what to read.
        prefix: the text that all rows continue; None for none.

    Returns:
        States of all places, row by row; keys and values [L, R, T, K, D].
    """
    embed = _module(lambda: Embedding(config), parameters["embed_tokens"])
    norm = _module(lambda: RMSNorm(config.width, config), parameters["norm"])
    graph = nnx.graphdef(nnx.eval_shape(lambda: Layer(config, 0, Execution().query_block)))
    turns = _turns(config, rows.positions)
    full = jnp.array([config.sees_all(i) for i in range(config.layers)])
    limit = np.iinfo(np.int32).max

    def layer(
        x: Float[Array, "R T d"], each: tuple[Any, Bool[Array, ""], tuple[Array, ...]]
    ) -> tuple[Float[Array, "R T d"], KeysValues]:
        state, sees_all, before = each
        module = nnx.merge(graph, nnx.State(state))
        window = jnp.where(sees_all, limit, config.window)
        turn = jax.tree.map(lambda both: both[sees_all.astype(jnp.int32)], turns)
        attention = module.self_attn
        q = _rotate(_heads(attention.q_norm(attention.q_proj(x)), config.head_dim), turn)
        k = _rotate(_heads(attention.k_norm(attention.k_proj(x)), config.head_dim), turn)
        v = _heads(attention.v_proj(x), config.head_dim)
        known = None if prefix is None else Prefix(before[0], before[1], prefix.length)
        mixed = _attend(q, _Seen(k, v, rows), window, known)
        h = x + module.post_attention_layernorm(attention.o_proj(_joined(mixed)))
        return h + module.post_feedforward_layernorm(module.mlp(h)), (k, v)

    before = () if prefix is None else (prefix.keys, prefix.values)
    each = (parameters["layers"], full, before)
    x, kept = jax.lax.scan(layer, embed(rows.ids), each)
    states = norm(x)
    return states.reshape(-1, states.shape[-1]), kept


def unembed(
    config: Olmo3Config, parameters: ParameterTree, states: Float[Array, "P d"]
) -> Float[Array, "P V"]:
    """Return logits of states, summed and kept in at least float32."""
    head = _module(
        lambda: Linear("lm_head", config.width, config.vocab_size, config), parameters["lm_head"]
    )
    return head(states, jnp.promote_types(head.dtype, jnp.float32))


def _module(build: Callable[[], _M], parameters: Mapping[str, Any]) -> _M:
    """Return a module with these parameters."""
    return nnx.merge(nnx.graphdef(nnx.eval_shape(build)), nnx.State(parameters))


def _turns(
    config: Olmo3Config, positions: Int[Array, "R T"]
) -> tuple[Float[Array, "2 R T 1 F"], Float[Array, "2 R T 1 F"]]:
    """Return cosine and sine of each place's turns: in a sliding layer, in a full one."""
    wide = jnp.promote_types(jnp.dtype(config.dtype), jnp.float32)
    cosines: list[Array] = []
    sines: list[Array] = []
    for sees_all in (False, True):
        layers = [i for i in range(config.layers) if config.sees_all(i) == sees_all]
        rope = config.rope(layers[0] if layers else 0)
        frequencies, scale = inverse_frequencies(config.head_dim, rope)
        angle = positions[..., None].astype(wide) * jnp.asarray(frequencies, wide)
        cosines.append(scale * jnp.cos(angle)[:, :, None, :])
        sines.append(scale * jnp.sin(angle)[:, :, None, :])
    return jnp.stack(cosines), jnp.stack(sines)


def _heads(x: Float[Array, "R T H"], head_dim: int) -> Float[Array, "R T N D"]:
    """Split a projection into heads."""
    return x.reshape(*x.shape[:-1], -1, head_dim)


def _joined(heads: Float[Array, "R T N D"]) -> Float[Array, "R T H"]:
    """Join heads to a projection."""
    return heads.reshape(*heads.shape[:-2], -1)


def _rotate(x: Float[Array, "R T N D"], turn: tuple[Array, Array]) -> Float[Array, "R T N D"]:
    """Turn the halves of each head, as ``trainer.rotary.rotate`` does at given places."""
    cos, sin = turn
    first, second = jnp.split(x.astype(cos.dtype), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _attend(
    q: Float[Array, "R T N D"],
    own: _Seen,
    window: Int[Array, ""],
    prefix: Prefix | None,
) -> Float[Array, "R T N D"]:
    """Attend to the prefix and to each token's own branch, part of the row by part.

    A long row is taken in parts, because a place never sees a later one; a part is taken in
    blocks where its scores would not fit in memory.
    """
    R, T, N, _ = q.shape
    extent = 0 if prefix is None else prefix.keys.shape[0]
    count = _GROUPS if T >= _LONG_ROW else 1
    parts: list[Array] = []
    for start in range(0, T, T // count):
        stop = start + T // count
        block = T // count
        while block > 1 and R * block * N * (extent + stop) > _SCORES:
            block //= 2
        mix = partial(_mix, own.until(stop), window, prefix)
        part = q[:, start:stop], own.rows.positions[:, start:stop]
        if block == stop - start:
            parts.append(mix((*part, jnp.int32(start))))
            continue
        split = [jnp.moveaxis(x.reshape(R, -1, block, *x.shape[2:]), 1, 0) for x in part]
        firsts = jnp.arange(start, stop, block, dtype=jnp.int32)
        mixed = jax.lax.map(mix, (*split, firsts))
        parts.append(jnp.moveaxis(mixed, 0, 1).reshape(R, -1, *q.shape[2:]))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def _mix(
    own: _Seen, window: Int[Array, ""], prefix: Prefix | None, block: tuple[Array, Array, Array]
) -> Float[Array, "R t N D"]:
    """Attend with all scores of one block: queries [R, t, N, D], their positions, first place.

    The sum of the weights comes out of the product with the values, by a column of ones, and
    the mask is laid down once for all heads: each pass over the scores counts.
    """
    q, at, first = block
    R, t, N, D = q.shape
    K = own.keys.shape[2]
    wide = jnp.promote_types(q.dtype, jnp.float32)
    queries = q.reshape(R, t, K, N // K, D).swapaxes(1, 2).reshape(R, K, -1, D)
    mask = _visible(own.rows, at, first, window, prefix)
    bias = jax.lax.optimization_barrier(jnp.where(mask, 0.0, -jnp.inf).astype(wide))
    keys, values = own.keys, own.values
    if prefix is not None:
        keys, values = (
            jnp.concatenate([jnp.broadcast_to(x[None], (R, *x.shape)), y], axis=1)
            for x, y in ((prefix.keys, keys), (prefix.values, values))
        )
    values = jnp.concatenate([values, jnp.ones((*values.shape[:-1], 1), values.dtype)], axis=-1)
    scores = jnp.einsum("rkqd,rskd->rkqs", queries, keys, preferred_element_type=wide)
    scores = scores.reshape(R, K, t, N // K, -1) * D**-0.5 + bias[:, None, :, None, :]
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True)).astype(values.dtype)
    flat = weights.reshape(R, K, t * (N // K), -1)
    mixed = jnp.einsum("rkqs,rskd->rkqd", flat, values, preferred_element_type=wide)
    mixed = (mixed[..., :D] / mixed[..., D:]).astype(q.dtype)
    return mixed.reshape(R, K, t, N // K, D).swapaxes(1, 2).reshape(R, t, N, D)


def _visible(
    rows: Branches,
    at: Int[Array, "R t"],
    first: Int[Array, ""],
    window: Int[Array, ""],
    prefix: Prefix | None,
) -> Bool[Array, "R t s"]:
    """Return what queries at positions ``at`` see: of the prefix, then of their row."""
    places = first + jnp.arange(at.shape[1])[:, None]
    branch = (jnp.arange(rows.ends.shape[1]) <= places) & (rows.ends[:, None, :] >= places)
    seen = branch & (at[:, :, None] - rows.positions[:, None, :] < window)
    if prefix is None:
        return seen
    index = jnp.arange(prefix.keys.shape[0])
    before = (index < prefix.length) & (at[:, :, None] - index < window)
    return jnp.concatenate([before, seen], axis=-1)
