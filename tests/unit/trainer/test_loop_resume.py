"""The training loop, stopped, killed and resumed, or started from another run."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evalmon.errors import CheckpointError
from tests.unit.trainer.loop_runs import SETTINGS, events_of, ids_of, loss_of
from trainer.checkpoint import Checkpoints
from trainer.data.index import TokenFolder
from trainer.loop import train
from trainer.meter import Meter
from trainer.rundir import Run, create_run, open_run
from trainer.sharding import place
from trainer.update import Measures, fresh_state

MakeFolder = Callable[..., TokenFolder]

pytestmark = pytest.mark.usefixtures("quick_updates")


def test_a_stop_file_ends_a_run_with_a_checkpoint_and_is_gone_after_resume(run: Run) -> None:
    stop = run.description.path / "STOP"
    stop.touch()
    assert train(run) == "stopped"
    events = events_of(run)
    assert events[-1]["reason"] == "stopped"
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 1]
    assert train(open_run(run.description.path), resume=True) == "completed"
    assert not stop.exists()
    assert sorted(ids_of(run)["instance"].tolist()) == list(range(24))


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
        drawn = [ids_of(r)["instance"][ids_of(r)["step"] == step] for r in (run, other)]
        assert sorted(drawn[0]) == sorted(drawn[1])
    starts = [e for e in events_of(other) if e["event"] == "start"]
    assert [(e["segment"], e["resumed_from_step"], e["tokens"]) for e in starts] == [
        (0, None, 0),
        (1, 1, 32),
    ]
    assert loss_of(other) == pytest.approx(loss_of(run), abs=1e-6)


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
    assert loss_of(killed) == loss_of(run)
    ids = ids_of(killed)
    assert ids["step"].tolist() == [s for s in (1, 2, 3, 4, 5, 5, 6) for _ in range(4)]
    last = {step: sorted(ids["instance"][ids["step"] == step][-4:]) for step in range(1, 7)}
    assert sorted(i for instances in last.values() for i in instances) == list(range(24))


def test_a_run_killed_before_its_first_commit_starts_over(run: Run) -> None:
    assert train(open_run(run.description.path), resume=True) == "completed"
    assert events_of(run)[0]["resumed_from_step"] is None


def test_resuming_a_finished_run_changes_nothing_but_the_log(run: Run) -> None:
    train(run)
    before = ids_of(run).tolist()
    assert train(open_run(run.description.path), resume=True) == "completed"
    assert ids_of(run).tolist() == before
    assert events_of(run)[-1]["step"] == 6


def test_a_run_goes_on_with_another_batch_where_it_was(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder(8 * 50)
    run = create_run(tmp_path / "run", "run", SETTINGS, folder.path)
    (tmp_path / "run" / "STOP").touch()
    train(run)
    bigger = open_run(tmp_path / "run", batch_instances=8, hosts=4)
    assert train(bigger, resume=True) == "completed"
    ids = ids_of(bigger)
    assert [int((ids["step"] == step).sum()) for step in range(1, 7)] == [4, 8, 8, 8, 8, 8]
    assert len(set(ids["instance"].tolist())) == len(ids) == 44
    tokens = [e["tokens"] for e in events_of(bigger) if e["event"] == "step"]
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
    again = ids_of(changed)
    assert again["step"].tolist()[:4] == [1] * 4
    first = ids_of(whole)["instance"][:8].tolist()
    assert again["instance"][4:12].tolist() == first[: len(again) - 4]


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
    events = events_of(second)
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
