"""A run directory, a store, and evaluators and sinks that do what a test tells them."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from evalmon import checkpoints
from evalmon.checkpoints import CheckpointListing, Parameters
from evalmon.config import ComparisonSettings, EvaluationSettings, HoldoutSettings, Settings
from evalmon.errors import CheckpointError, EvaluationError
from evalmon.monitor import Monitor
from evalmon.scoring import Scorer
from evalmon.store import Holder, Store
from evalmon.types import (
    ID_LOG_MAGIC,
    ID_LOG_RECORD,
    Alert,
    CheckpointRef,
    Evaluation,
    MetricIdentity,
    ProbeResult,
    RunDescription,
    Score,
)

METRIC = "eval/lm/text-validation/ce_nats"
BATCH, LENGTH, STEPS = 4, 8, 200


def loss(step: int) -> float:
    """A loss that falls and flattens."""
    return 4.0 + 2.0 * 0.98**step


class FakeModel:
    """Remembers which weights it was given."""

    vocab_size, max_length, dtype, stored_dtype, row_multiple = 512, 8, "float32", "float32", 1

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def load(self, parameters: Any) -> None:
        self.loaded.append(parameters["step"])

    def extend(self, ids: Any, prefix: Any = None) -> Any:
        raise NotImplementedError

    def score(self, forest: Any, prefix: Any = None) -> Any:
        raise NotImplementedError

    def generate(self, prompts: Any, stop_ids: Any, max_new_tokens: Any) -> Any:
        raise NotImplementedError

    def log_probabilities(self, ids: Any) -> Any:
        raise NotImplementedError


class FakeEvaluator:
    """Scores a checkpoint from its step; fails at a step as often as told."""

    def __init__(self, name: str = "holdout", metric: str = METRIC) -> None:
        self.name, self.version, self.metric = name, "v1", metric
        self.failures: dict[int, list[Exception]] = {}
        self.value: Callable[[int], float] = lambda step: loss(step) + 0.1
        self.probe: ProbeResult | None = None
        self.skipped: set[int] = set()
        self.calls: list[int] = []

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        return "not here" if checkpoint.step in self.skipped else ""

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        self.calls.append(checkpoint.step)
        assert cast("FakeModel", scorer.model).loaded[-1] == checkpoint.step
        if self.failures.get(checkpoint.step):
            raise self.failures[checkpoint.step].pop()
        identity = MetricIdentity(
            "text", "ce_nats", None, "", "validation", None, "tokens", "t", "float32", 0, "d", 8
        )
        score = Score(self.metric, self.value(checkpoint.step), 0.01, 3, identity)
        return Evaluation(
            self.name, self.version, checkpoint, weights, (score,), 0.1, probe=self.probe
        )


class FakeSink:
    """Takes alerts, or raises what it is told to, one error a call."""

    groups = False

    def __init__(self, key: str = "sink", *errors: BaseException) -> None:
        self.key, self.errors, self.sent = key, list(errors), list[str]()

    def send(self, alerts: Sequence[Alert]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.sent += [alert.id for alert in alerts]


class Clock:
    """A clock that goes on only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeRun:
    """A run directory whose checkpoints are names."""

    description: RunDescription
    steps: list[int] = field(default_factory=list[int])
    broken: dict[int, str | Exception] = field(default_factory=dict[int, "str | Exception"])
    weights: dict[int, str] = field(default_factory=dict[int, str])
    unfinished: list[Path] = field(default_factory=list[Path])

    def log(
        self,
        last: int,
        *,
        train: Callable[[int], float] = loss,
        end: str = "",
        nonfinite: Sequence[int] = (),
    ) -> None:
        """Write the run log up to a step."""
        events: list[dict[str, Any]] = [
            {"event": "start", "time": 0, "segment": 0, "resumed_from_step": None}
        ]
        for step in range(1, last + 1):
            noise = 0.01 * np.sin(7.0 * step)
            row: dict[str, Any] = {
                "event": "step",
                "time": step,
                "step": step,
                "tokens": step * BATCH * LENGTH,
            }
            bad = step in nonfinite
            row["train/ce_nats"] = None if bad else train(step) + noise
            events.append({**row, "nonfinite": ["train/ce_nats"]} if bad else row)
        if end:
            events.append({"event": "end", "time": last, "step": last, "tokens": 0, "reason": end})
        text = "".join(json.dumps(event) + "\n" for event in events)
        (self.description.path / "log.jsonl").write_text(text)

    def ids(self, last: int, repeat_from: int) -> None:
        """Write an id log in which each step from ``repeat_from`` reads what step 1 read."""
        rows = [
            (step, 0, source * BATCH + n, source * BATCH + n)
            for step in range(1, last + 1)
            for source in [step if step < repeat_from else 1]
            for n in range(BATCH)
        ]
        records = np.array(rows, ID_LOG_RECORD)
        (self.description.path / "ids.bin").write_bytes(ID_LOG_MAGIC + records.tobytes())


