import json
import math
import subprocess
import sys
from typing import Any

import jax
import pytest

from evalmon.errors import ConfigError
from trainer.model import parameter_shapes
from trainer.presets import (
    OLMO3_IDS,
    OLMO3_VOCAB,
    PRESETS,
    non_embedding_count,
    parameter_count,
    preset,
)

# name: d, layers, heads, kv_heads, head_dim, ffn, parameters, non-embedding; 100,352 rows
PUBLISHED = {
    "olmo3-1m": (12, 4, 4, 4, 4, 256, 2_448_620, 1_244_396),
    "olmo3-14m": (128, 4, 8, 8, 16, 512, 26_740_864, 13_895_808),
    "olmo3-30m": (256, 4, 8, 8, 32, 768, 54_792_448, 29_102_336),
    "olmo3-60m": (384, 8, 8, 8, 48, 1536, 95_957_376, 57_422_208),
    "olmo3-100m": (512, 12, 8, 8, 64, 2048, 153_117_184, 101_736_960),
    "olmo3-190m": (768, 12, 12, 12, 64, 3072, 267_424_512, 190_354_176),
    "olmo3-370m": (1024, 16, 16, 16, 64, 4096, 474_022_912, 371_262_464),
    "olmo3-600m": (1280, 16, 16, 16, 80, 5120, 676_414_720, 547_964_160),
    "olmo3-760m": (1536, 16, 16, 16, 96, 6144, 912_360_960, 758_220_288),
    "olmo3-1b": (2048, 16, 16, 16, 128, 8192, 1_484_916_736, 1_279_395_840),
    "olmo3-3b": (3328, 16, 16, 16, 208, 13_312, 3_503_508_736, 3_169_537_280),
    "olmo3-7b": (4096, 32, 32, 32, 128, 11_008, 7_298_617_344, 6_887_575_552),
    "olmo3-13b": (5120, 40, 40, 40, 128, 13_824, 13_716_198_400, 13_202_396_160),
    "olmo3-32b": (5120, 64, 40, 8, 128, 27_648, 32_234_279_936, 31_720_477_696),
}


def _count(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_every_number_of_the_published_table(name: str) -> None:
    config = preset(name, OLMO3_VOCAB)
    assert PUBLISHED[name] == (
        config.width,
        config.layers,
        config.heads,
        config.kv_heads,
        config.head_dim,
        config.ffn,
        parameter_count(config),
        non_embedding_count(config),
    )
    assert (config.window, config.rope_theta, config.norm_eps) == (4096, 500_000.0, 1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_the_formula_counts_what_the_model_has(name: str) -> None:
    for changed in ({}, {"heads": 6, "kv_heads": 3, "head_dim": 10}):
        config = preset(name, 1000, **changed)
        shapes = parameter_shapes(config)
        assert parameter_count(config) == _count(shapes)
        assert non_embedding_count(config) == _count(shapes) - _count(shapes["embed_tokens"])


def test_7b_without_padding_rows_has_the_size_of_the_released_checkpoint() -> None:
    assert parameter_count(preset("olmo3-7b", OLMO3_IDS)) == 7_298_011_136


def test_every_preset_but_tiny_is_a_published_size() -> None:
    assert set(PRESETS) - set(PUBLISHED) == {"tiny"}


def test_tiny_has_every_trait_of_the_architecture() -> None:
    config = preset("tiny", 4096)
    assert config.kv_heads < config.heads
    assert [config.sees_all(i) for i in range(config.layers)] == [False, False, False, True]
    assert config.window < 128


def test_key_heads_follow_query_heads_where_they_are_not_grouped() -> None:
    one = preset("olmo3-7b", 8, heads=16)
    assert (one.heads, one.kv_heads, one.head_dim) == (16, 16, 128)
    grouped = preset("olmo3-32b", 8, heads=16, head_dim=64)
    assert (grouped.heads, grouped.kv_heads, grouped.head_dim) == (16, 8, 64)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"kv_heads": 5}, "'kv_heads' 5 does not divide 'heads' 32"),
        ({"heads": 0}, "'heads' is 0"),
        ({"head_dim": 127}, "'head_dim' is 127, must be even"),
    ],
)
def test_heads_that_cannot_be_are_refused(changed: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=r"^--preset olmo3-7b: ") as error:
        preset("olmo3-7b", 8, **changed)
    assert says in str(error.value)


@pytest.mark.parametrize(("name", "near"), [("tny", "tiny"), ("7B", "olmo3-7b"), ("", "tiny")])
def test_an_unknown_preset_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"nearest is '{near}'"):
        preset(name, 8)


def test_the_published_sizes_are_listed_at_once() -> None:
    """Listing them needs no accelerator stack."""
    code = (
        "import sys; sys.argv = ['trainer', 'presets', '--json']\n"
        "from trainer.cli import main; main()\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed = {each["name"]: each for each in json.loads(done.stdout.splitlines()[-1])}
    assert list(listed) == list(PUBLISHED)
    for name, (*_, parameters, non_embedding) in PUBLISHED.items():
        assert listed[name]["parameters"] == parameters
        assert listed[name]["non_embedding"] == non_embedding
        assert listed[name]["parameters_unpadded"] == parameters - 2 * 74 * PUBLISHED[name][0]
