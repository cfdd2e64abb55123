import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalmon.errors import CheckpointError, DataError, TrainingError, WriteError
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD
from trainer import loop
from trainer.checkpoint import Checkpoints
from trainer.config import TrainSettings
from trainer.data.index import TokenFile, TokenFolder
from trainer.loop import train
from trainer.meter import Meter
from trainer.objective import NORMALIZATIONS
from trainer.rundir import Run, create_run, open_run
from trainer.runlog import RunLog
from trainer.sharding import place
from trainer.update import Measures, OptimizerState, TrainState, Update, fresh_state

MakeFolder = Callable[..., TokenFolder]

SETTINGS = TrainSettings(
    preset="olmo3-1m",
    steps=6,
    batch_instances=4,
    sequence_length=8,
    hosts=2,
    loader="batch_strided",
    seed=1,
    checkpoint_every=2,
    learning_rate=0.01,
    warmup_steps=1,
)


def _stand_in(state: TrainState, tokens: jax.Array, step: jax.Array) -> tuple[TrainState, Measures]:
    """Change the state by the batch, in place of an update that takes seconds to compile."""
    seen = jnp.mean(tokens.astype(jnp.float32))
    params = jax.tree.map(lambda p: p * 0.9 + seen * 1e-3, state.params)
    ce = jnp.mean(params["norm"]["scale"])
    adam, history = state.optimizer
    adam = adam._replace(count=adam.count + 1)
    history = history._replace(seen=history.seen + 1)
    after = TrainState(params, OptimizerState(adam, history))
    two, one = ce * 0 + 2.0, ce * 0 + 1.0
    return after, Measures(ce, ce * 0 + 1e-4, two, one, step == 3, jnp.int32(4))


_compiled: Update = jax.jit(_stand_in, donate_argnums=0)


