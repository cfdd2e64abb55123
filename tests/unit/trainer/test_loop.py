"""The training loop: what a run logs, what ends it, what writers get."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalmon.errors import CheckpointError, DataError, TrainingError, WriteError
from tests.unit.trainer.loop_runs import SETTINGS, compiled, events_of, ids_of, loss_of
from trainer import loop
from trainer.checkpoint import Checkpoints
from trainer.data.index import TokenFile, TokenFolder
from trainer.loop import train
from trainer.objective import NORMALIZATIONS
from trainer.rundir import Run, create_run, open_run
from trainer.runlog import RunLog
from trainer.update import Measures, TrainState

MakeFolder = Callable[..., TokenFolder]

pytestmark = pytest.mark.usefixtures("quick_updates")


def _ticks() -> Iterator[float]:
    yield from (float(n) for n in range(10**6))


def test_a_run_logs_every_step_and_its_committed_checkpoints(run: Run) -> None:
    clock = _ticks()
    assert train(run, clock=lambda: next(clock)) == "completed"
    events = events_of(run)
    assert [e["time"] for e in events] == [float(n) for n in range(len(events))]
    assert [e["step"] for e in events if e["event"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert [e["tokens"] for e in events if e["event"] == "step"] == [32 * n for n in range(1, 7)]
    assert sorted(e["step"] for e in events if e["event"] == "checkpoint") == [0, 2, 4, 6]
    assert events[0]["event"] == "start"
    assert events[-1] == {
        "event": "end",
        "time": float(len(events) - 1),
        "step": 6,
        "tokens": 192,
        "reason": "completed",
        "message": "",
    }
    step = next(e for e in events if e["event"] == "step")
    assert set(step) == {
        "event",
        "time",
        "step",
        "tokens",
        "train/ce_nats",
        "train/z_nats",
        "optim/lr",
        "optim/grad_norm",
        "optim/grad_norm_clipped",
        "optim/step_skipped",
        "throughput/tokens_per_second",
        "throughput/mfu",
    }


def test_the_id_log_holds_every_instance_with_its_step_and_host(run: Run) -> None:
    train(run)
    ids = ids_of(run)
    assert ids["step"].tolist() == [step for step in range(1, 7) for _ in range(4)]
    assert ids["host"].tolist() == [0, 0, 1, 1] * 6
    assert sorted(ids["instance"].tolist()) == list(range(24))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_ends_the_run_and_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    steps = iter(range(1, 7))

    def explode(state: TrainState, tokens: jax.Array, step: Any) -> tuple[TrainState, Measures]:
        state, measures = compiled(state, tokens, step)
        return state, measures._replace(ce_nats=jnp.float32(value)) if next(
            steps
        ) == 4 else measures

    monkeypatch.setattr(loop, "compile_update", lambda *_: explode)
    with pytest.raises(TrainingError, match="step 4: train/ce_nats is not finite"):
        train(run)
    events = events_of(run)
    row = next(e for e in events if e["event"] == "step" and e["step"] == 4)
    assert (row["train/ce_nats"], row["nonfinite"]) == (None, ["train/ce_nats"])
    assert (events[-1]["event"], events[-1]["reason"], events[-1]["step"]) == ("end", "failed", 3)
    assert "is not finite" in events[-1]["message"]
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 2]
    with Checkpoints(run.description.path / "checkpoints") as checkpoints:
        assert checkpoints.latest == 2


def test_a_full_disk_is_a_clear_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(log: RunLog, step: int, tokens: int, values: dict[str, float]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunLog, "step", full)
    with pytest.raises(WriteError, match="free some space, then go on with --resume"):
        train(run)


def test_a_lost_checkpoint_ends_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Checkpoints.save

    def fail(checkpoints: Checkpoints, state: TrainState, progress: Any) -> Any:
        if progress["step"] == 4:
            raise CheckpointError("lost")
        return save(checkpoints, state, progress)

    monkeypatch.setattr(Checkpoints, "save", fail)
    with pytest.raises(CheckpointError, match="lost"):
        train(run)
    assert sorted(e["step"] for e in events_of(run) if e["event"] == "checkpoint") == [0, 2]
    assert events_of(run)[-1]["reason"] == "failed"


def test_a_loader_that_ends_early_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.global_batches

    def short(plan: Any, build: Any) -> Any:
        return real(replace(plan, batches=3), build)

    monkeypatch.setattr(loop, "global_batches", short)
    with pytest.raises(DataError, match="ended after step 3 of 6"):
        train(run)


def test_a_skipped_step_is_logged_and_the_run_goes_on(run: Run) -> None:
    train(run)
    rows = [e for e in events_of(run) if e["event"] == "step"]
    assert [row["optim/step_skipped"] for row in rows] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert all("nonfinite" not in row for row in rows)
    rates = [row["optim/lr"] for row in rows]
    # The schedule goes on during a skipped step.
    assert len(set(rates)) == len(rates)


def test_a_batch_masked_whole_is_logged_without_a_loss(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def masked(state: TrainState, tokens: jax.Array, step: Any) -> tuple[TrainState, Measures]:
        state, measures = compiled(state, tokens, step)
        kept = jnp.int32(0) if step == 2 else measures.kept_instances
        return state, measures._replace(kept_instances=kept)

    monkeypatch.setattr(loop, "compile_update", lambda *_: masked)
    assert train(run) == "completed"
    rows = [e for e in events_of(run) if e["event"] == "step"]
    assert ["train/ce_nats" in row for row in rows] == [True, False, True, True, True, True]
    assert rows[1]["data/masked_instances"] == 4.0


def test_what_a_filter_masks_reaches_the_update_and_the_log(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(64 * 24)
    tokens = np.fromfile(folder.path / "s0-00000.npy", "<u4")
    tokens[64 * 5 : 64 * 5 + 32] = 7  # the sixth of 24 instances repeats one token 32 times
    tokens.tofile(folder.path / "s0-00000.npy")
    file = TokenFile.of(folder.path / "s0-00000.npy", "s0-00000.npy", "s0")
    replace(folder, files=(file,)).save()
    settings = replace(SETTINGS, sequence_length=64, instance_filter="repetition")
    filtered = create_run(tmp_path / "filtered", "filtered", settings, folder.path)

    def counting(state: TrainState, tokens: jax.Array, step: Any, kept: Any) -> Any:
        state, measures = compiled(state, tokens, step)
        return state, measures._replace(kept_instances=jnp.sum(kept))

    monkeypatch.setattr(loop, "compile_update", lambda *_: counting)
    assert train(filtered) == "completed"
    ids = ids_of(filtered)
    (at,) = ids["step"][ids["instance"] == 5]
    rows = {e["step"]: e for e in events_of(filtered) if e["event"] == "step"}
    assert {step: row.get("data/masked_instances") for step, row in rows.items()} == {
        step: 1.0 if step == at else None for step in range(1, 7)
    }
    assert filtered.description.loss["masked_tokens"] == NORMALIZATIONS["olmo_core"]


class Collected:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.values: dict[int, float] = {}
        self.closed = 0

    def start(self, step: int) -> None:
        self.began.append(step)

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        assert tokens == step * 32
        self.values[step] = values["train/ce_nats"]

    def close(self) -> None:
        self.closed += 1


def test_writers_get_what_the_log_gets_and_are_closed(run: Run) -> None:
    writer = Collected()
    train(run, writers=[writer])
    assert writer.values == loss_of(run)
    assert (writer.began, writer.closed) == ([0], 1)
    again = Collected()
    train(open_run(run.description.path), resume=True, writers=[again])
    assert (again.began, again.values, again.closed) == ([6], {}, 1)


def test_writers_are_closed_when_a_run_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoints, "save", _lose)
    writer = Collected()
    with pytest.raises(CheckpointError):
        train(run, writers=[writer])
    assert writer.closed == 1


def _lose(*_: Any) -> Any:
    raise CheckpointError("lost")
