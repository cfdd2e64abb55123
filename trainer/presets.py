"""Model sizes as functions of the vocabulary.

Source: OLMo-core ``nn/transformer/config.py``; the sizes up to 3B widen the
feed-forward part by 1.5.
"""

import difflib
from collections.abc import Callable
from typing import Final

from evalmon.errors import ConfigError
from trainer.model import Olmo3Config

__all__ = ["OLMO3_VOCAB", "PRESETS", "preset"]

OLMO3_VOCAB: Final = 100_352
"""Embedding rows of the published training runs: 100,278 ids padded to a multiple of 128."""


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
    "1M": _scaled(12, 4, 4, widened=False, head_dim=4),
    "14M": _scaled(128, 4, 8, widened=False),
    "30M": _scaled(256, 4, 8, widened=False),
    "60M": _scaled(384, 8, 8),
    "100M": _scaled(512, 12, 8),
    "190M": _scaled(768, 12, 12),
    "370M": _scaled(1024, 16, 16),
    "600M": _scaled(1280, 16, 16),
    "760M": _scaled(1536, 16, 16),
    "1B": _scaled(2048, 16, 16),
    "3B": _scaled(3328, 16, 16),
    "7B": _scaled(4096, 32, 32, widened=False),
    "13B": _scaled(5120, 40, 40, widened=False),
    "32B": olmo3_32b,
}


def preset(name: str, vocab_size: int) -> Olmo3Config:
    """Return the shapes called ``name``.

    Args:
        name: a key of ``PRESETS``.
        vocab_size: embedding rows.

    Raises:
        ConfigError: no such preset; the nearest name is suggested.

    Example:
        >>> preset("7B", 100_352).ffn
        11008
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.0)
        raise ConfigError(
            f"--preset {name!r}: no such preset; nearest is {near[0]!r} of {', '.join(PRESETS)}"
        )
    return PRESETS[name](vocab_size)
