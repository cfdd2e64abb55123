"""Channels of the curve rule against hand-written loops."""

import numpy as np
import pytest

from evalmon.detectors import channels
from evalmon.detectors.curve import Points
from evalmon.detectors.profiles import (
    BaselineSettings,
    FastSettings,
    HoldSettings,
    LagSettings,
    LevelSettings,
    ShiftSettings,
    SlowSettings,
)

PLAN = 1_000


def test_running_medians_use_what_there_is_at_the_beginning():
    values = np.array([4.0, 1.0, 9.0, 2.0, 7.0])
    assert channels.running_median(values, 3).tolist() == [4.0, 2.5, 4.0, 2.0, 7.0]
    assert channels.running_median(values[:0], 3).tolist() == []
    assert channels.running_median(values, 1).tolist() == values.tolist()


def test_the_baseline_begins_after_five_warmups_and_has_its_evaluations():
    settings = BaselineSettings(0.03, 0.10, warmups=5.0, evaluations=10)
    tokens = np.arange(10, PLAN + 1, 10)
    assert channels.baseline_span(tokens, PLAN, 0, settings) == (2, 12)  # 30..120, prolonged
    assert channels.baseline_span(tokens, PLAN, 20, settings) == (9, 19)  # from 5 x 20 on
    dense = np.arange(1, PLAN + 1)
    assert channels.baseline_span(dense, PLAN, 0, settings) == (29, 100)  # 30..100


def test_the_baseline_is_not_complete_before_its_end():
    settings = BaselineSettings(0.03, 0.10, warmups=5.0, evaluations=10)
    dense = np.arange(1, PLAN + 1)
    for seen in (0, 29, 60, 99):
        assert channels.baseline_span(dense[:seen], PLAN, 0, settings)[1] > seen
    assert channels.baseline_span(dense[:100], PLAN, 0, settings) == (29, 100)


def test_a_spike_is_held_and_two_windows_after_it():
    train = np.full(40, 2.0)
    train[20:23] = 2.5
    held = channels.hold(train, HoldSettings())
    assert np.flatnonzero(held).tolist() == [20, 21, 22, 23, 24]


def test_a_hold_ends_although_train_loss_stays_up():
    train = np.concatenate([np.full(20, 2.0), 2.0 + 0.5 * np.arange(1, 31)])  # ever higher
    held = channels.hold(train, HoldSettings(sigmas=0.0))
    assert np.flatnonzero(held).tolist() == list(range(20, 32))  # ten, and two after


def test_a_falling_loss_is_never_held():
    assert not channels.hold(np.linspace(3, 2, 50), HoldSettings()).any()


def at(tokens: "np.ndarray", noise: "np.ndarray | None" = None) -> Points:
    """Return evaluations at these tokens, with the errors of their windows."""
    blank = np.zeros(len(tokens))
    errors = blank if noise is None else noise
    return Points(tokens, tokens, blank, blank, blank, blank, blank, errors)


def known(n: int, sigma: float, explained: float = 0.0) -> channels.Lagged:
    """Return a lagged window of mean 0, train CE 2 and this noise at every evaluation."""
    return channels.Lagged(
        np.zeros(n), np.full((1, n), 2.0), np.full(n, sigma), np.full(n, explained)
    )


def test_lagged_mean_and_noise_agree_with_a_loop():
    rng = np.random.default_rng(1)
    tokens = np.sort(rng.choice(np.arange(1, PLAN), 300, replace=False))
    x, train = 0.01 * rng.standard_normal(300), 2 + rng.standard_normal(300)
    x = np.convolve(x, np.ones(3) / 3, mode="same")
    span, settings = (9, 30), LagSettings()
    found = channels.lagged(x, train[None], at(tokens), span, PLAN, settings)
    for k in (30, 60, 150, 299):
        inside = (tokens <= tokens[k] - 35) & (tokens >= tokens[k] - 141)
        inside[:9] = False
        if inside.sum() < 5:
            inside = np.zeros(300, bool)
            inside[9:30] = True
        t, v = tokens[inside] / PLAN, x[inside]
        residual = v - np.polyval(np.polyfit(t, v, 1), t)
        phi = 1 - np.sum(np.diff(residual) ** 2) / (2 * np.sum(residual**2))
        phi = np.clip(phi, 0, 0.9)
        variance = np.sum(residual**2) / (len(v) - 2)
        sigma = max(0.0015, np.sqrt(variance * (1 + phi) / (1 - phi)))
        assert found.mean[k] == pytest.approx(v.mean())
        assert found.moved[0, k] == pytest.approx(train[inside].mean())
        assert found.sigma[k] == pytest.approx(sigma)


def test_noise_never_falls_below_its_floor():
    tokens = np.arange(10, PLAN, 10)
    flat = np.zeros(99)
    found = channels.lagged(flat, flat[None], at(tokens), (2, 12), PLAN, LagSettings())
    assert set(found.sigma) == {0.0015}


