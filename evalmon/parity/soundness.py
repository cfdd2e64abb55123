"""Whether a reference does what its own settings say, seen by what its layers do.

A reference can be wrong: several versions of transformers scaled the rotary frequencies of
every layer, others of none, and no version number tells. So what each layer really receives
and sees is held against the formulas, and a reference that differs is refused.

Source: huggingface/transformers pull requests 39847 and 46911, issue 45945.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import EvaluationError
from evalmon.parity.published import PublishedConfig
from evalmon.types import FULL, SLIDING, RopeParameters, Yarn, inverse_frequencies

__all__ = ["YARN_PROBE", "LayerBehavior", "require_sound", "small_twin"]

_THETA: Final = 500_000.0

YARN_PROBE: Final = PublishedConfig(
    vocab_size=32,
    width=16,
    ffn=16,
    layers=4,
    heads=2,
    kv_heads=1,
    head_dim=8,
    window=8,
    norm_eps=1e-6,
    layer_types=(SLIDING, SLIDING, SLIDING, FULL),
    rope={
        SLIDING: RopeParameters(_THETA),
        FULL: RopeParameters(_THETA, Yarn(factor=8.0, original_length=16)),
    },
)
"""The model every reference implementation must get right before any other is believed."""

_REMEDY: Final = (
    'install one that gets OLMo 3 right: pip install --upgrade "transformers>=5.24", '
    "or give a stored reference (.npz)"
)


@dataclass(frozen=True, slots=True)
class LayerBehavior:
    """What one layer of a reference was seen to do.

    Attributes:
        cos: [T, D/2] cosines its attention received.
        sin: [T, D/2] sines.
        norm_eps: what each of its norms adds to the mean square, by name.
        seen: [T, T] whether a query (row) changed when the token at a key (column) did; empty
            where that was not tried.
    """

    cos: NDArray[np.float64]
    sin: NDArray[np.float64]
    norm_eps: dict[str, float]
    seen: NDArray[np.bool_]


def small_twin(config: PublishedConfig) -> PublishedConfig:
    """Return a model small enough to probe with the same layers, heads' width, eps and rotation."""
    return replace(
        config,
        vocab_size=32,
        width=2 * config.head_dim,
        ffn=16,
        heads=2,
        kv_heads=1,
        window=min(config.window, 8),
        tied=False,
    )


def require_sound(found: Sequence[LayerBehavior], config: PublishedConfig, place: str) -> None:
    """Refuse a reference of which a layer does not do what its settings say.

    Args:
        found: behavior of each layer.
        config: the settings it was built from.
        place: what was probed and its versions, for messages.

    Raises:
        EvaluationError: rotary frequencies or scale, window or eps of a layer; the layer, what
            was found, what is right and what to install are named.
    """
    for number, (kind, behavior) in enumerate(zip(config.layer_types, found, strict=True)):
        layer = f"{place}: layer {number} ({kind})"
        _require_rotary(behavior, config, kind, layer)
        if behavior.seen.size:
            _require_window(behavior.seen, config.window if kind == SLIDING else None, layer)
        for name, eps in behavior.norm_eps.items():
            if not abs(eps - config.norm_eps) <= 1e-3 * config.norm_eps:
                raise EvaluationError(
                    f"{layer}: {name} adds eps {eps:.3g}, its settings say {config.norm_eps:.3g}; "
                    f"{_REMEDY}"
                )


def _require_rotary(
    behavior: LayerBehavior, config: PublishedConfig, kind: str, layer: str
) -> None:
    """Refuse cosines and sines that are not those of the formula."""
    frequencies, scale = inverse_frequencies(config.head_dim, config.rope[kind])
    angle = np.arange(len(behavior.cos))[:, None] * frequencies
    if behavior.cos.shape == angle.shape:
        right = scale * np.stack([np.cos(angle), np.sin(angle)])
        # Float32 angles at these few positions miss by 1e-5 at most; NaN is a miss too.
        if np.abs(np.stack([behavior.cos, behavior.sin]) - right).max() <= 1e-4:
            return
    cos, sin = behavior.cos[1], behavior.sin[1]
    raise EvaluationError(
        f"{layer}: rotates by {_listed(np.arctan2(sin, cos))} radians a position with scale "
        f"{_listed(np.unique(np.round(np.hypot(cos, sin), 5)))}, right are "
        f"{_listed(frequencies)} with scale {scale:.5g}; {_REMEDY}"
    )


def _require_window(seen: NDArray[np.bool_], window: int | None, layer: str) -> None:
    """Refuse attention that reaches less or more far than the layer's type says."""
    query, key = np.indices(seen.shape)
    right = (key <= query) & (query - key < (window or len(seen)))
    wrong = np.argwhere(seen != right)
    if len(wrong):
        i, j = (int(n) for n in wrong[0])
        extent = "all earlier tokens" if window is None else f"{window} tokens"
        raise EvaluationError(
            f"{layer}: the query at {i} {'sees' if seen[i, j] else 'does not see'} the token at "
            f"{j}; its settings say {extent}; {_REMEDY}"
        )


def _listed(values: NDArray[np.float64]) -> str:
    """Return the first few numbers as text."""
    shown = ", ".join(f"{value:.6g}" for value in values[:8])
    return f"[{shown}{', ...' if len(values) > 8 else ''}]"
