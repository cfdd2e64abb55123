"""Tasks against a reference: values at equal tokens, and what is said of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalmon.detectors.task_differences import PairedItems, examine, macro, summary
from evalmon.errors import DataError
from evalmon.types import Curve, Json, Series, TaskDifference

EVERY = 1_000_000
SCIQ, BOOLQ = "eval/downstream/sciq_0shot/acc", "eval/downstream/boolq_0shot/acc"
HELLASWAG = "eval/downstream/hellaswag_0shot/len_norm"


def compare(*arguments: Any) -> tuple[TaskDifference, ...]:
    return examine(*arguments)[0]


def left_out(*arguments: Any) -> tuple[str, ...]:
    return examine(*arguments)[1]


def curve(values: Any, every: int = EVERY, **facts: Json) -> Curve:
    """Return an accuracy at every ``every`` tokens."""
    at = np.arange(1, len(values) + 1) * every
    return Curve(Series("accuracy", at // 1000, at, np.asarray(values, np.float64)), facts)


def noisy(level: float, seed: int, count: int = 40, sd: float = 0.01, **facts: Json) -> Curve:
    """Return an accuracy that stays where it is but for noise."""
    found = curve(level + np.random.default_rng(seed).normal(0, sd, count))
    return Curve(found.series, facts)


def answers(b: int, c: int, n: int) -> PairedItems:
    """Return answers of which the run alone has b right, the reference alone c."""
    run = [1.0] * b + [0.0] * c + [1.0] * (n - b - c)
    reference = [0.0] * b + [1.0] * c + [1.0] * (n - b - c)
    return PairedItems(tuple(map(str, range(n))), tuple(run), tuple(reference))


def only(found: tuple[TaskDifference, ...]) -> TaskDifference:
    (one,) = found
    return one


def task(name: str, value: float, half: float, p_value: float = 1.0, **more: Any) -> TaskDifference:
    """Return a difference as ``compare`` would."""
    outcome = "inconclusive" if p_value >= 0.05 else "gain" if value > 0 else "loss"
    fields: dict[str, Any] = {
        "items": 1000, "paired": True, "method": "", "outcome": outcome, **more,
    }  # fmt: skip
    return TaskDifference(
        task=f"eval/downstream/{name}_0shot/acc", difference_acc=value, low_acc=value - half,
        high_acc=value + half, detectable_acc=1.5 * half, p_value=p_value, **fields,
    )  # fmt: skip


def test_answers_to_the_same_items_decide_where_they_are_kept():
    run, reference = {SCIQ: noisy(0.9, 1)}, {SCIQ: noisy(0.9, 2)}
    found = only(compare(run, reference, 40 * EVERY, {SCIQ: answers(30, 10, 1000)}))
    assert (found.task, found.outcome, found.paired, found.items) == (SCIQ, "gain", True, 1000)
    assert found.difference_acc == 0.02
    assert found.low_acc < 0.02 < found.high_acc
    assert found.p_value == pytest.approx(0.001565, abs=1e-6)  # z = 20 / sqrt(40)
    assert found.method == "paired: 30 and 10 of 1,000 items differ (McNemar, Tango's interval)"
    other = only(compare(run, reference, 40 * EVERY, {SCIQ: answers(10, 30, 1000)}))
    assert (other.outcome, other.difference_acc) == ("loss", -0.02)


def test_equal_within_the_margin_is_shown_and_never_assumed():
    run, reference = {SCIQ: noisy(0.9, 1)}, {SCIQ: noisy(0.9, 2)}
    many = only(compare(run, reference, 40 * EVERY, {SCIQ: answers(100, 100, 10_042)}))
    few = only(compare(run, reference, 40 * EVERY, {SCIQ: answers(5, 5, 500)}))
    assert (many.outcome, few.outcome) == ("equivalent", "inconclusive")
    assert many.difference_acc == few.difference_acc == 0.0
    assert few.half_width_acc == pytest.approx(0.01447, abs=1e-5)
    assert few.detectable_acc == pytest.approx(0.01768, abs=1e-5)


def test_partial_credit_is_compared_by_its_mean():
    half = PairedItems(("a", "b", "c", "d"), (0.5, 1.0, 0.75, 1.0), (0.5, 0.5, 0.5, 0.5))
    found = only(compare({SCIQ: noisy(0.9, 1)}, {SCIQ: noisy(0.9, 2)}, 40 * EVERY, {SCIQ: half}))
    assert found.difference_acc == pytest.approx(0.3125)
    assert found.method == "paired: Student's t over 4 items"


def test_the_number_of_items_is_taken_from_both_evaluations_and_never_inferred():
    run, reference = noisy(0.8, 1, items=1000), noisy(0.7, 2, items=1000)
    found = only(compare({SCIQ: run}, {SCIQ: reference}, 40 * EVERY))
    assert (found.outcome, found.items, found.paired) == ("gain", 1000, False)
    assert "1,000 items counted as independent" in found.method
    found = only(compare({SCIQ: run}, {SCIQ: noisy(0.7, 2)}, 40 * EVERY))
    assert found.items is None
    assert "items not known" in found.method
    grid = curve(np.round(np.random.default_rng(0).uniform(0.4, 0.6, 40) * 299) / 299)
    assert only(compare({SCIQ: grid}, {SCIQ: grid}, 40 * EVERY)).items is None


def test_only_like_is_laid_over_like_and_the_rest_is_named():
    run = {
        SCIQ: noisy(0.9, 1, items=1000, shots=0),
        "eval/downstream/arc_challenge_0shot/len_norm": noisy(0.5, 2, items=299),
        "eval/downstream/piqa_0shot/len_norm": noisy(80.1, 3),
        "eval/downstream/winogrande_0shot/acc": noisy(0.7, 4),
        "eval/downstream/arc_easy_0shot/bpb": noisy(0.6, 5),
        "eval/lm/c4_en-validation/ce_nats": noisy(2.5, 6),
    }
    reference = {
        SCIQ: noisy(0.9, 1, items=1000, shots=5),
        "eval/downstream/arc_challenge_0shot/len_norm": noisy(0.5, 2, items=1172),
        "eval/downstream/piqa_0shot/len_norm": noisy(0.8, 3),
        HELLASWAG: noisy(0.7, 4),
        "eval/downstream/arc_easy_0shot/bpb": noisy(0.6, 5),
        "eval/lm/c4_en-validation/ce_nats": noisy(2.5, 6),
    }
    assert compare(run, reference, 40 * EVERY) == ()
    said = left_out(run, reference, 40 * EVERY)
    assert len(said) == 5
    assert f"{HELLASWAG}: only the reference has it" in said
    assert "eval/downstream/winogrande_0shot/acc: only the run has it" in said
    assert f"{SCIQ}: shots differs (0 against 5)" in said
    assert any("arc_challenge" in one and "items differ (299 against 1,172)" in one for one in said)
    assert any("piqa" in one and "between 0 and 1" in one for one in said)


def test_one_metric_a_task_is_compared_its_primary_one():
    stems = {"hellaswag_0shot": "len_norm", "arc_easy_0shot": "acc", "mmlu_5shot": "acc"}
    curves = {
        f"eval/downstream/{stem}/{kind}": noisy(0.5, 1)
        for stem in stems
        for kind in ("acc", "len_norm")
    }
    curves["eval/downstream/piqa_val_rc_5shot"] = noisy(0.7, 1)
    found = {one.task for one in compare(curves, curves, 40 * EVERY)}
    assert found == {
        *(f"eval/downstream/{stem}/{kind}" for stem, kind in stems.items()),
        "eval/downstream/piqa_val_rc_5shot",
    }
    lone = {"eval/downstream/hellaswag_0shot/acc": noisy(0.5, 1)}
    assert only(compare(lone, curves, 40 * EVERY)).task == "eval/downstream/hellaswag_0shot/acc"
    # A second metric of a task that is compared is not left out.
    said = left_out({HELLASWAG: noisy(0.5, 1)}, curves, 40 * EVERY)
    assert (len(said), any("hellaswag" in one for one in said)) == (5, False)


def test_values_are_read_at_equal_tokens_and_never_beyond_the_reference():
    rising = curve(0.2 + 0.1 * np.log10(np.arange(1, 101)), items=100)
    twice = curve(0.2 + 0.1 * np.log10(np.arange(2, 102, 2)), every=2 * EVERY, items=100)
    for end in (9, 50, 99):
        found = only(compare({SCIQ: rising}, {SCIQ: twice}, end * EVERY))
        assert found.difference_acc == pytest.approx(0, abs=1e-4)
    late = left_out({SCIQ: rising}, {SCIQ: curve(twice.series.values[:20], items=100)}, 50 * EVERY)
    assert late == (
        f"{SCIQ}: the reference has no evaluations around the run's last, at 50,000,000 tokens",
    )
    early = left_out({SCIQ: rising}, {SCIQ: rising}, EVERY - 1)
    assert early == (f"{SCIQ}: the run has no evaluation at or before 999,999 tokens",)


def test_a_hole_in_the_reference_is_not_bridged():
    full = noisy(0.6, 1, items=100).series
    kept = np.r_[0:30, 38:40]
    holed = Series("accuracy", full.steps[kept], full.tokens[kept], full.values[kept])
    reference = {SCIQ: Curve(holed, {"items": 100})}
    assert compare({SCIQ: Curve(full, {"items": 100})}, reference, 34 * EVERY) == ()
    assert len(compare({SCIQ: Curve(full, {"items": 100})}, reference, 40 * EVERY)) == 1


def test_the_last_two_percent_of_tokens_are_averaged_five_evaluations_at_most():
    for count, averaged in ((40, 1), (100, 3), (1000, 5)):
        values = np.zeros(count)
        values[-averaged:] = 0.5
        values[-averaged - 1] = 1.0  # not one of them
        run, zero = curve(values, items=50), curve(np.zeros(count), items=50)
        found = only(compare({SCIQ: run}, {SCIQ: zero}, count * EVERY))
        assert found.difference_acc == pytest.approx(0.5)
        said = "one checkpoint each" if averaged == 1 else f"last {averaged} checkpoints"
        assert said in found.method


def test_what_comes_later_changes_nothing():
    run, reference = noisy(0.6, 1, 80), noisy(0.5, 2, 80)
    cut = {SCIQ: Curve(run.series.until(40_000))}
    found = compare({SCIQ: run}, {SCIQ: reference}, 40 * EVERY)
    assert found == compare(cut, {SCIQ: reference}, 40 * EVERY)
    assert only(found).outcome == "gain"


def test_the_swapped_comparison_is_the_opposite():
    metrics = {SCIQ: 0.9, HELLASWAG: 0.6, BOOLQ: 0.7}
    run = {name: noisy(level, 3) for name, level in metrics.items()}
    reference = {name: noisy(level - 0.15, 4) for name, level in metrics.items()}
    found = compare(run, reference, 40 * EVERY)
    other = compare(reference, run, 40 * EVERY)
    opposite = {"gain": "loss", "loss": "gain"}
    for one, two in zip(found, other, strict=True):
        assert two.difference_acc == pytest.approx(-one.difference_acc)
        assert (two.low_acc, two.high_acc) == pytest.approx((-one.high_acc, -one.low_acc))
        assert two.outcome == opposite.get(one.outcome, one.outcome)
        assert one.low_acc < one.difference_acc < one.high_acc
    assert {one.outcome for one in found} == {"gain"}
    assert (summary(found), summary(other)) == ("gain", "loss")


def test_averaging_checkpoints_does_not_average_away_what_lasts():
    """Twice a checkpoint's variance lasts, in each of the two, however many are averaged."""
    for count, averaged in ((40, 1), (1000, 5)):
        run, reference = noisy(0.5, 1, count), noisy(0.5, 2, count)
        found = only(compare({SCIQ: run}, {SCIQ: reference}, count * EVERY))
        least = 1.96 * 0.01 * (2 * (1 / averaged + 2)) ** 0.5
        assert found.half_width_acc == pytest.approx(least, rel=0.25)


