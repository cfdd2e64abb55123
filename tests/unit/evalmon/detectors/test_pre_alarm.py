"""The pre-alarm on dense train losses."""

import numpy as np
import pytest

from evalmon.detectors import pre_alarm
from evalmon.types import Series

STEPS, TOKENS = 141_400, 10
PLAN = STEPS * TOKENS  # a window is 100 steps


def logged(drop: float = 0.0, at: int = 100_000, until: int = STEPS, seed: int = 0) -> Series:
    rng = np.random.default_rng(seed)
    steps = np.arange(1, until + 1)
    values = 1.4 + 0.75 * (steps / STEPS) ** -0.12 + 0.01 * rng.standard_normal(until)
    return Series("train/ce_nats", steps, steps * TOKENS, values - drop * (steps > at))


@pytest.mark.parametrize("referenced", [True, False])
def test_a_drop_of_two_hundredths_is_seen_in_a_handful_of_windows(referenced: bool):
    reference = logged(seed=1) if referenced else None
    first = next(
        count
        for count in range(1, 20)
        if pre_alarm.detect(logged(0.05, until=100_000 + 100 * count), reference, PLAN)
    )
    assert first <= 5
    found = pre_alarm.detect(logged(0.05, until=100_800), reference, PLAN)
    assert found is not None
    assert found.drop_nats == pytest.approx(0.05, abs=0.006)
    assert 100_000 * TOKENS < found.tokens <= 100_300 * TOKENS


def test_sound_runs_give_none_all_along():
    reference = logged(seed=1)
    for until in range(10_000, STEPS, 7_300):
        assert pre_alarm.detect(logged(until=until), reference, PLAN) is None
        assert pre_alarm.detect(logged(until=until), None, PLAN) is None


def test_a_steep_beginning_is_not_taken_for_a_drop_without_a_reference():
    early = logged(until=5_000)
    assert pre_alarm.detect(early, logged(seed=1), PLAN) is None
    assert pre_alarm.detect(early, None, PLAN) is None


def test_it_ends_when_train_loss_is_back():
    steps = np.arange(1, 104_001)
    values = logged(until=104_000).values - 0.05 * ((steps > 100_000) & (steps <= 101_000))
    back = Series("train/ce_nats", steps, steps * TOKENS, values)
    assert pre_alarm.detect(back, logged(seed=1), PLAN) is None
    assert pre_alarm.detect(back.until(101_000), logged(seed=1), PLAN) is not None


def test_a_thin_log_gives_none():
    dense = logged(0.2)
    every = slice(None, None, 50)
    thin = Series("train/ce_nats", dense.steps[every], dense.tokens[every], dense.values[every])
    assert pre_alarm.detect(thin, logged(seed=1), PLAN) is None


def test_the_last_window_lags_by_what_is_not_logged_yet():
    assert pre_alarm.detect(logged(0.05, until=100_050), logged(seed=1), PLAN) is None
