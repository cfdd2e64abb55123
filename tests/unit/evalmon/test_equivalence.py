"""Comparisons of accuracies: published values, values by hand, laws, and what +-0.005 can mean."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evalmon.equivalence import (
    Spread,
    checkpoint_spread,
    compare_counts,
    compare_means,
    compare_shares,
    compare_values,
    holm,
    mean_of,
    newcombe_interval,
    p_value_of,
    stderr_for_equivalence,
)
from evalmon.metrics import Interval, wilson_interval
from evalmon.paired_counts import score_interval, shows_equivalence
from evalmon.types import Series

SHARES = st.floats(0, 1)


def curve(tokens: "np.ndarray", values: "np.ndarray") -> Series:
    return Series("eval/downstream/x_0shot/acc", tokens, tokens, values)


def equivalent_share(items: int, discordance: float, runs: int = 2000) -> float:
    """Simulate how often two equal accuracies are found equivalent within 0.005."""
    rng = np.random.default_rng(items)
    total = rng.binomial(items, discordance, runs)
    first = rng.binomial(total, 0.5)
    return float(
        np.mean(
            [
                shows_equivalence(int(b), int(all_) - int(b), items)
                for b, all_ in zip(first, total, strict=True)
            ]
        )
    )


@pytest.mark.parametrize(
    ("items", "shares"),
    [
        (10_042, (0.79, 0.32, 0.0)),  # HellaSwag
        (21_465, (0.99, 0.83, 0.20)),  # all tasks pooled
        (1172, (0.0, 0.0, 0.0)),  # ARC-Challenge
        (1838, (0.0, 0.0, 0.0)),  # PIQA
        (500, (0.0, 0.0, 0.0)),  # OpenBookQA
    ],
)
def test_how_often_equal_accuracies_are_found_equivalent(items: int, shares: tuple[float, ...]):
    """At 3, 6 and 15 percent discordant items; 0.03 is three errors of 2,000 runs."""
    for discordance, share in zip((0.03, 0.06, 0.15), shares, strict=True):
        assert equivalent_share(items, discordance) == pytest.approx(share, abs=0.03)


def test_the_error_and_discordance_that_equivalence_needs():
    needed = stderr_for_equivalence()
    assert needed == pytest.approx(0.0017, abs=2e-5)
    most = {"arc": 1172, "openbookqa": 500, "piqa": 1838, "hellaswag": 10_042}
    assert {task: round(100 * items * needed**2, 2) for task, items in most.items()} == {
        "arc": 0.34,
        "openbookqa": 0.15,
        "piqa": 0.54,
        "hellaswag": 2.93,
    }


def test_published_differences_of_independent_shares():
    """Newcombe 1998, table II, method 10."""
    for (right, of, other, of_other), ends in {
        (56, 70, 48, 80): (0.0524, 0.3339),
        (9, 10, 3, 10): (0.1705, 0.8090),
        (6, 7, 2, 7): (0.0582, 0.8062),
        (5, 56, 0, 29): (-0.0381, 0.1926),
        (0, 10, 0, 20): (-0.1611, 0.2775),
        (10, 10, 0, 20): (0.6791, 1.0000),
    }.items():
        found = newcombe_interval(wilson_interval(right, of), wilson_interval(other, of_other))
        assert (round(found.low, 4), round(found.high, 4)) == ends


@given(SHARES, SHARES, st.integers(1, 5000))
def test_unpaired_shares_swap_and_hold_the_estimate(first: float, second: float, items: int):
    one, other = compare_shares(first, second, items), compare_shares(second, first, items)
    assert one.low <= one.value <= one.high
    assert (other.value, other.low, other.high) == pytest.approx((-one.value, -one.high, -one.low))
    assert one.p_value == pytest.approx(other.p_value)
    assert not (one.equivalent and max(-one.low, one.high) > 0.0085)


def test_items_make_the_unpaired_interval_narrower_and_the_p_value_smaller():
    found = [compare_shares(0.80, 0.78, n) for n in (100, 1000, 10_000)]
    widths = [one.high - one.low for one in found]
    assert widths == sorted(widths, reverse=True)
    assert [one.p_value for one in found] == sorted((one.p_value for one in found), reverse=True)
    assert compare_shares(0.8, 0.6, 70).p_value == pytest.approx(
        2 * stats.norm.sf(0.2 / math.sqrt(0.7 * 0.3 * 2 / 70))
    )


def test_answers_to_the_same_items_say_more_than_their_accuracies():
    rng = np.random.default_rng(3)
    first = rng.random(1172) < 0.5
    second = np.where(rng.random(1172) < 0.05, ~first, first)
    b, c = int((first & ~second).sum()), int((second & ~first).sum())
    paired = compare_counts(b, c, 1172)
    alone = compare_shares(float(first.mean()), float(second.mean()), 1172)
    assert paired.value == pytest.approx(alone.value)
    assert 2.5 * (paired.high - paired.low) < alone.high - alone.low


def test_other_numbers_an_item_are_compared_by_the_paired_t_test():
    rng = np.random.default_rng(5)
    first, second = rng.normal(1.0, 1.0, 40), rng.normal(1.2, 1.0, 40)
    found, known = compare_values(first, second), stats.ttest_rel(first, second)
    interval = known.confidence_interval(0.95)
    assert found.p_value == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert compare_values([1.0, 2.0], [1.0, 2.0]).p_value == 1.0


def test_detectable_differences_follow_the_level_and_the_law():
    found = compare_means(0.0, [(1.0, Spread(0.003, 1e12)), (1.0, Spread(0.004, 1e12))])
    assert found.stderr == pytest.approx(0.005)
    assert found.detectable(0.05) == pytest.approx((1.959964 + 0.841621) * 0.005, abs=1e-7)
    assert found.detectable(0.05 / 8) > found.detectable(0.05)
    paired = compare_counts(30, 20, 500)
    assert paired.detectable(0.05) == pytest.approx(0.03953, abs=1e-5)


def test_the_spread_does_not_see_a_trend():
    tokens = np.cumsum(np.random.default_rng(0).integers(50, 150, 200)) * 1_000_000
    noise = np.random.default_rng(1).normal(0, 0.01, 200)
    flat = checkpoint_spread(curve(tokens, 0.5 + noise))
    tilted = checkpoint_spread(curve(tokens, 0.1 + 0.02 * np.log1p(tokens) + noise))
    assert flat is not None
    assert tilted is not None
    assert tilted.sd == pytest.approx(flat.sd, rel=1e-9)
    assert flat.sd == pytest.approx(0.01, rel=0.12)
    assert flat.df == pytest.approx(198 * 18 / 35)


def test_the_spread_needs_eight_points():
    tokens = np.arange(1, 9) * 1000
    assert checkpoint_spread(curve(tokens[:7], np.full(7, 0.5))) is None
    assert checkpoint_spread(curve(tokens, np.full(8, 0.5))) == Spread(0.0, 6 * 18 / 35)


def test_intervals_from_the_spread_cover_as_promised():
    """Two runs of 20 evaluations without any lasting difference, compared by their last ones."""
    rng, tokens, covered = np.random.default_rng(11), np.arange(1, 21) * 10**9, 0
    for _ in range(1000):
        first, second = (curve(tokens, 0.4 + rng.normal(0, 0.01, 20)) for _ in range(2))
        spreads = [checkpoint_spread(one) for one in (first, second)]
        parts = [(1.0, spread) for spread in spreads if spread is not None]
        found = compare_means(float(first.values[-1] - second.values[-1]), parts)
        covered += found.low <= 0 <= found.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.025)


def test_degrees_of_freedom_add_as_welch_has_it():
    found = compare_means(0.01, [(1.0, Spread(0.003, 9.0)), (0.5, Spread(0.003, 4.0))])
    one, two = 9e-6, 4.5e-6
    assert found.df == pytest.approx((one + two) ** 2 / (one**2 / 9 + two**2 / 4))
    assert found.stderr == pytest.approx(math.sqrt(one + two))
    with pytest.raises(ValueError, match="never move"):
        compare_means(0.01, [(1.0, Spread(0.0, 9.0))])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([0.02]) == (0.02,)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_keeps_the_order_and_never_lowers(p_values: list[float]):
    adjusted = holm(p_values)
    pairs = list(zip(p_values, adjusted, strict=True))
    assert all(raw <= new <= min(1, raw * len(pairs)) for raw, new in pairs)
    assert [new for _, new in sorted(pairs)] == sorted(adjusted)
    assert holm(p_values[::-1]) == adjusted[::-1]


def test_holm_does_not_look_at_the_order_of_the_tasks():
    known = dict(zip((0.01, 0.02, 0.2), holm([0.01, 0.02, 0.2]), strict=True))
    for order in permutations(known):
        assert holm(order) == tuple(known[p] for p in order)


def test_a_mean_of_independent_differences_by_hand():
    found = mean_of([Interval(0.10, 0.07, 0.14, 9), Interval(0.30, 0.26, 0.33, 8)])
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.175, 0.225))
    assert found.items == 17
    assert mean_of([Interval(0.1, 0.07, 0.14, 9)]).low == pytest.approx(0.07)


def test_a_mean_over_equal_parts_is_as_sure_as_their_pool():
    b, c, n, parts = 40, 25, 1000, 6
    whole = score_interval(b * parts, c * parts, n * parts)
    found = mean_of([score_interval(b, c, n)] * parts)
    assert found.value == pytest.approx(whole.value)
    assert found.high - found.low == pytest.approx(whole.high - whole.low, rel=0.03)


def test_the_p_value_of_an_interval_is_5_percent_where_it_ends_at_0():
    assert p_value_of(Interval(0.02, 0.0, 0.05, 9)) == pytest.approx(0.05)
    assert p_value_of(Interval(-0.02, -0.05, 0.0, 9)) == pytest.approx(0.05)
    assert p_value_of(Interval(0.0, -0.01, 0.01, 9)) == 1.0
    assert p_value_of(Interval(0.02, 0.02, 0.02, 9)) == 0.0
    values = [p_value_of(Interval(d, d - 0.01, d + 0.01, 9)) for d in (0.0, 0.01, 0.02, 0.05)]
    assert values == sorted(values, reverse=True)
