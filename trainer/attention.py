"""Causal attention, full or sliding, without the square of scores.

Queries are taken a block at a time, each with the keys it can see and no others. The scores
of a block are computed again in the backward pass, so what is in memory at once is one
block of queries times the keys it sees: at most the window and a block in a sliding layer.
"""

from functools import partial
from typing import Final, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

__all__ = ["attend", "visible"]

_GROUPS: Final = 16
"""Parts a layer's growing region is split into: more would be compiled one by one, fewer
would read more keys than are seen."""

_LEAST_BLOCK: Final = 128

_Position: TypeAlias = int | Int[Array, ""]


def visible(
    queries: Int[Array, " Q"], keys: Int[Array, " S"], window: int | None
) -> Bool[Array, "Q S"]:
    """Return which keys (columns) each query (row) sees, by position.

    Args:
        queries: positions of the queries.
        keys: positions of the keys.
        window: keys seen at most, the query's own position included; None for all earlier.

    Example:
        >>> positions = jnp.arange(3)
        >>> visible(positions, positions, 2).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    row, column = queries[:, None], keys[None, :]
    causal = column <= row
    return causal if window is None else causal & (column > row - window)


def attend(
    q: Float[Array, "B T N D"],
    k: Float[Array, "B T K D"],
    v: Float[Array, "B T K D"],
    window: int | None,
    query_block: int,
    segments: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T N D"]:
    """Return softmax(q k^T / sqrt(D)) v over the keys each query sees.

    The first ``window`` queries see a growing number of keys, all later ones equally many:
    the first are taken in a few groups of fitting extent, the others in a loop.

    Args:
        q: queries; N / K neighboring heads share a key head.
        k: keys.
        v: values.
        window: keys seen at most, None for all earlier ones.
        query_block: queries whose scores are in memory at a time, at most.
        segments: number of each token's document; a query sees keys of its own alone. None
            where all tokens of an instance see each other.

    Returns:
        Mixed values in the dtype of ``v``; scores and sums are at least float32.

    Source: Rabe and Staats 2021, arXiv:2112.05682 (blocks, recomputed backwards);
    Beltagy et al. 2020, arXiv:2004.05150 (sliding window).
    """
    B, T, N, D = q.shape
    K = k.shape[2]
    # [B, K, T, G, D]: the heads of a group stand beside each other, one matrix a key head.
    queries = q.reshape(B, T, K, N // K, D).swapaxes(1, 2)
    keys, values = k.swapaxes(1, 2), v.swapaxes(1, 2)
    seen = T if window is None else min(window, T)
    block = min(query_block, max(_LEAST_BLOCK, -(-T // 4)), T)
    growing = T if seen == T else min(T, -(-seen // block) * block)
    group = block * -(-growing // (block * _GROUPS))
    parts: list[Float[Array, "B K t G D"]] = []
    for start in range(0, growing, group):
        stop = min(start + group, growing)
        part = queries[:, :, start:stop], keys[:, :, :stop], values[:, :, :stop]
        near = None if segments is None else segments[:, :stop]
        parts.append(_loop(*part, seen, block, near))
    if growing < T:
        first = growing - seen + 1
        part = queries[:, :, growing:], keys[:, :, first:], values[:, :, first:]
        near = None if segments is None else segments[:, first:]
        parts.append(_loop(*part, seen, block, near))
    mixed = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=2)
    return mixed.swapaxes(1, 2).reshape(B, T, N, D)


def _loop(
    q: Float[Array, "B K Q G D"],
    k: Float[Array, "B K S D"],
    v: Float[Array, "B K S D"],
    window: int,
    block: int,
    segments: Int[Array, "B S"] | None,
) -> Float[Array, "B K Q G D"]:
    """Attend block by block; the last query is at the position of the last key.

    A block reads the keys that its queries see, or all where there are no more than that.
    """
    Q, S = q.shape[2], k.shape[2]
    start, extent = S - Q, min(window - 1 + block, S)

    @partial(jax.checkpoint, static_argnums=(1, 2))  # pyright: ignore[reportUntypedFunctionDecorator]  # JAX ships it untyped
    def rows(at: _Position, count: int, width: int) -> Float[Array, "B K q G D"]:
        first = jnp.maximum(start + at + count - width, 0) if width < S else 0
        part = jax.lax.dynamic_slice_in_dim(q, at, count, axis=2)
        near = [jax.lax.dynamic_slice_in_dim(x, first, width, axis=2) for x in (k, v)]
        mask = visible(start + at + jnp.arange(count), first + jnp.arange(width), window)
        if segments is not None:
            own = jax.lax.dynamic_slice_in_dim(segments, start + at, count, axis=1)
            other = jax.lax.dynamic_slice_in_dim(segments, first, width, axis=1)
            mask &= own[:, :, None] == other[:, None, :]
        return _mix(part, near[0], near[1], mask)

    whole, rest = divmod(Q, block)
    parts: list[Float[Array, "B K q G D"]] = []
    if whole == 1:
        parts.append(rows(0, block, extent))
    elif whole:
        looped = jax.lax.map(lambda i: rows(i * block, block, extent), jnp.arange(whole))
        parts.append(jnp.moveaxis(looped, 0, 2).reshape(*q.shape[:2], -1, *q.shape[3:]))
    if rest:
        parts.append(rows(whole * block, rest, extent))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=2)


def _mix(
    q: Float[Array, "B K q G D"],
    k: Float[Array, "B K s D"],
    v: Float[Array, "B K s D"],
    mask: Bool[Array, "*b q s"],
) -> Float[Array, "B K q G D"]:
    """Attend with all scores of one block; divided last, which saves a pass over them."""
    B, K, Q, G, D = q.shape
    wide = jnp.promote_types(q.dtype, jnp.float32)
    rows = q.reshape(B, K, Q * G, D)
    scores = jnp.einsum("bkrd,bksd->bkrs", rows, k, preferred_element_type=wide)
    scores = scores.reshape(B, K, Q, G, -1) * D**-0.5
    scores = jnp.where(mask[..., None, :, None, :], scores, -jnp.inf)
    highest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    mixed = jnp.einsum(
        "bkrs,bksd->bkrd",
        weights.astype(v.dtype).reshape(B, K, Q * G, -1),
        v,
        preferred_element_type=wide,
    )
    return (mixed.reshape(B, K, Q, G, D) / total).astype(v.dtype)
