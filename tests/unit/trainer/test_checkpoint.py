import asyncio
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint._src.path import atomicity

from evalmon.errors import CheckpointError, WriteError
from trainer.checkpoint import Checkpoints, Progress
from trainer.optimizer import adamw
from trainer.schedule import CosineWithWarmup
from trainer.update import TrainState


def _state(value: float) -> TrainState:
    params = {
        "embed_tokens": {"embedding": jnp.full((4, 2), value)},
        "layers": {"0": {"scale": jnp.full((3,), value)}},
    }
    return TrainState(params, adamw(CosineWithWarmup(0.1, 0, 5)).init(params))


def _progress(step: int) -> Progress:
    return {"step": step, "tokens": step * 32, "instances": step * 8}


def _same(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_a_restored_state_is_bit_equal_and_knows_its_place(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(_state(1.1), _progress(3))
        assert checkpoints.wait() == [_progress(3)]
    with Checkpoints(tmp_path / "c") as checkpoints:
        assert checkpoints.latest == 3
        state, progress = checkpoints.restore(_state(0.0))
    assert progress == _progress(3)
    assert _same(state, _state(1.1))
    assert jax.tree.structure(state) == jax.tree.structure(_state(0.0))


def test_the_items_are_those_of_the_run_directory(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(_state(1.0), _progress(0))
        checkpoints.wait()
    names = {item.name for item in (tmp_path / "c/0").iterdir() if item.is_dir()}
    assert names == {"params", "optimizer", "progress"}


@pytest.fixture
def held_commit(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold every commit back until the event is set."""
    release = threading.Event()
    finalize = atomicity.AtomicRenameTemporaryPath.finalize

    async def held(self: Any) -> None:
        await asyncio.to_thread(release.wait)
        await finalize(self)

    monkeypatch.setattr(atomicity.AtomicRenameTemporaryPath, "finalize", held)
    return release


def test_a_checkpoint_counts_only_once_it_is_committed(
    tmp_path: Path, held_commit: threading.Event
) -> None:
    with Checkpoints(tmp_path / "c") as checkpoints:
        state = _state(2.0)
        assert checkpoints.save(state, _progress(1)) == []
        assert checkpoints.poll() == []
        assert not (tmp_path / "c/1").exists()
        # The next update takes the state's memory over while the writer is at work.
        jax.jit(lambda s: jax.tree.map(lambda a: a * 0, s), donate_argnums=0)(state)
        held_commit.set()
        assert checkpoints.wait() == [_progress(1)]
        assert checkpoints.wait() == []
        restored, _ = checkpoints.restore(_state(0.0))
    assert _same(restored, _state(2.0))


def test_a_save_hands_over_the_checkpoint_before_it(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "c") as checkpoints:
        assert checkpoints.save(_state(1.0), _progress(1)) == []
        assert checkpoints.save(_state(2.0), _progress(2)) == [_progress(1)]
        assert checkpoints.wait() == [_progress(2)]


def test_a_background_failure_is_an_error_that_names_the_last_durable_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: Any) -> None:
        raise OSError(28, "No space left on device")

    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(_state(1.0), _progress(2))
        checkpoints.wait()
        monkeypatch.setattr(atomicity.AtomicRenameTemporaryPath, "finalize", full)
        checkpoints.save(_state(2.0), _progress(3))
        with pytest.raises(WriteError, match="last durable step is 2") as error:
            checkpoints.wait()
    assert "No space left on device" in str(error.value)
    assert not (tmp_path / "c/3").exists()


def test_nothing_to_resume_from_is_said(tmp_path: Path) -> None:
    with (
        Checkpoints(tmp_path / "c") as checkpoints,
        pytest.raises(CheckpointError, match="no committed checkpoint"),
    ):
        checkpoints.restore(_state(0.0))


def test_a_torn_checkpoint_is_named(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(_state(1.0), _progress(4))
        checkpoints.wait()
    for file in (tmp_path / "c/4/params").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with (
        Checkpoints(tmp_path / "c") as checkpoints,
        pytest.raises(CheckpointError, match=r"c/4: cannot be restored"),
    ):
        checkpoints.restore(_state(0.0))


def test_leftovers_of_a_killed_save_are_removed_and_never_resumed_from(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "c") as checkpoints:
        checkpoints.save(_state(1.0), _progress(1))
        checkpoints.wait()
    leftover = tmp_path / "c/2.orbax-checkpoint-tmp"
    leftover.mkdir()
    with Checkpoints(tmp_path / "c") as checkpoints:
        assert checkpoints.latest == 1
        checkpoints.save(_state(2.0), _progress(2))
        checkpoints.wait()
        assert checkpoints.latest == 2
    assert not leftover.exists()
