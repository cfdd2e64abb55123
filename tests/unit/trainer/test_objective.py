from typing import Any

import jax
import numpy as np
import pytest

from trainer.model import Olmo3Config, bind, initialize
from trainer.objective import losses

SMALL = Olmo3Config(20, 8, 1, 1, 1, 8, 8)


@jax.jit
def _losses_and_logits(parameters: Any, tokens: Any) -> Any:
    model = bind(SMALL, parameters)
    return *losses(model, tokens), model(tokens)


def test_cross_entropy_and_z_loss_are_means_over_targets_and_kept_apart() -> None:
    parameters = jax.tree.map(lambda p: p * 20, initialize(SMALL, 0))
    tokens = np.random.default_rng(0).integers(0, 20, (8, 6))
    ce, z, logits = _losses_and_logits(parameters, tokens)
    logits = np.asarray(logits, np.float64)[:, :-1]
    normalizer = np.log(np.exp(logits).sum(-1))
    target = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
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
    tokens = np.random.default_rng(0).integers(0, 20, (8, 6))
    ce, *_ = _losses_and_logits(initialize(SMALL, 0), tokens)
    assert float(ce) == pytest.approx(np.log(20), abs=0.05)
