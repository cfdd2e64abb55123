import math

import pytest

from trainer.schedule import CosineWithWarmup


@pytest.mark.parametrize("step", [1, 1000, 2000, 300_000, 597_046, 1_192_093])
def test_the_rate_is_the_published_curve(step: int) -> None:
    # OLMo 3 7B, first schedule: peak 3e-4, 2,000 warm-up steps, 1,192,093 steps.
    peak, w, T = 3e-4, 2000, 1_192_093
    rate = (
        peak * step / w
        if step < w
        else 0.1 * peak + 0.9 * peak * (1 + math.cos(math.pi * (step - w) / (T - w))) / 2
    )
    assert float(CosineWithWarmup(peak, w, T)(step)) == pytest.approx(rate, rel=1e-4)


def test_the_published_points_are_met() -> None:
    schedule = CosineWithWarmup(3e-4, 2000, 1_192_093)
    points = [float(schedule(n)) for n in (100_000, 300_000, 597_046)]
    assert points == pytest.approx([2.955e-4, 2.603e-4, 1.650e-4], abs=5e-8)


def test_without_warmup_the_first_step_is_near_the_peak() -> None:
    assert float(CosineWithWarmup(1.0, 0, 1000)(1)) == pytest.approx(1.0, abs=1e-5)
