"""Faults of schedules and of data that comes again, each from a table to a verdict."""

from pathlib import Path

import numpy as np
import pytest

from evalmon import bands, reference
from evalmon.types import Series
from tests.unit.evalmon.drawn_runs import C4, STEP_TOKENS, TRAIN, judged, rows, series, write

RATE = "optim/lr"


@pytest.fixture(autouse=True)
def ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what this machine's user has added."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "added"))


# F32: schedule length and run length differ.

LENGTH, EVERY = 1_000, 10


def scheduled(*, annealed: bool, rated: bool = True) -> tuple[Series, ...]:
    """Return a run whose rate ends at 6.15e-5 of 3e-4, or at 0 with what annealing gains."""
    step = np.arange(1, LENGTH + 1)
    loss = 2.2 + 3 / (1 + (step / 20) ** 0.6)
    rate = np.interp(step, [0, 20, LENGTH], [0, 3e-4, 6.15e-5])
    last = step > 0.9 * LENGTH
    held = loss + 0.25
    if annealed:
        rate = np.where(last, np.interp(step, [0.9 * LENGTH, LENGTH], [8.7e-5, 0.0]), rate)
        loss, held = loss - 0.05 * last, held - 0.048 * last
    at = step % EVERY == 0
    parts = [series(TRAIN, step, loss), series(C4, step[at], held[at])]
    return (*parts, series(RATE, step, rate)) if rated else tuple(parts)


@pytest.mark.parametrize("profile", ["", "full", "sparse", "short"])
@pytest.mark.parametrize("same_recipe", [False, True])
def test_f32_what_annealing_gains_is_neither_gain_nor_memorization(
    tmp_path: Path, profile: str, same_recipe: bool
) -> None:
    path = write(
        tmp_path / "t.csv",
        rows({"ours": scheduled(annealed=True), "reference": scheduled(annealed=False)}),
    )
    found = judged(
        path, run_name="ours", reference="reference", profile=profile, same_recipe=same_recipe
    )
    verdict = found.verdict
    assert (verdict.verdict, verdict.alarm_tokens) == ("healthy", None)
    assert verdict.unmatched_nats == pytest.approx(0.002, abs=1e-6)
    assert verdict.train_gap_nats == pytest.approx(-0.05)
    assert verdict.holdout_gap_nats == pytest.approx(-0.048)
    (said,) = [reason for reason in verdict.reasons if "LR differs from" in reason]
    assert said.startswith("LR differs from 9")  # within the last tenth of a million
    assert said.endswith("the gap is not counted as a gain")
    assert found.record["evidence"]["learning_rates_differ_from_tokens"] > 900_000
    turned = judged(
        path, run_name="reference", reference="ours", profile=profile, same_recipe=same_recipe
    )
    assert not turned.verdict.verdict.startswith("memorization")


@pytest.mark.parametrize("profile", ["full", "sparse", "short"])
def test_f32_a_reference_of_two_points_is_no_reference_between_them(
    tmp_path: Path, profile: str
) -> None:
    run = scheduled(annealed=False, rated=False)
    ends = [117, 330]
    held = np.interp(ends, run[1].steps, run[1].values)
    thin = (run[0], series(C4, ends, held))
    path = write(tmp_path / "t.csv", rows({"ours": [part.until(320) for part in run], "two": thin}))
    found = judged(path, run_name="ours", reference="two", profile=profile,
                   planned_tokens=LENGTH * STEP_TOKENS)  # fmt: skip
    assert (found.verdict.verdict, found.verdict.tokens) == ("not_enough_data", 320_000)
    assert (found.record["evidence"]["evaluations"], found.verdict.alarm_tokens) == (0, None)
    assert f"no reference here: its {C4} has no point between 117,000 and 330,000 tokens" in (
        found.verdict.reasons
    )


def test_f32_a_hole_in_a_reference_is_not_bridged_and_the_message_says_where(
    tmp_path: Path,
) -> None:
    run = scheduled(annealed=False, rated=False)
    holed = tuple(
        series(part.metric, part.steps[kept], part.values[kept])
        for part in run
        for kept in [(part.steps <= 400) | (part.steps > 700)]
    )
    whole = dict(zip(run[0].steps.tolist(), run[0].values.tolist(), strict=True))
    lower = series(TRAIN, run[0].steps, np.array([
        whole[step] - (0.2 if 420 < step <= 690 else 0.0) for step in run[0].steps.tolist()
    ]))  # fmt: skip
    table = {"within": [lower.until(600), run[1].until(600)], "beyond": [lower, run[1]]}
    path = write(tmp_path / "t.csv", rows({**table, "holed": holed}))
    plan = LENGTH * STEP_TOKENS
    within = judged(path, run_name="within", reference="holed", planned_tokens=plan)
    assert within.verdict.verdict == "not_enough_data"
    assert within.verdict.reasons[0] == (
        f"no reference here: its {C4} has no point between 400,000 and 710,000 tokens"
    )
    beyond = judged(path, run_name="beyond", reference="holed", planned_tokens=plan)
    assert (beyond.verdict.verdict, beyond.verdict.alarm_tokens) == ("healthy", None)
    assert beyond.record["evidence"]["evaluations"] < 75  # none of the 30 within the hole


