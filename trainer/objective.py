"""The training objective: next-token cross-entropy and z-loss, kept apart."""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainer.model import Olmo3

__all__ = ["LOSS_IDENTITY", "Z_WEIGHT", "losses"]

Z_WEIGHT: Final = 1e-5

LOSS_IDENTITY: Final = {
    "divisor": "targets (sequence_length - 1 per instance)",
    "z_loss_included": False,
    "z_loss_weight": Z_WEIGHT,
    "masked_tokens": "none",
}
"""What ``train/ce_nats`` means, for readers that overlay two runs."""


def losses(model: Olmo3, tokens: Int[Array, "B T"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return mean cross-entropy and z-loss in nats per target.

    Position i predicts token i + 1; the last position has no target. The z-loss is
    1e-5 x logsumexp(logits)^2, a pull of the normalizer towards 1.

    Args:
        model: the model.
        tokens: ids in [0, vocab_size).

    Source: Chowdhery et al. 2022, arXiv:2204.02311, section 5; OLMo-core's
    cross-entropy (logits in float32, z-loss reported apart).
    """
    hidden = model.hidden(tokens)[:, :-1]
    logits = model.unembed(hidden.reshape(-1, hidden.shape[-1]))
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, tokens[:, 1:].reshape(-1, 1), axis=-1)[:, 0]
    return jnp.mean(normalizer - target), Z_WEIGHT * jnp.mean(normalizer**2)