@pytest.fixture(autouse=True)
def quick_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out compiling the real update; end-to-end tests make it."""
    monkeypatch.setattr(loop, "compile_update", lambda *_: _compiled)


@pytest.fixture
def run(make_folder: MakeFolder, tmp_path: Path) -> Run:
    return create_run(tmp_path / "run", "run", SETTINGS, make_folder(8 * 24).path)


def _events(run: Run) -> list[dict[str, Any]]:
    lines = (run.description.path / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _series(run: Run) -> dict[int, float]:
    return {e["step"]: e["train/ce_nats"] for e in _events(run) if e["event"] == "step"}


def _ids(run: Run) -> np.ndarray:
    content = (run.description.path / "ids.bin").read_bytes()
    return np.frombuffer(content[len(ID_LOG_MAGIC) :], ID_LOG_RECORD)


def _ticks() -> Iterator[float]:
    yield from (float(n) for n in range(10**6))


def test_a_run_logs_every_step_and_its_committed_checkpoints(run: Run) -> None:
    clock = _ticks()
    assert train(run, clock=lambda: next(clock)) == "completed"
    events = _events(run)
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
    ids = _ids(run)
    assert ids["step"].tolist() == [step for step in range(1, 7) for _ in range(4)]
    assert ids["host"].tolist() == [0, 0, 1, 1] * 6
    assert sorted(ids["instance"].tolist()) == list(range(24))


def test_a_stop_file_ends_a_run_with_a_checkpoint_and_is_gone_after_resume(run: Run) -> None:
    stop = run.description.path / "STOP"
    stop.touch()
    assert train(run) == "stopped"
    events = _events(run)
    assert events[-1]["reason"] == "stopped"
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 1]
    assert train(open_run(run.description.path), resume=True) == "completed"
    assert not stop.exists()
    assert sorted(_ids(run)["instance"].tolist()) == list(range(24))


def test_stopped_and_resumed_on_other_hosts_a_run_draws_the_same_batches(
    run: Run, make_folder: MakeFolder, tmp_path: Path
) -> None:
    train(run)
    path = tmp_path / "resumed"
    other = create_run(path, "resumed", SETTINGS, tmp_path / "data")
    (path / "STOP").touch()
    train(other)
    train(open_run(path, hosts=4), resume=True)
    for step in range(1, 7):
        drawn = [_ids(r)["instance"][_ids(r)["step"] == step] for r in (run, other)]
        assert sorted(drawn[0]) == sorted(drawn[1])
    starts = [e for e in _events(other) if e["event"] == "start"]
    assert [(e["segment"], e["resumed_from_step"], e["tokens"]) for e in starts] == [
        (0, None, 0),
        (1, 1, 32),
    ]
    assert _series(other) == pytest.approx(_series(run), abs=1e-6)


def test_a_killed_run_goes_on_from_its_last_commit_to_the_same_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run)
    killed = create_run(tmp_path / "killed", "killed", SETTINGS, tmp_path / "data")

    def die(meter: Meter, step: int, measures: Measures) -> dict[str, float]:
        if step == 5:
            raise KeyboardInterrupt
        return read(meter, step, measures)

    read = Meter.read
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "read", die)
        with pytest.raises(KeyboardInterrupt):
            train(killed)
    with (killed.description.path / "ids.bin").open("ab") as stream:
        stream.write(b"torn")
    assert train(open_run(killed.description.path), resume=True) == "completed"
    assert _series(killed) == _series(run)
    ids = _ids(killed)
    assert ids["step"].tolist() == [s for s in (1, 2, 3, 4, 5, 5, 6) for _ in range(4)]
    last = {step: sorted(ids["instance"][ids["step"] == step][-4:]) for step in range(1, 7)}
    assert sorted(i for instances in last.values() for i in instances) == list(range(24))


def test_a_run_killed_before_its_first_commit_starts_over(run: Run) -> None:
    assert train(open_run(run.description.path), resume=True) == "completed"
    assert _events(run)[0]["resumed_from_step"] is None


def test_resuming_a_finished_run_changes_nothing_but_the_log(run: Run) -> None:
    train(run)
    before = _ids(run).tolist()
    assert train(open_run(run.description.path), resume=True) == "completed"
    assert _ids(run).tolist() == before
    assert _events(run)[-1]["step"] == 6


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_ends_the_run_and_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    steps = iter(range(1, 7))

    def explode(state: TrainState, tokens: jax.Array, step: Any) -> tuple[TrainState, Measures]:
        state, measures = _compiled(state, tokens, step)
        return state, measures._replace(ce_nats=jnp.float32(value)) if next(
            steps
        ) == 4 else measures

    monkeypatch.setattr(loop, "compile_update", lambda *_: explode)
    with pytest.raises(TrainingError, match="step 4: train/ce_nats is not finite"):
        train(run)
    events = _events(run)
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
    assert sorted(e["step"] for e in _events(run) if e["event"] == "checkpoint") == [0, 2]
    assert _events(run)[-1]["reason"] == "failed"


def test_a_loader_that_ends_early_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.global_batches

    def short(plan: Any, build: Any) -> Any:
        return real(replace(plan, batches=3), build)

    monkeypatch.setattr(loop, "global_batches", short)
    with pytest.raises(DataError, match="ended after step 3 of 6"):
        train(run)


def test_a_skipped_step_is_logged_and_the_run_goes_on(run: Run) -> None:
    train(run)
    rows = [e for e in _events(run) if e["event"] == "step"]
    assert [row["optim/step_skipped"] for row in rows] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert all("nonfinite" not in row for row in rows)
    rates = [row["optim/lr"] for row in rows]
    # The schedule goes on during a skipped step.
    assert len(set(rates)) == len(rates)


def test_a_batch_masked_whole_is_logged_without_a_loss(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def masked(state: TrainState, tokens: jax.Array, step: Any) -> tuple[TrainState, Measures]:
        state, measures = _compiled(state, tokens, step)
        kept = jnp.int32(0) if step == 2 else measures.kept_instances
        return state, measures._replace(kept_instances=kept)

    monkeypatch.setattr(loop, "compile_update", lambda *_: masked)
    assert train(run) == "completed"
    rows = [e for e in _events(run) if e["event"] == "step"]
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
        state, measures = _compiled(state, tokens, step)
        return state, measures._replace(kept_instances=jnp.sum(kept))

    monkeypatch.setattr(loop, "compile_update", lambda *_: counting)
    assert train(filtered) == "completed"
    ids = _ids(filtered)
    (at,) = ids["step"][ids["instance"] == 5]
    rows = {e["step"]: e for e in _events(filtered) if e["event"] == "step"}
    assert {step: row.get("data/masked_instances") for step, row in rows.items()} == {
        step: 1.0 if step == at else None for step in range(1, 7)
    }
    assert filtered.description.loss["masked_tokens"] == NORMALIZATIONS["olmo_core"]


def test_a_run_goes_on_with_another_batch_where_it_was(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder(8 * 50)
    run = create_run(tmp_path / "run", "run", SETTINGS, folder.path)
    (tmp_path / "run" / "STOP").touch()
    train(run)
    bigger = open_run(tmp_path / "run", batch_instances=8, hosts=4)
    assert train(bigger, resume=True) == "completed"
    ids = _ids(bigger)
    assert [int((ids["step"] == step).sum()) for step in range(1, 7)] == [4, 8, 8, 8, 8, 8]
    assert len(set(ids["instance"].tolist())) == len(ids) == 44
    tokens = [e["tokens"] for e in _events(bigger) if e["event"] == "step"]
    assert tokens == [32, 96, 160, 224, 288, 352]
    assert [bigger.description.tokens_at(step) for step in range(1, 7)] == tokens


def test_other_data_is_read_from_its_beginning_however_often_the_run_is_resumed(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    run = create_run(tmp_path / "run", "run", SETTINGS, make_folder(8 * 24).path)
    (tmp_path / "run" / "STOP").touch()
    train(run)
    other = make_folder(8 * 30, name="other").path
    changed = open_run(tmp_path / "run", data=other, accept_changed_data=True)
    (tmp_path / "run" / "STOP").touch()
    train(changed, resume=True)
    whole = create_run(tmp_path / "whole", "whole", SETTINGS, other)
    train(whole)
    again = _ids(changed)
    assert again["step"].tolist()[:4] == [1] * 4
    first = _ids(whole)["instance"][:8].tolist()
    assert again["instance"][4:12].tolist() == first[: len(again) - 4]


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
    assert writer.values == _series(run)
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


def _last_state(run: Run) -> tuple[int, Any]:
    """Return the step of the last checkpoint and what it holds."""
    with Checkpoints(run.description.path / "checkpoints") as checkpoints:
        template = fresh_state(run.model, run.settings.execution, 0)
        state, progress = checkpoints.restore(place(template, run.mesh()))
    return progress["step"], state


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_a_run_starts_from_another_with_its_moments_and_a_fresh_history(
    run: Run, tmp_path: Path, *, with_optimizer: bool
) -> None:
    train(run)
    source = run.description.path / "checkpoints/4"
    settings = replace(
        SETTINGS, init_from=str(source), init_optimizer=with_optimizer, steps=1, warmup_steps=0
    )
    path = tmp_path / "second"
    second = create_run(path, "second", settings, tmp_path / "data")
    assert second.description.extra["start"]["optimizer"] is with_optimizer
    assert train(second) == "completed"
    events = _events(second)
    assert [e["step"] for e in events if e["event"] == "step"] == [1]
    shutil.rmtree(path / "checkpoints/1")
    shutil.rmtree(run.description.path / "checkpoints/6")
    (first, state), (step, expected) = _last_state(second), _last_state(run)
    assert (first, step) == (0, 4)
    assert jax.tree.all(jax.tree.map(np.array_equal, state.params, expected.params))
    assert int(expected.optimizer.history.seen) == 4
    assert int(state.optimizer.history.seen) == 0
    assert int(state.optimizer.adam.count) == (4 if with_optimizer else 0)


def test_the_history_of_spikes_survives_a_resume(run: Run) -> None:
    (run.description.path / "STOP").touch()
    train(run)
    train(open_run(run.description.path), resume=True)
    _, state = _last_state(run)
    assert int(state.optimizer.history.seen) == 6


def test_a_start_of_other_shapes_is_refused_by_tensor_and_makes_nothing(
    run: Run, tmp_path: Path
) -> None:
    train(run)
    source = run.description.path / "checkpoints/6"
    settings = replace(SETTINGS, init_from=str(source), kv_heads=2)
    with pytest.raises(
        CheckpointError,
        match=r"layers\.0\.self_attn\.k_norm\.scale has shape \(16,\), .* needs \(8,\)",
    ):
        create_run(tmp_path / "second", "second", settings, tmp_path / "data")
    assert not (tmp_path / "second").exists()
    absent = replace(SETTINGS, init_from=str(run.description.path / "checkpoints/5"))
    with pytest.raises(CheckpointError, match="no committed checkpoint and no weights folder"):
        create_run(tmp_path / "second", "second", absent, tmp_path / "data")
