import math
from typing import Any

import jax
import pytest

from evalmon.errors import ConfigError
from trainer.model import parameter_shapes
from trainer.presets import OLMO3_VOCAB, PRESETS, preset

PUBLISHED = {
    "1M": 2_448_620,
    "14M": 26_740_864,
    "30M": 54_792_448,
    "60M": 95_957_376,
    "100M": 153_117_184,
    "190M": 267_424_512,
    "370M": 474_022_912,
    "600M": 676_414_720,
    "760M": 912_360_960,
    "1B": 1_484_916_736,
    "3B": 3_503_508_736,
    "7B": 7_298_617_344,
    "13B": 13_716_198_400,
    "32B": 32_234_279_936,
}


def _count(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    assert _count(parameter_shapes(preset(name, OLMO3_VOCAB))) == PUBLISHED[name]


def test_7b_without_padding_rows_has_the_size_of_the_released_checkpoint() -> None:
    assert _count(parameter_shapes(preset("7B", 100_278))) == 7_298_011_136


def test_every_preset_but_tiny_is_a_published_size() -> None:
    assert set(PRESETS) - set(PUBLISHED) == {"tiny"}


def test_tiny_has_every_trait_of_the_architecture() -> None:
    config = preset("tiny", 4096)
    assert config.kv_heads < config.heads
    assert [config.sees_all(i) for i in range(config.layers)] == [False, False, False, True]
    assert config.window < 128


def test_an_unknown_preset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="nearest is 'tiny'"):
        preset("tny", 8)
