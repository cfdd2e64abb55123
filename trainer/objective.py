"""The training objective: next-token cross-entropy and z-loss, kept apart."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trainer.data.documents import segments
from trainer.names import require_known

__all__ = [
    "NORMALIZATIONS",
    "Z_WEIGHT",
    "Losses",
    "Objective",
    "loss_identity",
    "losses",
    "target_divisor",
]

Z_WEIGHT: Final = 1e-5

NORMALIZATIONS: Final = {
    "olmo_core": "masked instances are left out of the sum and counted in the divisor",
    "maxtext": "masked instances are left out of the sum and of the divisor",
}
"""What a loss is divided by, by name. Without masked instances both are the same."""

_LOGITS_AT_A_TIME: Final = 2**25
"""Logits a device holds at a time: 128 MiB in float32, and as much again for gradients."""


class _LanguageModel(Protocol):
    """What the objective needs of a model."""

    def hidden(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T d"]: ...

    def unembed(self, hidden: Float[Array, "... d"]) -> Float[Array, "... V"]: ...


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimized.

    Attributes:
        z_weight: weight of the squared log-normalizer.
        normalization: a key of ``NORMALIZATIONS``.
        logits_at_a_time: logits in a device's memory at a time, at most, beside one position
            of each instance.
        eos_id: id that ends a document, where attention stays within documents; None where
            each token sees all earlier ones of its instance. Either way the first token of
            a document is a target.

    Raises:
        ConfigError: no such normalization; the nearest name is suggested.
    """

    z_weight: float = Z_WEIGHT
    normalization: str = "olmo_core"
    logits_at_a_time: int = _LOGITS_AT_A_TIME
    eos_id: int | None = None

    def __post_init__(self) -> None:
        require_known("--loss-normalization", "normalization", self.normalization, NORMALIZATIONS)


class Losses(NamedTuple):
    """Cross-entropy and weighted z-loss in nats a target."""

    ce_nats: Float[Array, ""]
    z_nats: Float[Array, ""]


def loss_identity(objective: Objective, *, masks: bool) -> dict[str, Any]:
    """Say what ``train/ce_nats`` means, for readers that overlay two runs.

    Args:
        objective: what is minimized.
        masks: whether a filter may mask instances. Where none does, every normalization
            means the same, and runs may be overlaid whichever they name.
    """
    identity = {
        "divisor": "targets (sequence_length - 1 per instance)",
        "z_loss_included": False,
        "z_loss_weight": objective.z_weight,
        "masked_tokens": NORMALIZATIONS[objective.normalization] if masks else "none",
    }
    # Said only where attention is cut, so that all other runs have one identity.
    return identity if objective.eos_id is None else {**identity, "context": "own document"}


def target_divisor(objective: Objective, kept: Bool[Array, " B"], targets: int) -> Float[Array, ""]:
    """Return what the summed loss of a batch is divided by, at least 1.

    Args:
        objective: whose normalization counts.
        kept: instances that count; False for one that a filter masks.
        targets: targets an instance.

    Source: OLMo-core ``train/train_module``, which adds the tokens of filtered instances back;
    MaxText ``train.py``, which divides by the sum of the mask. Both over all devices.
    """
    instances = kept.size if objective.normalization == "olmo_core" else jnp.sum(kept)
    return jnp.maximum(instances, 1) * float(targets)


def losses(
    model: _LanguageModel,
    tokens: Int[Array, "B T"],
    objective: Objective,
    kept: Bool[Array, " B"] | None = None,
    divisor: Float[Array, ""] | None = None,
) -> Losses:
    """Return cross-entropy and z-loss of instances.

    Position i predicts token i + 1; the last position has no target. The z-loss is
    1e-5 x logsumexp(logits)^2, a pull of the normalizer towards 1. Softmax and sums are in
    float32 or wider. Logits are made for some positions at a time, and again for the
    backward pass, where those of all positions would be large.

    Args:
        model: the model.
        tokens: ids in [0, vocab_size).
        objective: what is minimized.
        kept: instances that count, by default all. Without any both losses are 0, and so is
            their gradient.
        divisor: ``target_divisor`` of the whole batch when these are only some of its
            instances.

    Source: Chowdhery et al. 2022, arXiv:2204.02311, section 5; OLMo-core's
    cross-entropy (logits in float32, z-loss reported apart).
    """
    instances, length = tokens.shape
    if kept is None:
        kept = jnp.ones(instances, bool)
    if divisor is None:
        divisor = target_divisor(objective, kept, length - 1)
    documents = None if objective.eos_id is None else segments(tokens, objective.eos_id)
    hidden = model.hidden(tokens, documents)
    ahead = jnp.roll(tokens, -1, axis=1)
    counted = kept[:, None] & (jnp.arange(length) < length - 1)
    size = _positions_at_a_time(objective, model, hidden)
    if size >= length:
        ce, squares = _summed(model, hidden, ahead, counted)
    else:
        ce, squares = _summed_in_chunks(model, (hidden, ahead, counted), size)
    divisor = divisor.astype(ce.dtype)
    return Losses(ce / divisor, objective.z_weight * (squares / divisor))


def _positions_at_a_time(
    objective: Objective, model: _LanguageModel, hidden: Float[Array, "B T d"]
) -> int:
    """Return the positions of each instance whose logits may be in memory together."""
    vocab_size = jax.eval_shape(model.unembed, hidden).shape[-1]
    mesh = jax.sharding.get_abstract_mesh()
    devices = 1 if mesh.empty else mesh.size
    return max(1, objective.logits_at_a_time * devices // (hidden.shape[0] * vocab_size))


def _summed(
    model: _LanguageModel,
    hidden: Float[Array, "B T d"],
    ahead: Int[Array, "B T"],
    counted: Bool[Array, "B T"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the sums of cross-entropy and of squared log-normalizer over counted targets."""
    logits = model.unembed(hidden)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, ahead[..., None], axis=-1)[..., 0]
    ce = jnp.sum(normalizer - target, where=counted)
    return ce, jnp.sum(normalizer**2, where=counted)


def _summed_in_chunks(
    model: _LanguageModel,
    inputs: tuple[Float[Array, "B T d"], Int[Array, "B T"], Bool[Array, "B T"]],
    size: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the same sums, from ``size`` positions of every instance at a time."""
    # Positions are split and not instances, which are spread over devices.
    length = inputs[0].shape[1]
    padding = -length % size

    def split(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(padded.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def add(sums: tuple[Array, Array], chunk: tuple[Array, Array, Array]) -> Any:
        return jax.tree.map(jnp.add, sums, _summed(model, *chunk)), None

    kind = jnp.promote_types(inputs[0].dtype, jnp.float32)
    zeros = (jnp.zeros((), kind), jnp.zeros((), kind))
    return jax.lax.scan(add, zeros, tuple(split(x) for x in inputs))[0]
