"""FLOPs of training by three published conventions, and what they are measured against.

Each counts model FLOPs: forward times three, two FLOPs for each weight of a matrix product and
token, nothing for norms, softmax, rotation, embedding look-up or what rematerialization
computes again. They differ in attention and in the weights they count::

    convention   attention of a token and layer (x 3 for training)     weights
    maxtext      2 S H D, causal; sliding layers as if they were full  matrix products
    swa_aware    4 (w - w^2 / 2S) H D, w = min(window, S)              matrix products
    olmo_core    4 w H D, not halved for causality                     all but the embedding

with S tokens a sequence, H query heads of width D, and w = S in full layers. The three agree
on the weights but for the norms, and on full layers but for the factor of two.

Source: MaxText ``maxtext_utils.calculate_tflops_training_per_device`` (its branch for OLMo 3,
and its sliding-window term), OLMo-core ``num_flops_per_token``; after PaLM (arXiv:2204.02311),
appendix B.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from evalmon.errors import ConfigError
from trainer.architecture import Olmo3Config
from trainer.presets import (
    OLMO3_IDS,
    OLMO3_VOCAB,
    PRESETS,
    non_embedding_count,
    parameter_count,
)

__all__ = [
    "CONVENTION",
    "CONVENTIONS",
    "Peak",
    "find_peak",
    "published_costs",
    "published_flops_per_token",
    "seen_pairs",
    "training_flops_per_token",
]

CONVENTION: Final = "swa_aware"
"""The one that MFU is computed by: it charges the pairs that are needed, and no others."""

CONVENTIONS: Final = ("maxtext", "swa_aware", "olmo_core")

_ROWS: Final = {"maxtext": OLMO3_IDS, "swa_aware": OLMO3_IDS, "olmo_core": OLMO3_VOCAB}
"""Vocabulary that each source counts the head with: MaxText's settings do not pad it."""

PUBLISHED_PEAKS: Final = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA H200": 989.5e12,
    "NVIDIA B200": 2250e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}
"""Dense bfloat16 peaks by JAX device kind, in FLOP/s. Source: the vendors' data sheets."""


@dataclass(frozen=True, slots=True)
class Peak:
    """What one device could do.

    Attributes:
        flops_per_second: the denominator of MFU for one device.
        source: where the number is from.
    """

    flops_per_second: float
    source: str


def seen_pairs(length: int, window: int | None) -> float:
    """Return the (query, key) pairs that one sequence attends to: S w - w^2 / 2.

    The diagonal counts half, as the sources have it; exact would be w / 2 more.

    Args:
        length: S, tokens.
        window: keys a query sees at most, None for all earlier ones; w is the smaller of
            both.

    Example:
        >>> seen_pairs(4, None), seen_pairs(4, 2)
        (8.0, 6.0)
    """
    w = length if window is None else min(window, length)
    return length * w - w * w / 2


def training_flops_per_token(
    config: Olmo3Config, length: int, convention: str = CONVENTION
) -> float:
    """Return the FLOPs that training spends on one token, forward and backward.

    Args:
        config: shapes; the head counts with ``vocab_size`` rows.
        length: tokens a sequence.
        convention: one of ``CONVENTIONS``.

    Raises:
        ConfigError: no such convention.
    """
    d, queries = config.width, config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    layer = d * (2 * queries + 2 * keys) + 3 * d * config.ffn
    weights = config.layers * layer + d * config.vocab_size
    windows = [None if config.sees_all(i) else config.window for i in range(config.layers)]
    if convention == "maxtext":
        pairs = config.layers * seen_pairs(length, None)
    elif convention == "swa_aware":
        pairs = sum(seen_pairs(length, window) for window in windows)
    elif convention == "olmo_core":
        weights = non_embedding_count(config)
        pairs = sum(length * min(window or length, length) for window in windows)
    else:
        raise ConfigError(f"FLOPs convention {convention!r}: one of {', '.join(CONVENTIONS)}")
    return 3.0 * (2.0 * weights + 4.0 * queries * pairs / length)


def published_flops_per_token(build: Callable[[int], Olmo3Config], length: int) -> dict[str, float]:
    """Return each convention's training FLOPs a token, with the vocabulary its source counts.

    Args:
        build: shapes as a function of the vocabulary, as in ``PRESETS``.
        length: tokens a sequence.

    Example:
        >>> flops = published_flops_per_token(PRESETS["olmo3-7b"], 8192)
        >>> {name: round(value / 1e9, 3) for name, value in flops.items()}
        {'maxtext': 47.763, 'swa_aware': 46.555, 'olmo_core': 49.379}
    """
    return {
        name: training_flops_per_token(build(_ROWS[name]), length, name) for name in CONVENTIONS
    }


def published_costs(length: int = 8192) -> list[dict[str, Any]]:
    """Return each published size with its parameters and training FLOPs a token.

    Args:
        length: tokens a sequence.

    Returns:
        Records of ``name``, ``parameters`` and ``non_embedding`` (embedding padded),
        ``parameters_unpadded`` and ``flops_per_token`` by convention.
    """
    return [
        {
            "name": name,
            "parameters": parameter_count(build(OLMO3_VOCAB)),
            "parameters_unpadded": parameter_count(build(OLMO3_IDS)),
            "non_embedding": non_embedding_count(build(OLMO3_VOCAB)),
            "flops_per_token": published_flops_per_token(build, length),
        }
        for name, build in PRESETS.items()
        if name != "tiny"
    ]


def find_peak(size: int = 1024, repeats: int = 5) -> Peak:
    """Return the published peak of this device, or the best matrix product measured.

    Args:
        size: side of the square float32 matrices.
        repeats: products timed; the fastest counts.
    """
    # Imported here: counting FLOPs needs no device, and JAX takes a second to start.
    import jax
    import jax.numpy as jnp

    kind = jax.devices()[0].device_kind
    if kind in PUBLISHED_PEAKS:
        return Peak(PUBLISHED_PEAKS[kind], f"published dense bfloat16 peak of {kind}")
    product = jax.jit(jnp.matmul)
    matrix = jnp.ones((size, size), jnp.float32)
    product(matrix, matrix).block_until_ready()
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return Peak(2.0 * size**3 / min(seconds), f"measured float32 {size}^3 product on {kind}")
