"""A run, a checkpoint and evaluations for the store's tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evalmon.store import ResponseFile, Store
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    MetricIdentity,
    ProbeResult,
    RunDescription,
    Score,
    Verdict,
    VerdictName,
)

IDENTITY = MetricIdentity(
    task="c4_en",
    metric="ce_nats",
    shots=None,
    prompt_set="",
    split="validation",
    item_limit=None,
    normalization="tokens",
    tokenizer="aa",
    dtype="float32",
    prefix_token=0,
    data="bb",
    max_length=128,
)
HEADER = {"dtype": "float32", "batch_size": 8, "versions": {"evalmon": "1"}, "merged": [1, 2]}


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tmp_path: Path) -> RunDescription:
    return RunDescription(
        name="tiny",
        path=tmp_path / "tiny",
        adapter="olmo3",
        model={"preset": "tiny"},
        tokenizer="tokenizer.json",
        vocab_size=64,
        eos_id=0,
        sequence_length=8,
        batch_instances=4,
        planned_steps=100,
        planned_passes=1,
        source_instances=400,
        hosts=2,
        loader="batch_strided",
        seed=0,
        warmup_steps=5,
        recipe="cc",
        loss={"divisor": "tokens", "z_loss": False},
        data="data",
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "evalmon.sqlite"


@pytest.fixture
def store(file: Path, clock: Clock, run: RunDescription) -> Iterator[Store]:
    with Store.open(file, clock=clock) as opened:
        opened.register(run)
        yield opened


@pytest.fixture
def evaluation(run: RunDescription) -> Callable[..., Evaluation]:
    """Make an evaluation at a step."""

    def make(
        step: int,
        value: float = 3.0,
        *,
        evaluator: str = "holdout_loss",
        version: str = "v1",
        identity: MetricIdentity = IDENTITY,
        probe: ProbeResult | None = None,
    ) -> Evaluation:
        ref = CheckpointRef(run.name, step, step * 32, run.path / "checkpoints" / str(step))
        score = Score(
            metric="eval/lm/c4_en-validation/ce_nats",
            value=value,
            stderr=0.1,
            items=3,
            identity=identity,
            item_ids=("a", "b", "ü"),
            item_values=(value - 0.5, value, value + 0.5),
            item_weights=(1.0, 2.0, 1.0),
        )
        return Evaluation(
            evaluator,
            version,
            ref,
            f"w{step}",
            (score,),
            1.5,
            probe,
            (Path("results.json"),),
            HEADER,
        )

    return make


@pytest.fixture
def verdict(run: RunDescription) -> Callable[..., Verdict]:
    """Make a verdict at a step."""

    def make(step: int, name: str = "healthy", unmatched: float | None = None) -> Verdict:
        return Verdict(
            run=run.name,
            verdict=VerdictName(name),
            step=step,
            tokens=step * 32,
            reference=None,
            profile="short",
            onset_tokens=None,
            alarm_tokens=None,
            channel="",
            train_gap_nats=None,
            holdout_gap_nats=None,
            unmatched_nats=unmatched,
            unmatched_low_nats=None,
            unmatched_high_nats=None,
            matched_fraction=None,
            tolerance_nats=None,
            first_repeat_tokens=None,
            repeated_fraction=None,
            probe=None,
            reasons=("quiet",),
        )

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evalmon.sqlite.responses.sqlite"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def opened(path: Path, clock: Clock, said: list[str]) -> ResponseFile:
    return ResponseFile(path, clock, said.append)
