"""Orbax items, read and written leaf by leaf: the one file here that knows Orbax.

Orbax itself copies a whole tree before it writes, and holds all compressed arrays until a
data file of 2 GB is full. Here a leaf is made when its turn comes, is written in chunks of
64 MiB, and the next one waits until that is done; only small leaves share a turn.
"""

import asyncio
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import type_handlers

from evalmon.errors import CheckpointError, WriteError
from trainer.late_threads import be_quiet, first_line
from trainer.weights.casting import Array

__all__ = [
    "Key",
    "NewLeaf",
    "StoredLeaf",
    "StoredTree",
    "is_item",
    "open_tree",
    "read_json_item",
    "require_finished",
    "write_item",
    "write_step",
]

Key: TypeAlias = tuple[str, ...]
"""Names from the root of a tree to a leaf; places in a list are numbers as text."""

_ERRORS: Final = (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError)
"""What a full disk, a torn file or another shape surfaces as."""

_ITEM: Final = "_METADATA"
_STEP: Final = "_CHECKPOINT_METADATA"
_TEMPORARY: Final = ".orbax-checkpoint-tmp"
_CHUNK_BYTES: Final = 1 << 26
_FILE_BYTES: Final = 1 << 28
_SMALL_BYTES: Final = 1 << 20
_TURN_BYTES: Final = 1 << 23


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """Shape and dtype of a stored array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Length of its values."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class StoredTree:
    """An Orbax item whose arrays are read one by one, as numpy, in their stored dtype.

    Neither the devices it was saved under nor a tree of the same form is needed.

    Attributes:
        path: the item.
        leaves: its arrays.
    """

    path: Path
    leaves: Mapping[Key, StoredLeaf]
    _metadata: Any
    _small: dict[Key, Array] = field(default_factory=dict[Key, Array])

    def read(self, key: Key) -> Array:
        """Return one array. Small ones are read together and kept.

        Raises:
            CheckpointError: it is cut off or damaged.

        Source: google/orbax issues 646 and 648.
        """
        if self.leaves[key].nbytes > _SMALL_BYTES:
            return self._read({key})[key]
        if key not in self._small:
            self._small.update(
                self._read(
                    {
                        other
                        for other, leaf in self.leaves.items()
                        if other[0] == key[0] and leaf.nbytes <= _SMALL_BYTES
                    }
                )
            )
        return self._small[key]

    def _read(self, keys: set[Key]) -> dict[Key, Array]:
        """Read some arrays, and nothing else."""
        item = jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf if _names(path) in keys else ocp.PLACEHOLDER, self._metadata
        )
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), self._metadata)
        be_quiet()
        try:
            with ocp.PyTreeCheckpointer() as reader:
                args = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy)
                restored = reader.restore(self.path.absolute(), args=args)
        except _ERRORS as error:
            some = "/".join(min(keys)) + (
                f" or one of {len(keys) - 1} more" if len(keys) > 1 else ""
            )
            raise CheckpointError(
                f"{self.path}: {some} cannot be read ({first_line(error)}); the checkpoint is cut "
                "off or damaged"
            ) from error
        found = jax.tree_util.tree_flatten_with_path(restored)[0]
        return {_names(path): np.asarray(leaf) for path, leaf in found if _names(path) in keys}


@dataclass(frozen=True, slots=True)
class NewLeaf(StoredLeaf):
    """An array that is made when it is written.

    Attributes:
        load: makes it; any strides.
        rank: leaves of a lower rank are written before.
    """

    load: Callable[[], Array]
    rank: int


def is_item(path: Path) -> bool:
    """Tell whether a folder is an Orbax item of arrays."""
    return (path / _ITEM).is_file()


def require_finished(path: Path) -> None:
    """Refuse a step or item whose save never ended.

    Raises:
        CheckpointError: it has a temporary name, or a record without a time of commit.
    """
    record = path / _STEP
    unfinished = any(_TEMPORARY in part for part in path.absolute().parts)
    if record.exists() and not unfinished:
        try:
            loaded = json.loads(record.read_text(encoding="utf-8"))
            unfinished = not loaded.get("commit_timestamp_nsecs")
        except (OSError, ValueError, AttributeError):
            unfinished = True
    if unfinished:
        raise CheckpointError(f"{path}: a save that never ended; give a finished checkpoint")


def open_tree(path: Path) -> StoredTree:
    """Read which arrays an item holds.

    Raises:
        CheckpointError: unfinished, cut off or no item.
    """
    require_finished(path)
    be_quiet()
    try:
        with ocp.PyTreeCheckpointer() as reader:
            item = cast("Any", reader.metadata(path.absolute())).item_metadata
            tree = None if item is None else item.tree
    except _ERRORS as error:
        raise CheckpointError(
            f"{path}: its list of arrays cannot be read ({first_line(error)}); cut off or damaged"
        ) from error
    if tree is None:
        raise CheckpointError(f"{path}: its list of arrays is missing or torn; copy it again")
    leaves = {
        _names(path): StoredLeaf(tuple(leaf.shape), np.dtype(leaf.dtype))
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if getattr(leaf, "shape", None) is not None and getattr(leaf, "dtype", None) is not None
    }
    return StoredTree(path, leaves, tree)


def read_json_item(path: Path) -> dict[str, Any]:
    """Return the content of a JSON item.

    Raises:
        CheckpointError: it cannot be read.
    """
    be_quiet()
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            record = reader.restore(path.absolute())
    except _ERRORS as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from error
    return cast("dict[str, Any]", record) if isinstance(record, dict) else {}


def write_item(path: Path, tree: Mapping[str, Any], on_written: Callable[[int], None]) -> None:
    """Write an item as our trainer writes its own.

    Args:
        path: folder to make.
        tree: nested mappings with ``NewLeaf`` leaves.
        on_written: called with the bytes of each leaf when it is written.

    Raises:
        WriteError: it could not be written.
    """
    with _writing(path), ocp.Checkpointer(_handler(on_written, zarr3=False)) as writer:
        writer.save(path.absolute(), args=_save_args(tree))


def write_step(
    path: Path,
    tree: Mapping[str, Any],
    custom_metadata: Mapping[str, Any],
    on_written: Callable[[int], None],
) -> None:
    """Write a step folder with one item ``items``, in the format MaxText writes.

    Args:
        path: step folder to make.
        tree: nested mappings with ``NewLeaf`` leaves and numbers.
        custom_metadata: stored in the step's own record.
        on_written: called with the bytes of each leaf when it is written.

    Raises:
        WriteError: it could not be written.
    """
    with _writing(path):
        handler = ocp.CompositeCheckpointHandler(items=_handler(on_written, zarr3=True))
        with ocp.Checkpointer(handler) as writer:
            args = ocp.args.Composite(items=_save_args(tree))
            writer.save(path.absolute(), args=args, custom_metadata=dict(custom_metadata))


class _InTurn(type_handlers.NumpyHandler):
    """Writes ``NewLeaf`` leaves as numpy arrays, about 8 MiB or one leaf at a time."""

    def __init__(self, on_written: Callable[[int], None]) -> None:
        super().__init__(deepcopy_host_arrays=False)
        self._on_written = on_written

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        given = args or [ocp.SaveArgs() for _ in values]
        leaves = sorted(zip(values, infos, given, strict=True), key=lambda leaf: leaf[0].rank)
        turn: list[Any] = []
        for place, leaf in enumerate(leaves, 1):
            turn.append(leaf)
            size = sum(value.nbytes for value, _, _ in turn)
            if size < _TURN_BYTES and place < len(leaves):
                continue
            arrays = [value.load() for value, _, _ in turn]
            written = await super().serialize(
                arrays, [info for _, info, _ in turn], [arg for _, _, arg in turn]
            )
            for future in written:
                await asyncio.to_thread(future.result)
            self._on_written(size)
            turn.clear()
            del arrays, written
        return []


def _handler(on_written: Callable[[int], None], *, zarr3: bool) -> "ocp.PyTreeCheckpointHandler":
    """Return a handler that makes leaves when their turn comes."""
    registry = type_handlers.create_type_handler_registry(
        (NewLeaf, _InTurn(on_written)), (int, type_handlers.ScalarHandler())
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry, use_zarr3=zarr3)


def _save_args(tree: Mapping[str, Any]) -> Any:
    """Return how to save a tree: in chunks, each of which can be written at once."""
    chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), tree)
    return ocp.args.PyTreeSave(tree, chunked, ocdbt_target_data_file_size=_FILE_BYTES)


def _names(path: Sequence[Any]) -> Key:
    """Return the names on the way to a leaf."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Turn what goes wrong in Orbax into an error that names the folder."""
    be_quiet()
    try:
        yield
    except _ERRORS as error:
        raise WriteError(
            f"{path}: cannot be written ({first_line(error)}); free some space or mend the disk"
        ) from error
