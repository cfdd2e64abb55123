from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer import attention
from trainer.attention import attend, visible


def test_a_window_counts_the_current_token() -> None:
    positions = jnp.arange(5)
    assert visible(positions, positions, 2).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize("window", [None, 5, 9])
def test_a_window_as_long_as_the_text_is_full_attention(window: int | None) -> None:
    positions = jnp.arange(5)
    seen = visible(positions, positions, window)
    assert seen.tolist() == np.tril(np.ones((5, 5), bool)).tolist()


def _dense(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    window: int | None,
    segments: jax.Array | None = None,
) -> jax.Array:
    """All scores at once."""
    B, T, N, D = q.shape
    grouped = q.reshape(B, T, k.shape[2], -1, D)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k) / np.sqrt(D)
    positions = jnp.arange(T)
    seen = visible(positions, positions, window)
    if segments is not None:
        seen = (seen & (segments[:, :, None] == segments[:, None, :]))[:, None, None]
    scores = jnp.where(seen, scores, -jnp.inf)
    mixed = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, axis=-1), v)
    return mixed.reshape(B, T, N, D)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "window", "block"),
    [
        (1, None, 8),
        (7, 3, 512),  # one block
        (40, None, 8),
        (41, 6, 8),  # a last block that is not whole
        (43, 7, 4),  # the window is no multiple of the block
        (64, 16, 4),  # it is one
        (50, None, 3),  # more blocks than groups: an inner loop
        (50, 1, 3),  # each query sees itself alone
        (33, 40, 8),  # longer than the text
        (17, 16, 4),  # one query beyond the growing part
        (50, 25, 4),
    ],
)
def test_blocks_give_what_all_scores_at_once_give(
    length: int, window: int | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_LEAST_BLOCK", 2)
    monkeypatch.setattr(attention, "_GROUPS", 4)
    rng = np.random.default_rng(length)
    q, k, v = (jnp.asarray(rng.normal(size=(2, length, n, 8)), jnp.float32) for n in (4, 2, 2))
    weights = jnp.asarray(rng.normal(size=q.shape), jnp.float32)

    def blocked(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return (attend(q, k, v, window, block) * weights).sum()

    def dense(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return (_dense(q, k, v, window) * weights).sum()

    assert np.abs(attend(q, k, v, window, block) - _dense(q, k, v, window)).max() < 1e-5
    ours = jax.jit(jax.grad(blocked, (0, 1, 2)))(q, k, v)
    theirs = jax.jit(jax.grad(dense, (0, 1, 2)))(q, k, v)
    assert max(float(jnp.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "window", "block"),
    [
        (43, 7, 4),  # a growing part and a sliding one, the window shorter than documents
        (50, None, 3),  # an inner loop
    ],
)
def test_a_query_sees_keys_of_its_own_document_alone(
    length: int, window: int | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_LEAST_BLOCK", 2)
    monkeypatch.setattr(attention, "_GROUPS", 4)
    rng = np.random.default_rng(length)
    q, k, v = (jnp.asarray(rng.normal(size=(2, length, n, 8)), jnp.float32) for n in (4, 2, 2))
    weights = jnp.asarray(rng.normal(size=q.shape), jnp.float32)
    # Documents of other lengths in each row.
    documents = jnp.asarray(np.cumsum(rng.random((2, length)) < 0.1, axis=1), jnp.int32)
    assert documents.max() > 1

    def blocked(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed = attend(q, k, v, window, block, documents)
        return (mixed * weights).sum(), mixed

    def dense(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed = _dense(q, k, v, window, documents)
        return (mixed * weights).sum(), mixed

    (_, ours), gradient = jax.jit(jax.value_and_grad(blocked, (0, 1, 2), has_aux=True))(q, k, v)
    (_, theirs), expected = jax.jit(jax.value_and_grad(dense, (0, 1, 2), has_aux=True))(q, k, v)
    assert np.abs(ours - theirs).max() < 1e-5
    assert max(float(jnp.abs(a - b).max()) for a, b in zip(gradient, expected, strict=True)) < 1e-4


def _bytes_needed(length: int, window: int | None) -> int:
    """Return the bytes a compiled gradient needs beside its inputs and outputs."""
    shape = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, k, v, window, 128).sum()

    compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(shape, shape, shape).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.slow
def test_memory_of_a_sliding_layer_grows_with_length_not_with_its_square() -> None:
    needed = [_bytes_needed(length, 256) for length in (2048, 4096, 8192)]
    assert all(after < 2.1 * before for before, after in pairwise(needed))
    # The scores of 8,192 tokens alone would be 2 x 8192^2 x 4 bytes.
    assert needed[-1] < 0.1 * (2 * 8192**2 * 4)


@pytest.mark.slow
def test_memory_of_a_full_layer_stays_below_its_scores() -> None:
    assert _bytes_needed(8192, None) < 0.2 * (2 * 8192**2 * 4)


def test_sums_are_float32_when_values_are_bfloat16() -> None:
    ones = jnp.ones((1, 600, 1, 2), jnp.bfloat16)
    mixed = attend(0 * ones, ones, ones, None, 512)
    # Summed in bfloat16, 600 equal weights would stop growing at 256.
    assert mixed.dtype == jnp.bfloat16
    assert np.asarray(mixed, np.float32).ravel().tolist() == [1.0] * 1200
