"""The literal comparison of a window, and bands for figures."""

import numpy as np
import pytest

from evalmon import bands
from evalmon.types import Series


def test_a_shortfall_of_exactly_the_tolerance_is_not_flagged():
    assert not bands.unmatched(bands.WindowComparison(0.005, 0.0))


@pytest.mark.parametrize("level", [0.5, 2.5, 2.7, 7.3, 10.1])
def test_the_boundary_is_safe_from_rounding_at_any_loss(level: float):
    assert not bands.unmatched(bands.WindowComparison((level + 0.005) - level, 0.0))
    assert not bands.unmatched(bands.WindowComparison(0.105, (level + 0.1) - level))
    assert bands.unmatched(bands.WindowComparison((level + 0.0051) - level, 0.0))
    assert bands.unmatched(bands.WindowComparison(0.1051, (level + 0.1) - level))


def test_a_repeated_second_pass_falls_short_by_its_whole_drop():
    steps = np.arange(1, 201)
    train = Series("train/ce_nats", steps, steps, np.where(steps < 100, 2.5, 2.42))
    holdout = Series("eval/lm/c4_en-validation/ce_nats", steps, steps, np.full(200, 2.7))
    before, after = 98, 198
    window = bands.compare_window(train, holdout, before, after)
    assert window.train_drop_nats == pytest.approx(0.080)
    assert window.holdout_gain_nats == pytest.approx(0.0)
    assert window.shortfall_nats == pytest.approx(0.080)
    assert bands.unmatched(window)


def test_a_different_annealing_that_both_losses_show_is_matched():
    assert not bands.unmatched(bands.WindowComparison(0.05, 0.048))


def test_a_band_lies_symmetrically_around_its_center():
    band = bands.around(np.array([1, 2]), np.array([3.0, 2.0]), np.array([0.25, 0.5]))
    assert band.low.tolist() == [2.75, 1.5]
    assert band.high.tolist() == [3.25, 2.5]
