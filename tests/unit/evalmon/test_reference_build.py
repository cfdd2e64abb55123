"""A curve is built from a whole history or from scored checkpoints, or not at all."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from evalmon import checkpoints, monitor
from evalmon.checkpoints import CheckpointListing
from evalmon.config import Settings
from evalmon.errors import CheckpointError, ConfigError, DataError, EvaluationError, FetchError
from evalmon.reference_build import HistoryKeys, from_checkpoints, from_history, open_history
from evalmon.store import Store
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    Failure,
    MetricIdentity,
    RunDescription,
    Sampling,
    Score,
)

TRAIN, C4 = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"
KEYS = HistoryKeys({"loss": TRAIN, "c4": C4}, tokens_per_step=64)


@dataclass
class Run:
    """A W&B run: rows as they were logged, and what the service says of them."""

    rows: list[dict[str, Any]]
    history_line_count: int | None = None
    history_keys: dict[str, Any] | None = None
    asked: list[list[str]] = field(default_factory=list[list[str]])

    def scan_history(self, keys: list[str] | None = None) -> Iterable[Mapping[str, Any]]:
        assert keys is not None
        self.asked.append(keys)
        return [{k: row[k] for k in keys} for row in self.rows if all(k in row for k in keys)]


def logged(points: int = 100, every: int = 10) -> list[dict[str, Any]]:
    """Train loss at every step; holdout loss and tokens in rows of their own."""
    found: list[dict[str, Any]] = [
        {"_step": n, "loss": 5 - n / 1000, "tokens": n * 64} for n in range(1, points + 1)
    ]
    for row in found:
        if row["_step"] % every == 0:
            row["c4"] = 6 - row["_step"] / 1000
    return found


def test_each_key_is_read_alone_and_whole():
    run = Run(logged())
    found = from_history(run, KEYS, "r")
    assert run.asked == [["_step", "loss"], ["_step", "c4"]]
    assert found.curves[TRAIN].series.steps.tolist() == list(range(1, 101))
    assert found.curves[C4].series.steps.tolist() == list(range(10, 101, 10))
    assert found.curves[C4].series.values[0] == 5.99
    assert found.curves[C4].series.tokens[-1] == 6400
    assert found.curves[TRAIN].sampling is Sampling.FULL


def test_tokens_are_joined_by_step():
    keys = HistoryKeys({"loss": TRAIN, "c4": C4}, tokens="tokens")
    found = from_history(Run(logged()), keys, "r")
    assert found.curves[C4].series.tokens.tolist() == [n * 64 for n in range(10, 101, 10)]
    rows = logged()
    del rows[19]["tokens"], rows[29]["tokens"]
    with pytest.raises(
        DataError, match=r"2 of 100 steps with 'loss' have no 'tokens', the first 20"
    ):
        from_history(Run(rows), keys, "r")
    rows = logged()
    rows[50]["tokens"] = 5
    with pytest.raises(DataError, match="falls or stays from step 50 to 51"):
        from_history(Run(rows), keys, "r")
    with pytest.raises(DataError, match=r"give --tokens-key or --tokens-per-step"):
        from_history(Run(logged()), HistoryKeys({"loss": TRAIN}), "r")


@pytest.mark.parametrize(
    ("train", "holdout", "trainer"),
    [("train/loss", "eval/c4_en/loss", ""), ("train/loss", "", "levanter"),
     ("learning/loss", "eval/avg_loss", "")],
)  # fmt: skip
def test_steps_of_trainers_that_count_from_0_are_updates_completed(
    train: str, holdout: str, trainer: str
):
    rows = [{"_step": n, train: 4.0 - n, holdout: 5.0, "tokens": 64 * (n + 1)} for n in range(3)]
    metrics = dict.fromkeys(filter(None, (train, holdout)), "")
    run = Run(rows, 3, {"lastStep": 2})
    for keys in (
        HistoryKeys(metrics, tokens="tokens", trainer=trainer),
        HistoryKeys(metrics, tokens_per_step=64, trainer=trainer),
    ):
        found = from_history(run, keys, "r").curves
        assert found[TRAIN].series.steps.tolist() == [1, 2, 3]
        assert found[TRAIN].series.tokens.tolist() == [64, 128, 192]
        assert set(found) == ({TRAIN, C4} if holdout else {TRAIN})


def test_missing_rows_are_refused_with_counts():
    with pytest.raises(DataError, match="100 rows were read where the run logged 1,250; 1,150 are"):
        from_history(Run(logged(), history_line_count=1250), KEYS, "r")
    keys = {"keys": {"c4": {"typeCounts": [{"type": "number", "count": 14}]}}, "lastStep": 100}
    with pytest.raises(DataError, match="10 rows hold 'c4' where the run logged 14; 4 are missing"):
        from_history(Run(logged(), 100, keys), KEYS, "r")
    with pytest.raises(DataError, match="keys end at step 100 and the run at 900"):
        from_history(Run(logged(), 100, {"lastStep": 900}), KEYS, "r")
    whole = {"keys": {"c4": {"typeCounts": [{"type": "number", "count": 10}]}}, "lastStep": 100}
    assert len(from_history(Run(logged(), 100, whole), KEYS, "r").curves[C4].series) == 10


def test_a_sampled_history_is_told_by_its_steps():
    steps = np.sort(np.random.default_rng(0).choice(np.arange(1, 20_000), 500, replace=False))
    rows = [{"_step": int(n), "loss": 3.0 - n / 1e5} for n in steps]
    found = from_history(Run(rows), HistoryKeys({"loss": TRAIN}, tokens_per_step=64), "r")
    assert found.curves[TRAIN].sampling is Sampling.SAMPLED
    assert "500 points" in found.curves[TRAIN].note


def test_what_is_not_finite_is_left_out_and_counted():
    rows = logged()
    rows[4]["loss"], rows[5]["loss"] = "NaN", float("inf")
    found = from_history(Run(rows), KEYS, "r")
    assert found.nonfinite == ((5, TRAIN), (6, TRAIN))
    assert len(found.curves[TRAIN].series) == 98
    with pytest.raises(DataError, match="'loss' has no finite value"):
        from_history(Run([{"_step": 1, "loss": "NaN"}]), HistoryKeys({"loss": TRAIN}), "r")


def test_a_restart_keeps_the_last_copy():
    rows = [{"_step": i, "s": n, "loss": v} for i, (n, v) in enumerate(
        [(n, 5.0) for n in range(1, 21)] + [(n, 4.0) for n in range(11, 31)])]  # fmt: skip
    keys = HistoryKeys({"loss": TRAIN}, step="s", tokens_per_step=64)
    found = from_history(Run(rows), keys, "r")
    assert found.curves[TRAIN].series.values.tolist() == [5.0] * 10 + [4.0] * 20
    assert (found.seams, found.superseded) == ((10,), 10)


def test_keys_that_cannot_be_used_are_refused():
    with pytest.raises(DataError, match="no row holds '_step' and 'gone'"):
        from_history(Run(logged()), HistoryKeys({"gone": TRAIN}, tokens_per_step=1), "r")
    with pytest.raises(
        ConfigError, match=r"'c4' is not in the dictionary of tags.*--eval-key 'c4="
    ):
        from_history(Run(logged()), HistoryKeys({"c4": ""}, tokens_per_step=1), "r")
    twice = HistoryKeys({"loss": TRAIN, "c4": TRAIN}, tokens_per_step=1)
    with pytest.raises(DataError, match=f"'c4' is {TRAIN} as another key is"):
        from_history(Run(logged()), twice, "r")
    rows = [{"_step": 1, "loss": "high"}]
    with pytest.raises(DataError, match="'loss' is 'high' at step 1, no number"):
        from_history(Run(rows), HistoryKeys({"loss": TRAIN}), "r")
    with pytest.raises(DataError, match=r"'_step' is 1\.5"):
        from_history(Run([{"_step": 1.5, "loss": 1}]), HistoryKeys({"loss": TRAIN}), "r")


def test_a_run_is_named_by_three_parts():
    for path in ("", "a/b", "a//c", "a/b/c/d"):
        with pytest.raises(ConfigError, match="give ENTITY/PROJECT/RUN"):
            open_history(path)


class NoRunError(Exception):
    """What W&B's own errors are."""