def test_a_curve_too_short_or_too_still_has_no_interval():
    short, still = noisy(0.5, 1, 7), curve(np.full(40, 0.5))
    assert compare({SCIQ: short}, {SCIQ: noisy(0.5, 2)}, 7 * EVERY) == ()
    (said,) = left_out({SCIQ: short}, {SCIQ: noisy(0.5, 2)}, 7 * EVERY)
    assert "the run has fewer than 8 evaluations" in said
    assert "state the number of items" in said
    (said,) = left_out({SCIQ: noisy(0.6, 2)}, {SCIQ: still}, 40 * EVERY)
    assert said.endswith("how sure they are is unknown")


def test_boolq_is_never_surer_than_its_checkpoints():
    """It swings by 0.05 between checkpoints; 400 and 300 of 3,270 items look like a gain."""
    swinging = {BOOLQ: noisy(0.6, 1, sd=0.05, items=3270)}, {BOOLQ: noisy(0.6, 2, sd=0.05)}
    kept = {BOOLQ: answers(400, 300, 3270)}
    found = only(compare(*swinging, 40 * EVERY, kept))
    assert (found.outcome, found.items, found.paired) == ("inconclusive", 3270, True)
    assert "the spread between checkpoints is wider and holds" in found.method
    assert found.half_width_acc > 0.1
    calm = {BOOLQ: noisy(0.6, 1, sd=0.0005)}, {BOOLQ: noisy(0.6, 2, sd=0.0005)}
    assert only(compare(*calm, 40 * EVERY, kept)).outcome == "gain"
    (said,) = left_out({BOOLQ: noisy(0.6, 1, 5)}, swinging[1], 40 * EVERY, kept)
    assert "too few for the spread" in said


