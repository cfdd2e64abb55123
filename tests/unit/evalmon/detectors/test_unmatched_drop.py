"""The curve rule on synthetic runs, and on published ones where they are at hand."""

import csv
import gzip
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evalmon.detectors.curve import CurveInputs, CurveResult
from evalmon.detectors.profiles import PROFILES
from evalmon.detectors.unmatched_drop import detect, finding
from evalmon.types import Series

from .curves import BATCH_TOKENS, EVERY, PLAN, against, alone, repeats_from, tiny

SHORT, FULL = PROFILES["short"], PROFILES["full"]
PUBLISHED = Path(__file__).parents[5] / "shared" / "curves"
published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published curves are not beside this checkout"
)


def test_a_sound_run_against_a_sound_run_is_silent():
    result = detect(against(tiny(1), tiny(2), same=True), SHORT)
    assert (result.mode, result.alarm, result.mirrored) == ("level", None, None)
    assert result.enough_data


def test_a_sound_run_alone_is_silent_although_its_loss_falls_steeply():
    result = detect(alone(tiny(3)), SHORT)
    assert (result.mode, result.alarm, result.mirrored) == ("free", None, None)
    assert result.tolerance[-1] >= 0.05


def test_repeats_are_found_against_a_reference_within_half_of_the_run():
    result = detect(against(tiny(1, lower=repeats_from(26)), tiny(2), same=True), SHORT)
    assert result.alarm is not None
    assert result.channel == result.alarm.channel == "level"
    assert result.alarm.tokens <= PLAN / 2
    assert result.onset_tokens is not None
    assert (26 - EVERY) * BATCH_TOKENS <= result.onset_tokens <= (26 + 5 * EVERY) * BATCH_TOKENS
    assert result.alarm.train_share > 0.5
    assert result.alarm.active
    assert result.mirrored is None


def test_repeats_are_found_without_a_reference():
    result = detect(alone(tiny(1, lower=repeats_from(26))), SHORT)
    assert result.alarm is not None
    assert result.channel == "shift"


def test_a_drop_that_stays_stays_an_alarm():
    lower = 0.5 * (np.arange(201) > 60)
    result = detect(alone(tiny(1, lower=lower)), SHORT)
    assert result.alarm is not None
    assert result.alarm.active
    assert result.unmatched[-1] == pytest.approx(0.5, abs=0.15)
    assert result.onset_tokens == 60 * BATCH_TOKENS


def test_at_equal_recipes_the_unmatched_drop_is_the_difference_of_the_gaps():
    result = detect(against(tiny(1, lower=repeats_from(26)), tiny(2), same=True), SHORT)
    points = result.points
    assert result.unmatched == pytest.approx(points.holdout_gap - points.train_gap)
    assert result.baseline == 0.0


def test_the_sign_changed_the_mirrored_rule_fires_at_the_same_evaluation():
    run, reference = tiny(1, lower=repeats_from(26)), tiny(2)
    rise = detect(against(run, reference, same=True), SHORT).alarm
    fall = detect(against(reference, run, same=True), replace(SHORT, shift=None)).mirrored
    assert rise is not None
    assert fall is not None
    assert (fall.index, fall.onset_tokens) == (rise.index, rise.onset_tokens)
    assert fall.magnitude_nats == pytest.approx(-rise.magnitude_nats)


def test_a_matched_drop_is_never_flagged():
    lower = 0.3 * (np.arange(201) > 80)
    train, holdout = tiny(1, lower=lower)
    at = holdout.steps
    matched = Series(holdout.metric, at, holdout.tokens, holdout.values - lower[at])
    result = detect(against((train, matched), tiny(2), same=True), SHORT)
    assert (result.alarm, result.mirrored) == (None, None)


def test_a_holdout_that_rises_is_not_called_train_loss():
    train, holdout = tiny(1)
    jump = Series(
        holdout.metric, holdout.steps, holdout.tokens,
        holdout.values + 0.6 * (holdout.steps > 100),
    )  # fmt: skip
    result = detect(against((train, jump), tiny(2), same=True), SHORT)
    assert result.alarm is not None
    assert result.alarm.train_share < 0.5
    assert result.alarm.one_evaluation
    found = finding("a", result)
    assert found is not None
    assert found.kind == "evaluator"


