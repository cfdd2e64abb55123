import jax
import numpy as np
import pytest

from evalmon.errors import ConfigError
from trainer import flops
from trainer.flops import (
    CONVENTIONS,
    find_peak,
    published_costs,
    seen_pairs,
    training_flops_per_token,
)
from trainer.presets import OLMO3_IDS, OLMO3_VOCAB, preset

S = 8192


@pytest.mark.parametrize("window", [None, 1, 3, 7, 20])
def test_seen_pairs_count_the_mask_with_half_of_a_full_window_left_out(window: int | None) -> None:
    row, column = np.arange(9)[:, None], np.arange(9)[None, :]
    mask = (column <= row) & (column > row - (window or 9))
    assert seen_pairs(9, window) == mask.sum() - min(window or 9, 9) / 2


@pytest.mark.parametrize(
    ("convention", "rows", "gigaflops"),
    [
        ("maxtext", OLMO3_IDS, 47.763),
        ("swa_aware", OLMO3_IDS, 46.555),
        ("olmo_core", OLMO3_VOCAB, 49.379),
    ],
)
def test_7b_costs_what_each_source_says(convention: str, rows: int, gigaflops: float) -> None:
    config = preset("olmo3-7b", rows)
    total = training_flops_per_token(config, S, convention)
    assert round(total / 1e9, 3) == gigaflops
    told = next(cost for cost in published_costs() if cost["name"] == "olmo3-7b")
    assert told["flops_per_token"][convention] == total


def test_the_parts_of_7b_are_those_of_the_sources() -> None:
    config = preset("olmo3-7b", OLMO3_IDS)
    # A sequence of one token has next to no attention: what is left are the weights.
    weights = training_flops_per_token(config, 1, "maxtext") - 3 * 2 * 4096 * 32
    assert round(weights / 1e9, 3) == 41.320
    maxtext, aware, core = (training_flops_per_token(config, S, name) for name in CONVENTIONS)
    assert round((maxtext - weights) / 1e9, 3) == 6.442
    assert round((aware - weights) / 1e9, 3) == 5.234
    assert 1.025 < maxtext / aware < 1.027
    assert 1.033 < core / maxtext < 1.035


def test_within_the_window_maxtext_and_swa_aware_agree() -> None:
    config = preset("olmo3-1b", OLMO3_VOCAB)
    assert training_flops_per_token(config, 4096, "maxtext") == training_flops_per_token(
        config, 4096, "swa_aware"
    )


def test_grouped_heads_save_projections_but_no_attention() -> None:
    whole, grouped = (preset("olmo3-7b", OLMO3_VOCAB, kv_heads=n) for n in (32, 8))
    saved = training_flops_per_token(whole, S) - training_flops_per_token(grouped, S)
    assert saved == 6 * 32 * 2 * 4096 * (24 * 128)


def test_the_costs_are_those_of_the_published_sizes() -> None:
    costs = published_costs()
    assert len(costs) == 14
    assert {key for cost in costs for key in cost} == {
        *("name", "parameters", "parameters_unpadded", "non_embedding", "flops_per_token")
    }
    assert "tiny" not in [cost["name"] for cost in costs]
    assert all(tuple(cost["flops_per_token"]) == CONVENTIONS for cost in costs)


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ConfigError, match="'palm': one of maxtext, swa_aware, olmo_core"):
        training_flops_per_token(preset("tiny", 128), S, "palm")


def test_a_published_peak_is_preferred_to_a_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = find_peak(size=64, repeats=2)
    assert measured.flops_per_second > 0
    assert measured.source.startswith("measured float32 64^3 product")
    kind = jax.devices()[0].device_kind
    monkeypatch.setattr(flops, "PUBLISHED_PEAKS", {kind: 1e12})
    assert find_peak() == flops.Peak(1e12, f"published dense bfloat16 peak of {kind}")
