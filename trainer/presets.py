"""Model sizes as functions of the vocabulary.

Source: OLMo-core ``nn/transformer/config.py``; the sizes from 60M to 3B widen the
feed-forward part by 1.5.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from trainer.architecture import Olmo3Config
from trainer.names import require_known

__all__ = [
    "OLMO3_IDS",
    "OLMO3_VOCAB",
    "PRESETS",
    "non_embedding_count",
    "parameter_count",
    "preset",
]

OLMO3_IDS: Final = 100_278
"""Token ids of the published tokenizer: embedding rows of the released checkpoints."""

OLMO3_VOCAB: Final = 100_352
"""Embedding rows of the published training runs: the ids padded to a multiple of 128."""


def tiny(vocab_size: int) -> Olmo3Config:
    """Four layers of width 128, for two CPU cores and sequences of 128 tokens."""
    return Olmo3Config(
        vocab_size, width=128, layers=4, heads=4, kv_heads=2, head_dim=32, ffn=512, window=32
    )


def _scaled(
    width: int, layers: int, heads: int, *, widened: bool = True, head_dim: int | None = None
) -> Callable[[int], Olmo3Config]:
    """Return a preset whose feed-forward width follows from the model width."""

    def build(vocab_size: int) -> Olmo3Config:
        ffn = int((1.5 if widened else 1.0) * int(8 * width / 3))
        return Olmo3Config(
            vocab_size,
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim or width // heads,
            ffn=-(-ffn // 256) * 256,
        )

    return build


def olmo3_32b(vocab_size: int) -> Olmo3Config:
    """OLMo 3 32B: the one published size with grouped key and value heads."""
    return Olmo3Config(
        vocab_size, width=5120, layers=64, heads=40, kv_heads=8, head_dim=128, ffn=27_648
    )


PRESETS: Final[dict[str, Callable[[int], Olmo3Config]]] = {
    "tiny": tiny,
    "olmo3-1m": _scaled(12, 4, 4, widened=False, head_dim=4),
    "olmo3-14m": _scaled(128, 4, 8, widened=False),
    "olmo3-30m": _scaled(256, 4, 8, widened=False),
    "olmo3-60m": _scaled(384, 8, 8),
    "olmo3-100m": _scaled(512, 12, 8),
    "olmo3-190m": _scaled(768, 12, 12),
    "olmo3-370m": _scaled(1024, 16, 16),
    "olmo3-600m": _scaled(1280, 16, 16),
    "olmo3-760m": _scaled(1536, 16, 16),
    "olmo3-1b": _scaled(2048, 16, 16),
    "olmo3-3b": _scaled(3328, 16, 16),
    "olmo3-7b": _scaled(4096, 32, 32, widened=False),
    "olmo3-13b": _scaled(5120, 40, 40, widened=False),
    "olmo3-32b": olmo3_32b,
}
"""All sizes by name; ``tiny`` is ours, the others are published."""


def preset(
    name: str,
    vocab_size: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> Olmo3Config:
    """Return the shapes called ``name``.

    Args:
        name: a key of ``PRESETS``.
        vocab_size: embedding rows.
        heads: query heads, None for as published.
        kv_heads: key and value heads, a divisor of ``heads``; None for as published, which
            is one for each query head where the size has no grouped heads.
        head_dim: width of a head, even; None for as published.

    Raises:
        ConfigError: no such preset (the nearest name is suggested), or heads that no OLMo 3
            can have.

    Example:
        >>> preset("olmo3-7b", 100_352).ffn
        11008
        >>> preset("olmo3-7b", 100_352, heads=64, head_dim=64).kv_heads
        64
    """
    require_known("--preset", "preset", name, PRESETS)
    published = PRESETS[name](vocab_size)
    heads = published.heads if heads is None else heads
    if kv_heads is None:
        kv_heads = heads if published.kv_heads == published.heads else published.kv_heads
    config = replace(
        published,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=published.head_dim if head_dim is None else head_dim,
    )
    config.require_valid(f"--preset {name}")
    return config


def parameter_count(config: Olmo3Config) -> int:
    """Return the number of trained values, without building anything.

    Example:
        >>> parameter_count(preset("olmo3-7b", OLMO3_VOCAB))
        7298617344
    """
    d, queries = config.width, config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    matrices = d * (2 * queries + 2 * keys) + 3 * d * config.ffn
    norms = queries + keys + 2 * d
    return config.layers * (matrices + norms) + d + 2 * config.vocab_size * d


def non_embedding_count(config: Olmo3Config) -> int:
    """Return the number of trained values outside the input embedding.

    Example:
        >>> non_embedding_count(preset("olmo3-7b", OLMO3_VOCAB))
        6887575552
    """
    return parameter_count(config) - config.vocab_size * config.width
