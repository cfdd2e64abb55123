"""Rotary position embedding on half-split heads, in at least float32."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from evalmon.types import RopeParameters, inverse_frequencies

__all__ = ["rotate"]


def rotate(x: Float[Array, "B T N D"], rope: RopeParameters) -> Float[Array, "B T N D"]:
    """Rotate the halves of each head by its position.

    Component i and component i + D/2 are a pair; at position t it turns by t times its
    inverse frequency, and YaRN's attention factor multiplies what comes out.

    Args:
        x: heads at positions 0 to T - 1.
        rope: settings of the layer's type.

    Source: Su et al. 2021, arXiv:2104.09864; half-split layout as in transformers.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    frequencies, scale = inverse_frequencies(x.shape[-1], rope)
    angle = jnp.arange(x.shape[1], dtype=wide)[:, None] * jnp.asarray(frequencies, wide)
    cos, sin = scale * jnp.cos(angle)[:, None, :], scale * jnp.sin(angle)[:, None, :]
    first, second = jnp.split(x.astype(wide), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
