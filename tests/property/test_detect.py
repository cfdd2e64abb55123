"""Laws of the curve rule and of counting repeats, on arbitrary runs."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalmon.detectors.curve import Alarm, CurveInputs
from evalmon.detectors.profiles import PROFILES
from evalmon.detectors.unmatched_drop import detect
from evalmon.logs import jsonl
from evalmon.types import RunDescription, Series


@st.composite
def runs(draw: st.DrawFn) -> CurveInputs:
    """A run of 6 to 150 evaluations with noise, drops, spikes and holes, maybe a reference."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(6, 150))
    every = draw(st.sampled_from([1, 3, 10]))
    steps = np.arange(1, n * every + 1)
    at = steps[every - 1 :: every]
    at = at[rng.random(n) > 0.1]

    def losses() -> tuple[Series, Series]:
        curve = 2 + rng.uniform(0, 5) / (1 + steps / rng.uniform(5, 100))
        lower = np.zeros(len(steps))
        for _ in range(rng.integers(0, 3)):
            lower += rng.uniform(-0.5, 1.0) * (steps > rng.integers(len(steps)))
        noise = 10 ** rng.uniform(-4, -0.5)
        train = curve - lower + noise * rng.standard_t(3, len(steps))
        holdout = curve[at - 1] + 0.3 * noise * rng.standard_normal(len(at))
        return (
            Series("train/ce_nats", steps, steps * 100, train),
            Series("eval/lm/x-validation/ce_nats", at, at * 100, holdout),
        )

    reference = losses() if draw(st.booleans()) else (None, None)
    return CurveInputs(*losses(), len(steps) * 100, 0, *reference, draw(st.booleans()))


def spoken(alarm: Alarm | None) -> tuple[int, int, str] | None:
    return None if alarm is None else (alarm.step, alarm.tokens, alarm.channel)


@pytest.mark.parametrize("profile", ["short", "full"])
@settings(max_examples=60, deadline=None)
@given(runs(), st.floats(0, 1))
def test_later_evaluations_never_move_an_alarm(profile: str, inputs: CurveInputs, cut: float):
    step = int(inputs.train.steps[int(cut * (len(inputs.train) - 1))])
    early = CurveInputs(
        inputs.train.until(step), inputs.holdout.until(step), inputs.planned_tokens,
        inputs.warmup_tokens, inputs.reference_train, inputs.reference_holdout, inputs.same_recipe,
    )  # fmt: skip
    whole, part = detect(inputs, PROFILES[profile]), detect(early, PROFILES[profile])
    if whole.reason.endswith("another reference") or part.reason.endswith("another reference"):
        return  # a disturbed reference is no standard, whatever the run does
    for now, then in ((whole.alarm, part.alarm), (whole.mirrored, part.mirrored)):
        expected = spoken(now) if now is not None and now.step <= step else None
        assert spoken(then) == expected


@pytest.mark.parametrize("profile", ["short", "full"])
@settings(max_examples=60, deadline=None)
@given(runs())
def test_every_number_of_a_result_is_finite_or_a_tolerance_not_yet_known(
    profile: str, inputs: CurveInputs
):
    result = detect(inputs, PROFILES[profile])
    for values in (result.unmatched, result.low, result.high, result.points.noise):
        assert np.isfinite(values).all()
    assert not np.isnan(result.tolerance).any()
    assert (result.low <= result.unmatched).all()
    for alarm in (result.alarm, result.mirrored):
        if alarm is not None:
            assert alarm.onset_tokens <= alarm.tokens
            assert np.isfinite(alarm.train_share)


@settings(max_examples=60, deadline=None)
@given(runs(), st.floats(-2, 2, allow_nan=False))
def test_at_equal_recipes_a_matched_move_changes_nothing(inputs: CurveInputs, by: float):
    """Train and holdout lower by one amount leave the unmatched drop as it was."""
    moved = CurveInputs(
        Series("t", inputs.train.steps, inputs.train.tokens, inputs.train.values + by),
        Series("h", inputs.holdout.steps, inputs.holdout.tokens, inputs.holdout.values + by),
        inputs.planned_tokens, 0, inputs.reference_train, inputs.reference_holdout,
        inputs.same_recipe,
    )  # fmt: skip
    before, after = detect(inputs, PROFILES["short"]), detect(moved, PROFILES["short"])
    np.testing.assert_allclose(before.unmatched, after.unmatched, atol=1e-9)
    np.testing.assert_allclose(before.tolerance, after.tolerance, atol=1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 200))
def test_a_log_cut_anywhere_reads_as_what_was_whole(
    tmp_path_factory: pytest.TempPathFactory, restarts: list[int], cut: int
):
    """A last line without its end is left out; every step keeps its last copy."""
    lines: list[str] = []
    expected: dict[int, float] = {}
    reached = 0
    for number, target in enumerate(restarts):
        begin = min(reached, target)
        lines.append(json.dumps({"event": "start", "resumed_from_step": begin, "segment": number}))
        expected = {step: value for step, value in expected.items() if step <= begin}
        for step in range(begin + 1, begin + 4):
            loss = float(number)
            lines.append(
                json.dumps({"event": "step", "step": step, "tokens": step, "train/ce_nats": loss})
            )
            expected[step] = loss
        reached = begin + 3
    folder = tmp_path_factory.mktemp("run")
    torn = json.dumps({"event": "step", "step": reached + 1, "tokens": 1, "train/ce_nats": 9.0})
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n" + torn[: cut % len(torn)])
    run = RunDescription("a", folder, "", {}, "", 1, 0, 1, 1, 1, 1, 1, 1, "", 0, 0, "", {}, "")
    loss = jsonl.read(run).series["train/ce_nats"]
    assert dict(zip(loss.steps.tolist(), loss.values.tolist(), strict=True)) == expected
