"""One pass and the loop of passes: every checkpoint once, every failure kept, nothing stopped."""

import os
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from tqdm import tqdm

from evalmon.config import ComparisonSettings, EvaluationSettings, HoldoutSettings, Settings
from evalmon.errors import CheckpointError, ConfigError, EvaluationError, StoreError
from evalmon.monitor import ATTEMPTS, Monitor
from evalmon.store import Store


def steps(store: Store, evaluator: str = "holdout") -> list[int]:
    """Return the steps stored, in the order of storing."""
    return [e.checkpoint.step for e in store.evaluations("tiny") if e.evaluator == evaluator]


def failures(store: Store) -> list[tuple[str, int, int, bool]]:
    """Return evaluator, step, attempt and whether a success followed."""
    return [
        (item.failure.evaluator, item.failure.checkpoint.step, item.attempt, item.superseded)
        for item in store.failures("tiny")
    ]


def test_each_checkpoint_is_scored_once_in_rising_order(world: Any) -> None:
    run = world.add("tiny", [20, 0, 10])
    run.log(25)
    monitor = world.monitor()
    summary = monitor.one_pass()
    assert (summary.evaluated, summary.failed, summary.waiting) == (3, 0, ())
    assert world.evaluator.calls == [0, 10, 20]
    run.steps.append(30)
    assert monitor.one_pass().evaluated == 1
    assert monitor.one_pass().evaluated == 0
    assert world.evaluator.calls == world.model.loaded == [0, 10, 20, 30]


def test_a_new_evaluator_process_repeats_nothing(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10)
    world.monitor().one_pass()
    assert world.monitor().one_pass().evaluated == 0
    assert world.model.loaded == [0, 10]


def test_one_failure_stops_neither_the_other_evaluators_nor_later_checkpoints(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10)
    bad = world.new_evaluator("tasks")
    bad.failures[0] = [world.error("no data")]
    summary = world.monitor(evaluators=[bad, world.evaluator]).one_pass()
    assert (summary.evaluated, summary.failed, summary.waiting) == (3, 1, (0,))
    assert steps(world.store) == [0, 10]
    assert failures(world.store) == [("tasks", 0, 1, False)]
    (kept,) = world.store.failures("tiny")
    assert (kept.failure.error, kept.failure.message) == ("EvaluationError", "no data")


def test_a_failed_evaluator_is_tried_three_times_and_then_left(world: Any) -> None:
    world.add("tiny", [10]).log(10)
    world.evaluator.failures[10] = [world.error(f"{n}") for n in range(9)]
    monitor = world.monitor()
    assert [monitor.one_pass().failed for _ in range(5)] == [1, 1, 1, 0, 0]
    assert monitor.one_pass().waiting == ()
    assert failures(world.store) == [("holdout", 10, n, False) for n in (1, 2, 3)]


def test_a_later_success_supersedes_a_failure_and_the_step_is_judged_again(world: Any) -> None:
    world.add("tiny", [0, 10, 20]).log(20)
    world.evaluator.failures[10] = [world.error("once")]
    monitor = world.monitor()
    monitor.one_pass()
    assert [verdict.step for verdict in world.store.verdicts("tiny")] == [0, 20]
    assert monitor.one_pass().judged == 2
    assert failures(world.store) == [("holdout", 10, 1, True)]
    assert [verdict.step for verdict in world.store.verdicts("tiny")] == [0, 10, 20]


def test_an_error_nobody_foresaw_is_stored_with_its_place(world: Any) -> None:
    world.add("tiny", [10]).log(10)
    world.evaluator.failures[10] = [ZeroDivisionError("division by zero")]
    world.monitor().one_pass()
    (kept,) = world.store.failures("tiny")
    assert kept.failure.error == "ZeroDivisionError"
    assert kept.failure.message.startswith("division by zero (")
    assert "conftest.py:" in kept.failure.message


def test_a_score_that_is_not_finite_is_a_failure(world: Any) -> None:
    world.add("tiny", [10]).log(10)
    world.evaluator.value = lambda _: float("nan")
    world.monitor().one_pass()
    (kept,) = world.store.failures("tiny")
    assert "expected a finite number" in kept.failure.message
    assert world.store.evaluations("tiny") == ()


