"""What a watched run is judged by besides its losses: its tasks, as `evalmon compare` does."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from evalmon import reference, stored_scores
from evalmon.comparing import CompareOptions, Comparison, compare
from evalmon.errors import EvaluationError
from evalmon.judging import rejudge
from evalmon.reference_index import Entry, Source
from evalmon.reference_writing import add
from evalmon.scoring import Scorer
from evalmon.store import Store
from evalmon.types import (
    CheckpointRef,
    Curve,
    Evaluation,
    Json,
    MetricIdentity,
    RunCurves,
    RunDescription,
    Score,
    Series,
    Verdict,
)

GRID = range(0, 201, 25)
TOKENS_PER_STEP = 32
HOLDOUT = "eval/lm/text-validation/ce_nats"
CORE = "eval/lm/text-validation/olmo_core_ce_nats"
HELLASWAG, SCIQ = "eval/downstream/hellaswag_0shot/len_norm", "eval/downstream/sciq_0shot/acc"
MEAN = "mean_without_boolq"
ITEMS = 40

Values: TypeAlias = Callable[[str, int], Mapping[str, tuple[float, ...]]]


def answered(run: str, step: int) -> dict[str, tuple[float, ...]]:
    """Right answers that rise with the step; ``tiny`` knows HellaSwag less well than ``clean``."""
    worse = 12 if run == "tiny" else 0
    return {
        metric: tuple(float((n * 7) % ITEMS < level) for n in range(ITEMS))
        for metric, level in ((HELLASWAG, 28 + step // 50 - worse), (SCIQ, 20 + step // 50))
    }


class Scored:
    """Gives what a test says, with its items or without; fails where it is told to."""

    version = "v1"

    def __init__(self, values: Values, *, keeps_items: bool = True, name: str = "tasks") -> None:
        self.values, self.keeps_items, self.name = values, keeps_items, name
        self.failing: set[int] = set()

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        return ""

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        if checkpoint.step in self.failing:
            raise EvaluationError("out of memory")
        found = self.values(run.name, checkpoint.step)
        scores = tuple(self._score(metric, values) for metric, values in found.items())
        return Evaluation(self.name, self.version, checkpoint, weights, scores, 0.1)

    def _score(self, metric: str, values: tuple[float, ...]) -> Score:
        _, _, task, kind = metric.split("/")
        identity = MetricIdentity(
            task, kind, None, "", "validation", None, "items", "t", "float32", 0, "d", 8
        )
        ids = tuple(f"{task}-{n}" for n in range(len(values)))
        score = Score(metric, sum(values) / len(values), 0.01, len(values), identity)
        return replace(score, item_ids=ids, item_values=values) if self.keeps_items else score


def pass_over(world: Any, name: str, tasks: Scored, **options: Any) -> Any:
    """Make one pass over a run with a holdout and tasks, and return its monitor."""
    monitor = world.monitor(name, evaluators=[world.evaluator, tasks], **options)
    monitor.one_pass()
    return monitor


def both(world: Any, tasks: Scored, steps: Collection[int] = GRID) -> Any:
    """Watch ``clean`` to its end, then ``tiny`` against it; return the monitor of ``tiny``."""
    for name in ("clean", "tiny"):
        run = world.add(name, steps)
        run.log(max(steps), end="completed")
        run.description.save()
    pass_over(world, "clean", tasks, sinks=[])
    return pass_over(world, "tiny", tasks, reference="clean")


def compared(world: Any, against: str = "clean") -> Comparison:
    """Run `evalmon compare` on ``tiny`` as it is watched."""
    path = world.runs["tiny"].description.path
    return compare(CompareOptions(str(path), reference=against, profile="short", holdout="text"))


def of_step(store: Store, step: int) -> Verdict:
    """Return the verdict of ``tiny`` at a step."""
    return next(item for item in store.verdicts("tiny") if item.step == step)


@pytest.mark.parametrize("keeps_items", [True, False])
def test_watching_finds_the_tasks_and_the_drop_that_comparing_finds(
    world: Any, keeps_items: bool
) -> None:
    both(world, Scored(answered, keeps_items=keeps_items))
    watched, found = world.store.latest_verdict("tiny"), compared(world).verdict
    assert [item.task for item in watched.tasks] == [HELLASWAG, SCIQ, MEAN]
    assert [item.paired for item in watched.tasks] == 3 * [keeps_items]
    assert watched.tasks[0].difference_acc == pytest.approx(-12 / ITEMS)
    assert watched.tasks == found.tasks
    assert watched.unmatched_nats is not None
    assert watched.unmatched_nats == found.unmatched_nats
    assert watched.verdict == found.verdict == "behind_reference"
    again = rejudge(world.runs["tiny"].description, world.store)
    assert again == watched


def test_without_a_reference_no_task_is_compared(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    pass_over(world, "tiny", Scored(answered))
    found = world.store.verdicts("tiny")
    assert {item.tasks for item in found} == {()}
    assert not any("task" in reason for item in found for reason in item.reasons)


def test_a_task_score_that_comes_late_is_judged_again(world: Any) -> None:
    tasks = Scored(answered)
    tasks.failing = {100, 200}
    monitor = both(world, tasks)
    pass_over(world, "tiny", tasks, reference="clean")
    early = {step: of_step(world.store, step) for step in (75, 100, 200)}
    # The run's last evaluation at or before the step: that of step 75, by the number of items.
    assert [item.paired for item in early[100].tasks] == 3 * [False]
    tasks.failing = set()
    pass_over(world, "clean", tasks, sinks=[])
    assert monitor.one_pass().judged > 0
    late = {step: of_step(world.store, step) for step in (75, 100, 200)}
    assert late[75] == early[75]
    for step in (100, 200):
        assert [item.paired for item in late[step].tasks] == 3 * [True]
    assert monitor.one_pass().judged == 0
    assert world.store.latest_verdict("tiny").tasks == compared(world).verdict.tasks


def test_a_task_that_the_reference_scores_late_is_waited_for(world: Any) -> None:
    """Its training goes on, so its last task score may still come."""
    tasks = Scored(answered)
    tasks.failing = {200}
    for name, end in (("clean", ""), ("tiny", "completed")):
        world.add(name, GRID).log(200, end=end)
    pass_over(world, "clean", tasks, sinks=[])
    tasks.failing = set()
    monitor = world.monitor(evaluators=[world.evaluator, tasks], reference="clean", sinks=[])
    monitor.one_pass()
    quiet = monitor.one_pass()
    assert (quiet.judged, quiet.waiting, quiet.done) == (0, (), False)
    said = of_step(world.store, 200).reasons[-1]
    assert said.startswith(f"tasks not compared: {HELLASWAG}: the reference has no evaluations")
    pass_over(world, "clean", tasks, sinks=[])
    last = monitor.one_pass()
    assert (last.judged, last.done) == (1, True)
    assert len(of_step(world.store, 200).tasks) == 3


def test_a_verdict_rests_on_no_later_task(world: Any) -> None:
    """A run watched step by step, its reference beside it, and both found whole."""
    tasks = Scored(answered)
    clean, tiny = world.add("clean"), world.add("tiny")
    reference = world.monitor("clean", evaluators=[world.evaluator, tasks], sinks=[])
    monitor = world.monitor(evaluators=[world.evaluator, tasks], reference="clean")
    for step in GRID:
        for run in (clean, tiny):
            run.log(step + 3)
            run.steps.append(step)
        reference.one_pass()
        monitor.one_pass()
    for run in (clean, tiny):
        run.log(200, end="completed")
    reference.one_pass()
    monitor.one_pass()
    with world.another("late.sqlite") as late:
        pass_over(world, "clean", tasks, store=late, sinks=[])
        pass_over(world, "tiny", tasks, store=late, reference="clean")
        assert late.verdicts("tiny") == world.store.verdicts("tiny")
        assert late.judged("tiny") == world.store.judged("tiny")
        assert of_step(late, 100).tasks[0].difference_acc == pytest.approx(-12 / ITEMS)


def test_answers_are_read_once_for_each_evaluation_judged(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    whole = stored_scores.answers

    def counted(store: Store, run: str, step: int, metrics: Collection[str]) -> dict[str, Score]:
        read.append((run, step))
        return whole(store, run, step, metrics)

    monkeypatch.setattr(stored_scores, "answers", counted)
    monitor = both(world, Scored(answered))
    assert sorted(read) == sorted((name, step) for name in ("clean", "tiny") for step in GRID)
    monitor.one_pass()
    assert len(read) == 2 * len(GRID)


def published(folder: Path, *metrics: str) -> None:
    """Add a reference that divides as OLMo-core does, 0.007 nats below ``ce_nats``."""
    facts: Mapping[str, Json] = {"divisor": "all_tokens", "z_loss": "excluded"}
    steps = np.array(GRID, np.int64)
    falling = np.asarray(4.0 + 2.0 * 0.98**steps, np.float64)
    every = np.arange(1, 201, dtype=np.int64)
    curves = {
        HOLDOUT: Curve(Series(HOLDOUT, steps, steps * TOKENS_PER_STEP, falling + 0.093), facts),
        "train/ce_nats": Curve(
            Series(
                "train/ce_nats",
                every,
                every * TOKENS_PER_STEP,
                np.asarray(4.0 + 2.0 * 0.98**every, np.float64),
            )
        ),
    }
    for metric in metrics:
        means = [sum(answered("clean", step)[metric]) / ITEMS for step in GRID]
        values = np.array(means, np.float64)
        series = Series(metric, steps, steps * TOKENS_PER_STEP, values)
        curves[metric] = Curve(series, {"items": 1000})
    about = Entry("published", folder, {}, (), "Model", 7, "stage 1", "theirs")
    add(RunCurves("r", "t", curves), about, Source("who made it", "MIT", "2026-01-02"))


@pytest.fixture
def against_published(world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A world in which ``published`` is a reference curve with the two tasks."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "curves"))
    published(tmp_path / "curves", HELLASWAG, SCIQ)
    run = world.add("tiny", GRID)
    run.log(200, end="completed")
    run.description.save()
    return world


def test_tasks_of_a_published_curve_are_compared(against_published: Any) -> None:
    world = against_published

    def many(run: str, step: int) -> dict[str, tuple[float, ...]]:
        return {metric: 25 * values for metric, values in answered(run, step).items()}

    pass_over(world, "tiny", Scored(many), reference="published")
    watched = world.store.latest_verdict("tiny")
    assert [(item.task, item.paired) for item in watched.tasks] == [
        (HELLASWAG, False), (SCIQ, False), (MEAN, False),
    ]  # fmt: skip
    assert watched.tasks[0].items == 1000
    assert watched.tasks[0].difference_acc == pytest.approx(-12 / ITEMS)
    assert watched.tasks == compared(world, "published").verdict.tasks


def holdout_by_both_means(_: str, step: int) -> dict[str, tuple[float, ...]]:
    """The holdout's loss, and 0.007 nats less by all tokens; equal to the published curve."""
    value = 4.0 + 2.0 * 0.98**step + 0.1
    return {HOLDOUT: (value,), CORE: (value - 0.007,)}