def test_one_bad_evaluation_is_no_finding():
    train, holdout = tiny(1)
    values = holdout.values.copy()
    values[10] += 1.0
    bad = Series(holdout.metric, holdout.steps, holdout.tokens, values)
    result = detect(against((train, bad), tiny(2), same=True), SHORT)
    assert (result.alarm, result.mirrored) == (None, None)


def test_five_evaluations_are_not_enough():
    train, holdout = tiny(1)
    step = int(holdout.steps[4])
    result = detect(alone((train.until(step), holdout.until(step))), SHORT)
    assert not result.enough_data
    assert "5 evaluations so far" in result.reason
    assert result.alarm is None
    assert np.isinf(result.tolerance).all()


def test_a_reference_that_ends_early_gives_no_verdict_beyond_it():
    reference_train, reference_holdout = tiny(2)
    result = detect(
        against(tiny(1), (reference_train.until(120), reference_holdout.until(120)), same=True),
        SHORT,
    )
    assert not result.enough_data
    assert result.points.steps[-1] == 120
    assert "the reference (up to 245,760 tokens) has no point here" in result.reason


def test_a_reference_that_repeats_itself_is_no_standard():
    broken = tiny(2, lower=repeats_from(26))
    result = detect(against(tiny(1), broken, same=True), SHORT)
    assert not result.enough_data
    assert result.mirrored is None
    assert "choose another reference" in result.reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("every", [20, 100])
def test_a_run_denser_than_a_thinned_reference_has_no_more_windows_than_that_has_points(
    seed: int, every: int
):
    """Between two points of the reference every window would share their noise."""
    rng = np.random.default_rng(seed)

    def loss(steps: np.ndarray, noise: float) -> np.ndarray:
        return 2.2 + 9 * (steps + 150.0) ** -0.33 + noise * rng.standard_normal(len(steps))

    def series(metric: str, steps: np.ndarray, noise: float) -> Series:
        return Series(metric, steps, steps * 4_194_304, loss(steps, noise))

    points = np.sort(rng.choice(np.arange(490_000, 515_000), 15, replace=False))
    at = np.arange(500_000, 502_001)
    inputs = CurveInputs(
        series("train/ce_nats", at, 0.01), series("h", at[every::every], 0.001),
        502_000 * 4_194_304,
        0, series("train/ce_nats", points, 0.023), series("h", np.array([490_000, 515_000]), 0.0),
        reference_thinned=True,
    )  # fmt: skip
    held = int(((points >= 500_000) & (points <= 502_000)).sum())
    result = detect(inputs, FULL)
    assert len(result.points) <= held
    assert (result.alarm, result.mirrored, result.enough_data) == (None, None, False)


def test_a_run_without_evaluations_is_not_enough():
    train, holdout = tiny(1)
    result = detect(alone((train, holdout.until(0))), SHORT)
    assert (len(result.points), result.enough_data, result.alarm) == (0, False, None)


def full_run(seed: int, lower: "np.ndarray", n: int = 141) -> CurveInputs:
    """One train point an evaluation, noise of a 7B run at 10,000 steps."""
    rng = np.random.default_rng(seed)
    steps = np.arange(1, n + 1) * 10_000
    curve = 1.4 + 0.75 * (np.arange(1, n + 1) / n) ** -0.12
    train = curve - lower + 0.0015 * rng.standard_normal(n)
    holdout = 0.6 + curve + 0.002 * rng.standard_normal(n)
    return CurveInputs(
        Series("train/ce_nats", steps, steps * 4_194_304, train),
        Series("eval/lm/c4_en-validation/ce_nats", steps, steps * 4_194_304, holdout),
        planned_tokens=int(steps[-1]) * 4_194_304,
        warmup_tokens=2_000 * 4_194_304,
    )


def test_a_full_run_has_no_verdict_before_its_baseline():
    inputs = full_run(0, np.zeros(141))
    early = replace(inputs, holdout=inputs.holdout.until(130_000))
    assert not detect(early, FULL).enough_data
    assert detect(inputs, FULL).enough_data


def test_a_sudden_drop_in_a_full_run_is_found_within_ten_evaluations():
    lower = np.where(np.arange(141) >= 70, 0.1, 0.0)
    result = detect(full_run(0, lower), FULL)
    assert result.alarm is not None
    assert 70 <= result.alarm.index <= 80
    assert result.onset_tokens == 70 * 10_000 * 4_194_304  # the last evaluation before it
    assert result.alarm.train_share > 0.5


