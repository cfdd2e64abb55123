"""Paired answers: published intervals, values by hand, and what holds for every table."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalmon import metrics
from evalmon.paired_counts import (
    detectable_paired,
    discordant,
    mcnemar,
    score_interval,
    shows_equivalence,
    wald_stderr,
)

Z95 = 1.959963985


@st.composite
def tables(draw: Callable[..., int]) -> tuple[int, int, int]:
    """Draw (b, c, n)."""
    n = draw(st.integers(1, 500))
    b = draw(st.integers(0, n))
    return b, draw(st.integers(0, n - b)), n


def test_published_score_intervals():
    """Tango 1998 (n = 44, one discordant pair), and tables of later authors."""
    for (b, c, n, confidence), ends in {
        (0, 1, 44, 0.90): (-0.096, 0.037),
        (9, 3, 32, 0.95): (-0.027, 0.390),
        (28, 25, 618, 0.90): (-0.0148, 0.0247),
    }.items():
        found = score_interval(b, c, n, confidence)
        digits = 4 if n > 100 else 3
        assert (round(found.low, digits), round(found.high, digits)) == ends


@pytest.mark.parametrize("n", [1, 10, 1172])
def test_the_interval_without_any_discordant_item_is_not_empty(n: int):
    found = score_interval(0, 0, n)
    half = Z95**2 / (n + Z95**2)
    assert (found.low, found.value, found.high) == pytest.approx((-half, 0, half), abs=1e-9)


@pytest.mark.parametrize("n", [4, 50, 2376])
def test_the_interval_where_every_item_differs_one_way(n: int):
    """The score is sqrt(n (1 - d) / (1 + d)), which is z at d = (n - z**2) / (n + z**2)."""
    limit = (n - Z95**2) / (n + Z95**2)
    first, second = score_interval(n, 0, n), score_interval(0, n, n)
    assert (first.low, first.high) == pytest.approx((limit, 1.0), abs=1e-9)
    assert (second.low, second.high) == pytest.approx((-1.0, -limit), abs=1e-9)


def test_the_interval_ends_where_the_likelihood_says():
    """The nuisance share is found by trying a grid, not by the formula."""
    b, c, n = 12, 5, 80
    found = score_interval(b, c, n)
    for end, z in ((found.low, Z95), (found.high, -Z95)):
        share = np.linspace(max(0.0, -end) + 1e-9, (1 - end) / 2 - 1e-9, 2_000_001)
        likelihood = (
            b * np.log(share + end) + c * np.log(share) + (n - b - c) * np.log(1 - 2 * share - end)
        )
        best = float(share[likelihood.argmax()])
        score = (b - c - n * end) / math.sqrt(n * (2 * best + end - end * end))
        assert score == pytest.approx(z, abs=1e-4)


@given(tables())
@example((0, 0, 1))
@example((0, 500, 500))
def test_every_interval_holds_the_estimate_and_widens_with_confidence(table: tuple[int, int, int]):
    b, c, n = table
    wide, narrow = score_interval(b, c, n), score_interval(b, c, n, 0.90)
    assert -1 <= wide.low <= narrow.low <= (b - c) / n <= narrow.high <= wide.high <= 1
    mirrored = score_interval(c, b, n)
    assert (mirrored.low, mirrored.high) == pytest.approx((-wide.high, -wide.low), abs=1e-9)


@given(tables())
def test_the_interval_leaves_out_0_exactly_when_the_score_test_finds_a_difference(
    table: tuple[int, int, int],
):
    b, c, n = table
    found = score_interval(b, c, n)
    distance = abs(b - c) - Z95 * math.sqrt(b + c)
    if abs(distance) > 1e-6:
        assert (found.low > 0 or found.high < 0) == (distance > 0)


@given(tables())
def test_equivalence_is_the_90_percent_interval_inside_the_margin(table: tuple[int, int, int]):
    b, c, n = table
    found = score_interval(b, c, n, 0.90)
    for margin in (0.005, 0.05, 0.2):
        inside = max(-found.low, found.high)
        if abs(inside - margin) > 1e-9:
            assert shows_equivalence(b, c, n, margin) == (inside < margin)


def test_mcnemar_by_hand():
    assert mcnemar(6, 0) == 2 / 2**6
    assert mcnemar(1, 3) == pytest.approx(2 * (1 + 4) / 2**4)
    assert mcnemar(0, 0) == mcnemar(7, 7) == 1.0
    assert mcnemar(60, 40) == pytest.approx(0.0455003, abs=1e-7)  # z = 2


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_symmetric_and_falls_with_the_imbalance(b: int, c: int):
    assert 0 < mcnemar(b, c) == mcnemar(c, b) <= 1
    if b > c > 0:
        total = b + c
        assert mcnemar(b + 1, total - b - 1) <= mcnemar(b, c)


def test_discordant_items_are_counted_by_who_was_right():
    assert discordant([1, 1, 0, 1, 0], [1, 0, 1, 0, 0]) == (2, 1, 5)
    with pytest.raises(ValueError, match="pairs are needed"):
        discordant([1, 0], [1, 0, 1])
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        discordant([0.5, 1], [1, 0])
    with pytest.raises(ValueError, match="6 and 5 discordant items of 10"):
        score_interval(6, 5, 10)


def test_the_wald_error_is_that_of_the_mean_of_the_differences():
    b, c, n = 30, 18, 299
    found = metrics.mean([1] * b + [-1] * c + [0] * (n - b - c))
    assert found.stderr == pytest.approx(wald_stderr(b, c, n) * math.sqrt(n / (n - 1)))


def test_the_detectable_difference_is_found_as_often_as_promised():
    n, psi = 1172, 0.10
    d = detectable_paired(n, psi, 0.05)
    rng = np.random.default_rng(1)
    draws = rng.multinomial(n, [(psi + d) / 2, (psi - d) / 2, 1 - psi], size=4000)
    found = np.mean([mcnemar(int(b), int(c)) < 0.05 for b, c, _ in draws])
    assert found == pytest.approx(0.80, abs=0.025)


@pytest.mark.parametrize(("tests", "z", "least"), [(8 * 141, 4.29, 0.040), (8 * 1414, 4.78, 0.044)])
def test_what_arc_challenge_resolves_when_all_tasks_are_tested_at_every_evaluation(
    tests: int, z: float, least: float
):
    """z standard errors: found half of the time. With power 0.8 it takes 0.007 more."""
    alpha = 2 * 0.01 / tests
    assert detectable_paired(1172, 0.10, alpha, power=0.5) == pytest.approx(least, abs=5e-4)
    assert detectable_paired(1172, 0.10, alpha) == pytest.approx(least + 0.007, abs=1e-3)
    assert z * math.sqrt(0.10 / 1172) == pytest.approx(least, abs=5e-4)


def test_fewer_items_or_more_discordance_hide_more():
    sizes = [detectable_paired(n, 0.1, 0.05) for n in (100, 300, 1000, 10_000)]
    shares = [detectable_paired(1000, psi, 0.05) for psi in (0.0, 0.01, 0.05, 0.2)]
    assert sizes == sorted(sizes, reverse=True)
    assert shares == sorted(shares)
    assert shares[0] > 0.005  # items that never differed can still be too few
    assert detectable_paired(2, 0.5, 0.01) == 1.0