class World:
    """Runs, a store, a clock, and the monitors that look at them."""

    def __init__(self, folder: Path, store: Store, clock: Clock) -> None:
        self.folder, self.store, self.clock = folder, store, clock
        self.runs: dict[str, FakeRun] = {}
        self.restored: list[int] = []
        self.on_restore: Callable[[int], object] = lambda step: None
        self.evaluator, self.model, self.sink = FakeEvaluator(), FakeModel(), FakeSink()

    def add(self, name: str, steps: Sequence[int] = (), **changes: Any) -> FakeRun:
        """Make a run with committed checkpoints."""
        path = self.folder / name
        path.mkdir()
        facts: dict[str, Any] = {
            "adapter": "fake", "model": {}, "tokenizer": "t", "vocab_size": 512, "eos_id": 0,
            "sequence_length": LENGTH, "batch_instances": BATCH, "planned_steps": STEPS,
            "planned_passes": 1, "source_instances": STEPS * BATCH, "hosts": 1,
            "loader": "batch_strided", "seed": 0, "warmup_steps": 1, "recipe": "same",
            "loss": {}, "data": "data",
        }  # fmt: skip
        run = FakeRun(RunDescription(name=name, path=path, **{**facts, **changes}), list(steps))
        self.runs[name] = run
        return run

    def monitor(self, name: str = "tiny", *, store: Store | None = None, **options: Any) -> Monitor:
        """Make a monitor of a run."""
        comparison = ComparisonSettings(
            reference=options.pop("reference", ""), profile="short", holdout="text"
        )
        settings = Settings(
            evaluation=EvaluationSettings(holdouts=(HoldoutSettings("text"),)),
            comparison=comparison,
        )
        return Monitor(
            self.runs[name].description,
            store or self.store,
            settings,
            evaluators=options.pop("evaluators", [self.evaluator]),
            model=self.model,
            sinks=options.pop("sinks", [self.sink]),
            clock=self.clock,
        )

    def another(self, file: str = "evalmon.sqlite", *, elsewhere: bool = False) -> Store:
        """Open a store again, as another process may."""
        holder = Holder("elsewhere", 7, "1") if elsewhere else None
        return Store.open(self.folder / file, clock=self.clock, holder=holder)

    def find(self, run: RunDescription) -> CheckpointListing:
        fake = self.runs[run.name]
        refs = [
            CheckpointRef(run.name, step, step * BATCH * LENGTH, run.path / str(step))
            for step in sorted(fake.steps)
        ]
        return CheckpointListing(tuple(refs), tuple(fake.unfinished), ())

    def restore(self, ref: CheckpointRef) -> Parameters:
        fake = self.runs[ref.run]
        self.restored.append(ref.step)
        self.on_restore(ref.step)
        if ref.step in fake.broken:
            reason = fake.broken[ref.step]
            raise reason if isinstance(reason, Exception) else CheckpointError(reason)
        return Parameters({"step": ref.step}, fake.weights.get(ref.step, f"w{ref.step}"))

    @staticmethod
    def error(message: str) -> EvaluationError:
        """Make an error for an evaluator."""
        return EvaluationError(message)

    @staticmethod
    def new_evaluator(name: str, metric: str = "eval/downstream/piqa_0shot/acc") -> FakeEvaluator:
        """Make a second evaluator."""
        return FakeEvaluator(name, metric)

    @staticmethod
    def new_sink(key: str, *errors: BaseException) -> FakeSink:
        """Make a sink."""
        return FakeSink(key, *errors)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = Clock()
    with Store.open(tmp_path / "evalmon.sqlite", clock=clock) as store:
        made = World(tmp_path, store, clock)
        monkeypatch.setattr(checkpoints, "find", made.find)
        monkeypatch.setattr(checkpoints, "restore", made.restore)
        yield made
