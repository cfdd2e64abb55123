"""A full history, and selections that look like one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalmon.sampling import recognize
from evalmon.types import IntArray, Sampling

RNG = np.random.default_rng


@pytest.mark.parametrize(
    "steps",
    [
        np.arange(1, 2001),
        np.arange(0, 2001, 10),
        np.append(np.arange(250, 19501, 250), 19552),  # the last step wherever it falls
        np.insert(np.arange(1000, 90001, 1000), 0, 1),  # step 1 before a grid of 1,000
        np.delete(np.arange(1000, 929000, 1000), [662, 709, 710]),  # as OLMo 2 has them
        np.rint(np.arange(1, 21) * 190.7).astype(np.int64),  # an epoch that is no whole number
        np.concatenate([np.arange(1, 1001), np.arange(1010, 20001, 10)]),  # the interval changed
        np.array([117_000, 330_000]),
        np.array([5]),
    ],
    ids=lambda steps: f"{len(steps)} points",
)
def test_full(steps: IntArray) -> None:
    assert recognize(steps) == (Sampling.FULL, "")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.8])
def test_a_random_draw_is_sampled(share: float, seed: int) -> None:
    steps = np.sort(RNG(seed).choice(np.arange(1, 2001), int(2000 * share), replace=False))
    kind, note = recognize(steps)
    assert kind is Sampling.SAMPLED
    assert f"{len(steps)} points of steps {steps[0]} to {steps[-1]}" in note


def test_the_note_says_gaps_and_share() -> None:
    kind, note = recognize(np.array([1, 2, 3, 5, 9, 20, 21, 40]))
    assert kind is Sampling.SAMPLED
    assert note == (
        "8 points of steps 1 to 40, gaps of 1 to 19 steps: 20 percent of every 1st step; "
        "first and last step may be missing"
    )


def test_rows_that_hold_both_keys() -> None:
    steps = np.arange(100, 2001, 100)
    kind, note = recognize(steps, evaluations=steps, both_keys=True)
    assert kind is Sampling.SAMPLED
    assert "all 20 train points (steps 100 to 2000) lie on evaluations" in note
    assert recognize(steps, evaluations=steps)[0] is Sampling.FULL
    every = np.arange(1, 2001)
    assert recognize(every, evaluations=steps, both_keys=True)[0] is Sampling.FULL
    tens = np.arange(10, 2001, 10)
    assert recognize(tens, evaluations=steps, both_keys=True)[0] is Sampling.FULL


@given(st.integers(1, 5000), st.integers(0, 10_000), st.integers(3, 300))
def test_every_nth_step_is_full_whatever_n(interval: int, first: int, count: int) -> None:
    steps = first + interval * np.arange(count)
    assert recognize(steps)[0] is Sampling.FULL


@given(st.integers(1, 50), st.integers(100, 400), st.data())
def test_a_few_holes_are_no_selection(interval: int, count: int, data: st.DataObject) -> None:
    steps = interval * np.arange(1, count + 1)
    holes = data.draw(st.sets(st.integers(0, count - 1), max_size=count // 20))
    assert recognize(np.delete(steps, sorted(holes)))[0] is Sampling.FULL