class Api:
    """Gives one run."""

    def run(self, path: str) -> Any:
        if path != "a/b/c":
            raise NoRunError(f"no {path}")
        return "the run"


def test_wandb_is_asked_for_the_run_and_its_errors_are_wrapped(monkeypatch: pytest.MonkeyPatch):
    wandb, errors = ModuleType("wandb"), ModuleType("wandb.errors")
    vars(wandb).update(Api=Api, errors=errors)
    vars(errors)["Error"] = NoRunError
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "wandb.errors", errors)
    assert open_history("a/b/c") == "the run"
    with pytest.raises(FetchError, match=r"a/b/d: W&B does not give this run \(no a/b/d\)"):
        open_history("a/b/d")


def test_wandb_need_not_be_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"install 'evalmon\[writers\]'.*evalmon reference add"):
        open_history("a/b/c")


@pytest.fixture
def run(tmp_path: Path) -> RunDescription:
    description = RunDescription(
        name="run", path=tmp_path / "run", adapter="fake", model={}, tokenizer="t.json",
        vocab_size=10, eos_id=0, sequence_length=16, batch_instances=2, planned_steps=40,
        planned_passes=1, source_instances=99, hosts=1, loader="batch_strided", seed=0,
        warmup_steps=0, recipe="", loss={}, data="",
    )  # fmt: skip
    description.path.mkdir()
    description.save()
    events: list[dict[str, Any]] = [
        {"event": "start", "time": 0, "segment": 0, "resumed_from_step": None},
        *(
            {"event": "step", "time": n, "step": n, "tokens": n * 32, TRAIN: 5 - n / 100}
            for n in range(1, 41)
        ),
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (description.path / "log.jsonl").write_text(text)
    return description


def score(run: RunDescription, monkeypatch: pytest.MonkeyPatch, fail: int = 0) -> list[int]:
    """Let the monitor score steps 10 to 40, failing at one; returns the steps it was asked for."""
    asked: list[int] = []
    refs = tuple(CheckpointRef("run", n, n * 32, run.path / str(n)) for n in (10, 20, 30, 40))
    monkeypatch.setattr(checkpoints, "find", lambda run: CheckpointListing(refs, (), ()))
    identity = MetricIdentity(
        "c4_en", "ce_nats", None, "p", "validation", None, "tokens", "hash", "float32", 0, "d", 8
    )

    class Scoring(monitor.Monitor):
        def evaluate_step(self, step: int) -> monitor.StepResult:
            asked.append(step)
            ref = CheckpointRef("run", step, step * 32, self.run.path / str(step))
            self.store.note_checkpoints([ref])
            value = Score(C4, 4 - step / 100, 0.01, 3, identity)
            if step == fail:
                failure = Failure("holdout", ref, "EvaluationError", "out of memory")
                return monitor.StepResult(frozenset(), (failure,))
            self.store.append_evaluation(Evaluation("holdout", "1", ref, "w", (value,), 0.1))
            return monitor.StepResult(frozenset(), ())

    monkeypatch.setattr(monitor, "Monitor", Scoring)
    return asked


def test_checkpoints_are_scored_and_come_with_the_log(
    run: RunDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked, counted = score(run, monkeypatch), list[int]()
    store = Store.open(tmp_path / "evalmon.sqlite")
    try:
        found = from_checkpoints(run, store, Settings(), counted.append)
    finally:
        store.close()
    assert (asked, counted) == ([10, 20, 30, 40], [1, 1, 1, 1])
    assert found.curves[C4].series.values.tolist() == [3.9, 3.8, 3.7, 3.6]
    assert found.curves[C4].series.tokens.tolist() == [320, 640, 960, 1280]
    assert found.curves[C4].facts["tokenizer"] == "hash"
    assert found.curves[C4].facts["data"] == "d"
    assert len(found.curves[TRAIN].series) == 40
    assert found.tokens_per_step == 32


def test_a_failed_evaluation_leaves_no_holes(
    run: RunDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    score(run, monkeypatch, fail=30)
    store = Store.open(tmp_path / "evalmon.sqlite")
    try:
        with pytest.raises(EvaluationError, match=r"1 evaluations failed.*step 30: out of memory"):
            from_checkpoints(run, store, Settings(), lambda n: None)
        monkeypatch.setattr(checkpoints, "find", lambda run: CheckpointListing((), (), ()))
        with pytest.raises(CheckpointError, match="no finished checkpoint"):
            from_checkpoints(run, store, Settings(), lambda n: None)
    finally:
        store.close()


def test_tokens_a_step_beyond_64_bits_are_refused():
    keys = HistoryKeys({"loss": TRAIN}, tokens_per_step=10**18)
    with pytest.raises(DataError, match="step 100 of 'loss' times 1,000,000,000,000,000,000"):
        from_history(Run(logged()), keys, "r")