def test_a_store_that_fails_ends_the_pass(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add("tiny", [10]).log(10)

    def fail(*_: Any) -> None:
        raise StoreError("disk is full")

    monkeypatch.setattr(Store, "append_evaluation", fail)
    with pytest.raises(StoreError, match="disk is full"):
        world.monitor().one_pass()
    assert failures(world.store) == []


def test_a_torn_checkpoint_is_a_stored_failure_and_the_others_go_on(world: Any) -> None:
    run = world.add("tiny", [0, 10, 20])
    run.log(20)
    run.broken[10] = "params/x: cut off"
    monitor = world.monitor()
    for _ in range(5):
        monitor.one_pass()
    assert steps(world.store) == [0, 20]
    assert failures(world.store) == [("restore", 10, n, False) for n in (1, 2, 3)]
    run.broken.clear()
    assert world.monitor().one_pass().evaluated == 0


def test_weights_that_do_not_fit_into_memory_are_a_stored_failure(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(10)
    run.broken[0] = RuntimeError("RESOURCE_EXHAUSTED")
    world.monitor().one_pass()
    assert (steps(world.store), failures(world.store)) == ([10], [("restore", 0, 1, False)])
    assert world.store.failures("tiny")[0].failure.message.startswith("RESOURCE_EXHAUSTED (")


def test_a_checkpoint_that_can_be_read_again_is_scored(world: Any) -> None:
    run = world.add("tiny", [10])
    run.log(10)
    run.broken[10] = "busy"
    monitor = world.monitor()
    monitor.one_pass()
    run.broken.clear()
    assert monitor.one_pass().evaluated == 1
    assert failures(world.store) == [("restore", 10, 1, True)]


def test_a_checkpoint_that_vanished_unscored_is_noted_once(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(10)
    run.broken[10] = "busy"
    world.store.register(run.description)
    world.store.note_checkpoints(world.find(run.description).committed)
    run.steps.remove(10)
    monitor = world.monitor()
    monitor.one_pass()
    monitor.one_pass()
    assert failures(world.store) == [("restore", 10, 1, False)]
    assert "vanished before it was scored" in world.store.failures("tiny")[0].failure.message
    run.steps.remove(0)  # scored before: nothing is missing
    world.monitor().one_pass()
    assert len(world.store.failures("tiny")) == 1


def test_other_weights_under_a_scored_step_are_refused(world: Any) -> None:
    run = world.add("tiny", [10])
    run.log(10)
    world.monitor().one_pass()
    run.weights[10] = "other"
    second = world.new_evaluator("tasks")
    world.monitor(evaluators=[world.evaluator, second]).one_pass()
    assert second.calls == []
    assert "another run's checkpoint" in world.store.failures("tiny")[0].failure.message


def test_what_does_not_apply_is_neither_scored_nor_missing(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10)
    probe = world.new_evaluator("probe")
    probe.skipped = {0}
    summary = world.monitor(evaluators=[world.evaluator, probe]).one_pass()
    assert (summary.evaluated, summary.waiting) == (3, ())
    assert probe.calls == [10]


def test_two_evaluators_share_the_work_and_judge_in_order(world: Any) -> None:
    world.add("tiny", [0, 10, 20]).log(20)
    with world.another(elsewhere=True) as theirs:
        theirs.register(world.runs["tiny"].description)
        assert theirs.lease("tiny/10", 60)
        summary = world.monitor().one_pass()
        assert (summary.waiting, steps(world.store)) == ((10,), [0, 20])
        assert [verdict.step for verdict in world.store.verdicts("tiny")] == [0]
        theirs.release("tiny/10")
    world.monitor().one_pass()
    assert [verdict.step for verdict in world.store.verdicts("tiny")] == [0, 10, 20]
    assert sorted(world.evaluator.calls) == [0, 10, 20]


def test_a_killed_evaluators_lease_does_not_hold_up_the_next(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10)
    monitor = world.monitor()
    world.evaluator.failures[10] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        monitor.one_pass()
    assert world.monitor().one_pass().evaluated == 1
    assert failures(world.store) == []


def test_following_ends_when_training_has_ended_and_all_is_done(world: Any) -> None:
    run = world.add("tiny", [0])
    run.log(5)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            run.log(10, end="completed")
            run.steps.append(10)

    bar = tqdm(file=StringIO())
    summary = world.monitor().follow(sleep, bar)
    assert summary.done
    assert naps == [2.0] * len(naps)
    assert (steps(world.store), bar.n) == ([0, 10], 2)
    assert world.store.heartbeats("tiny")[0].stage == "ended"


def test_following_waits_for_a_failed_attempt_to_be_repeated(world: Any) -> None:
    world.add("tiny", [0]).log(5, end="completed")
    world.evaluator.failures[0] = [world.error("once"), world.error("twice")]
    world.monitor().follow(lambda _: None, tqdm(file=StringIO()))
    assert steps(world.store) == [0]


def test_a_checkpoint_left_unfinished_is_named_after_minutes(world: Any) -> None:
    run = world.add("tiny", [0])
    run.log(5)
    folder = run.description.path / "20"
    folder.mkdir()
    os.utime(folder, (1000.0, 1000.0))
    run.unfinished.append(folder)
    monitor = world.monitor()
    assert monitor.one_pass().unfinished == ()
    world.clock.now += 301
    assert monitor.one_pass().unfinished == (folder,)
    assert world.store.heartbeats("tiny")[0].stage == "waiting; unfinished: 20"


def test_a_checkpoint_left_unfinished_when_training_ends_is_one_failure(world: Any) -> None:
    run = world.add("tiny", [0])
    run.log(20, end="failed")
    run.unfinished.append(run.description.path / "20.orbax-checkpoint-tmp-3")
    for _ in range(2):  # an evaluator started again does not note it twice
        world.monitor().follow(lambda _: None, tqdm(file=StringIO()))
    (kept,) = world.store.failures("tiny")
    assert (kept.failure.checkpoint.step, kept.failure.evaluator) == (20, "restore")
    assert "unfinished or damaged" in kept.failure.message


def test_a_stalled_evaluator_shows_at_what(world: Any) -> None:
    world.add("tiny", [10]).log(10)
    seen: list[tuple[str, float]] = []

    def stall(step: int) -> float:
        with world.another() as reader:
            seen.extend((beat.stage, beat.since) for beat in reader.heartbeats("tiny"))
        return 3.0

    world.evaluator.value = stall
    world.monitor().one_pass()
    assert seen == [("holdout at step 10", 1000.0)]


def test_one_step_is_scored_on_request(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10)
    world.monitor().evaluate_step(10)
    assert steps(world.store) == [10]
    with pytest.raises(
        CheckpointError, match=r"no finished checkpoint of step 5; there are \[0, 10"
    ):
        world.monitor().evaluate_step(5)
    world.evaluator.failures[0] = [world.error("no data")]
    (failure,) = world.monitor().evaluate_step(0).failures
    assert (failure.evaluator, failure.message) == ("holdout", "no data")
    with world.another(elsewhere=True) as theirs:
        theirs.lease("tiny/0", 60)
        with pytest.raises(EvaluationError, match="scored by another process"):
            world.monitor().evaluate_step(0)


def test_a_step_asked_for_is_tried_again_however_often_it_failed(world: Any) -> None:
    world.add("tiny", [0]).log(10)
    world.evaluator.failures[0] = [world.error("no data") for _ in range(ATTEMPTS + 1)]
    for _ in range(ATTEMPTS + 1):
        assert len(world.monitor().evaluate_step(0).failures) == 1
    assert not world.monitor().one_pass().evaluated
    result = world.monitor().evaluate_step(0)
    assert (result.failures, steps(world.store)) == ((), [0])
    assert {name for name, _ in result.asked} == {"holdout"}


def test_a_step_with_nothing_to_score_is_refused(world: Any) -> None:
    world.add("tiny", [0]).log(10)
    monitor = world.monitor()
    monitor.evaluators = []
    with pytest.raises(ConfigError, match="nothing to score; name evaluators, and a task"):
        monitor.evaluate_step(0)


@pytest.mark.parametrize(
    ("holdouts", "chosen", "message"),
    [
        (("a", "b"), "", "several are scored; name one of"),
        (("a",), "c", "'c' is not scored; name one of"),
    ],
)
def test_the_holdout_judged_must_be_scored(
    world: Any, holdouts: tuple[str, ...], chosen: str, message: str
) -> None:
    run = world.add("tiny").description
    evaluation = EvaluationSettings(holdouts=tuple(HoldoutSettings(name) for name in holdouts))
    settings = Settings(evaluation=evaluation, comparison=ComparisonSettings(holdout=chosen))
    with pytest.raises(ConfigError, match=message):
        Monitor(run, world.store, settings)


@pytest.mark.parametrize(
    ("holdouts", "holdout"), [(("a",), "a"), (("a", "c4_en"), "c4_en"), ((), "")]
)
def test_the_holdout_judged_is_c4_or_the_only_one(
    world: Any, holdouts: tuple[str, ...], holdout: str
) -> None:
    run = world.add("tiny").description
    evaluation = EvaluationSettings(holdouts=tuple(HoldoutSettings(name) for name in holdouts))
    Monitor(run, world.store, replace(Settings(), evaluation=evaluation))
    assert world.store.comparison("tiny")["holdout"] == holdout
