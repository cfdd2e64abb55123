import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from evalmon.errors import CheckpointError, WriteError
from trainer.weights.casting import Array
from trainer.weights.orbax_tree import NewLeaf, open_tree, require_finished, write_item, write_step

SAVE = """
import sys, jax, jax.numpy as jnp, numpy as np, orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
assert jax.device_count() == 8
rows = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
tree = {
    "wide": jax.device_put(jnp.full((16, 4), 1.001, jnp.float32), rows),
    "narrow": jax.device_put(jnp.full((8,), 1.001, jnp.bfloat16), rows),
}
with ocp.PyTreeCheckpointer() as writer:
    writer.save(sys.argv[1], tree)
"""


def _leaf(array: Array, rank: int = 0) -> NewLeaf:
    return NewLeaf(array.shape, array.dtype, lambda: array, rank)


def _save(path: Path, tree: Any) -> Path:
    with ocp.PyTreeCheckpointer() as writer:
        writer.save(path, tree)
    return path


@pytest.mark.slow
def test_what_eight_devices_saved_one_reads_in_the_stored_dtype(
    tmp_path: Path, bfloat16: np.dtype[Any]
) -> None:
    flag = "--xla_force_host_platform_device_count=8"
    subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path / "item")],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flag},
        check=True,
    )
    tree = open_tree(tmp_path / "item")
    wide, narrow = tree.read(("wide",)), tree.read(("narrow",))
    assert type(wide) is np.ndarray
    assert (wide.dtype, narrow.dtype) == (np.float32, bfloat16)
    np.testing.assert_array_equal(wide, np.full((16, 4), 1.001, np.float32))
    np.testing.assert_array_equal(narrow, np.full(8, 1.001, np.float32).astype(bfloat16))


def test_lists_numbers_and_empty_parts_keep_their_places(tmp_path: Path) -> None:
    arrays = [np.full((2, 3), i, np.float32) for i in range(12)]
    state = {
        "model": {"layers": [{"kernel": a} for a in arrays]},
        "optimizer": [None, {"mu": arrays[0]}, {}],
        "step": 7,
    }
    tree = open_tree(_save(tmp_path / "item", state))
    for i, array in enumerate(arrays):
        found = tree.read(("model", "layers", str(i), "kernel"))
        np.testing.assert_array_equal(found, array)
    assert ("optimizer", "1", "mu") in tree.leaves
    assert tree.leaves["step",].shape == ()


def test_large_leaves_are_read_alone_and_small_ones_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = np.arange(1 << 19, dtype=np.float32).reshape(2, -1)
    item = _save(tmp_path / "item", {"p": {"large": large, "a": large[0, :3], "b": large[1, :3]}})
    tree = open_tree(item)
    reads: list[Any] = []
    restore = ocp.Checkpointer.restore

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        reads.append(restore(self, *args, **options))
        return reads[-1]

    monkeypatch.setattr(ocp.Checkpointer, "restore", noted)
    np.testing.assert_array_equal(tree.read(("p", "large")), large)
    for name in ("a", "b", "a"):
        tree.read(("p", name))
    arrays = [{n for n, v in read["p"].items() if isinstance(v, np.ndarray)} for read in reads]
    assert arrays == [{"large"}, {"a", "b"}]


@pytest.mark.parametrize("zarr3", [False, True])
def test_what_is_written_reads_back_whatever_lies_in_memory_how(
    tmp_path: Path, bfloat16: np.dtype[Any], *, zarr3: bool
) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "turned": rng.standard_normal((5, 7)).astype(np.float32).T,
        "slice": rng.standard_normal((6, 3, 5)).astype(bfloat16)[:, 1],
        "one": rng.standard_normal(9).astype(np.float16),
    }
    tree = {"x": {name: _leaf(array) for name, array in arrays.items()}}
    written: list[int] = []
    if zarr3:
        write_step(tmp_path / "0", {**tree, "step": 0}, {"scan_layers": True}, written.append)
        path = tmp_path / "0" / "items"
        with ocp.CheckpointManager(tmp_path, item_names=("items",)) as manager:
            assert manager.latest_step() == 0
            assert manager.metadata(0).custom_metadata == {"scan_layers": True}
    else:
        write_item(tmp_path / "item", tree, written.append)
        path = tmp_path / "item"
    assert sum(written) == sum(array.nbytes for array in arrays.values())
    found = open_tree(path)
    for name, array in arrays.items():
        assert found.leaves["x", name].dtype == array.dtype
        assert found.read(("x", name)).tobytes() == array.tobytes()


def test_leaves_are_made_in_order_of_rank_and_large_ones_one_by_one(tmp_path: Path) -> None:
    made: list[str] = []

    def leaf(name: str, rank: int) -> NewLeaf:
        def load() -> Array:
            made.append(name)
            return np.zeros((1 << 21,), np.float32)

        return NewLeaf((1 << 21,), np.dtype(np.float32), load, rank)

    turns: list[int] = []
    tree = {"a": leaf("a", 2), "b": leaf("b", 1), "c": leaf("c", 0)}
    write_item(tmp_path / "item", tree, turns.append)
    assert made == ["c", "b", "a"]
    assert turns == [1 << 23] * 3


def test_an_error_of_ours_while_a_leaf_is_made_stays_what_it_is(tmp_path: Path) -> None:
    def load() -> Array:
        raise CheckpointError("source: model.norm.weight is cut off")

    leaf = NewLeaf((2,), np.dtype(np.float32), load, 0)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is cut off"):
        write_item(tmp_path / "item", {"a": leaf}, lambda _: None)


def test_a_folder_that_cannot_be_made_is_a_write_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        write_item(tmp_path / "file" / "item", {"a": _leaf(np.zeros(2))}, lambda _: None)


def test_a_damaged_item_is_one_clear_error(tmp_path: Path) -> None:
    item = _save(tmp_path / "item", {"a": {"b": np.arange(1 << 19, dtype=np.float32)}})
    tree = open_tree(item)
    for file in (item / "ocdbt.process_0" / "d").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"a/b cannot be read \(.*cut off or damaged"):
        tree.read(("a", "b"))
    (item / "_METADATA").write_text("{")
    with pytest.raises(CheckpointError, match="list of arrays"):
        open_tree(item)


def test_a_save_that_never_ended_is_refused(tmp_path: Path) -> None:
    temporary = tmp_path / "3.orbax-checkpoint-tmp-17"
    temporary.mkdir()
    uncommitted = tmp_path / "4"
    uncommitted.mkdir()
    (uncommitted / "_CHECKPOINT_METADATA").write_text('{"commit_timestamp_nsecs": null}')
    torn = tmp_path / "5"
    torn.mkdir()
    (torn / "_CHECKPOINT_METADATA").write_text('{"comm')
    for path in (temporary, uncommitted, torn):
        with pytest.raises(CheckpointError, match="never ended"):
            require_finished(path)
    require_finished(_save(tmp_path / "6", {"a": np.zeros(2)}))
