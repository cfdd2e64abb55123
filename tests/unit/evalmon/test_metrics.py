"""Numbers that are exact, and errors that are not zero for "unknown"."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalmon.metrics import (
    Estimate,
    accuracy,
    bits_per_byte,
    mean,
    paired_difference,
    perplexity,
    pooled_ratio,
    unweighted_mean,
    wilson_interval,
)

TEXT = "a bb ccc"


def test_token_word_and_byte_numbers_of_one_text():
    nats, tokens = 6.0, 5
    assert perplexity(nats, tokens) == pytest.approx(3.3201, abs=5e-5)
    assert perplexity(nats, len(TEXT.split())) == pytest.approx(7.3891, abs=5e-5)
    assert perplexity(nats, len(TEXT.encode())) == pytest.approx(2.1170, abs=5e-5)
    assert bits_per_byte(nats, len(TEXT.encode())) == pytest.approx(1.0820, abs=5e-5)


def test_pooled_loss_is_summed_nats_over_summed_tokens():
    found = pooled_ratio([6.0, 3.0], [5, 1])
    assert found.value == 1.5  # the mean of the per-document values 1.2 and 3.0 is 2.1
    assert found.items == 2


def test_bits_per_byte_do_not_depend_on_the_tokenizer():
    assert bits_per_byte(20 * 2.5, 100) == bits_per_byte(25 * 2.0, 100)
    assert bits_per_byte(50.0, 100) == pytest.approx(0.7213, abs=5e-5)


def test_a_text_without_bytes_has_no_bits_per_byte():
    with pytest.raises(ValueError, match="0 bytes"):
        bits_per_byte(1.0, 0)


def test_accuracy_with_its_standard_error():
    assert accuracy([1, 0, 1, 1]) == Estimate(0.75, 0.25, 4)


def test_one_item_has_no_standard_error():
    assert accuracy([1]) == Estimate(1.0, None, 1)
    assert pooled_ratio([6.0], [5]) == Estimate(1.2, None, 1)


def test_accuracy_takes_only_right_and_wrong():
    with pytest.raises(ValueError, match="0 or 1"):
        accuracy([0.5])
    with pytest.raises(ValueError, match="no values"):
        accuracy([])


@pytest.mark.parametrize(("right", "low", "high"), [(0, 0.0, 0.1332), (25, 0.8668, 1.0)])
def test_all_wrong_or_all_right_of_25_is_not_certainty(right: int, low: float, high: float):
    found = wilson_interval(right, 25)
    assert found.value == right / 25
    assert found.low == pytest.approx(low, abs=5e-5)
    assert found.high == pytest.approx(high, abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_stays_in_range(case: tuple[int, int]):
    right, items = case
    found = wilson_interval(right, items)
    assert 0 <= found.low <= found.value <= found.high <= 1
    mirrored = wilson_interval(items - right, items)
    assert found.low == pytest.approx(1 - mirrored.high, abs=1e-12)


def test_wilson_refuses_more_successes_than_items():
    with pytest.raises(ValueError, match="3 successes of 2 items"):
        wilson_interval(3, 2)


def test_a_group_is_the_unweighted_mean_with_the_error_of_that_mean():
    tasks = [
        Estimate(0.8, math.sqrt(0.8 * 0.2 / 99), 100),
        Estimate(0.4, math.sqrt(0.4 * 0.6 / 9), 10),
    ]
    group = unweighted_mean(tasks)
    assert group.value == pytest.approx(0.6)
    assert group.stderr == pytest.approx(0.0841, abs=5e-5)
    assert unweighted_mean([*tasks, Estimate(1.0, None, 1)]).stderr is None


def test_with_equal_sizes_the_pooled_error_is_that_of_the_mean():
    values = [2.0, 3.5, 1.0, 4.0]
    pooled = pooled_ratio([10 * value for value in values], [10] * 4)
    plain = mean(values)
    assert pooled.value == pytest.approx(plain.value)
    assert pooled.stderr == pytest.approx(plain.stderr)


def test_the_pooled_error_covers_the_spread_between_samples():
    rng = np.random.default_rng(0)
    errors: list[float] = []
    values: list[float] = []
    for _ in range(400):
        sizes = rng.integers(20, 400, 60)
        level = rng.normal(3.0, 0.4, 60)  # documents differ: tokens of one are not independent
        found = pooled_ratio(level * sizes, sizes)
        values.append(found.value)
        errors.append(found.stderr or math.nan)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.12)


def test_sizes_must_be_positive_and_as_many_as_totals():
    with pytest.raises(ValueError, match="positive size"):
        pooled_ratio([1.0, 2.0], [3, 0])
    with pytest.raises(ValueError, match="2 totals and 1 sizes"):
        pooled_ratio([1.0, 2.0], [3])


def test_a_paired_difference_has_students_interval():
    first, second = [2.0, 3.0, 4.0], [1.0, 2.0, 2.0]
    found = paired_difference(first, second)
    # mean 4/3, sd 0.57735, t(0.975, 2) = 4.302653
    assert found.value == pytest.approx(4 / 3)
    assert found.high - found.value == pytest.approx(4.302653 * 0.5773503 / math.sqrt(3))
    swapped = paired_difference(second, first)
    assert (swapped.low, swapped.high) == (-found.high, -found.low)


def test_pairing_removes_what_the_pairs_share():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 5, 200)
    found = paired_difference(shared + 0.1 + rng.normal(0, 0.05, 200), shared)
    assert found.high - found.low < 0.02
    assert found.value == pytest.approx(0.1, abs=0.01)


def test_pairs_are_needed():
    with pytest.raises(ValueError, match="at least two"):
        paired_difference([1.0], [2.0])
    with pytest.raises(ValueError, match="3 and 2 values"):
        paired_difference([1.0, 2.0, 3.0], [2.0, 1.0])
