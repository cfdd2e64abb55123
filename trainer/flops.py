"""FLOPs of training, and what they are measured against.

Convention (``CONVENTION``): model FLOPs, forward times three; every matrix product
counts two FLOPs a weight and token; attention counts only the pairs a query sees
(causal, and inside the window in sliding layers); norms, softmax, rotation and
embedding look-up count nothing.
"""

import time
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp

from trainer.model import Olmo3Config

__all__ = ["CONVENTION", "Peak", "find_peak", "seen_pairs", "training_flops_per_token"]

CONVENTION: Final = "model FLOPs, forward x3, causal and sliding-window attention"

PUBLISHED_PEAKS: Final = {
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA H200": 989.5e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
}
"""Dense bfloat16 peaks by JAX device kind, in FLOP/s. Source: the vendor's data sheets."""


@dataclass(frozen=True, slots=True)
class Peak:
    """What one device could do.

    Attributes:
        flops_per_second: the denominator of MFU for one device.
        source: where the number is from.
    """

    flops_per_second: float
    source: str


def seen_pairs(length: int, window: int | None) -> int:
    """Return the (query, key) pairs of one sequence: the sum of min(i + 1, window).

    Example:
        >>> seen_pairs(4, None), seen_pairs(4, 2)
        (10, 7)
    """
    w = length if window is None else min(window, length)
    return w * (w + 1) // 2 + (length - w) * w


def training_flops_per_token(config: Olmo3Config, length: int) -> float:
    """Return the FLOPs that training spends on one token, forward and backward.

    Args:
        config: shapes.
        length: tokens a sequence.

    Source: PaLM (arXiv:2204.02311) appendix B, with the pairs a sliding layer skips left
    out: for 7B at 8,192 tokens 46.56 GFLOP a token.
    """
    d, queries = config.width, config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    layer = d * (2 * queries + 2 * keys) + 3 * d * config.ffn
    weights = config.layers * layer + d * config.vocab_size
    pairs = sum(
        seen_pairs(length, None if config.sees_all(i) else config.window)
        for i in range(config.layers)
    )
    return 3.0 * (2.0 * weights + 4.0 * queries * pairs / length)


def find_peak(size: int = 1024, repeats: int = 5) -> Peak:
    """Return the published peak of this device, or the best matrix product measured.

    Args:
        size: side of the square float32 matrices.
        repeats: products timed; the fastest counts.
    """
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
