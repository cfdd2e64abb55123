"""A train loss that bfloat16 rounded."""

import ml_dtypes
import numpy as np
import pytest

from evalmon.detectors.profiles import profile_named, widened
from evalmon.detectors.quantized_loss import grid_nats
from evalmon.types import FloatArray


def rounded(values: FloatArray) -> FloatArray:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def losses(low: float, high: float) -> FloatArray:
    rng = np.random.default_rng(0)
    return np.linspace(high, low, 200) + 0.02 * rng.standard_normal(200)


def test_bfloat16_moves_two_close_losses_apart_by_three_tolerances():
    assert rounded(np.array([2.705, 2.711])).tolist() == [2.703125, 2.71875]


@pytest.mark.parametrize(
    ("low", "high", "grid"),
    [(2.2, 3.8, 2**-6), (4.2, 7.8, 2**-5), (1.2, 1.8, 2**-7), (8.2, 11.0, 2**-4)],
)
def test_the_grid_is_what_bfloat16_leaves_of_a_loss(low: float, high: float, grid: float):
    values = losses(low, high)
    assert grid_nats(rounded(values)) == grid
    assert grid_nats(values) == 0.0


def test_the_finest_part_of_a_run_decides():
    assert grid_nats(rounded(losses(2.5, 11.0))) == 2**-6


def test_three_printed_decimals_are_no_such_grid():
    assert grid_nats(np.round(losses(2.2, 3.8), 3)) == 0.0


def test_a_rounded_loss_printed_to_four_decimals_still_is():
    assert grid_nats(np.round(rounded(losses(2.2, 3.8)), 4)) == 2**-6


def test_few_points_or_levels_tell_nothing():
    assert grid_nats(rounded(losses(2.2, 3.8))[:19]) == 0.0
    assert grid_nats(np.full(100, 2.5)) == 0.0
    assert grid_nats(np.array([2.5, 2.75] * 50)) == 0.0
    assert grid_nats(np.empty(0)) == 0.0


@pytest.mark.parametrize("name", ["full", "loose", "short"])
def test_a_widened_profile_tolerates_more_in_every_channel(name: str):
    before, after = profile_named(name), widened(profile_named(name), 2**-6)
    assert after.gap_nats == before.gap_nats + 2**-6
    for channel, limit in (
        ("fast", "tolerance_nats"), ("slow", "reference_nats"), ("slow", "free_nats"),
        ("level", "tolerance_nats"), ("shift", "tolerance_nats"),
    ):  # fmt: skip
        old, new = getattr(before, channel), getattr(after, channel)
        assert (old is None) == (new is None)
        if old is not None:
            assert getattr(new, limit) == getattr(old, limit) + 2**-6
