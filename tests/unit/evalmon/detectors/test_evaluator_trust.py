"""What makes scores suspect, and what does not."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evalmon.detectors.evaluator_trust import (
    CHANCE,
    chance_of,
    fall,
    looks_untrained,
    suspect,
    untrained,
    untrusted_steps,
    zero_stderr,
)
from evalmon.detectors.trust_evidence import EqualScores, MetricHistory, TrustEvidence
from evalmon.types import Series

ITEMS = {
    "arc_easy": 570, "arc_challenge": 299, "boolq": 3270, "hellaswag": 10042, "openbookqa": 500,
    "piqa": 1838, "sciq": 1000, "winogrande": 1267,
}  # fmt: skip
GOOD = {
    "arc_easy": 0.81, "arc_challenge": 0.52, "boolq": 0.79, "hellaswag": 0.77, "openbookqa": 0.45,
    "piqa": 0.80, "sciq": 0.96, "winogrande": 0.72,
}  # fmt: skip
AT_CHANCE = {**CHANCE, "boolq": 0.62}  # "yes" to every question
STEPS = (1_000, 2_000, 3_000)


def seen(*accuracies: dict[str, float], holdout: tuple[float, ...] = (2.70, 2.69, 2.68)):
    """Return evidence at the last of some steps, with one accuracy a task at each."""
    steps = STEPS[: len(accuracies)]
    histories = tuple(
        MetricHistory(
            f"eval/downstream/{task}_0shot/acc",
            steps,
            tuple(one[task] for one in accuracies),
            (0.01,) * len(steps),
            (ITEMS[task],) * len(steps),
        )
        for task in accuracies[0]
    )
    at = np.array(steps, np.int64)
    series = Series("eval/lm/c4_en-validation/ce_nats", at, at * 10, np.array(holdout[: len(at)]))
    return TrustEvidence(
        steps[-1], 100_352, series, histories, tokens={step: step * 10 for step in steps}
    )


def test_a_loss_of_guessing_evenly_is_untrained_after_step_100_only():
    assert round(math.log(100_352), 4) == 11.5164
    assert looks_untrained(101, 11.5164, 100_352)
    assert not looks_untrained(100, 11.5164, 100_352)
    assert looks_untrained(101, 11.4165, 100_352)
    assert looks_untrained(101, 11.6163, 100_352)
    assert not looks_untrained(101, 11.4163, 100_352)
    assert not looks_untrained(101, 11.6165, 100_352)
    assert not looks_untrained(101, 0.0, 0)


def test_an_untrained_model_is_named_with_both_losses():
    found = untrained("a", seen(GOOD, holdout=(11.45,)))
    assert found is not None
    assert (found.detector, found.kind, found.alarm_tokens) == (
        "untrained_model", "checkpoint", 10_000,
    )  # fmt: skip
    assert "holdout loss 11.4500 nats, guessing evenly among 100,352 tokens costs 11.5164" in (
        found.message
    )
    assert untrained("a", seen(GOOD)) is None


def test_most_tasks_at_chance_while_the_holdout_stays_is_the_evaluators_fault():
    found = suspect("a", seen(GOOD, AT_CHANCE))
    assert found is not None
    assert (found.detector, found.kind, found.alarm_step) == (
        "evaluator_suspect", "evaluator", 2_000,
    )  # fmt: skip
    assert found.message == (
        "evaluator suspect: 8 of 8 tasks that stood above chance at step 1,000 are at chance at "
        "step 2,000, while holdout loss moved by -0.0100 nats; score both steps again"
    )
    assert found.evidence["accuracies_now"] == AT_CHANCE


def test_a_model_that_really_regressed_is_not_called_an_evaluators_fault():
    assert suspect("a", seen(GOOD, AT_CHANCE, holdout=(2.70, 2.76))) is None
    assert suspect("a", seen(GOOD, AT_CHANCE, holdout=(2.70, 2.74))) is not None


def test_a_model_that_was_always_at_chance_raises_nothing():
    assert suspect("a", seen(AT_CHANCE, AT_CHANCE, AT_CHANCE)) is None


def test_few_fallen_tasks_are_noise():
    four = {**GOOD, **{task: AT_CHANCE[task] for task in list(GOOD)[:4]}}
    five = {**GOOD, **{task: AT_CHANCE[task] for task in list(GOOD)[:5]}}
    assert fall(seen(GOOD, four)) is None
    found = fall(seen(GOOD, five))
    assert found is not None
    assert (len(found.now), found.stood) == (5, 8)
    one = {task: AT_CHANCE[task] for task in GOOD} | {"sciq": 0.96}
    assert fall(seen(one, AT_CHANCE)) is None  # a single task is not most


def test_it_stays_suspect_until_the_tasks_are_back():
    still = fall(seen(GOOD, AT_CHANCE, AT_CHANCE))
    assert still is not None
    assert still.since == 1_000
    assert fall(seen(GOOD, AT_CHANCE, GOOD)) is None


def test_weak_tasks_that_hover_above_chance_are_not_clearly_above():
    weak = {task: AT_CHANCE[task] + 3 * _error(task) for task in GOOD}
    assert fall(seen(weak, AT_CHANCE)) is None
    clear = {task: AT_CHANCE[task] + 4.5 * _error(task) for task in GOOD}
    assert fall(seen(clear, AT_CHANCE)) is not None
    falling = {task: AT_CHANCE[task] + 2.5 * _error(task) for task in GOOD}
    assert fall(seen(clear, falling)) is None  # more than 2 standard errors above


def _error(task: str) -> float:
    chance = AT_CHANCE[task]
    return math.sqrt(chance * (1 - chance) / ITEMS[task])


def test_a_failed_self_check_is_told_in_its_own_words():
    evidence = replace(seen(GOOD), self_check={1_000: "packing: 3 nats", 500: "old"})
    found = suspect("a", evidence)
    assert found is not None
    assert found.message.endswith("the self-check of step 1,000 failed: packing: 3 nats")
    assert suspect("a", replace(seen(GOOD), self_check={500: "old"})) is None


def test_an_error_bar_of_zero_inside_the_range_is_bad_input():
    zero = MetricHistory("eval/downstream/piqa_0shot/acc", (1_000,), (0.75,), (0.0,), (4,))
    found = zero_stderr("a", replace(seen(GOOD), histories=(zero,)))
    assert found is not None
    assert "eval/downstream/piqa_0shot/acc is 0.7500 with a stored standard error of 0" in (
        found.message
    )
    for value, error in ((0.0, 0.0), (1.0, 0.0), (0.75, 0.25), (0.75, None)):
        sound = replace(zero, values=(value,), stderrs=(error,))
        assert zero_stderr("a", replace(seen(GOOD), histories=(sound,))) is None


def test_untrusted_steps_are_those_of_the_holdout_itself():
    evidence = seen(GOOD, GOOD, GOOD, holdout=(2.7, 11.5, 2.6))
    metric = evidence.holdout.metric
    assert untrusted_steps(evidence) == (2_000,)
    assert untrusted_steps(replace(evidence, self_check={1_000: "x", 7: "y"})) == (1_000, 2_000)
    served = (
        EqualScores(metric, 1_000, 3_000, 9),
        EqualScores("eval/downstream/piqa_0shot/bpb", 1, 1_000, 9),
    )
    assert untrusted_steps(replace(evidence, equal_scores=served)) == (2_000, 3_000)


@pytest.mark.parametrize(
    ("task", "chance"),
    [("arc_easy", 0.25), ("olmes_arc_challenge", 0.25), ("boolq_rc", 0.5), ("sciqx", None)],
)
def test_chance_is_known_by_the_tasks_name_within_a_name(task: str, chance: float | None):
    assert chance_of(task) == chance