def test_ai2_s_mean_is_laid_over_ai2_s_curve_by_both(against_published: Any) -> None:
    world = against_published
    scored = Scored(holdout_by_both_means, keeps_items=False, name="holdout")
    world.monitor(evaluators=[scored], reference="published").one_pass()
    watched, found = world.store.latest_verdict("tiny"), compared(world, "published").verdict
    assert watched.holdout_gap_nats == found.holdout_gap_nats == pytest.approx(0, abs=1e-9)
    assert watched.unmatched_nats == found.unmatched_nats
    assert not any("divisor" in reason for reason in watched.reasons)
    assert not any("divisor" in " ".join(item.reasons) for item in world.store.verdicts("tiny"))


def test_where_an_evaluation_lacks_that_mean_the_offset_is_said_by_both(
    against_published: Any,
) -> None:
    world = against_published

    def once_without(run: str, step: int) -> dict[str, tuple[float, ...]]:
        found = holdout_by_both_means(run, step)
        return {HOLDOUT: found[HOLDOUT]} if step == 150 else found

    scored = Scored(once_without, keeps_items=False, name="holdout")
    world.monitor(evaluators=[scored], reference="published").one_pass()
    watched, found = world.store.latest_verdict("tiny"), compared(world, "published").verdict
    assert watched.holdout_gap_nats == found.holdout_gap_nats == pytest.approx(0.007, abs=1e-9)
    assert any("'divisor'" in reason for reason in watched.reasons)
    before = of_step(world.store, 125)
    assert before.holdout_gap_nats == pytest.approx(0, abs=1e-9)
    assert not any("'divisor'" in reason for reason in before.reasons)


