import jax
import pytest

from trainer import flops
from trainer.flops import find_peak, seen_pairs, training_flops_per_token
from trainer.model import attention_mask
from trainer.presets import OLMO3_VOCAB, preset


@pytest.mark.parametrize("window", [None, 1, 3, 7, 20])
def test_seen_pairs_count_the_mask(window: int | None) -> None:
    assert seen_pairs(9, window) == int(attention_mask(9, window).sum())


def test_7b_costs_what_the_sliding_window_formula_says() -> None:
    # 41.320 GFLOP a token in the weights and 5.234 in attention at 8,192 tokens.
    total = training_flops_per_token(preset("7B", OLMO3_VOCAB), 8192) / 1e9
    assert total == pytest.approx(46.555, rel=2e-4)


def test_a_published_peak_is_preferred_to_a_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = find_peak(size=64, repeats=2)
    assert measured.flops_per_second > 0
    assert measured.source.startswith("measured float32 64^3 product")
    kind = jax.devices()[0].device_kind
    monkeypatch.setattr(flops, "PUBLISHED_PEAKS", {kind: 1e12})
    assert find_peak() == flops.Peak(1e12, f"published dense bfloat16 peak of {kind}")
