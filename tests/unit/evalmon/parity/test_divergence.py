"""Divergence: exact on small numbers, the same in parts, never passing what is not a number."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalmon.parity.divergence import Divergence, Meter, Worst, overlap


def logs(*rows: list[float]) -> Any:
    return np.log(np.array(rows)).astype(np.float32)


def normalized(logits: Any) -> Any:
    wide = np.asarray(logits, np.float64)
    wide = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide.astype(np.float32)


def measure(p: Any, q: Any, *, window: int = 4, top_k: int = 1, parts: int = 1) -> Divergence:
    meter = Meter(min(p.shape[1], q.shape[1]), top_k, window)
    for part in np.array_split(np.arange(len(p)), parts):
        meter.add(0, part, p[part], q[part])
    return meter.result()


def test_numbers_of_a_small_case():
    """KL([1/2 1/4 1/4] || [1/4 1/2 1/4]) = 1/2 ln 2 - 1/4 ln 2; the other row is equal."""
    p = logs([0.5, 0.25, 0.25], [0.2, 0.3, 0.5])
    q = logs([0.25, 0.5, 0.25], [0.2, 0.3, 0.5])
    found = measure(p, q)
    assert found.max_kl == pytest.approx(np.log(2) / 4, rel=1e-6)
    assert found.mean_kl == pytest.approx(np.log(2) / 8, rel=1e-6)
    assert found.max_logprob_diff == pytest.approx(np.log(2), rel=1e-6)
    assert (found.topk_agreement, found.positions) == (0.5, 2)
    assert found.worst == Worst(0, 0, found.max_kl)


def test_it_is_the_references_expectation_not_the_models():
    p, q = logs([0.9, 0.1]), logs([0.5, 0.5])
    assert measure(p, q).max_kl == pytest.approx(0.9 * np.log(1.8) + 0.1 * np.log(0.2), rel=1e-6)
    assert measure(q, p).max_kl == pytest.approx(0.5 * np.log(0.25 / 0.09), rel=1e-6)


def test_maxima_are_kept_by_what_a_position_sees():
    """Window 4: positions 0 to 3 see all before them, from 4 on something is hidden."""
    even = np.full((7, 2), 0.5)
    other = even.copy()
    for position, share in ((0, 0.52), (3, 0.6), (4, 0.55), (6, 0.7)):
        other[position] = share, 1 - share
    found = measure(np.log(even).astype(np.float32), np.log(other).astype(np.float32))

    def kl(share: float) -> Any:
        return pytest.approx(-0.5 * np.log(4 * share * (1 - share)), rel=1e-5)

    assert (found.max_kl_first, found.max_kl_within, found.max_kl_beyond) == (
        kl(0.52), kl(0.6), kl(0.7),
    )  # fmt: skip
    assert (found.worst.position, found.worst.kl) == (6, kl(0.7))


def test_a_region_without_a_position_has_no_maximum():
    found = measure(logs([0.5, 0.5]), logs([0.5, 0.5]))
    assert (found.max_kl_first, found.max_kl_within, found.max_kl_beyond) == (0.0, None, None)


def test_rows_of_padding_are_left_out_whatever_they_hold():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (5, 12))
    short = normalized(logits[:, :8])
    logits[:, 8:] = 9.0  # nearly all the probability
    long = normalized(logits)
    for found in (measure(short, long), measure(long, short)):
        assert found.max_kl is not None
        assert found.max_kl < 1e-9
        assert found.max_logprob_diff == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("side", ["reference", "model"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_leaves_no_number(side: str, bad: float):
    good = normalized(np.random.default_rng(0).normal(0, 1, (6, 5)))
    broken = good.copy()
    broken[3, 1] = broken[5, 0] = bad
    found = measure(*((broken, good) if side == "reference" else (good, broken)), parts=3)
    assert found.nonfinite == {"reference": 0, "model": 0} | {side: 2}
    numbers = (found.max_kl, found.mean_kl, found.max_logprob_diff, found.topk_agreement)
    assert numbers == (None, None, None, None)
    assert (found.max_kl_first, found.max_kl_within, found.max_kl_beyond) == (None, None, None)
    assert found.worst == Worst(0, 3, None)


def test_nothing_finite_is_no_pass_either():
    rows = np.full((2, 3), np.nan, np.float32)
    assert measure(rows, rows).max_kl is None


def test_a_sum_of_exponentials_in_bfloat16_is_seen_though_all_tokens_move_alike():
    """Such a loss lies on multiples of 1/64: three times a move that matters."""
    logits = np.random.default_rng(0).normal(0, 3, (20, 50))
    exact = np.log(np.exp(logits).sum(-1, keepdims=True))
    coarse = (logits - exact.astype(ml_dtypes.bfloat16).astype(np.float64)).astype(np.float32)
    found = measure(normalized(logits), coarse)
    assert found.max_kl == pytest.approx(0.0, abs=1e-9)
    assert found.unnormalized["reference"] == 0
    assert found.unnormalized["model"] >= 15


FINITE = arrays(np.float64, (6, 7), elements=st.floats(-30, 30, width=32))


@given(FINITE, FINITE, st.integers(1, 6))
def test_in_parts_it_is_what_it_is_at_once(p: Any, q: Any, parts: int):
    whole = measure(normalized(p), normalized(q), top_k=3)
    split = measure(normalized(p), normalized(q), top_k=3, parts=parts)
    assert split.mean_kl == pytest.approx(whole.mean_kl, rel=1e-12, abs=1e-300)
    for name in ("max_kl", "max_logprob_diff", "topk_agreement", "worst", "max_kl_within"):
        expected = getattr(whole, name)
        expected = expected if name != "topk_agreement" else pytest.approx(expected)
        assert getattr(split, name) == expected


@given(FINITE, FINITE)
def test_it_is_never_negative_and_zero_for_equals(p: Any, q: Any):
    p, q = normalized(p), normalized(q)
    found, same = measure(p, q), measure(p, p)
    assert found.max_kl is not None
    assert found.mean_kl is not None
    assert 0.0 <= found.mean_kl <= found.max_kl * (1 + 1e-12)
    assert (same.max_kl, same.max_logprob_diff, same.topk_agreement) == (0.0, 0.0, 1.0)


@given(FINITE, FINITE, st.integers(1, 7))
def test_overlap_is_that_of_the_sorted_lists(p: Any, q: Any, k: int):
    p, q = p + np.arange(7) * 1e-6, q + np.arange(7) * 1e-6  # no ties
    expected = [
        len(set(np.argsort(a)[-k:]) & set(np.argsort(b)[-k:])) / k
        for a, b in zip(p, q, strict=True)
    ]
    assert overlap(p, q, k).tolist() == pytest.approx(expected)


def test_large_parts_are_compared_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch):
    p = normalized(np.random.default_rng(0).normal(0, 2, (50, 8)))
    q = normalized(np.random.default_rng(1).normal(0, 2, (50, 8)))
    whole = measure(p, q)
    monkeypatch.setattr("evalmon.parity.divergence._ENTRIES", 24)
    split = measure(p, q)
    assert split.mean_kl == pytest.approx(whole.mean_kl, rel=1e-12)
    assert split.worst == whole.worst