def test_a_healthy_full_run_is_silent_both_ways():
    result = detect(full_run(0, np.zeros(141)), FULL)
    assert (result.alarm, result.mirrored) == (None, None)


def test_recipes_that_differ_by_a_constant_are_no_finding():
    run, reference = full_run(0, np.zeros(141)), full_run(1, np.full(141, -0.33))
    result = detect(
        replace(run, reference_train=reference.train, reference_holdout=reference.holdout), FULL
    )
    assert (result.mode, result.alarm, result.mirrored) == ("reference", None, None)
    assert result.baseline == pytest.approx(0.33, abs=0.01)


@cache
def load(name: str) -> dict[tuple[str, str], Series]:
    """Read the losses of a file of published curves."""
    path = PUBLISHED / name
    rows: dict[tuple[str, str], list[tuple[int, int, float]]] = defaultdict(list)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for row in csv.DictReader(file):
            key = (row["run"], row["metric"])
            if not key[1].endswith("/ce_nats"):
                continue
            rows[key].append((int(row["step"]), int(row["tokens"]), float(row["value"])))
    return {
        key: Series(key[1], *(np.array(column) for column in zip(*sorted(found), strict=True)))
        for key, found in rows.items()
    }


@published
def test_repeated_epochs_are_found_in_all_published_runs():
    curves = load("repeated_epochs_train_vs_holdout.csv")
    runs = sorted({run for run, _ in curves})
    results: list[CurveResult] = []
    for run in runs:
        holdout = curves[run, "eval/lm/fineweb-validation/ce_nats"]
        inputs = CurveInputs(curves[run, "train/ce_nats"], holdout, int(holdout.tokens[-1]))
        results.append(detect(inputs, SHORT))
    assert len(runs) == 27
    assert sum(result.alarm is not None for result in results) >= 26


GPT2, OLMO3 = "gpt2_124m_one_pass_pair.csv.gz", "olmo3_7b_stage1_train_and_evals.csv"
OLMO2_TRAIN, OLMO2_HOLDOUT = "olmo2_7b_stage1_train.csv", "olmo2_7b_stage1_evals.csv.gz"
SINGLE_PASS = {  # run -> train file, holdout file, holdout, planned tokens
    "gpt2-124M-one-pass-a": (GPT2, GPT2, "fineweb", 10_251_000_000),
    "gpt2-124M-one-pass-b": (GPT2, GPT2, "fineweb", 10_251_000_000),
    "OLMo-2-1124-7B-stage1": (OLMO2_TRAIN, OLMO2_HOLDOUT, "c4_en", 3_896_000_000_000),
    "Olmo-3-1025-7B-stage1": (OLMO3, OLMO3, "c4_en", 5_930_000_000_000),
}


@published
@pytest.mark.parametrize("count", [16, 20, 24, None])
@pytest.mark.parametrize("profile", ["short", "full"])
@pytest.mark.parametrize("run", SINGLE_PASS)
def test_published_single_pass_runs_are_silent(run: str, profile: str, count: int | None):
    train, holdouts, name, planned = SINGLE_PASS[run]
    holdout = load(holdouts)[run, f"eval/lm/{name}-validation/ce_nats"]
    if count:
        at = np.linspace(0, len(holdout) - 1, count + 1).astype(int)[1:]
        holdout = Series(holdout.metric, holdout.steps[at], holdout.tokens[at], holdout.values[at])
    result = detect(
        CurveInputs(load(train)[run, "train/ce_nats"], holdout, planned), PROFILES[profile]
    )
    assert (result.alarm, result.mirrored) == (None, None)


@published
def test_published_runs_against_each_other_are_silent():
    olmo3 = load(OLMO3)
    metric = "eval/lm/c4_en-validation/ce_nats"
    name = "OLMo-2-1124-7B-stage1"
    result = detect(
        CurveInputs(
            olmo3["Olmo-3-1025-7B-stage1", "train/ce_nats"],
            olmo3["Olmo-3-1025-7B-stage1", metric],
            5_930_000_000_000,
            reference_train=load(OLMO2_TRAIN)[name, "train/ce_nats"],
            reference_holdout=load(OLMO2_HOLDOUT)[name, metric],
        ),
        FULL,
    )
    assert (result.alarm, result.mirrored) == (None, None)
    assert 88 <= len(result.points) <= 92
