"""A sound curve has no fault; each kind of broken column is told with its place."""

import numpy as np
import pytest

from evalmon.curve_faults import broken, faults, suspicions, unusable
from evalmon.types import Series

C4 = "eval/lm/c4_en-validation/ce_nats"
ARC = "eval/downstream/arc_easy_0shot/acc"


def curve(metric: str, values: "list[float] | np.ndarray", tokens: int = 10**9) -> Series:
    steps = np.arange(1, len(values) + 1, dtype=np.int64)
    return Series(metric, steps, steps * tokens, np.array(values, float))


def falling(last: float = 3.0, points: int = 20) -> np.ndarray:
    return last + 2 / np.arange(1, points + 1)


def test_a_sound_curve_has_none():
    assert faults(curve(C4, falling())) == ()
    assert faults(curve("train/ce_nats", falling())) == ()
    assert faults(curve(ARC, np.linspace(0.25, 0.8, 20))) == ()
    assert faults(curve("optim/lr", [3e-4] * 20)) == ()


def test_a_loss_that_stays_at_guessing_is_told():
    (said,) = faults(curve(C4, np.linspace(10.0, 9.0, 20)))
    assert said.startswith(f"{C4}: the median of its last half is 9.237 nats")
    assert "from step 11" in said


def test_a_high_loss_early_in_a_run_is_none():
    assert faults(curve(C4, np.linspace(10.0, 9.0, 20), tokens=10**6)) == ()


def test_a_lasting_rise_is_told_and_a_spike_is_none():
    values = falling()
    spike = values.copy()
    spike[12] += 5
    assert faults(curve(C4, spike)) == ()
    jump = values.copy()
    jump[12:] += 0.5
    (said,) = faults(curve(C4, jump))
    assert "rises from 3.167 to 3.654 at step 13 and stays up" in said
    assert faults(curve("train/ce_nats", jump)) == ()  # restarts and harder mixes do that
    jump[12:] += 1
    assert len(faults(curve("train/ce_nats", jump))) == 1


@pytest.mark.parametrize("metric", [C4, C4.replace("ce_nats", "bpb")])
def test_a_negative_loss_is_told(metric: str):
    values = falling()
    values[[4, 7]] = -0.5
    assert any("-0.5 at step 5 is below 0" in said and "2 such" in said
               for said in faults(curve(metric, values)))  # fmt: skip


def test_a_share_outside_0_to_1_is_told():
    values = np.linspace(0.25, 0.8, 20)
    values[3] = 55.0
    (said,) = faults(curve(ARC, values))
    assert said.startswith(f"{ARC}: 55 at step 4 is no share")


def test_a_curve_that_never_moves_is_told():
    (said,) = faults(curve(C4, [3.25] * 9))
    assert said == f"{C4}: all 9 points are 3.25, from step 1 to 9."


def test_what_no_trained_model_does_is_broken_and_a_rise_is_not():
    assert "the column is likely broken" in broken(curve(C4, np.linspace(10.0, 9.0, 20)))
    assert "is below 0" in broken(curve(C4, [*falling(), -0.5]))
    assert broken(curve(C4, falling())) == ""
    assert broken(curve(C4, [*falling(), 9.0, 9.0, 9.0, 9.0])) == ""  # training can diverge
    assert broken(curve(C4, np.full(20, 9.0), tokens=10**6)) == ""  # not trained yet


def test_a_counter_of_epochs_may_stand_still():
    assert faults(curve("data/epoch", [1.0] * 9)) == ()


def test_a_holdout_that_is_stuck_is_unusable_and_a_train_loss_that_is_suspected():
    values = [*falling(points=14), *[3.0] * 7]
    said = "the last 7 points are all 3, from step 15 to 21."
    assert unusable(curve(C4, values)) == f"{C4}: {said}"
    assert suspicions(curve(C4, values)) == ()
    assert unusable(curve("train/ce_nats", values)) == ""
    assert suspicions(curve("train/ce_nats", values)) == (f"train/ce_nats: {said}",)
    assert unusable(curve(C4, [*falling(points=15), *[3.0] * 6])) == ""  # not a third
    assert unusable(curve(C4, [*falling(points=12), *[3.0] * 7])) == ""  # 19 points: rounding


def test_a_perplexity_below_that_of_guessing_is_unusable_and_a_run_that_diverged_is_not():
    said = unusable(curve(C4, np.exp(falling() - 0.7)))
    assert "close to guessing" in said
    assert unusable(curve(C4, [*falling(), *np.linspace(9.0, 9.5, 40)])) == ""
    assert unusable(curve(C4, np.exp(falling() - 0.7), tokens=10**6)) == ""  # not trained yet


def test_losses_above_guessing_are_another_unit_whatever_the_tokens():
    assert "the median of its last third is 12.6" in unusable(curve(C4, [12.6] * 5 + [12.7], 10))
    assert unusable(curve(C4, [12.4] * 5 + [12.3], 10)) == ""
    assert unusable(curve(C4, [50.0, 40.0, 4.0, 3.9, 3.8, 3.7])) == ""  # of an early spike
