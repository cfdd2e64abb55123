"""A reference is refused by what its layers do: rotation, extent, eps; the layer is named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalmon.errors import EvaluationError
from evalmon.parity.soundness import YARN_PROBE, LayerBehavior, require_sound, small_twin
from evalmon.types import FULL, SLIDING, RopeParameters, Yarn

T, WINDOW = 24, 8
PLAIN = 500_000.0 ** (-np.arange(4) / 4)
SCALED = PLAIN / [1, 8, 8, 8]
SCALE = 1.2079441541679836


def behavior(kind: str, **changes: Any) -> LayerBehavior:
    """What a right layer of the probe does, worked out here."""
    frequencies, scale = (PLAIN, 1.0) if kind == SLIDING else (SCALED, SCALE)
    angle = np.arange(T)[:, None] * changes.pop("frequencies", frequencies)
    scale = changes.pop("scale", scale)
    i, j = np.indices((T, T))
    seen = (j <= i) & (i - j < WINDOW if kind == SLIDING else j <= i)
    right = LayerBehavior(scale * np.cos(angle), scale * np.sin(angle), {"q_norm": 1e-6}, seen)
    return replace(right, **changes)


def right() -> list[LayerBehavior]:
    return [behavior(kind) for kind in (SLIDING, SLIDING, SLIDING, FULL)]


def test_a_right_reference_passes():
    require_sound(right(), YARN_PROBE, "probe")


def test_without_a_try_at_extent_the_rest_is_still_held():
    untried = np.zeros((0, 0), bool)
    require_sound([replace(layer, seen=untried) for layer in right()], YARN_PROBE, "probe")


def reaching(by: int) -> Any:
    """What is seen through a window that many tokens longer."""
    i, j = np.indices((T, T))
    return (j <= i) & (i - j < WINDOW + by)


FAULTS: dict[str, tuple[int, Callable[[], LayerBehavior], str]] = {
    "sliding layers scaled": (
        1,
        lambda: behavior(SLIDING, frequencies=SCALED, scale=SCALE),
        r"rotates by \[1, 0.00470075, .* with scale \[1.20794\], right are \[1, 0.037606, .* 1;",
    ),
    "full layer not scaled": (
        3,
        lambda: behavior(FULL, frequencies=PLAIN, scale=1.0),
        r"rotates by \[1, 0.037606, .* with scale \[1\], right are \[1, 0.00470075, .* 1.2079",
    ),
    "no attention factor": (3, lambda: behavior(FULL, scale=1.0), r"scale \[1\], right"),
    "another theta": (0, lambda: behavior(SLIDING, frequencies=1e4 ** (-np.arange(4) / 4)), "0.1"),
    "pairs of another order": (0, lambda: behavior(SLIDING, frequencies=PLAIN[::-1]), "layer 0"),
    "not a number": (2, lambda: behavior(SLIDING, scale=np.nan), "layer 2"),
    "a sine is not a number": (0, lambda: behavior(SLIDING, sin=np.full((T, 4), np.nan)), "nan"),
    "another head": (
        0, lambda: behavior(SLIDING, cos=np.ones((T, 2)), sin=np.zeros((T, 2))), "layer 0",
    ),
    "window one more": (
        2,
        lambda: behavior(SLIDING, seen=reaching(1)),
        "layer 2 .*: the query at 8 sees the token at 0; its settings say 8 tokens",
    ),
    "window one less": (
        0,
        lambda: behavior(SLIDING, seen=reaching(-1)),
        "the query at 7 does not see the token at 0; its settings say 8 tokens",
    ),
    "last layer sliding": (
        3,
        lambda: behavior(FULL, seen=reaching(0)),
        "layer 3 .*: the query at 8 does not see the token at 0; its settings say all earlier",
    ),
    "sees the future": (1, lambda: behavior(SLIDING, seen=np.ones((T, T), bool)), "at 0 sees"),
    "another eps": (
        1,
        lambda: behavior(SLIDING, norm_eps={"q_norm": 1e-6, "k_norm": 1e-5}),
        "layer 1 .*: k_norm adds eps 1e-05, its settings say 1e-06",
    ),
    "eps not a number": (0, lambda: behavior(SLIDING, norm_eps={"n": np.nan}), "n adds eps nan"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_refused_with_layer_and_remedy(fault: str):
    number, make, says = FAULTS[fault]
    layers = right()
    layers[number] = make()
    with pytest.raises(EvaluationError, match=says) as caught:
        require_sound(layers, YARN_PROBE, "transformers 9.9: probe")
    assert str(caught.value).startswith(f"transformers 9.9: probe: layer {number} (")
    assert 'pip install --upgrade "transformers>=5.24"' in str(caught.value)
    assert caught.value.exit_code == 4


def test_the_probe_is_the_published_case():
    assert YARN_PROBE.layer_types == (SLIDING, SLIDING, SLIDING, FULL)
    assert YARN_PROBE.head_dim == 8
    assert YARN_PROBE.rope[FULL].yarn == Yarn(8.0, 16)
    assert YARN_PROBE.rope[SLIDING] == RopeParameters(500_000.0)


def test_a_small_twin_keeps_what_is_probed():
    large = replace(YARN_PROBE, width=4096, heads=32, head_dim=128, window=4096, vocab_size=100278)
    twin = small_twin(large)
    kept = (twin.layer_types, twin.head_dim, twin.norm_eps, twin.rope)
    assert kept == (large.layer_types, 128, 1e-6, large.rope)
    assert (twin.width, twin.window, twin.vocab_size) == (256, 8, 32)
    assert small_twin(replace(large, window=5)).window == 5