@pytest.mark.parametrize(("lacking", "until"), [(TRAIN, "701,000"), (C4, "710,000")])
def test_f32_each_loss_of_a_reference_may_have_the_hole(
    tmp_path: Path, lacking: str, until: str
) -> None:
    """Of train loss alone, and of the holdout where it is all there is."""
    run = scheduled(annealed=False, rated=False)
    held = {part.metric: part for part in run}
    part = held[lacking]
    kept = (part.steps <= 400) | (part.steps > 700)
    holed = series(lacking, part.steps[kept], part.values[kept])
    theirs = [holed, held[C4]] if lacking == TRAIN else [holed]
    ours = [part.until(600) for part in run]
    path = write(tmp_path / "t.csv", rows({"ours": ours, "holed": theirs}))
    found = judged(path, run_name="ours", reference="holed", planned_tokens=LENGTH * STEP_TOKENS)
    assert found.verdict.verdict == "not_enough_data"
    assert (
        f"no reference here: its {lacking} has no point between 400,000 and {until} tokens"
        in found.verdict.reasons
    )


# F33: train loss falls because data comes again.


def again(length: int, seed: int = 0) -> tuple[Series, Series]:
    """Return F33's curves: train loss lower from step 100 on, an evaluation at every step."""
    step = np.arange(1, length + 1)
    held = 2.7 + np.random.default_rng(seed).uniform(-0.001, 0.001, length)
    return series(TRAIN, step, np.where(step < 100, 2.5, 2.42)), series(C4, step, held)


def test_f33_the_literal_comparison_flags_the_first_full_window_after_it() -> None:
    step = np.array([50, 99, 149])
    train, holdout = (
        series(TRAIN, step, np.array([2.5, 2.5, 2.42])),
        series(C4, step, np.array([2.7, 2.7, 2.7])),
    )
    assert not bands.unmatched(bands.compare_window(train, holdout, 0, 1))
    window = bands.compare_window(train, holdout, 1, 2)
    assert window.train_drop_nats == pytest.approx(0.08)
    assert window.shortfall_nats == pytest.approx(0.08)
    assert bands.unmatched(window)
    for drop, flagged in ((0.005, False), (0.0051, True)):
        assert bands.unmatched(bands.WindowComparison(2.5 - (2.5 - drop), 0.0)) is flagged


@pytest.mark.parametrize("length", [120, 150, 200])
@pytest.mark.parametrize(
    ("profile", "planned"),
    [
        *((name, planned) for name in ("", "full", "sparse", "loose") for planned in (0, 1_000)),
        ("short", 0),  # which takes as its standard what comes after the first tenth of the plan
        ("short", 200),
    ],
)
def test_f33_rows_of_one_window_end_suspected_within_8_evaluations(
    tmp_path: Path, length: int, profile: str, planned: int
) -> None:
    step = np.arange(1, length + 1)
    counter = series("data/epoch", step, np.where(step < 100, 1.0, 2.0))
    path = write(tmp_path / "t.csv", rows({"r": (*again(length), counter)}))
    found = judged(path, profile=profile, planned_tokens=planned * STEP_TOKENS).verdict
    assert found.verdict == "memorization_suspected"
    assert found.alarm_tokens is not None
    assert 100_000 <= found.alarm_tokens <= 108_000
    assert "second epoch begins at step 100" in found.reasons


def test_f33_a_resume_that_goes_back_to_the_first_instance_is_the_cause(tmp_path: Path) -> None:
    step = np.arange(1, 121)
    position = series("data/position", step, np.where(step < 100, 8.0 * step, 8.0 * (step - 100)))
    path = write(tmp_path / "t.csv", rows({"r": (*again(120), position)}))
    found = judged(path).verdict
    assert found.verdict == "memorization_suspected"
    assert found.reasons[1] == "data position went back to 0 at step 100"


def test_f33_a_new_epoch_without_an_alarm_is_no_reason(tmp_path: Path) -> None:
    step = np.arange(1, 151)
    flat = series(TRAIN, step, again(150, seed=1)[1].values - 0.2)
    counter = series("data/epoch", step, np.where(step < 100, 1.0, 2.0))
    path = write(tmp_path / "t.csv", rows({"r": (flat, again(150)[1], counter)}))
    found = judged(path).verdict
    assert found.verdict == "healthy"
    assert not any("epoch" in reason for reason in found.reasons)
