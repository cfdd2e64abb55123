"""AdamW with the settings of OLMo 3."""

from typing import Any, Final

import jax
import jax.numpy as jnp
import optax

from trainer.model import ParameterTree
from trainer.schedule import CosineWithWarmup

__all__ = ["adamw", "clip_by_global_norm", "decayed"]

BETAS: Final = (0.9, 0.95)
EPS: Final = 1e-8
WEIGHT_DECAY: Final = 0.1
MAX_NORM: Final = 1.0


def adamw(schedule: CosineWithWarmup) -> optax.GradientTransformation:
    """Return AdamW behind gradient clipping.

    p <- p - lr (m / (sqrt(v) + 1e-8) + 0.1 p), with bias-corrected moments of betas
    0.9 and 0.95, gradients clipped to a global norm of 1, and decay on all but the
    embedding.

    Args:
        schedule: learning rate of each 1-based step.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101; settings of OLMo-core's
    official OLMo 3 scripts.
    """
    return optax.chain(
        clip_by_global_norm(MAX_NORM),
        optax.scale_by_adam(*BETAS, eps=EPS),
        optax.add_decayed_weights(WEIGHT_DECAY, mask=decayed),
        optax.scale_by_learning_rate(lambda count: schedule(count + 1)),
    )


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scale gradients by min(1, max_norm / (norm + 1e-6)).

    The 1e-6 is PyTorch's; Optax's own transformation divides by the bare norm.

    Source: ``torch.nn.utils.clip_grad_norm_``.
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        scale = jnp.minimum(1.0, max_norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda g: g * scale, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def decayed(parameters: ParameterTree) -> Any:
    """Return the tree of booleans: weight decay on everything but the embedding."""
    marks = jax.tree.map(lambda _: True, parameters)
    return {**marks, "embed_tokens": jax.tree.map(lambda _: False, parameters["embed_tokens"])}
