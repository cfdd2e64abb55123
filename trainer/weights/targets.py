"""A result in one of three forms, written tensor by tensor."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evalmon.errors import WriteError
from evalmon.types import ModelDescription
from trainer.weights import maxtext, orbax_tree
from trainer.weights.casting import Array
from trainer.weights.huggingface import PublishedModel
from trainer.weights.names import is_transposed, published_shapes, tree_path
from trainer.weights.orbax_tree import NewLeaf
from trainer.weights.shard_writer import ShardWriter
from trainer.weights.source import ADAPTER

__all__ = ["Result", "write_huggingface", "write_maxtext", "write_weights"]


@dataclass(frozen=True, slots=True)
class Result:
    """What is to be written.

    Attributes:
        model: shapes, constants and ids.
        dtypes: dtype by published name, in the order that is quickest to read.
        read: published name -> tensor as it is to be written, published orientation.
        companions: tokenizer and generation settings: name -> file.
        on_written: called with the bytes of each tensor, or stack, when it is written.
    """

    model: PublishedModel
    dtypes: Mapping[str, np.dtype[Any]]
    read: Callable[[str], Array]
    companions: Mapping[str, Path]
    on_written: Callable[[int], None]

    @property
    def config_record(self) -> dict[str, Any]:
        """Content of the ``config.json`` that describes it."""
        widest = max(set(self.dtypes.values()), key=list(self.dtypes.values()).count)
        return self.model.to_record(widest)


def write_huggingface(folder: Path, result: Result, shard_bytes: int) -> None:
    """Write ``config.json``, shards and their index.

    Raises:
        WriteError: a file cannot be written.
    """
    shapes = published_shapes(result.model.config)
    signatures = {name: (result.dtypes[name], shape) for name, shape in shapes.items()}
    writer = ShardWriter(folder, signatures, shard_bytes)
    for name in result.dtypes:
        array = result.read(name)
        writer.write(name, array)
        result.on_written(array.nbytes)
    _write_json(folder / "config.json", result.config_record)
    _copy_companions(folder, result)


def write_weights(folder: Path, result: Result) -> None:
    """Write a weights folder: ``model.json`` and our tree.

    Raises:
        WriteError: a file cannot be written.
    """
    model = result.model
    shapes = published_shapes(model.config)
    tree: dict[str, Any] = {}
    for rank, (name, dtype) in enumerate(result.dtypes.items()):
        shape = shapes[name][::-1] if is_transposed(name) else shapes[name]
        load = partial(_in_our_orientation, result, name)
        _put(tree, tree_path(name), NewLeaf(shape, dtype, load, rank))
    orbax_tree.write_item(folder / "params", tree, result.on_written)
    _copy_companions(folder, result)
    description = ModelDescription(
        path=folder / "model.json",
        adapter=ADAPTER,
        model=asdict(model.config),
        vocab_size=model.config.vocab_size,
        max_length=model.max_length,
        eos_id=model.eos_id,
        tokenizer="tokenizer.json" if "tokenizer.json" in result.companions else None,
    )
    try:
        description.save()
    except OSError as error:
        raise WriteError(f"{description.path}: cannot be written ({error})") from error


def write_maxtext(folder: Path, result: Result, *, scanned: bool) -> None:
    """Write step 0 of a MaxText checkpoint, parameters alone.

    Raises:
        WriteError: a file cannot be written.
    """
    layout = maxtext.Layout(result.model.config, scanned)
    params: dict[str, Any] = {}
    ranks = {name: rank for rank, name in enumerate(result.dtypes)}
    for key, names in layout.leaves().items():
        load = partial(layout.from_published, names, result.read)
        shape, dtype = layout.shape(names[0]), result.dtypes[names[0]]
        _put(params, key, NewLeaf(shape, dtype, load, min(ranks[name] for name in names)))
    tree = {"params": {"params": params}, "step": 0, "opt_state": {}}
    orbax_tree.write_step(folder / "0", tree, {"scan_layers": scanned}, result.on_written)
    _copy_companions(folder, result)


def _in_our_orientation(result: Result, name: str) -> Array:
    """Return a tensor as our tree has it."""
    array = result.read(name)
    return array.T if is_transposed(name) else array


def _put(tree: dict[str, Any], key: tuple[str, ...], leaf: NewLeaf) -> None:
    """Put a leaf where it belongs, making the mappings on the way."""
    for name in key[:-1]:
        tree = tree.setdefault(name, {})
    tree[key[-1]] = leaf


def _copy_companions(folder: Path, result: Result) -> None:
    """Copy tokenizer and generation settings as they are."""
    for name, file in result.companions.items():
        try:
            shutil.copyfile(file, folder / name)
        except OSError as error:
            raise WriteError(f"{folder / name}: cannot be written ({error})") from error


def _write_json(file: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON object for people to read."""
    try:
        file.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise WriteError(f"{file}: cannot be written ({error}); free some space") from error
