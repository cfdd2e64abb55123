"""Doubts about scores, from what is stored to verdict, alert and report."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evalmon import report
from evalmon.errors import EvaluationError
from evalmon.report.text import text
from evalmon.scoring import Scorer
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    MetricIdentity,
    RunDescription,
    Score,
    VerdictName,
)

GRID = range(0, 201, 20)
PIQA = "eval/downstream/piqa_0shot"
SCIQ = "eval/downstream/sciq_0shot"


class Scored:
    """An evaluator that gives what a test says, item by item."""

    version = "v1"

    def __init__(self, name: str, scores: Callable[[int], dict[str, tuple[float, ...]]]) -> None:
        self.name, self.scores, self.stderr = name, scores, 0.05

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        return ""

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        scores = tuple(
            self._score(metric, values) for metric, values in self.scores(checkpoint.step).items()
        )
        header = {"golden": "not checked: none", "dtype": "float32"}
        return Evaluation(self.name, self.version, checkpoint, weights, scores, 0.1, header=header)

    def _score(self, metric: str, values: tuple[float, ...]) -> Score:
        identity = MetricIdentity(
            "task", metric, 0, "", "validation", None, "items", "t", "float32", 0, "d", 8
        )
        ids = tuple(str(n) for n in range(len(values)))
        value = sum(values) / len(values)
        return Score(metric, value, self.stderr, len(values), identity, ids, values)


class SelfCheck(Scored):
    """A self-check that fails at a step as often as told."""

    def __init__(self) -> None:
        super().__init__("self_check", lambda _: {"self_check/max_difference_nats": (1e-6, 3e-6)})
        self.failures: dict[int, list[Exception]] = {}

    def evaluate(self, scorer: Any, checkpoint: Any, run: Any, weights: str) -> Evaluation:
        if self.failures.get(checkpoint.step):
            raise self.failures[checkpoint.step].pop()
        return super().evaluate(scorer, checkpoint, run, weights)


def latest(world: Any, step: int | None = None) -> Any:
    found = {item.step: item for item in world.store.verdicts("tiny")}
    return found[max(found) if step is None else step]


def test_a_failed_self_check_makes_the_checkpoint_suspect_until_it_passes(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    check = SelfCheck()
    check.failures = {140: [EvaluationError("batch size: 1 nat apart")]}
    monitor = world.monitor(evaluators=[check, world.evaluator])
    monitor.one_pass()
    assert latest(world, 140).verdict is VerdictName.EVALUATOR_FAULT
    assert latest(world, 140).reasons[0].endswith("failed: batch size: 1 nat apart")
    assert latest(world).verdict is VerdictName.HEALTHY
    assert latest(world).reasons[-1].startswith("the evaluation of step 140 enters no curve")
    (alert,) = world.store.alerts("tiny")
    assert (alert.cause, alert.opened_step) == ("evaluator", 140)
    assert "the evaluator is suspect" in alert.title
    monitor.one_pass()  # the failed attempt is repeated, and succeeds
    assert latest(world, 140).verdict is VerdictName.HEALTHY
    assert latest(world).findings == ()


def test_a_self_check_that_crashed_says_nothing_of_the_scores(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    check = SelfCheck()
    check.failures = {140: [MemoryError("out of memory")] * 3}
    world.monitor(evaluators=[check, world.evaluator]).one_pass()
    assert latest(world, 140).verdict is VerdictName.HEALTHY


def test_tasks_at_chance_while_the_holdout_falls_make_the_evaluator_suspect(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")

    def shares(step: int) -> dict[str, tuple[float, ...]]:
        right = (50, 25) if step == 140 else (90, 80)
        return {
            f"{task}/acc": (1.0,) * hits + (0.0,) * (100 - hits)
            for task, hits in zip((PIQA, SCIQ), right, strict=True)
        }

    world.monitor(evaluators=[world.evaluator, Scored("tasks", shares)]).one_pass()
    suspect = latest(world, 140)
    assert suspect.verdict is VerdictName.EVALUATOR_FAULT
    assert suspect.findings[0].evidence["accuracies_now"] == {"piqa": 0.5, "sciq": 0.25}
    assert latest(world, 160).verdict is VerdictName.HEALTHY


def test_weights_left_random_get_no_verdict(world: Any) -> None:
    world.add("tiny", GRID, vocab_size=100_352).log(200, end="completed")
    falling = world.evaluator.value
    world.evaluator.value = lambda step: 11.5164 if step == 140 else falling(step)
    world.monitor().one_pass()
    assert latest(world, 140).verdict is VerdictName.NOT_ENOUGH_DATA
    assert "the model looks untrained at step 140" in latest(world, 140).reasons[0]
    assert latest(world, 120).verdict is latest(world, 160).verdict is VerdictName.HEALTHY
    (alert,) = world.store.alerts("tiny")
    assert alert.cause == "checkpoint"


def test_the_same_weights_at_two_steps_are_found(world: Any) -> None:
    run = world.add("tiny", GRID)
    run.weights = {180: "same", 200: "same"}
    run.log(200, end="completed")
    world.monitor().one_pass()
    assert latest(world, 180).findings == ()
    (finding,) = latest(world).findings
    assert (finding.detector, finding.evidence["steps"]) == ("same_weights", [[180, 200]])
    assert latest(world).verdict is VerdictName.HEALTHY


def test_bit_equal_items_of_different_weights_are_a_suspect_cache(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    served = Scored(
        "tasks",
        lambda step: {
            f"{PIQA}/bpb": (0.1 * min(step, 180), 0.3, 0.7),
            f"{PIQA}/acc": (1.0, 0.0, 1.0),  # shares of few items coincide
        },
    )
    world.monitor(evaluators=[world.evaluator, served]).one_pass()
    assert latest(world, 180).findings == ()
    (finding,) = latest(world).findings
    assert finding.message.startswith(
        f"suspect cache: {PIQA}/bpb is equal to the last bit in all 3"
    )
    assert finding.evidence["steps"] == [180, 200]
    assert latest(world).verdict is VerdictName.EVALUATOR_FAULT


def test_equal_means_of_other_items_are_no_cache(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    served = Scored(
        "tasks", lambda step: {f"{PIQA}/bpb": (0.5, 0.25) if step % 40 else (0.25, 0.5)}
    )
    world.monitor(evaluators=[world.evaluator, served]).one_pass()
    pairs = [item for item in latest(world).findings if item.detector == "same_scores"]
    assert len(pairs) == 1  # steps 0 and 40 do agree in every item
    assert pairs[0].evidence["steps"][:2] != [0, 20]


def test_equal_weights_may_have_equal_scores(world: Any) -> None:
    run = world.add("tiny", GRID)
    run.weights = {180: "same", 200: "same"}
    run.log(200, end="completed")
    served = Scored("tasks", lambda step: {f"{PIQA}/bpb": (0.1 * min(step, 180), 0.3)})
    world.monitor(evaluators=[world.evaluator, served]).one_pass()
    assert [item.detector for item in latest(world).findings] == ["same_weights"]


def test_a_stored_error_bar_of_zero_is_told_as_bad_input(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10, end="completed")
    tasks = Scored("tasks", lambda _: {f"{PIQA}/acc": (1.0, 0.0, 1.0, 1.0)})
    tasks.stderr = 0.0
    world.monitor(evaluators=[world.evaluator, tasks]).one_pass()
    (finding,) = latest(world).findings
    assert finding.detector == "zero_stderr"
    assert any(reason.startswith("bad input at step 10: ") for reason in latest(world).reasons)


@pytest.mark.parametrize("failed", [False, True])
def test_the_report_says_what_the_self_check_found(world: Any, failed: bool) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    check = SelfCheck()
    if failed:
        check.failures = {200: [EvaluationError("sharing: 2 nats apart")] * 3}
    world.monitor(evaluators=[check, world.evaluator]).one_pass()
    view = report.collect(world.store, "tiny")
    shown = text(view)
    if failed:
        assert "self-check: failed at step 200: sharing: 2 nats apart" in shown
        assert "The evaluator is suspect: its scores of tiny at this checkpoint cannot be" in shown
    else:
        assert "  - self-check: passed at step 200" in shown
        assert "  - largest difference between layouts: 2e-06 nats of 2 log-likelihoods" in shown
        assert "  - golden slice: not checked: none" in shown
    assert "self-check" in report.markdown(view)
    assert "self-check" in report.page([view], "one run")


def test_a_run_without_a_self_check_is_said_so(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10, end="completed")
    world.monitor().one_pass()
    assert "self-check: not run at step 10" in text(report.collect(world.store, "tiny"))


def test_a_reference_of_another_meaning_is_named_field_by_field(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    world.add("clean", GRID).log(200, end="completed")
    world.monitor("clean", sinks=[]).one_pass()
    own = world.evaluator.evaluate

    def elsewhere(*given: Any) -> Evaluation:
        found = own(*given)
        (score,) = found.scores
        identity = replace(score.identity, tokenizer="other", prefix_token=2)
        return replace(found, scores=(replace(score, identity=identity),))

    world.evaluator.evaluate = elsewhere
    world.monitor(reference="clean").one_pass()
    verdict = latest(world)
    assert verdict.verdict is VerdictName.RECIPE_DIFFERS
    metric = "eval/lm/text-validation/ce_nats"
    assert verdict.reasons[:2] == (
        f"{metric} differs from clean's in 'tokenizer': 'other' against 't'",
        f"{metric} differs from clean's in 'prefix_token': 2 against 0",
    )
    assert verdict.reasons[2].endswith("compare bits per byte, eval/lm/text-validation/bpb")