def test_the_tasks_are_tested_together():
    names = [f"eval/downstream/{name}_0shot/acc" for name in ("arc_easy", "sciq", "winogrande")]
    curves = {name: noisy(0.7, 1) for name in names}
    tables = ((26, 12), (20, 20), (20, 20))  # z = 2.27: p is 0.0233 alone and 0.0699 of three
    kept = {name: answers(*table, 1000) for name, table in zip(names, tables, strict=True)}
    alone = only(compare({names[0]: curves[names[0]]}, curves, 40 * EVERY, kept))
    first = compare(curves, curves, 40 * EVERY, kept)[0]
    assert (alone.outcome, first.outcome) == ("gain", "inconclusive")
    assert first.p_value == pytest.approx(3 * alone.p_value)
    assert first.detectable_acc > alone.detectable_acc


def test_the_mean_of_the_seven_by_hand():
    found = macro(
        [
            task("sciq", 0.02, 0.03),
            task("winogrande", 0.04, 0.04),
            task("boolq", 0.5, 0.001, 0.0),
            task("mmlu", 0.5, 0.001, 0.0),
        ]
    )
    assert found is not None
    assert found.task == "mean_without_boolq"
    assert (found.difference_acc, found.low_acc, found.high_acc) == pytest.approx(
        (0.03, 0.005, 0.055)
    )
    assert found.outcome == "gain"
    assert found.items == 2000
    assert found.paired
    assert found.method == "mean of 2 of 7 tasks: sciq, winogrande"
    assert found.detectable_acc == pytest.approx((1.959964 + 0.841621) * 0.025 / 1.959964)
    assert macro([task("boolq", 0.5, 0.001)]) is None
    mixed = macro([task("sciq", 0, 0.01), task("piqa", 0, 0.01, items=None, paired=False)])
    assert mixed is not None
    assert (mixed.items, mixed.paired) == (None, False)


