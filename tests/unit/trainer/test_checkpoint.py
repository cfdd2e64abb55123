import asyncio
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint._src.path import atomicity

from evalmon.errors import CheckpointError, WriteError
from trainer.architecture import Execution
from trainer.checkpoint import Checkpoints, load_start
from trainer.presets import preset
from trainer.progress import Progress
from trainer.sharding import MeshShape, make_mesh, place
from trainer.skip_step import fresh_history
from trainer.update import OptimizerState, TrainState, fresh_state

CONFIG = replace(preset("tiny", 128, heads=2, kv_heads=1, head_dim=4), layers=8, width=8, ffn=16)
STACKED = Execution(scan_layers=True)
ONE = make_mesh(MeshShape(), jax.devices()[:1])


def _state(value: float, dtype: str = "float32") -> TrainState:
    params: dict[str, Any] = {
        "embed_tokens": {"embedding": jnp.full((4, 2), value, dtype)},
        "layers": {"0": {"scale": jnp.full((3,), value, dtype)}},
    }
    moments = [_times(factor, params) for factor in (2, 3)]
    adam = optax.ScaleByAdamState(jnp.int32(value), *moments)
    return TrainState(params, OptimizerState(adam, _on_device(fresh_history("float32"))))


def _times(factor: float, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * factor, tree)


def _on_device(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def _random(execution: Execution, seed: int = 0) -> TrainState:
    """Return a state on its mesh with other values in each of its arrays."""
    params, optimizer = fresh_state(CONFIG, execution, seed)
    mu, nu = _times(0.5, params), _times(0.25, params)
    optimizer = optimizer._replace(adam=optimizer.adam._replace(mu=mu, nu=nu))
    return place(TrainState(params, optimizer), ONE)


def _progress(step: int) -> Progress:
    return {"step": step, "tokens": step * 32, "position": step * 8}


def _same(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def _saved(path: Path, state: TrainState, stacked: bool = False) -> Path:
    with Checkpoints(path, CONFIG if stacked else None) as checkpoints:
        checkpoints.save(state, _progress(3))
        checkpoints.wait()
    return path / "3"


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


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_state_goes_on_scanned_or_not_whatever_it_was_saved_as(
    tmp_path: Path, saved: bool, wanted: bool
) -> None:
    by_layer = _random(Execution())
    stacked = _random(STACKED)
    _saved(tmp_path / "c", stacked if saved else by_layer, saved)
    with Checkpoints(tmp_path / "c", CONFIG if wanted else None) as checkpoints:
        template = place(fresh_state(CONFIG, STACKED if wanted else Execution(), 9), ONE)
        state, _ = checkpoints.restore(template)
    expected = stacked if wanted else by_layer
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    assert _same(state, expected)
    assert [leaf.sharding for leaf in jax.tree.leaves(state)] == [
        leaf.sharding for leaf in jax.tree.leaves(template)
    ]


def test_layers_are_stored_one_by_one(tmp_path: Path) -> None:
    one = _saved(tmp_path / "scanned", _random(STACKED), stacked=True)
    other = _saved(tmp_path / "not", _random(Execution()))
    assert (one / "progress/metadata").read_text() == (other / "progress/metadata").read_text()
    text = (one / "params/_METADATA").read_text()
    assert "('layers', '7', 'mlp', 'up_proj', 'kernel')" in text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_is_never_cast_unasked(tmp_path: Path, dtype: str) -> None:
    path = _saved(tmp_path / "c", _state(1.001))
    with (
        Checkpoints(tmp_path / "c") as checkpoints,
        pytest.raises(CheckpointError, match=f"is stored as float32 .* trains {dtype}") as error,
    ):
        checkpoints.restore(_state(0.0, dtype))
    assert "embed_tokens.embedding" in str(error.value)
    assert "--dtype" in str(error.value)
    for with_optimizer in (False, True):
        with pytest.raises(CheckpointError, match=f"is stored as float32 .* trains {dtype}"):
            load_start(path, _state(0.0, dtype), with_optimizer=with_optimizer)


def test_a_stored_dtype_comes_back(tmp_path: Path) -> None:
    narrow = _state(1.0, "bfloat16")
    path = _saved(tmp_path / "c", narrow)
    read = load_start(path, _state(0.0, "bfloat16"), with_optimizer=True)
    assert _same(read, narrow)
    assert read.params["embed_tokens"]["embedding"].dtype == jnp.bfloat16
    with (
        Checkpoints(tmp_path / "c") as checkpoints,
        pytest.raises(CheckpointError, match=r"is stored as bfloat16 .* trains float32"),
    ):
        checkpoints.restore(_state(0.0))


def test_a_start_that_is_stored_narrower_is_widened(tmp_path: Path) -> None:
    narrow = _state(1.001, "bfloat16")
    path = _saved(tmp_path / "c", narrow)
    read = load_start(path, _state(0.0), with_optimizer=False)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), narrow.params)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), read.params, wide))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(read.params)} == {"float32"}
    with pytest.raises(CheckpointError, match=r"is stored as bfloat16 .* trains float32"):
        load_start(path, _state(0.0), with_optimizer=True)


