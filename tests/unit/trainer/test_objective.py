from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from evalmon.errors import ConfigError
from trainer.architecture import Olmo3Config
from trainer.initialize import initialize
from trainer.model import bind
from trainer.objective import (
    NORMALIZATIONS,
    Losses,
    Objective,
    loss_identity,
    losses,
    target_divisor,
)

SMALL = Olmo3Config(20, 8, 1, 1, 1, 8, 8)
TOKENS = np.random.default_rng(0).integers(0, 20, (8, 6))


@jax.jit
def _losses_and_logits(parameters: Any, tokens: Any) -> Any:
    model = bind(SMALL, parameters)
    return *losses(model, tokens, Objective()), model(tokens)


class Constant:
    """A model whose hidden states are its logits, the same at each position."""

    def __init__(self, logits: list[float], dtype: str = "float32") -> None:
        self.logits = jnp.array(logits, dtype)

    def hidden(self, tokens: Array, segments: Array | None = None) -> Array:
        return jnp.broadcast_to(self.logits, (*tokens.shape, self.logits.size))

    def unembed(self, hidden: Array) -> Array:
        return hidden


class Bigram:
    """A model that sees the present token only."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    def hidden(self, tokens: Array, segments: Array | None = None) -> Array:
        return self.parameters["embedding"][tokens]

    def unembed(self, hidden: Array) -> Array:
        return hidden @ self.parameters["head"]


def _bigram(vocab_size: int, width: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "embedding": rng.normal(size=(vocab_size, width)).astype(np.float32),
        "head": rng.normal(size=(width, vocab_size)).astype(np.float32),
    }


def _losing(ce: float) -> Constant:
    """Return a model of two tokens that loses ``ce`` nats on each token 0."""
    return Constant([0.0, float(np.log(np.expm1(ce)))])


def test_cross_entropy_and_z_loss_are_means_over_targets_and_kept_apart() -> None:
    parameters = jax.tree.map(lambda p: p * 20, initialize(SMALL, 0))
    ce, z, logits = _losses_and_logits(parameters, TOKENS)
    logits = np.asarray(logits, np.float64)[:, :-1]
    normalizer = np.log(np.exp(logits).sum(-1))
    target = np.take_along_axis(logits, TOKENS[:, 1:, None], -1)[..., 0]
    assert float(ce) == pytest.approx((normalizer - target).mean(), rel=1e-5)
    assert float(z) == pytest.approx(1e-5 * (normalizer**2).mean(), rel=1e-5)


def test_the_last_token_is_target_but_never_context() -> None:
    parameters = initialize(SMALL, 0)
    tokens = np.zeros((8, 6), np.int64)
    last = tokens.copy()
    last[0, -1] = 5
    ce, z, _ = _losses_and_logits(parameters, tokens)
    other_ce, other_z, _ = _losses_and_logits(parameters, last)
    assert float(ce) != float(other_ce)
    # The normalizer belongs to predicting positions only, and none of them saw the last token.
    assert float(z) == float(other_z)


def test_an_untrained_model_is_as_good_as_guessing() -> None:
    ce, *_ = _losses_and_logits(initialize(SMALL, 0), TOKENS)
    assert float(ce) == pytest.approx(np.log(20), abs=0.05)


@pytest.mark.parametrize(("normalization", "ce"), [("olmo_core", 1.0), ("maxtext", 2.0)])
def test_masked_instances_count_in_the_divisor_as_named(normalization: str, ce: float) -> None:
    # Two devices of two sequences, a loss of 2 a token, both sequences of the second masked.
    kept = jnp.array([True, True, False, False])
    tokens = jnp.zeros((4, 4), jnp.int32)
    found = losses(_losing(2.0), tokens, Objective(normalization=normalization), kept)
    assert float(found.ce_nats) == pytest.approx(ce, rel=1e-6)
    identity = loss_identity(Objective(normalization=normalization), masks=True)
    assert ("of the divisor" in identity["masked_tokens"]) is (normalization == "maxtext")


def test_without_masks_every_normalization_means_the_same() -> None:
    """Runs of AI2's and of MaxText's recipe are overlaid, and those of before the settings."""
    for normalization in NORMALIZATIONS:
        assert loss_identity(Objective(normalization=normalization), masks=False) == {
            "divisor": "targets (sequence_length - 1 per instance)",
            "z_loss_included": False,
            "z_loss_weight": 1e-5,
            "masked_tokens": "none",
        }


def test_within_documents_the_first_token_of_each_is_still_a_target() -> None:
    class Counting:
        """A model whose loss on token 0 is the number of the document that predicts it."""

        def hidden(self, tokens: Array, segments: Array | None = None) -> Array:
            ce = jnp.zeros(tokens.shape) if segments is None else segments.astype(jnp.float32)
            return jnp.stack([jnp.zeros_like(ce), jnp.log(jnp.expm1(ce + 1e-6))], axis=-1)

        def unembed(self, hidden: Array) -> Array:
            return hidden

    # Documents 0 0 | 1 1 1 | 2, where 1 ends one; the last token is no query.
    tokens = jnp.array([[0, 1, 0, 0, 1, 0]])
    found = losses(Counting(), tokens, Objective(z_weight=0.0, eos_id=1))
    # Targets 1, 0, 0, 1, 0 from documents 0, 0, 1, 1, 1; a loss of c on 0 is softplus' other
    # side on 1.
    on_one = [np.log1p(1 / np.expm1(c + 1e-6)) for c in (0, 1)]
    expected = (on_one[0] + 0 + 1 + on_one[1] + 1) / 5
    assert float(found.ce_nats) == pytest.approx(expected, rel=1e-4)
    whole = losses(Counting(), tokens, Objective(z_weight=0.0))
    assert float(whole.ce_nats) == pytest.approx(2 * on_one[0] / 5, rel=1e-4)


def test_a_loss_within_documents_is_another_metric() -> None:
    apart = loss_identity(Objective(eos_id=3), masks=False)
    whole = loss_identity(Objective(), masks=False)
    assert apart == {**whole, "context": "own document"}


@pytest.mark.parametrize("normalization", ["olmo_core", "maxtext"])
def test_a_batch_masked_whole_has_no_loss_and_no_gradient(normalization: str) -> None:
    objective, kept = Objective(normalization=normalization), jnp.zeros(8, bool)

    def loss(parameters: Any) -> tuple[Array, Losses]:
        found = losses(Bigram(parameters), jnp.asarray(TOKENS), objective, kept)
        return found.ce_nats + found.z_nats, found

    gradient, found = jax.jit(jax.grad(loss, has_aux=True))(_bigram(20))
    assert (float(found.ce_nats), float(found.z_nats)) == (0.0, 0.0)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_parts_of_a_batch_sum_to_it_with_its_divisor() -> None:
    model, objective = _losing(1.5), Objective(normalization="maxtext")
    tokens, kept = jnp.zeros((4, 5), jnp.int32), jnp.array([True, False, True, True])
    whole = losses(model, tokens, objective, kept)
    divisor = target_divisor(objective, kept, 4)
    parts = [losses(model, tokens[i::2], objective, kept[i::2], divisor) for i in range(2)]
    assert float(parts[0].ce_nats + parts[1].ce_nats) == pytest.approx(float(whole.ce_nats))
    assert float(parts[0].z_nats + parts[1].z_nats) == pytest.approx(float(whole.z_nats))
    assert float(divisor) == 12


@pytest.mark.parametrize("positions", [1, 2, 4, 5])
def test_logits_of_some_positions_at_a_time_give_the_same_values(positions: int) -> None:
    kept = jnp.arange(8) != 3

    def value_and_gradient(objective: Objective) -> Any:
        def loss(parameters: Any) -> tuple[Array, Losses]:
            found = losses(Bigram(parameters), jnp.asarray(TOKENS), objective, kept)
            return found.ce_nats + found.z_nats, found

        return jax.jit(jax.grad(loss, has_aux=True))(_bigram(20))

    gradient, found = value_and_gradient(Objective(logits_at_a_time=positions * 8 * 20))
    whole, expected = value_and_gradient(Objective())
    assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-6), found, expected))
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(whole))
    apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), gradient, whole)
    assert max(jax.tree.leaves(apart)) < 1e-6 * largest


def test_logits_at_a_time_bound_the_memory() -> None:
    def peak(objective: Objective) -> int:
        def loss(parameters: Any, tokens: Any) -> Array:
            return losses(Bigram(parameters), tokens, objective).ce_nats

        tokens = jax.ShapeDtypeStruct((4, 64), np.int32)
        compiled = jax.jit(jax.grad(loss)).lower(_bigram(4096), tokens).compile()
        analysis: Any = compiled.memory_analysis()
        return analysis.temp_size_in_bytes

    logits = 4 * 64 * 4096 * 4
    assert peak(Objective()) > logits
    assert peak(Objective(logits_at_a_time=4 * 4 * 4096)) < logits / 2


@pytest.mark.parametrize("ce", [2.705, 2.711])
def test_the_loss_of_a_bfloat16_model_is_on_no_coarse_grid(ce: float) -> None:
    # In bfloat16 these two are 2.703125 and 2.71875; logits 8 and 11.1 hold them well enough.
    logits = jnp.array([0.0, float(np.log(np.expm1(ce)))], jnp.bfloat16)
    exact = float(np.logaddexp(0.0, float(logits[1])))
    model = Constant(logits.tolist(), "bfloat16")
    found = losses(model, jnp.zeros((3, 5), jnp.int32), Objective())
    assert found.ce_nats.dtype == jnp.float32
    assert float(found.ce_nats) == pytest.approx(exact, rel=1e-6)
    assert float(jnp.bfloat16(found.ce_nats)) != float(found.ce_nats)


def test_an_unknown_normalization_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--loss-normalization 'max': .*nearest is 'maxtext'"):
        Objective(normalization="max")
