"""AdamW with the settings of OLMo 3."""

from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from trainer.model import ParameterTree

__all__ = ["AdamW", "clip_by_global_norm", "decayed"]


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay.

    p <- p - rate (m / (sqrt(v) + eps) + decay p), with bias-corrected moments m and v.

    Attributes:
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: share of a decayed parameter that is taken away at a rate of 1.
        max_norm: global norm that gradients are clipped to.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101; settings of OLMo-core's
    official OLMo 3 scripts.
    """

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0

    def init(self, params: ParameterTree) -> optax.ScaleByAdamState:
        """Return moments of zero, on the host."""
        # Not jnp.zeros: of a model spread over many devices no single one can hold a moment.
        zeros = [jax.tree.map(lambda p: np.zeros(p.shape, p.dtype), params) for _ in range(2)]
        return optax.ScaleByAdamState(np.zeros((), np.int32), *zeros)

    def step(
        self,
        params: ParameterTree,
        gradient: ParameterTree,
        moments: optax.ScaleByAdamState,
        rate: Float[Array, ""],
    ) -> tuple[ParameterTree, optax.ScaleByAdamState]:
        """Return parameters and moments after an update.

        Args:
            params: parameters before it.
            gradient: clipped gradient.
            moments: moments before it, with the count of updates.
            rate: learning rate.
        """
        adam = optax.scale_by_adam(self.beta1, self.beta2, eps=self.eps)
        direction, after = adam.update(gradient, moments)
        marks = decayed(params)

        def move(p: Array, d: Array, decays: bool) -> Array:
            change = d + self.weight_decay * p if decays else d
            return p - rate.astype(p.dtype) * change

        moved = jax.tree.map(move, params, direction, marks)
        return moved, cast("optax.ScaleByAdamState", after)


def clip_by_global_norm(
    gradient: ParameterTree, max_norm: float
) -> tuple[ParameterTree, Float[Array, ""], Float[Array, ""]]:
    """Scale a gradient by min(1, max_norm / (norm + 1e-6)).

    The 1e-6 is PyTorch's; Optax's own transformation divides by the bare norm.

    Returns:
        The scaled gradient, its norm before and its norm after.

    Source: ``torch.nn.utils.clip_grad_norm_``.
    """
    norm = optax.tree.norm(gradient)
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradient), norm, norm * scale


def decayed(parameters: ParameterTree) -> Any:
    """Return the tree of booleans: weight decay on everything but the embedding."""
    marks = jax.tree.map(lambda _: True, parameters)
    return {**marks, "embed_tokens": jax.tree.map(lambda _: False, parameters["embed_tokens"])}
