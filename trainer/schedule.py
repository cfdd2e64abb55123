"""The learning rate as a pure function of the step."""

from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

__all__ = ["FLOOR", "CosineWithWarmup"]

FLOOR: Final = 0.1
"""The learning rate ends at this fraction of its peak."""


@dataclass(frozen=True, slots=True)
class CosineWithWarmup:
    """Linear from 0 to the peak, then half a cosine down to a tenth of it.

    With peak P, warm-up w and length T, step n > w (1-based) uses
    0.1 P + 0.9 P (1 + cos(pi (n - w) / (T - w))) / 2.

    Attributes:
        peak: P, learning rate at the end of warm-up.
        warmup_steps: w, below ``steps``.
        steps: T, steps of the whole schedule; later steps keep the floor.

    Source: OLMo-core ``optim/scheduler.py``, CosWithWarmup.

    Example:
        >>> schedule = CosineWithWarmup(peak=1.0, warmup_steps=10, steps=110)
        >>> [round(float(schedule(n)), 3) for n in (1, 10, 60, 110, 500)]
        [0.1, 1.0, 0.55, 0.1, 0.1]
    """

    peak: float
    warmup_steps: int
    steps: int

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        """Return the learning rate of update ``step`` (1-based)."""
        n = jnp.asarray(step, jnp.float32)
        rising = self.peak * n / max(self.warmup_steps, 1)
        done = (n - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        cosine = (1.0 + jnp.cos(jnp.pi * jnp.clip(done, 0.0, 1.0))) / 2.0
        falling = self.peak * (FLOOR + (1.0 - FLOOR) * cosine)
        return jnp.where(n < self.warmup_steps, rising, falling)
