from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.optimizer import AdamW, clip_by_global_norm, decayed


def test_gradients_are_divided_by_their_norm_plus_a_millionth() -> None:
    clipped: Any
    small: Any
    clipped, norm, after = clip_by_global_norm({"a": jnp.array([3.0, 4.0])}, 1.0)
    assert np.asarray(clipped["a"]).tolist() == pytest.approx([3 / 5.000001, 4 / 5.000001])
    assert (float(norm), float(after)) == (5.0, pytest.approx(5 / 5.000001))
    small, less, same = clip_by_global_norm({"a": jnp.array([0.3, 0.4])}, 1.0)
    assert np.asarray(small["a"]).tolist() == pytest.approx([0.3, 0.4])
    assert (float(less), float(same)) == (pytest.approx(0.5), pytest.approx(0.5))


def test_everything_but_the_embedding_decays() -> None:
    tree: Any = {"embed_tokens": {"embedding": 1}, "norm": {"scale": 1}, "lm_head": {"kernel": 1}}
    assert decayed(tree) == {
        "embed_tokens": {"embedding": False},
        "norm": {"scale": True},
        "lm_head": {"kernel": True},
    }


def test_three_updates_agree_with_the_formula() -> None:
    optimizer, rate = AdamW(), 0.03
    update = jax.jit(optimizer.step)
    rng = np.random.default_rng(0)
    params: dict[str, Any] = {
        "embed_tokens": {"embedding": rng.normal(size=4).astype(np.float32)},
        "norm": {"scale": rng.normal(size=3).astype(np.float32)},
    }
    ours: Any = params
    state = optimizer.init(params)
    expected: Any = jax.tree.map(lambda p: p.astype(np.float64), params)
    m: Any = jax.tree.map(np.zeros_like, expected)
    v: Any = jax.tree.map(np.zeros_like, expected)
    for step in (1, 2, 3):
        gradient: Any = jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), params)
        ours, state = update(ours, gradient, state, jnp.float32(rate))
        for name, leaf in (("embed_tokens", "embedding"), ("norm", "scale")):
            g = gradient[name][leaf]
            m[name][leaf] = 0.9 * m[name][leaf] + 0.1 * g
            v[name][leaf] = 0.95 * v[name][leaf] + 0.05 * g**2
            direction = m[name][leaf] / (1 - 0.9**step)
            direction /= np.sqrt(v[name][leaf] / (1 - 0.95**step)) + 1e-8
            decay = 0.1 * expected[name][leaf] if name == "norm" else 0.0
            expected[name][leaf] = expected[name][leaf] - rate * (direction + decay)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert np.asarray(got).tolist() == pytest.approx(want.tolist(), abs=1e-6)
    assert int(state.count) == 3


def test_fresh_moments_are_on_the_host_and_mirror_the_parameters() -> None:
    params: Any = {"embed_tokens": {"embedding": np.ones((4, 2), np.float64)}}
    state: Any = AdamW().init(params)
    assert state.mu["embed_tokens"]["embedding"].dtype == np.float64
    assert all(isinstance(leaf, np.ndarray) and not leaf.any() for leaf in jax.tree.leaves(state))
    assert state.mu["embed_tokens"]["embedding"] is not state.nu["embed_tokens"]["embedding"]
