"""Passes: what is early, and what remainders and straddling batches excuse."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evalmon.audit.passes import Passes, occurrences, slack, straddles


def early(keys: list[int], per_step: int, n: int, loose: int = 0) -> list[bool]:
    steps = np.arange(len(keys)) // per_step + 1
    return Passes.of(np.array(keys), steps, instances=n, loose=loose).early.tolist()


def test_a_second_pass_is_no_repeat():
    assert not any(early([0, 1, 2, 3, 1, 0, 3, 2], 2, 4))


def test_a_batch_that_straddles_the_end_of_a_pass_is_no_repeat():
    assert not any(early([0, 1, 2, 2, 0, 1], 2, 3))


def test_a_draw_before_the_pass_is_complete_is_early():
    assert early([0, 1, 0, 2, 3], 1, 4) == [False, False, True, False, False]


def test_what_is_dropped_in_one_pass_is_excused_within_the_slack():
    dropping = [0, 1, 2, 3, 4, 1, 0, 5, 2]
    assert any(early(dropping, 1, 6))
    assert not any(early(dropping, 1, 6, loose=1))


def test_a_text_that_the_source_holds_twice_may_come_twice_a_pass():
    keys, steps = np.array([7, 8, 7, 9]), np.arange(4) + 1
    copies = np.array([2, 1, 2, 1])
    assert not Passes.of(keys, steps, instances=4, loose=0, copies=copies).early.any()
    assert Passes.of(keys, steps, instances=4, loose=0).early.tolist() == [
        False,
        False,
        True,
        False,
    ]


def test_without_the_size_what_was_drawn_is_the_whole():
    keys, steps = np.array([0, 1, 0, 1]), np.arange(4) + 1
    assert not Passes.of(keys, steps, instances=None, loose=0).early.any()


def test_no_draws_are_no_repeats():
    none = np.zeros(0, np.int64)
    assert not len(Passes.of(none, none, instances=4, loose=0).early)


@given(
    n=st.integers(1, 60), hosts=st.integers(1, 8), batch=st.integers(1, 4),
    passes=st.integers(1, 4), seed=st.integers(0, 9),
)  # fmt: skip
def test_a_global_order_is_never_early(n: int, hosts: int, batch: int, passes: int, seed: int):
    rng = np.random.default_rng(seed)
    keys = np.concatenate([rng.permutation(n) for _ in range(passes)])
    per_step = hosts * batch
    assert not any(early(keys.tolist(), per_step, n, slack(n, per_step, per_step)))


@given(
    n=st.integers(2, 60), per_step=st.integers(1, 12), passes=st.integers(1, 4),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_an_order_cut_to_whole_batches_is_never_early(
    n: int, per_step: int, passes: int, seed: int
):
    rng = np.random.default_rng(seed)
    kept = n // per_step * per_step
    keys = np.concatenate([rng.permutation(n)[:kept] for _ in range(passes)])
    assert not any(early(keys.tolist(), per_step, n, slack(n, per_step, per_step)))


def test_occurrences_count_and_point_back():
    times, previous = occurrences(np.array([5, 6, 5, 5, 6]))
    assert times.tolist() == [0, 0, 1, 2, 1]
    assert previous.tolist() == [-1, -1, 0, 2, 1]


def test_only_steps_at_the_end_of_a_pass_straddle_it():
    first, last = np.arange(0, 40, 4), np.arange(4, 44, 4)
    flags = straddles(first, last, instances=18, loose=0)
    assert np.flatnonzero(flags).tolist() == [4, 8, 9]  # 16..20; 32..36 and 36..40 touch 36
