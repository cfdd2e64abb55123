"""While one checkpoint is scored the next is restored, and answers given are asked for once."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalmon.errors import StoreError
from evalmon.restoring import Ahead
from evalmon.store import Store
from evalmon.types import CheckpointRef, Evaluation, ForestScores, ScoreRequest

PATIENCE = 20.0
"""Seconds after which a thread that never comes fails a test."""

QUESTIONS = [ScoreRequest((item,) * 60, (2, 3)) for item in range(4, 104)]


def contents(store: Store) -> dict[str, Any]:
    """Return all that a pass stores."""
    return {
        "checkpoints": store.checkpoints("tiny"),
        "evaluations": [replace(e, seconds=0.0) for e in store.evaluations("tiny")],
        "failures": store.failures("tiny"),
        "verdicts": store.verdicts("tiny"),
        "alerts": store.alerts("tiny"),
    }


def test_the_next_checkpoint_is_restored_while_one_is_scored(world: Any) -> None:
    world.add("tiny", [0, 10, 20]).log(20)
    restored = {step: threading.Event() for step in (0, 10, 20)}
    world.on_restore = lambda step: restored[step].set()

    def value(step: int) -> float:
        if step < 20:
            assert restored[step + 10].wait(PATIENCE)  # it comes before this score does
        return 3.0

    world.evaluator.value = value
    before = threading.active_count()
    assert world.monitor().one_pass().evaluated == 3
    assert threading.active_count() == before
    assert world.restored == world.model.loaded == [0, 10, 20]


def test_what_is_stored_or_at_work_elsewhere_is_not_restored(world: Any) -> None:
    world.add("tiny", [0, 10, 20, 30]).log(30)
    world.evaluator.failures[0] = [world.error("once")]
    world.evaluator.failures[30] = [world.error("once")]
    monitor = world.monitor()
    monitor.one_pass()
    world.restored.clear()
    with world.another(elsewhere=True) as theirs:
        assert theirs.lease("tiny/30", 60)
        monitor.one_pass()
        assert world.restored == [0]
        theirs.release("tiny/30")
    monitor.one_pass()
    assert world.restored == [0, 30]


def test_what_another_process_scored_meanwhile_is_not_scored_again(world: Any) -> None:
    world.add("tiny", [0, 10, 20]).log(20)

    def value(step: int) -> float:
        if step == 0:
            with world.another(elsewhere=True) as theirs:
                assert theirs.lease("tiny/10", 60)
        return 3.0

    world.evaluator.value = value
    summary = world.monitor().one_pass()
    assert summary.waiting == (10,)
    assert world.model.loaded == [0, 20]


def test_restoring_ahead_changes_nothing_that_is_stored(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add("tiny", [0, 10, 20, 30])
    run.log(30, end="completed")
    run.broken.update({10: "params/x: cut off", 30: RuntimeError("RESOURCE_EXHAUSTED")})
    with monkeypatch.context() as patch, world.another("plain.sqlite") as plain:
        patch.setattr(Ahead, "begin", lambda *_: None)
        monitor = world.monitor(store=plain)
        for _ in range(4):
            monitor.one_pass()
        expected, order = contents(plain), list(world.restored)
    world.restored.clear()
    monitor = world.monitor()
    for _ in range(4):
        monitor.one_pass()
    found = contents(world.store)
    for stored in (expected, found):  # the place of an error nobody foresaw is told by line
        stored["failures"] = [
            replace(item, failure=replace(item.failure, message=item.failure.message[:18]))
            for item in stored["failures"]
        ]
    assert found == expected
    assert world.restored == order


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreError("disk is full")])
def test_an_end_in_the_middle_leaves_no_thread_and_no_lease(
    world: Any, error: BaseException
) -> None:
    world.add("tiny", [0, 10]).log(10)
    began, may_end = threading.Event(), threading.Event()

    def restore(step: int) -> None:
        if step == 10:
            began.set()
            assert may_end.wait(PATIENCE)

    def value(step: int) -> float:
        assert began.wait(PATIENCE)
        threading.Timer(0, may_end.set).start()
        raise error

    world.on_restore, world.evaluator.value = restore, value
    before = threading.active_count()
    with pytest.raises(type(error)):
        world.monitor().one_pass()
    assert threading.active_count() == before
    with world.another(elsewhere=True) as theirs:
        assert not theirs.leased_elsewhere("tiny/0")
        assert not theirs.leased_elsewhere("tiny/10")


class Asked:
    """A model that counts what it is asked, and is interrupted after so many answers."""

    vocab_size, max_length, dtype, stored_dtype, row_multiple = 512, 64, "float32", "float32", 1

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.asked, self.left = 0, 10**9

    def load(self, parameters: Any) -> None:
        self.loaded.append(parameters["step"])

    def extend(self, ids: Any, prefix: Any = None) -> Any:
        return None

    def score(self, forest: Any, prefix: Any = None) -> ForestScores:
        if self.left <= 0:
            raise KeyboardInterrupt
        self.left -= len(forest.targets) // 2
        self.asked += len(forest.targets) // 2
        values = np.float32(-0.01) * forest.targets - np.float32(self.loaded[-1])
        return ForestScores(values.astype(np.float32), forest.targets)


class Asking:
    """An evaluator that puts every question."""

    def __init__(self, evaluator: Any) -> None:
        self.inner, self.name, self.version = evaluator, "asking", "v1"
        self.sums: list[float] = []

    def not_applicable(self, checkpoint: CheckpointRef, run: Any) -> str:
        return ""

    def evaluate(
        self, scorer: Any, checkpoint: CheckpointRef, run: Any, weights: str
    ) -> Evaluation:
        answers = scorer.score(QUESTIONS)
        self.sums.append(sum(float(answer.logprobs.sum()) for answer in answers))
        assert scorer.description == f"tiny step {checkpoint.step} asking"
        found = self.inner.evaluate(scorer, checkpoint, run, weights)
        return replace(found, evaluator=self.name, header={"requests": len(answers)})


def test_a_pass_that_was_ended_asks_only_what_is_missing(world: Any) -> None:
    world.add("tiny", [0, 10]).log(10)
    world.model = Asked()
    asking = Asking(world.evaluator)
    settings = {"evaluators": [asking]}
    world.model.left = 50
    small = world.monitor(**settings)
    small.settings = replace(
        small.settings, evaluation=replace(small.settings.evaluation, batch_size=1)
    )
    with pytest.raises(KeyboardInterrupt):
        small.one_pass()
    first = world.model.asked
    assert 50 <= first < 100
    world.model.left = 10**9
    world.monitor(**settings).one_pass()
    assert world.model.asked == 200  # step 0 once, step 10 once
    assert asking.sums == pytest.approx([-0.05 * 100, (-0.05 - 2 * 10) * 100])
    assert [item.header for item in world.store.evaluations("tiny")] == [{"requests": 100}] * 2


def test_answers_are_kept_until_every_evaluator_of_the_checkpoint_is_stored(world: Any) -> None:
    world.add("tiny", [0]).log(0)
    world.model = Asked()
    asking, failing = Asking(world.evaluator), world.new_evaluator("tasks")
    failing.failures[0] = [world.error("once")]
    monitor = world.monitor(evaluators=[asking, failing])
    file = monitor.store.file.with_name("evalmon.sqlite.responses.sqlite")
    monitor.one_pass()
    assert rows(file) == len(QUESTIONS)
    monitor.one_pass()
    assert rows(file) == 0
    assert sorted(item.name for item in file.parent.glob("*.responses.sqlite*")) == [file.name]


def rows(file: Any) -> int:
    """Count the answers in a file, past the code under test."""
    import sqlite3

    connection = sqlite3.connect(file)
    try:
        (count,) = connection.execute("SELECT count(*) FROM answers").fetchone()
    finally:
        connection.close()
    return count
