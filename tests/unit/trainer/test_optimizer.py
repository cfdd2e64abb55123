import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainer.optimizer import adamw, clip_by_global_norm, decayed
from trainer.schedule import CosineWithWarmup


def test_gradients_are_divided_by_their_norm_plus_a_millionth() -> None:
    clip = clip_by_global_norm(1.0)
    clipped, _ = clip.update(jnp.array([3.0, 4.0]), clip.init(()))
    assert np.asarray(clipped).tolist() == pytest.approx([3 / 5.000001, 4 / 5.000001], rel=1e-6)
    small, _ = clip.update(jnp.array([0.3, 0.4]), clip.init(()))
    assert np.asarray(small).tolist() == pytest.approx([0.3, 0.4])


def test_everything_but_the_embedding_decays() -> None:
    tree = {"embed_tokens": {"embedding": 1}, "norm": {"scale": 1}, "lm_head": {"kernel": 1}}
    assert decayed(tree) == {
        "embed_tokens": {"embedding": False},
        "norm": {"scale": True},
        "lm_head": {"kernel": True},
    }


def test_three_updates_agree_with_the_formula() -> None:
    schedule = CosineWithWarmup(0.1, 2, 10)
    optimizer = adamw(schedule)
    update = jax.jit(optimizer.update)
    rng = np.random.default_rng(0)
    params = {
        "embed_tokens": {"embedding": rng.normal(size=4)},
        "norm": {"scale": rng.normal(size=3)},
    }
    ours = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(ours)
    expected = jax.tree.map(np.copy, params)
    m = jax.tree.map(np.zeros_like, params)
    v = jax.tree.map(np.zeros_like, params)
    for step in (1, 2, 3):
        gradient = jax.tree.map(lambda p: rng.normal(size=p.shape), params)
        changes, state = update(gradient, state, ours)
        ours = optax.apply_updates(ours, changes)
        norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
        rate = float(schedule(step))
        for name, leaf in (("embed_tokens", "embedding"), ("norm", "scale")):
            g = gradient[name][leaf] * min(1.0, 1.0 / (norm + 1e-6))
            m[name][leaf] = 0.9 * m[name][leaf] + 0.1 * g
            v[name][leaf] = 0.95 * v[name][leaf] + 0.05 * g**2
            direction = m[name][leaf] / (1 - 0.9**step)
            direction /= np.sqrt(v[name][leaf] / (1 - 0.95**step)) + 1e-8
            decay = 0.1 * expected[name][leaf] if name == "norm" else 0.0
            expected[name][leaf] = expected[name][leaf] - rate * (direction + decay)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert np.asarray(got).tolist() == pytest.approx(want.tolist(), abs=1e-5)