def test_the_fast_channel_needs_five_evaluations_whatever_the_size():
    n = 40
    local = known(n, 0.0015)
    x = np.where(np.arange(n) >= 20, 100.0, 0.0)
    quiet = np.zeros(n, np.bool_)
    found = channels.fast(x, np.full((1, n), 2.0), local, quiet, 10, FastSettings())
    assert int(np.argmax(found.fires(quiet))) == 20 + 5  # the sixth, past 5 x 4
    assert found.statistic[20:26].tolist() == [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]


def test_the_fast_channel_tolerates_a_quarter_of_the_train_movement():
    n = 30
    local = known(n, 0.01)
    quiet = np.zeros(n, np.bool_)
    found = channels.fast(np.full(n, 0.05), np.full((1, n), 1.8), local, quiet, 0, FastSettings())
    assert found.statistic.max() == pytest.approx(0.0, abs=1e-9)
    found = channels.fast(np.full(n, 0.06), np.full((1, n), 1.8), local, quiet, 0, FastSettings())
    assert found.statistic[-1] == pytest.approx(n * 1.0)


def test_evidence_does_not_grow_while_it_is_held():
    n = 30
    local = known(n, 0.0015)
    held = np.arange(n) >= 12
    found = channels.fast(np.full(n, 1.0), np.full((1, n), 2.0), local, held, 10, FastSettings())
    assert found.statistic[11:].max() == found.statistic[11] == 8.0
    assert not found.fires(held).any()


def test_the_slow_channel_is_the_median_against_a_lower_bound():
    x, sigma = np.full(30, 0.05), np.full(30, 0.01)
    found = channels.slow(x, sigma, 5, (2, 12), SlowSettings(), np.full(30, 0.025))
    assert found.statistic.tolist() == x.tolist()
    assert found.limit[-1] == pytest.approx(0.025 + 4 * 0.01 * np.sqrt(1.57 / 5 + 1 / 10))
    assert int(np.argmax(found.ready)) == 12


def test_the_level_channel_needs_a_whole_window_after_its_start():
    r, sigma = np.full(10, 0.2), np.full(10, 0.01)
    found = channels.level(r, sigma, 3, 2, LevelSettings(tolerance_nats=0.05))
    assert found.ready.tolist() == [False] * 4 + [True] * 6
    assert found.limit[-1] == pytest.approx(0.05 + 4 * 0.01 * np.sqrt(1.57 / 3))


def test_the_shift_channel_is_mean_of_two_minus_median_of_the_earlier():
    r = np.array([9.0, 0.0, 0.02, 0.01, 0.03, 0.1, 0.2])
    found = channels.shift(r, np.zeros(7), 1, ShiftSettings())
    assert found.ready.tolist() == [False] * 5 + [True, True]
    assert found.statistic[-1] == pytest.approx(0.15 - 0.015)
    assert found.limit[-1] == 0.05


def test_the_shift_channel_tolerates_what_the_window_noise_explains():
    settings = ShiftSettings(z=4.0, tolerance_nats=0.05)
    found = channels.shift(np.zeros(9), np.full(9, 0.04), 1, settings)
    assert found.limit[-1] == pytest.approx(0.05 + 4 * 0.04 * np.sqrt(1 / 2 + 1.57 / 6))


def test_noise_follows_the_train_points_of_a_window():
    tokens = np.arange(10, PLAN, 10)
    rng = np.random.default_rng(0)
    x = 0.01 * rng.standard_normal(99)
    errors = np.where(np.arange(99) == 60, 0.02, 0.01)  # a window of a quarter of the points
    row = np.zeros((1, 99))
    plain = channels.lagged(x, row, at(tokens), (2, 12), PLAN, LagSettings())
    found = channels.lagged(x, row, at(tokens, errors), (2, 12), PLAN, LagSettings())
    assert found.sigma[60] == pytest.approx(2 * plain.sigma[60])
    assert found.sigma[50] == pytest.approx(plain.sigma[50])
    assert found.mean.tolist() == plain.mean.tolist()
    assert set(plain.explained) == {0.0}
    assert found.explained[40] == min(1.0, 0.01**2 / (2 / 3 * plain.sigma[40] ** 2))


def test_less_evidence_is_needed_where_the_noise_is_that_of_few_train_points():
    n = 40
    quiet = np.zeros(n, np.bool_)
    for explained, limit in ((0.0, 20.0), (0.5, 16.0), (1.0, 12.0)):
        local = known(n, 0.01, explained)
        found = channels.fast(np.zeros(n), np.full((1, n), 2.0), local, quiet, 0, FastSettings())
        assert set(found.limit) == {limit}


def test_one_outlier_counts_as_four_spreads_and_every_other_value_as_it_is():
    r = 0.01 * np.tile([1.0, -1.0], 30)
    r[40] = 0.5
    found = channels.without_outliers(r, 4.0)
    assert found[40] < 0.15
    assert np.delete(found, 40).tolist() == np.delete(r, 40).tolist()


def test_outliers_are_told_from_earlier_values_alone():
    rng = np.random.default_rng(2)
    r = 0.01 * rng.standard_normal(80)
    whole = channels.without_outliers(r, 4.0)
    for n in (1, 2, 7, 50):
        assert channels.without_outliers(r[:n], 4.0).tolist() == whole[:n].tolist()
