"""Which copy of a step counts after a restart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalmon.restarts import abandoned, continuity, resolve

# F29 of cases/faults.md: the checkpoint is at 200, the crash at 212, the run goes on to 250.
STEPS = np.concatenate([np.arange(1, 213), np.arange(201, 251)])


def test_the_later_segment_counts() -> None:
    found = resolve(STEPS)
    assert STEPS[found.kept].tolist() == list(range(1, 251))
    assert found.kept[200:].tolist() == list(range(212, 262))
    assert found.superseded.tolist() == list(range(200, 212))
    assert found.seams == (200,)


def test_wall_time_tells_where_the_order_of_files_does_not() -> None:
    turned = np.concatenate([STEPS[212:], STEPS[:212]])
    time = np.concatenate([np.arange(1000, 1050), np.arange(212)])
    found = resolve(turned, time)
    assert turned[found.kept].tolist() == list(range(1, 251))
    assert found.kept[200:].tolist() == list(range(50))
    assert found.superseded.tolist() == list(range(250, 262))
    assert found.seams == (200,)


def test_steps_the_restart_never_reached_again_are_left_behind_too() -> None:
    found = resolve(np.array([1, 2, 3, 4, 5, 6, 3, 4]))
    assert found.kept.tolist() == [0, 1, 6, 7]
    assert found.superseded.tolist() == [2, 3, 4, 5]


def test_a_restart_of_a_restart_and_one_from_the_beginning() -> None:
    twice = resolve(np.array([1, 2, 3, 4, 3, 4, 5, 2, 3]))
    assert (twice.kept.tolist(), twice.seams) == ([0, 7, 8], (1,))
    anew = resolve(np.array([5, 6, 5, 6, 7]))
    assert (anew.kept.tolist(), anew.seams) == ([2, 3, 4], (4,))


def test_nothing_is_left_of_nothing() -> None:
    found = resolve(np.empty(0, np.int64))
    assert (len(found.kept), found.seams, len(found.superseded)) == (0, (), 0)


@given(st.lists(st.integers(0, 30), max_size=40))
def test_a_row_counts_if_and_only_if_all_later_rows_have_higher_steps(steps: list[int]) -> None:
    array = np.array(steps, np.int64)
    found = resolve(array)
    expected = [i for i, step in enumerate(steps) if all(step < later for later in steps[i + 1 :])]
    assert found.kept.tolist() == expected
    assert sorted([*found.kept, *found.superseded]) == list(range(len(steps)))
    assert bool((np.diff(array[found.kept]) > 0).all())


def test_a_million_rows_and_a_restart() -> None:
    steps = np.concatenate([np.arange(1, 1_000_001), np.arange(900_001, 1_414_079)])
    found = resolve(steps)
    assert len(found.kept) == 1_414_078
    assert len(found.superseded) == 100_000


def test_an_export_that_kept_the_abandoned_branch() -> None:
    steps = np.arange(1, 251)
    resumed = np.full(250, np.nan)
    resumed[212] = 200
    assert steps[abandoned(steps, resumed)].tolist() == list(range(201, 213))
    resumed[212:] = 200  # in every row after the restart: the same
    assert steps[abandoned(steps, resumed)].tolist() == list(range(201, 213))


def test_two_restarts_leave_two_branches_behind() -> None:
    steps = np.arange(1, 31)
    resumed = np.full(30, np.nan)
    resumed[12:] = 10
    resumed[22:] = 20
    assert steps[abandoned(steps, resumed)].tolist() == [11, 12, 21, 22]


def test_the_new_copies_are_not_taken_for_the_abandoned_ones() -> None:
    resumed = np.where(np.arange(262) >= 212, 200.0, np.nan)
    assert abandoned(STEPS, resumed).tolist() == list(range(200, 212))
    turned = np.concatenate([np.arange(212, 262), np.arange(212)])
    time = turned.astype(np.float64)
    assert abandoned(STEPS[turned], resumed[turned], time).tolist() == list(range(250, 262))


def test_continuity_compares_the_same_steps() -> None:
    loss = np.array([3.0 - 0.001 * n + (0.01 if i >= 212 else 0.0) for i, n in enumerate(STEPS)])
    found = continuity(STEPS, loss, resolve(STEPS))
    assert found is not None
    assert found.steps.tolist() == list(range(201, 213))
    assert found.difference == pytest.approx(0.01, abs=1e-12)
    assert found.standard_error == pytest.approx(0.0, abs=1e-9)


def test_continuity_is_unknown_where_no_step_stands_there_twice() -> None:
    steps = np.array([10, 20, 30, 25, 35])
    assert continuity(steps, np.ones(5), resolve(steps)) is None
    one = np.array([1, 2, 2, 3])
    found = continuity(one, np.array([3.0, 2.0, 2.5, np.nan]), resolve(one))
    assert found is not None
    assert (found.difference, found.standard_error) == (0.5, float("inf"))