def test_a_task_in_two_forms_counts_once():
    other = replace(task("", 0.4, 0.05), task="eval/downstream/arc_easy_val_rc_5shot")
    one = macro([task("arc_easy", 0.02, 0.02), other, task("sciq", 0.0, 0.02)])
    assert one is not None
    assert one.difference_acc == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([], ""),
        ([task("boolq", 0.3, 0.001, 0.0)], ""),
        ([task("sciq", 0.0, 0.004), task("piqa", 0.0, 0.004)], "equivalent"),
        ([task("sciq", 0.0, 0.02), task("piqa", 0.0, 0.02)], "inconclusive"),
        ([task("sciq", -0.03, 0.02), task("piqa", -0.03, 0.02)], "loss"),
        # HellaSwag speaks where the mean does not, at Holm's level over all tasks
        ([task("hellaswag", -0.01, 0.005, 0.02), task("piqa", 0.0, 0.05)], "loss"),
        ([task("hellaswag", 0.01, 0.005, 0.02), task("piqa", 0.0, 0.05)], "gain"),
        ([task("hellaswag", -0.01, 0.005, 0.06), task("piqa", 0.01, 0.05)], "inconclusive"),
        ([task("piqa", -0.01, 0.005, 0.02), task("hellaswag", 0.0, 0.05)], "inconclusive"),
        # the mean leads where they contradict each other
        ([task("hellaswag", -0.01, 0.005, 0.02), task("piqa", 0.2, 0.05)], "gain"),
    ],
)
def test_what_the_tasks_say_together(differences: list[TaskDifference], said: str):
    assert summary(differences) == said
    opposite = {"gain": "loss", "loss": "gain"}
    mirrored = [
        replace(
            one,
            outcome=opposite.get(one.outcome, one.outcome),
            difference_acc=-one.difference_acc,
            low_acc=-one.high_acc,
            high_acc=-one.low_acc,
        )
        for one in differences
    ]
    assert summary(mirrored) == opposite.get(said, said)


def test_pairs_that_do_not_belong_together_are_refused():
    for ids, run, reference in (
        (("a", "b"), (1.0,), (1.0, 0.0)),
        (("a", "a"), (1.0, 0.0), (1.0, 0.0)),
        (("a",), (1.0,), (1.0,)),
    ):
        with pytest.raises(DataError, match="each item needs an id of its own"):
            PairedItems(ids, run, reference)
