"""A new epoch or a loader that went back is told where an alarm began, and nowhere else."""

import numpy as np
import pytest

from evalmon.detectors.epochs import causes
from evalmon.types import Series

TOKENS = 10  # of a step


def counted(metric: str, values: "np.ndarray", steps: "np.ndarray | None" = None) -> Series:
    steps = np.arange(1, len(values) + 1) if steps is None else steps
    return Series(metric, steps, steps * TOKENS, values.astype(float))


def epoch(values: "np.ndarray") -> Series:
    return counted("data/epoch", values)


STEPS = np.arange(1, 121)


@pytest.mark.parametrize(
    "values",
    [
        np.where(STEPS < 100, 1, 2),  # counted from 1
        np.where(STEPS < 100, 0, 1),  # counted from 0
        STEPS / 100,  # fractions
    ],
)
def test_a_second_epoch_is_one_however_epochs_are_counted(values: "np.ndarray") -> None:
    assert causes(epoch(values), None, 990, 1_040) == ("second epoch begins at step 100",)


def test_a_loader_that_went_back_is_told_with_where_to() -> None:
    values = np.where(STEPS < 100, 8 * STEPS, 8 * (STEPS - 99))
    position = counted("data/position", values)
    assert causes(None, position, 990, 1_040) == ("data position went back to 8 at step 100",)
    both = causes(epoch(np.where(STEPS < 100, 1, 2)), position, 990, 1_040)
    assert both == ("second epoch begins at step 100", "data position went back to 8 at step 100")


@pytest.mark.parametrize(
    ("onset", "alarm", "told"),
    [
        (990, 1_010, True),  # at it
        (1_000, 1_000, True),
        (960, 1_000, True),  # an onset placed too early, the change no later than the alarm
        (1_030, 1_060, True),  # too late, by no more than the alarm took
        (1_041, 1_080, False),
        (900, 990, False),  # the alarm was there first
    ],
)
def test_only_a_change_near_the_onset_and_no_later_than_the_alarm_is_told(
    onset: int, alarm: int, told: bool
) -> None:
    found = causes(epoch(np.where(STEPS < 100, 1, 2)), None, onset, alarm)
    assert bool(found) == told


def test_a_window_that_holds_the_change_is_met_by_a_counter_logged_rarely() -> None:
    every = np.array([1, 50, 100, 150])
    rare = counted("data/epoch", np.array([1, 1, 2, 2]), every)
    assert causes(rare, None, 600, 700) == ("second epoch begins at step 100",)
    assert causes(rare, None, 300, 450) == ()


def test_of_several_epochs_the_nearest_to_the_onset_is_told() -> None:
    values = np.repeat(np.arange(1, 13), 10)
    assert causes(epoch(values), None, 600, 1_000) == ("seventh epoch begins at step 61",)
    assert causes(epoch(values), None, 1_110, 1_120) == ("12th epoch begins at step 111",)


def test_nothing_is_told_without_a_change() -> None:
    assert causes(None, None, 990, 1_040) == ()
    assert causes(epoch(np.ones(120)), counted("data/position", STEPS * 8), 990, 1_040) == ()
    none = Series("data/epoch", np.array([], int), np.array([], int), np.array([]))
    assert causes(none, none, 990, 1_040) == ()