def test_another_shape_or_name_is_refused_by_name(tmp_path: Path) -> None:
    path = _saved(tmp_path / "c", _state(1.0))
    wide, more = _state(1.0), _state(1.0)
    wide.params["layers"]["0"]["scale"] = jnp.ones(4)
    more.params["norm"] = {"scale": jnp.ones(4)}
    with pytest.raises(CheckpointError, match=r"layers\.0\.scale is stored as float32 \[3\]"):
        load_start(path, wide, with_optimizer=False)
    with pytest.raises(CheckpointError, match=r"lacks \['norm.scale'\]"):
        load_start(path, more, with_optimizer=False)


def test_flipped_bits_are_found(tmp_path: Path) -> None:
    path, other = (_saved(tmp_path / name, _state(v)) for name, v in (("c", 1.0), ("d", 2.0)))
    shutil.rmtree(path / "params")
    shutil.copytree(other / "params", path / "params")
    with (
        Checkpoints(tmp_path / "c") as checkpoints,
        pytest.raises(CheckpointError, match=r"c/3: damaged"),
    ):
        checkpoints.restore(_state(0.0))
    with pytest.raises(CheckpointError, match=r"c/3: damaged.*--init-from"):
        load_start(path, _state(0.0), with_optimizer=False)


def test_a_run_starts_from_parameters_alone_or_with_the_optimizer(tmp_path: Path) -> None:
    path = _saved(tmp_path / "c", _state(7.0))
    alone = load_start(path, _state(1.0), with_optimizer=False)
    assert _same(alone.params, _state(7.0).params)
    assert _same(alone.optimizer, _state(1.0).optimizer)
    assert _same(load_start(path, _state(1.0), with_optimizer=True), _state(7.0))


def test_a_folder_of_weights_is_a_start_without_an_optimizer(tmp_path: Path) -> None:
    path = _saved(tmp_path / "c", _random(Execution()))
    weights = tmp_path / "weights"
    shutil.copytree(path / "params", weights / "params")
    template = place(fresh_state(CONFIG, STACKED, 5), ONE)
    started = load_start(weights, template, with_optimizer=False, stacked=CONFIG)
    assert _same(started.params, _random(STACKED).params)
    assert started.optimizer is template.optimizer
    (weights / "provenance.json").write_text('{"params_fingerprint": "of others"}')
    with pytest.raises(CheckpointError, match=r"weights: damaged.*--init-from"):
        load_start(weights, template, with_optimizer=False, stacked=CONFIG)
    with pytest.raises(CheckpointError, match=r"weights: holds no optimizer; --init-from takes"):
        load_start(weights, template, with_optimizer=True, stacked=CONFIG)


def test_a_start_that_is_not_there_or_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent: holds no params; --init-from takes"):
        load_start(tmp_path / "absent", _state(0.0), with_optimizer=False)
    path = _saved(tmp_path / "c", _state(1.0))
    unfinished = path.rename(path.with_name("3.orbax-checkpoint-tmp"))
    with pytest.raises(CheckpointError, match="its save never ended"):
        load_start(unfinished, _state(0.0), with_optimizer=False)
