"""Series arithmetic: alignment by tokens, windows, noise."""

import numpy as np
import pytest

from evalmon import series
from evalmon.types import Series


def curve(tokens: list[int], values: list[float], metric: str = "train/ce_nats") -> Series:
    positions = np.array(tokens, np.int64)
    return Series(metric, positions.copy(), positions, np.array(values, np.float64))


def noise(values: np.ndarray, within: series.Windows) -> np.ndarray:
    return series.noise_of(series.window_moves(values, within), within.stop - within.start)


def test_alignment_is_linear_in_log_tokens():
    where, values = series.align(curve([99, 9_999], [4.0, 2.0]), np.array([99, 999, 9_999]))
    assert where.tolist() == [0, 1, 2]
    assert values == pytest.approx([4.0, 3.0, 2.0])


def test_alignment_refuses_what_lies_beyond_the_range():
    where, values = series.align(curve([10, 20], [4.0, 2.0]), np.array([9, 10, 20, 21]))
    assert where.tolist() == [1, 2]
    assert values.tolist() == [4.0, 2.0]


def test_a_hole_longer_than_two_spacings_is_not_bridged():
    tokens = [*range(100_000, 118_000, 1_000), *range(330_000, 340_000, 1_000)]
    reference = curve(tokens, [2.0] * len(tokens))
    asked = np.array([116_500, 117_000, 200_000, 329_000, 330_000, 331_000])
    where, _ = series.align(reference, asked, longest_gap=2.0)
    assert asked[where].tolist() == [116_500, 117_000, 330_000, 331_000]


def test_one_missing_point_is_bridged():
    reference = curve([1_000, 2_000, 3_000, 5_000, 6_000], [2.0] * 5)
    where, _ = series.align(reference, np.array([4_000]), longest_gap=2.0)
    assert where.tolist() == [0]


def test_an_empty_reference_covers_nothing():
    where, values = series.align(curve([], []), np.array([1, 2]))
    assert len(where) == len(values) == 0


def test_the_gap_of_a_run_to_itself_is_zero():
    run = curve([1, 5, 9], [3.0, 2.5, 2.25])
    assert series.gap(run, run).values.tolist() == [0.0, 0.0, 0.0]


def test_a_window_reaches_from_the_evaluation_before_to_this_one():
    train = curve(list(range(1, 31)), [float(n) for n in range(1, 31)])
    within = series.windows(train, curve([0, 10, 20, 30], [0.0] * 4))
    assert within.evaluations.tolist() == [1, 2, 3]  # nothing was trained before step 0
    assert within.start.tolist() == [0, 10, 20]
    assert series.window_medians(train.steps, train.values, within).tolist() == [5.5, 15.5, 25.5]


def test_an_evaluation_without_train_points_has_no_window():
    within = series.windows(curve([1, 2, 9], [1.0] * 3), curve([3, 6, 9], [0.0] * 3))
    assert within.evaluations.tolist() == [0, 2]


def test_a_window_without_a_landmark_joins_the_next():
    points = np.arange(1, 11)
    train = Series("t", points, 10 * points, np.ones(10))
    at = np.array([2, 4, 6, 8, 10])
    evaluations = Series("h", at, 10 * at, np.ones(5))

    def found(*landmarks: int) -> list[tuple[int, int, int]]:
        within = series.windows(train, evaluations, landmarks=np.array(landmarks, np.int64))
        columns = within.evaluations, within.start, within.stop
        return list(zip(*(column.tolist() for column in columns), strict=True))

    whole = series.windows(train, evaluations)
    assert whole.evaluations.tolist() == [0, 1, 2, 3, 4]
    assert found(10, 30, 60, 80, 90) == [(0, 0, 2), (1, 2, 4), (2, 4, 6), (3, 6, 8), (4, 8, 10)]
    assert found(10, 55, 100) == [(0, 0, 2), (2, 2, 6), (4, 6, 10)]
    assert found(5, 200) == []


def test_a_long_window_is_the_median_of_thousand_step_medians():
    steps = np.arange(1, 3_001)
    values = np.where(steps <= 1_000, 1.0, np.where(steps <= 2_000, 2.0, 6.0))
    values[2_500:] = 2.0  # half of the last block
    within = series.Windows(np.array([0]), np.array([0]), np.array([3_000]))
    blocks = [1.0, 2.0, 4.0]
    assert series.window_medians(steps, values, within).tolist() == [np.median(blocks)]


def test_noise_is_that_of_a_median_and_blind_to_a_trend():
    rng = np.random.default_rng(0)
    values = 0.1 * rng.standard_normal(4_000) - 0.001 * np.arange(4_000)
    edges = np.arange(0, 4_000, 10)
    within = series.Windows(np.arange(400), edges, edges + 10)
    assert noise(values, within)[-1] == pytest.approx(
        0.1 * np.sqrt(np.pi / 2) / np.sqrt(10), rel=0.05
    )


def test_noise_is_zero_while_no_window_holds_two_points():
    within = series.Windows(np.arange(2), np.array([0, 1]), np.array([1, 2]))
    assert noise(np.array([1.0, 2.0]), within).tolist() == [0.0, 0.0]


def test_noise_goes_on_from_what_is_known():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 4, 60)
    moves = np.where(counts > 1, rng.random(60), np.nan)
    whole = series.noise_of(moves, counts)
    for known in (0, 1, 30, 59, 60):
        np.testing.assert_array_equal(series.noise_of(moves, counts, whole[:known]), whole)
