"""Updates left out because loss or gradient norm leaps.

A value is a spike when it exceeds the mean of the values before it by more than six of
their standard deviations (unbiased, over the last 128). Nothing is judged before 63 values
are known. Every value joins the history, also that of a skipped update, so that a lasting
change of level is accepted in time. The history is part of the optimizer's state, so that a
resumed run goes on with it.

Source: OLMo-core ``optim/skip_step_optimizer.py``; MaxText ``optimizers.py``,
``skip_step_on_spikes``.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import DTypeLike

from trainer.names import require_known

__all__ = [
    "SIGMA",
    "SKIP_RULES",
    "WINDOW",
    "SkipRule",
    "SpikeHistory",
    "fresh_history",
    "judge",
    "skip_rule",
]

WINDOW: Final = 128
"""Values that the present one is compared with, at most."""

SIGMA: Final = 6.0
"""Standard deviations above the mean at which a value becomes a spike."""

_LEAST: Final = WINDOW // 2
"""Values needed, the present one included, before any is judged."""


@dataclass(frozen=True, slots=True)
class SkipRule:
    """What is judged.

    Attributes:
        z_in_loss: the loss is cross-entropy plus z-loss, not cross-entropy alone.
        clipped_norm: the gradient norm is that after clipping, which hides most spikes.
    """

    z_in_loss: bool
    clipped_norm: bool


SKIP_RULES: Final[dict[str, SkipRule | None]] = {
    "none": None,
    "olmo_core": SkipRule(z_in_loss=False, clipped_norm=False),
    "maxtext": SkipRule(z_in_loss=True, clipped_norm=True),
}
"""Whose values are judged, by name."""


def skip_rule(name: str) -> SkipRule | None:
    """Return the rule called ``name``, None for the one that never skips.

    Raises:
        ConfigError: no such rule; the nearest name is suggested.
    """
    require_known("--skip-step", "rule", name, SKIP_RULES)
    return SKIP_RULES[name]


class SpikeHistory(NamedTuple):
    """Ring buffers of the last losses and gradient norms.

    Of all ``seen`` values number i, from 0, is at i mod 128.
    """

    losses: Float[Array, " 128"]
    grad_norms: Float[Array, " 128"]
    seen: Int[Array, ""]


def fresh_history(dtype: DTypeLike) -> SpikeHistory:
    """Return a history without values, on the host."""
    values: list[Any] = [np.zeros(WINDOW, dtype), np.zeros(WINDOW, dtype), np.zeros((), np.int32)]
    return SpikeHistory(*values)


def judge(
    history: SpikeHistory, loss: Float[Array, ""], grad_norm: Float[Array, ""]
) -> tuple[Bool[Array, ""], SpikeHistory]:
    """Tell whether the present update is to be skipped, and let its values join the history.

    Args:
        history: values of the updates before it.
        loss: its loss.
        grad_norm: its gradient norm.
    """
    spike = _is_spike(history.losses, history.seen, loss) | _is_spike(
        history.grad_norms, history.seen, grad_norm
    )
    skipped = spike & (history.seen + 1 >= _LEAST)
    place = history.seen % WINDOW
    return skipped, SpikeHistory(
        history.losses.at[place].set(loss.astype(history.losses.dtype)),
        history.grad_norms.at[place].set(grad_norm.astype(history.grad_norms.dtype)),
        history.seen + 1,
    )


def _is_spike(
    values: Float[Array, " 128"], count: Int[Array, ""], value: Float[Array, ""]
) -> Bool[Array, ""]:
    """Return whether ``value`` is beyond the mean of the first ``count`` values plus 6 sigma."""
    known = jnp.minimum(count, WINDOW)
    used = jnp.arange(WINDOW) < known
    mean = jnp.sum(values, where=used) / jnp.maximum(known, 1)
    squares = jnp.sum((values - mean) ** 2, where=used)
    deviation = jnp.sqrt(squares / jnp.maximum(known - 1, 1))
    return value - mean > SIGMA * deviation
