"""What a comparison leaves out is said, and what is no loss carries no verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon import comparable, comparison_notes, reference
from evalmon.comparing import CompareOptions, Comparison, compare
from evalmon.errors import ConfigError, DataError
from evalmon.sources import Kind, Source
from evalmon.types import Curve, RunCurves, Series

from .drawn_runs import BATCH_TOKENS, C4, PLAN, TRAIN, drawn, rows, write


def judged(path: Path, **options: Any) -> Comparison:
    return compare(CompareOptions(str(path), **options))


def changed(part: Series, at: "np.ndarray | slice", to: float) -> Series:
    """Return a curve with other values at some of its points."""
    values = part.values.copy()
    values[at] = to
    return replace(part, values=values)


def without(part: Series, first: int, last: int) -> Series:
    """Return a curve without the steps from first to last."""
    kept = (part.steps < first) | (part.steps > last)
    return Series(part.metric, part.steps[kept], part.tokens[kept], part.values[kept])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_run_whose_last_evaluations_are_no_numbers_has_no_verdict(
    tmp_path: Path, value: float
) -> None:
    train, held = drawn(1)
    path = write(tmp_path / "t.csv", rows({"r": (train, changed(held, slice(12, None), value))}))
    found = judged(path)
    assert found.verdict.verdict == "not_enough_data"
    assert "no evaluation after step 120 is a number: 8 are NaN" in found.verdict.reasons[0]
    assert "the first at step 130" in found.verdict.reasons[0]
    assert any(C4 in note and "8 values are NaN" in note for note in found.record["notes"])


def test_one_value_that_is_no_number_is_noted_and_the_rest_is_judged(tmp_path: Path) -> None:
    train, held = drawn(1)
    bad = changed(held, slice(5, 6), np.nan), changed(train, slice(30, 32), np.inf)
    found = judged(write(tmp_path / "t.csv", rows({"r": bad})))
    assert found.verdict.verdict == "healthy"
    notes = " | ".join(found.record["notes"])
    assert f"{C4}: 1 value is NaN or infinite, at step 60" in notes
    assert f"{TRAIN}: 2 values are NaN or infinite, from step 31 to 32" in notes


def test_a_plan_taken_from_the_table_counts_rows_without_a_number(tmp_path: Path) -> None:
    train, held = drawn(1)
    bad = changed(train, slice(100, None), np.nan), changed(held, slice(10, None), np.nan)
    found = judged(write(tmp_path / "t.csv", rows({"r": bad})))
    assert found.record["planned_tokens"] == PLAN
    whole = RunCurves("r", "", {C4: Curve(held.until(100))}, nonfinite=((200, C4),))
    assert comparison_notes.last_tokens(whole) == PLAN
    stepped = replace(whole, tokens_per_step=7_000)
    assert comparison_notes.last_tokens(stepped) == 200 * 7_000
    assert comparison_notes.last_tokens(replace(whole, nonfinite=())) == 100 * BATCH_TOKENS


@pytest.mark.parametrize(
    ("metric", "change", "said"),
    [
        (TRAIN, lambda values: np.full_like(values, 2.5), "all 200 points are 2.5"),
        (C4, lambda values: np.full_like(values, 2.5), "all 20 points are 2.5"),
        (C4, lambda values: np.where(np.arange(20) < 10, values, 6.0), "last 10 points are all 6"),
        (TRAIN, lambda values: -values, "is below 0, which no loss is"),
        (C4, lambda values: 100 * values, "it is a percentage, a perplexity or another unit"),
        (TRAIN, np.exp, "it is a percentage, a perplexity or another unit"),
    ],
)
def test_a_column_that_is_no_loss_carries_no_verdict_of_run_or_reference(
    tmp_path: Path, metric: str, change: Any, said: str
) -> None:
    broken = tuple(
        replace(part, values=change(part.values)) if part.metric == metric else part
        for part in drawn(1)
    )
    path = write(tmp_path / "t.csv", rows({"broken": broken, "sound": drawn(2)}))
    for run, against, whose in (("broken", None, "run"), ("sound", "broken", "reference")):
        found = judged(path, run_name=run, reference=against)
        assert found.verdict.verdict == "not_enough_data"
        assert found.verdict.reasons[0].startswith(f"the {whose}'s {metric}: ")
        assert said in found.verdict.reasons[0]
        assert "export the column again" in found.verdict.reasons[0]


def test_one_absurd_train_loss_is_a_note_alone(tmp_path: Path) -> None:
    train, held = drawn(1)
    path = write(tmp_path / "t.csv", rows({"r": (changed(train, slice(50, 51), 1e9), held)}))
    found = judged(path)
    assert found.verdict.verdict == "healthy"
    (note,) = found.record["notes"]
    assert note.startswith(f"the run's {TRAIN}: 1e+09 at step 51 is no loss a model can have")


def test_known_faults_of_the_curves_compared_are_said_three_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = reference.find("olmo2-7b-stage1")
    faults = (f"{C4}: a.", "eval/downstream/x_0shot/acc: b.", f"{TRAIN}: c.", "d.", f"{C4}: e.")
    monkeypatch.setattr(
        reference, "find", lambda name: replace(entry, name=name, known_faults=faults)
    )
    train, held = drawn(1)
    curves = RunCurves("r", "", {TRAIN: Curve(train), C4: Curve(held)})
    other = Source(Kind.REFERENCE, "known", replace(curves, name="known"))
    assert comparison_notes.notes(Source(Kind.TABLE, "", curves), other, held) == [
        f"the reference's known fault: {C4}: a.",
        f"the reference's known fault: {TRAIN}: c.",
        "the reference's known fault: d.",
        "and 1 more: evalmon reference show known",
    ]


def test_evaluations_that_the_reference_lacks_are_counted_and_the_range_is_what_was_compared(
    tmp_path: Path,
) -> None:
    late = tuple(without(part, 1, 40) for part in drawn(2))
    holed = tuple(without(part, 101, 150) for part in drawn(2))
    path = write(tmp_path / "t.csv", rows({"r": drawn(1), "late": late, "holed": holed}))
    found = judged(path, run_name="r", reference="late")
    assert any(
        note.startswith("4 evaluations from 20,480 to 81,920 tokens have no reference")
        for note in found.record["notes"]
    )
    assert (found.first_tokens, found.last_tokens) == (50 * BATCH_TOKENS, PLAN)
    assert found.record["evidence"]["first_tokens"] == 50 * BATCH_TOKENS
    found = judged(path, run_name="r", reference="holed")
    notes = [note for note in found.record["notes"] if note.endswith("have no reference")]
    assert notes == ["5 evaluations from 225,280 to 307,200 tokens have no reference"]


def test_train_loss_after_the_last_evaluation_and_windows_without_it_are_said(
    tmp_path: Path,
) -> None:
    train, held = drawn(1)
    runs = {"early": (train, held.until(90)), "holed": (without(train, 81, 120), held)}
    path = write(tmp_path / "t.csv", rows(runs))
    (note,) = judged(path, run_name="early").record["notes"]
    assert note == (
        "train loss is logged up to 409,600 tokens, 225,280 beyond the last evaluation: not judged"
    )
    (note,) = judged(path, run_name="holed").record["notes"]
    assert note == (
        "4 evaluations from 184,320 to 245,760 tokens have no train loss before them: not judged"
    )


def test_the_same_recipe_is_not_claimed_of_two_that_are_known_to_differ() -> None:
    train, held = drawn(1)
    run = RunCurves("a", "", {TRAIN: Curve(train, {"divisor": "tokens"}), C4: Curve(held)}, 10, 100)

    def tried(**change: Any) -> None:
        other = Source(Kind.TABLE, "", replace(run, name="b", **change))
        comparable.refuse_other_recipe(Source(Kind.TABLE, "", run), other)

    tried(planned_tokens=105, tokens_per_step=20)
    tried(curves={TRAIN: Curve(train, {"z_loss": "included"})})
    with pytest.raises(ConfigError, match=r"a and b are of.*planned tokens \(100 against 106\)"):
        tried(planned_tokens=106)
    with pytest.raises(ConfigError, match="divisor of train loss"):
        tried(curves={TRAIN: Curve(train, {"divisor": "instances"})})
    with pytest.raises(ConfigError, match=r"--same-recipe: .*planned tokens"):
        compare(CompareOptions("olmo3-7b-stage1", reference="olmo2-7b-stage1", same_recipe=True))


def test_a_table_whose_evaluations_are_all_no_numbers_says_so(tmp_path: Path) -> None:
    train, held = drawn(1)
    path = write(tmp_path / "t.csv", rows({"r": (train, changed(held, slice(None), np.inf))}))
    with pytest.raises(DataError, match=r"every value of eval/lm/c4_en.* is NaN or infinite"):
        judged(path)


@pytest.mark.parametrize("against", [None, "other"])
def test_an_alarm_stands_where_all_later_evaluations_are_no_numbers(
    tmp_path: Path, against: str | None
) -> None:
    train, held = drawn(1, memorized=0.006)
    bad = changed(train, slice(161, None), np.nan), changed(held, slice(16, None), np.inf)
    path = write(
        tmp_path / "t.csv",
        rows({"bad": bad, "cut": (train.until(161), held.until(160)), "other": drawn(2)}),
    )
    found = judged(path, run_name="bad", reference=against)
    cut = judged(path, run_name="cut", reference=against, planned_tokens=PLAN)
    assert (found.verdict.verdict, found.verdict.step) == ("memorization_suspected", 160)
    assert found.verdict.alarm_tokens == cut.verdict.alarm_tokens
    assert found.verdict.unmatched_nats == cut.verdict.unmatched_nats
    assert found.verdict.reasons[: len(cut.verdict.reasons)] == cut.verdict.reasons
    assert found.verdict.reasons[len(cut.verdict.reasons) :] == (
        (
            f"{C4}: no evaluation after step 160 is a number: 4 are NaN or infinite, the first at "
            "step 170; what is said here is of step 160, before that. Look for the step at which "
            "the run or its evaluator broke"
        ),
        "non-finite train loss at step 162 and 38 later steps",
    )
    assert [item.detector for item in found.verdict.findings] == [
        "unmatched_drop",
        "nonfinite_loss",
    ]


def test_an_alarm_stands_where_train_loss_alone_ends_in_no_numbers(tmp_path: Path) -> None:
    train, held = drawn(1, memorized=0.006)
    bad = changed(train, slice(161, None), np.nan), held
    late = changed(train, slice(191, None), np.nan), held.until(190)
    sound = changed(drawn(3)[0], slice(161, None), np.nan), drawn(3)[1]
    path = write(tmp_path / "t.csv", rows({"bad": bad, "late": late, "sound": sound}))
    verdict = judged(path, run_name="bad").verdict
    assert verdict.verdict == "memorization_suspected"
    assert any(
        said.startswith(f"{TRAIN}: no value after step 161 is a number up to the last evaluation")
        for said in verdict.reasons
    )
    verdict = judged(path, run_name="late").verdict  # after the last evaluation
    assert verdict.verdict == "memorization_suspected"
    assert verdict.reasons[-1] == "non-finite train loss at step 192 and 8 later steps"
    verdict = judged(path, run_name="sound").verdict
    assert verdict.verdict == "not_enough_data"
    assert "39 are NaN or infinite, the first at step 162; no verdict rests" in verdict.reasons[0]


def test_a_change_that_is_no_finding_does_not_pass_for_the_verdict_of_a_run_that_broke(
    tmp_path: Path,
) -> None:
    train, held = drawn(1, memorized=-0.03)
    path = write(
        tmp_path / "t.csv",
        rows({"whole": (train, held), "bad": (train, changed(held, slice(16, None), np.nan))}),
    )
    assert judged(path, run_name="whole").verdict.verdict == "train_rise"
    verdict = judged(path, run_name="bad").verdict
    assert (verdict.verdict, verdict.verdict.exit_code) == ("not_enough_data", 3)
    assert "no evaluation after step 160 is a number" in verdict.reasons[0]
    assert any("train loss rose unmatched" in said for said in verdict.reasons)
