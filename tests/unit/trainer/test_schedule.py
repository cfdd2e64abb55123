import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon.errors import ConfigError
from trainer.schedule import (
    SCHEDULES,
    CosineWithWarmup,
    HalfCosineWithWarmup,
    Linear,
    MaxTextCosine,
    Schedule,
    find_schedule,
    two_stages,
)

PEAK = 3e-4
AI2 = two_stages(PEAK, 2000, 1_192_093)
MAXTEXT = MaxTextCosine(PEAK, 2000, 1_414_078)

PUBLISHED = {
    100_000: ("2.955e-4", "2.968e-4"),
    300_000: ("2.603e-4", "2.714e-4"),
    597_046: ("1.650e-4", "1.980e-4"),
    735_000: ("1.379e-4", "1.569e-4"),
    1_000_000: ("8.98e-5", "8.33e-5"),
    1_200_000: ("6.06e-5", "4.50e-5"),
    1_413_814: ("3.93e-5", "3.00e-5"),
}
"""Step -> learning rate of AI2's run and of MaxText's reproduction."""

CURVES: dict[str, Schedule] = {
    "cosine": CosineWithWarmup(PEAK, 2000, 1_192_093),
    "half": HalfCosineWithWarmup(PEAK, 597_046, 1_668_931),
    "two_stages": AI2,
    "maxtext": MAXTEXT,
    "linear": Linear(2.0712352850360292e-4, 200, 1_500_000),
}


def _traced(curve: Schedule, steps: NDArray[np.int64]) -> NDArray[Any]:
    # Curves have slots, so JAX cannot keep a weak reference to one.
    def rate(n: Any) -> Any:
        return curve(n)

    return np.asarray(jax.jit(jax.vmap(rate))(steps))


def _printed_like(value: float, text: str) -> str:
    digits = len(text.split("e", maxsplit=1)[0].split(".")[1])
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


@pytest.mark.parametrize("step", PUBLISHED)
def test_both_published_columns_are_met_to_every_printed_digit(step: int) -> None:
    ai2, maxtext = PUBLISHED[step]
    assert _printed_like(AI2.at(step), ai2) == ai2
    assert _printed_like(MAXTEXT.at(step), maxtext) == maxtext
    assert _printed_like(_traced(AI2, np.array([step]))[0], ai2) == ai2
    assert _printed_like(_traced(MAXTEXT, np.array([step]))[0], maxtext) == maxtext


def test_the_published_run_ended_above_the_floor() -> None:
    assert AI2.at(1_413_814) == pytest.approx(3.9325e-5, rel=1e-5)
    assert AI2.at(1_668_931) == AI2.at(2_000_000) == pytest.approx(3e-5)


def test_the_two_stages_meet_in_the_middle() -> None:
    assert AI2.at_step == 597_046
    assert AI2.at(597_046) == pytest.approx(0.55 * PEAK, rel=1e-12)
    assert AI2.at(597_045) == pytest.approx(0.55 * PEAK, rel=1e-5)
    second = AI2.second
    # What the published run used between its change-over and the middle.
    assert second.at(596_047) == pytest.approx(1.6472e-4, abs=5e-9)
    assert AI2.first.at(596_047) == pytest.approx(1.6536e-4, abs=5e-9)


@pytest.mark.parametrize("name", CURVES)
def test_float32_rates_are_within_a_millionth_at_any_step(name: str) -> None:
    curve = CURVES[name]
    drawn = np.random.default_rng(0).integers(1, 1_700_000, 2000)
    bends = [1, 2, 200, 1999, 2000, 2001, 597_045, 597_046, 1_192_093, 1_414_077, 1_668_931]
    steps = np.unique(np.concatenate([drawn, bends]))
    exact = np.array([curve.at(int(step)) for step in steps])
    traced = _traced(curve, steps).astype(np.float64)
    assert np.all(np.abs(traced - exact) <= 1e-6 * exact)


def test_neighbouring_steps_beyond_a_million_have_rates_of_their_own() -> None:
    # Adding 1 to a float32 step would be exact here; multiplying it by pi would not.
    curve = Linear(1.0, 0, 1_500_000)
    rates = _traced(curve, np.arange(1_400_000, 1_400_100))
    assert np.all(np.diff(rates.astype(np.float64)) < 0)


def test_in_64_bits_a_traced_rate_is_the_exact_one() -> None:
    with jax.enable_x64(True):
        for curve in CURVES.values():
            rate = _traced(curve, np.array([1_100_001]))
            assert rate.dtype == np.float64
            assert rate[0] == pytest.approx(curve.at(1_100_001), rel=1e-14)


def test_maxtext_counts_from_0_and_ends_at_0() -> None:
    assert MAXTEXT.at(1) == 0.0
    assert MAXTEXT.at(2001) == pytest.approx(PEAK)
    assert MAXTEXT.at(1_414_078) == pytest.approx(0.1 * PEAK)
    assert MAXTEXT.at(1_414_079) == 0.0


def test_annealing_ends_at_0_in_its_last_step() -> None:
    curve = Linear(2.0712352850360292e-4, 0, 47_684)
    assert curve.at(1) == pytest.approx(2.0712352850360292e-4 * 47_683 / 47_684, rel=1e-15)
    assert curve.at(47_684) == curve.at(50_000) == 0.0
    warm = Linear(1.0, 200, 11_921)
    assert [warm.at(n) for n in (100, 200)] == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize("step", [1, 1000, 2000, 300_000, 597_046, 1_192_093])
def test_the_single_cosine_is_its_formula(step: int) -> None:
    w, T = 2000, 1_192_093
    rate = (
        PEAK * step / w
        if step < w
        else 0.1 * PEAK + 0.9 * PEAK * (1 + math.cos(math.pi * (step - w) / (T - w))) / 2
    )
    assert CURVES["cosine"].at(step) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("build", SCHEDULES.values())
def test_without_warmup_the_first_steps_are_near_the_peak(build: Callable[..., Any]) -> None:
    assert build(1.0, 0, 1000).at(1) == pytest.approx(1.0, abs=2e-3)


def test_an_unknown_schedule_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--schedule 'cosin': .*nearest is 'cosine'"):
        find_schedule("cosin")
