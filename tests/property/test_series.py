"""Laws of series arithmetic."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evalmon import bands, series
from evalmon.types import Series

LOSSES = st.floats(0.0, 12.0, allow_nan=False)


@st.composite
def curves(draw: st.DrawFn) -> Series:
    tokens = np.array(sorted(draw(st.sets(st.integers(0, 10**13), min_size=1, max_size=40))))
    values = draw(st.lists(LOSSES, min_size=len(tokens), max_size=len(tokens)))
    return Series("train/ce_nats", np.arange(len(tokens)), tokens, np.array(values))


@given(curves())
def test_reading_a_series_at_its_own_tokens_gives_its_values(curve: Series):
    where, values = series.align(curve, curve.tokens)
    assert where.tolist() == list(range(len(curve)))
    np.testing.assert_allclose(values, curve.values, atol=1e-9)


@given(curves(), st.lists(st.integers(0, 10**13), max_size=20))
def test_read_values_stay_within_the_series_and_its_range(curve: Series, asked: list[int]):
    tokens = np.array(asked, np.int64)
    where, values = series.align(curve, tokens)
    inside = (tokens >= curve.tokens[0]) & (tokens <= curve.tokens[-1])
    assert where.tolist() == np.flatnonzero(inside).tolist()
    assert np.all(values >= curve.values.min() - 1e-9)
    assert np.all(values <= curve.values.max() + 1e-9)


@given(curves(), st.lists(st.integers(0, 10**13), max_size=20), st.randoms())
def test_the_order_of_the_tokens_asked_for_does_not_matter(
    curve: Series, asked: list[int], rng: Random
):
    shuffled = list(asked)
    rng.shuffle(shuffled)

    def answered(tokens: list[int]) -> list[tuple[int, float]]:
        where, values = series.align(curve, np.array(tokens, np.int64), longest_gap=2.0)
        return sorted((tokens[n], value) for n, value in zip(where, values, strict=True))

    assert answered(asked) == answered(shuffled)


@given(st.integers(1, 4), st.integers(1, 30), st.data())
def test_medians_are_those_of_numpy(rows: int, count: int, data: st.DataObject):
    drawn = data.draw(st.lists(LOSSES, min_size=rows * count, max_size=rows * count))
    values = np.array(drawn).reshape(rows, count)
    kept = values.copy()
    np.testing.assert_array_equal(series.medians(values), np.median(values, axis=1))
    np.testing.assert_array_equal(values, kept)


@given(st.sets(st.integers(0, 60)))
def test_positions_together_pick_the_same(chosen: set[int]):
    where = np.array(sorted(chosen), np.int64)
    picked = series.together(where)
    assert np.arange(61)[picked].tolist() == where.tolist()
    gaps = np.diff(where)
    assert isinstance(picked, slice) == (len(where) > 0 and bool((gaps == 1).all()))


@given(curves(), st.floats(-1, 1, allow_nan=False))
def test_a_shift_of_one_run_shifts_the_gap(curve: Series, by: float):
    moved = Series(curve.metric, curve.steps, curve.tokens, curve.values + by)
    np.testing.assert_allclose(series.gap(moved, curve).values, by, atol=1e-9)


@given(st.sets(st.integers(1, 300), min_size=1), st.sets(st.integers(0, 300), min_size=1))
def test_windows_hold_every_train_point_once_up_to_the_last_evaluation(
    trained: set[int], evaluated: set[int]
):
    steps, at = np.array(sorted(trained)), np.array(sorted(evaluated))
    train = Series("train/ce_nats", steps, steps, np.zeros(len(steps)))
    within = series.windows(train, Series("h", at, at, np.zeros(len(at))))
    held = [n for a, b in zip(within.start, within.stop, strict=True) for n in range(a, b)]
    assert held == [n for n, step in enumerate(steps) if step <= at[-1]]
    assert np.all(within.stop > within.start)


@given(LOSSES, LOSSES, st.integers(-2_000, 2_000))
def test_the_literal_comparison_is_exact_in_hundred_thousandths(a: float, b: float, shortfall: int):
    drop = (a + shortfall * 1e-5) - a
    gain = (b + 1.0) - b - 1.0
    assert bands.unmatched(bands.WindowComparison(drop, gain)) is (shortfall > 500)
