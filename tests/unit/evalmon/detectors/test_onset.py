"""The change point of a rise."""

import numpy as np
import pytest

from evalmon.detectors.onset import onset_tokens

TOKENS = np.arange(10, 210, 10)


@pytest.mark.parametrize("at", [40, 100, 150])
@pytest.mark.parametrize("start", [None, 0.0])
def test_a_broken_line_is_found_where_it_breaks(at: int, start: float | None):
    values = 0.01 * np.maximum(0, TOKENS - at)
    assert onset_tokens(TOKENS, values, start=start) == at


@pytest.mark.parametrize("at", [40, 100, 150])
@pytest.mark.parametrize("start", [None, 0.0])
def test_a_step_is_found_at_the_last_evaluation_before_it(at: int, start: float | None):
    values = np.where(at < TOKENS, 0.3, 0.0)
    assert onset_tokens(TOKENS, values, start=start) == at


def test_noise_moves_it_by_few_evaluations():
    rng = np.random.default_rng(0)
    found = [
        onset_tokens(TOKENS, 0.004 * np.maximum(0, TOKENS - 60) + 0.05 * noise, start=0.0)
        for noise in rng.standard_normal((200, 20))
    ]
    assert np.quantile(np.abs(np.array(found) - 60), 0.9) <= 30


def test_one_evaluation_is_its_own_onset():
    assert onset_tokens(np.array([70]), np.array([1.0]), start=None) == 70


def test_one_bad_evaluation_moves_nothing():
    values = 0.01 * np.maximum(0, TOKENS - 100)
    values[3] += 5.0
    assert onset_tokens(TOKENS, values, start=0.0) == 100


def test_it_lies_before_the_alarm():
    values = 1e-6 * np.exp(TOKENS / 12.0)
    assert onset_tokens(TOKENS, values, start=0.0, before=120) < 120