def test_a_run_is_judged_again_once_its_reference_asks_for_the_other_mean(
    world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "curves"))
    world.add("tiny", GRID).log(200, end="completed")
    scored = Scored(holdout_by_both_means, keeps_items=False, name="holdout")
    monitor = world.monitor(evaluators=[scored], reference="published")
    monitor.one_pass()
    assert of_step(world.store, 200).verdict == "not_enough_data"
    published(tmp_path / "curves")
    assert monitor.one_pass().judged == len(GRID)
    assert of_step(world.store, 200).holdout_gap_nats == pytest.approx(0, abs=1e-9)


def test_a_reference_s_equal_items_are_not_taken_for_the_run_s(world: Any) -> None:
    """Both have equal means at two steps; of the reference the documents are equal as well."""

    def documents(run: str, step: int) -> dict[str, tuple[float, ...]]:
        level = 4.0 + 2.0 * 0.98**step
        spread = 0.25 if run == "tiny" and step == 20 else 0.125
        at = 5.0 if step in (10, 20) else level
        return {HOLDOUT: (at - spread, at + spread)}

    for name in ("clean", "tiny"):
        world.add(name, [10, 20]).log(20, end="completed")
    scored = Scored(documents, name="holdout")
    world.monitor("clean", evaluators=[scored], sinks=[]).one_pass()
    world.monitor(evaluators=[scored], reference="clean").one_pass()
    assert world.store.latest_verdict("clean").verdict == "evaluator_fault"
    assert world.store.latest_verdict("tiny").verdict != "evaluator_fault"
