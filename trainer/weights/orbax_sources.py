"""Checkpoints in Orbax's format as sources: of our runs, of MaxText, of other trainers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from evalmon.errors import CheckpointError, ConfigError
from evalmon.types import ModelDescription, RunDescription
from trainer.architecture import Olmo3Config
from trainer.presets import preset
from trainer.weights import maxtext, orbax_tree
from trainer.weights.casting import DTYPES, Array
from trainer.weights.huggingface import PublishedModel
from trainer.weights.json_files import read_object
from trainer.weights.matching import require_tensors
from trainer.weights.names import axis_sizes, is_transposed, published_axes, tree_path
from trainer.weights.orbax_tree import Key, StoredTree
from trainer.weights.source import (
    ADAPTER,
    PROVENANCE,
    Given,
    Source,
    companions,
    provenance,
    with_compute_dtype,
)

__all__ = ["open_bare", "open_run", "open_weights"]

_ROOTS: Final[tuple[Key, ...]] = (
    ("params", "params"),
    ("params",),
    ("model", "params"),
    ("model",),
    (),
)
"""Where the parameters stand in trees of several trainers, MaxText's first."""

_OUR_FIELDS: Final = {
    "layers": "layers",
    "vocab_size": "vocab_size",
    "width": "width",
    "queries": "heads x head_dim",
    "keys": "kv_heads x head_dim",
    "ffn": "ffn",
}
_CONTEXT: Final = 8192
"""Tokens OLMo 3 is trained on at a time, before long-context training."""


def open_weights(path: Path) -> Source:
    """Open a folder that ``convert`` wrote."""
    described = ModelDescription.load(path)
    record = provenance(path)
    config = Olmo3Config.from_record(described.model, f"{path / 'model.json'}: model")
    model = _as_published(config, described, record)
    origin = {"provenance": record or None}
    source = _open_canonical(path, path / "params", model, origin)
    return replace(
        source,
        form="weights",
        companions=companions(path),
        fingerprint=record.get("params_fingerprint"),
    )


def open_run(run: Path, step: Path) -> Source:
    """Open a checkpoint of a run."""
    described = RunDescription.load(run)
    if not (step / "_CHECKPOINT_METADATA").exists() or not (step / "progress").is_dir():
        raise CheckpointError(f"{step}: a save that never ended; give a finished checkpoint")
    progress = orbax_tree.read_json_item(step / "progress")
    config = Olmo3Config.from_record(described.model, f"{run / 'run.json'}: model")
    model = _as_published(config, described.model_description, {})
    facts = {"run": described.name, "step": progress.get("step"), "tokens": progress.get("tokens")}
    source = _open_canonical(step, step / "params", model, facts)
    tokenizer = described.resolve(described.tokenizer)
    return replace(
        source,
        form="checkpoint",
        companions={"tokenizer.json": tokenizer} if tokenizer.is_file() else {},
        left_out=tuple(p.name for p in sorted(step.iterdir()) if p.is_dir() and p.name != "params"),
        fingerprint=progress.get("params_fingerprint"),
    )


def open_bare(path: Path, item: Path, given: Given) -> Source:
    """Open an Orbax tree without a configuration of ours beside it."""
    stored = orbax_tree.open_tree(item)
    root, keys = _root(stored)
    if not maxtext.is_maxtext(keys):
        if given.config is None and given.preset is None:
            raise ConfigError(
                f"{path}: its tensors do not tell the number of heads; give --config or --preset"
            )
        embedding = keys.get(("embed_tokens", "embedding"))
        if embedding is None or len(stored.leaves[embedding].shape) != 2:
            raise CheckpointError(f"{path}: embed_tokens.embedding is missing or no matrix")
        model, assumed = _given_model(given, stored.leaves[embedding].shape[0], str(path))
        return replace(_open_canonical(path, item, model, {}), assumed=assumed)
    return _open_maxtext(path, stored, root, keys, given)


def _open_maxtext(
    path: Path, stored: StoredTree, root: Key, keys: Mapping[Key, Key], given: Given
) -> Source:
    """Open a checkpoint of MaxText's."""
    shapes = {key: stored.leaves[full].shape for key, full in keys.items()}
    found = maxtext.infer_config(shapes, str(path))
    beside = stored.path.parent.parent
    record = provenance(beside)
    if given.config is None and given.preset is None and isinstance(record.get("config"), dict):
        place = f"{beside / PROVENANCE}: config"
        model = PublishedModel.from_record(cast("dict[str, Any]", record["config"]), place)
        assumed: tuple[str, ...] = ()
    elif given.config is None and given.preset is None:
        model = PublishedModel(found, _CONTEXT)
        note = (
            f"window {found.window}, rope_theta {found.rope_theta:.0f}, norm_eps {found.norm_eps}, "
            f"no YaRN, max_length {_CONTEXT}: OLMo 3's, because MaxText's checkpoint does not say"
        )
        assumed = (note,)
    else:
        model, assumed = _given_model(given, found.vocab_size, str(path))
    _require_same_shapes(model.config, found, str(path))
    layout = maxtext.Layout(model.config, maxtext.is_scanned(keys))
    leaves = layout.leaves()
    require_tensors(
        {"/".join(key): shape for key, shape in shapes.items()},
        {"/".join(key): layout.axes(names[0]) for key, names in leaves.items()},
        layout.sizes(),
        str(path),
        {axis: axis for axis in ("layers", *layout.sizes())},
    )
    order = [name for names in leaves.values() for name in names]
    stack: dict[Key, Array] = {}

    def read(name: str) -> Array:
        place = layout.place(name)
        if place.slice is None:
            return layout.to_published(name, stored.read(keys[place.key]))
        if place.key not in stack:
            stack.clear()  # before the next one is read: two would be twice the memory
            stack[place.key] = stored.read(keys[place.key])
        return layout.to_published(name, stack[place.key])

    dtypes = _dtypes(stored, {name: keys[layout.place(name).key] for name in order})
    return Source(
        path=path,
        form="maxtext",
        model=with_compute_dtype(model, dtypes),
        dtypes=dtypes,
        read=read,
        any_order=not layout.scanned,
        files=_files(stored.path),
        companions=companions(beside) if record else {},
        left_out=_left_out(stored, root),
        assumed=assumed,
        fingerprint=record.get("params_fingerprint"),
        origin={"scanned": layout.scanned, "provenance": record or None},
    )


def _open_canonical(
    path: Path, item: Path, model: PublishedModel, origin: Mapping[str, Any]
) -> Source:
    """Open an item that holds our tree, alone or in a trainer's state."""
    stored = orbax_tree.open_tree(item)
    root, keys = _root(stored)
    expected = published_axes(model.config.layers)
    where = {name: tree_path(name) for name in expected}
    require_tensors(
        {".".join(key): stored.leaves[full].shape for key, full in keys.items()},
        {
            ".".join(where[name]): axes[::-1] if is_transposed(name) else axes
            for name, axes in expected.items()
        },
        axis_sizes(model.config),
        str(item),
        _OUR_FIELDS,
    )

    def read(name: str) -> Array:
        array = stored.read(keys[where[name]])
        return array.T if is_transposed(name) else array

    dtypes = _dtypes(stored, {name: keys[where[name]] for name in expected})
    return Source(
        path=path,
        form="orbax",
        model=with_compute_dtype(model, dtypes),
        dtypes=dtypes,
        read=read,
        any_order=True,
        files=_files(item),
        left_out=_left_out(stored, root),
        origin=origin,
    )


def _root(stored: StoredTree) -> tuple[Key, dict[Key, Key]]:
    """Return where the parameters of a tree stand, and their keys below and above it.

    A leaf that an NNX state wraps as ``value`` stands for its parent.
    """
    for root in _ROOTS:
        below = {key[len(root) :]: key for key in stored.leaves if key[: len(root)] == root}
        unwrapped = {k[:-1] if len(k) > 1 and k[-1] == "value" else k: v for k, v in below.items()}
        if any(key[0] in {"embed_tokens", "token_embedder"} for key in unwrapped if key):
            return root, unwrapped
    top = sorted({key[0] for key in stored.leaves if key})
    raise CheckpointError(
        f"{stored.path}: no parameters of an OLMo 3; the tree has {', '.join(top) or 'no arrays'}, "
        "expected embed_tokens or token_embedder at its root, under params, params/params, model "
        "or model/params"
    )


def _dtypes(stored: StoredTree, keys: Mapping[str, Key]) -> dict[str, np.dtype[Any]]:
    """Return the dtype of each published tensor, which must be a weight's."""
    dtypes = {name: stored.leaves[key].dtype for name, key in keys.items()}
    for name, dtype in dtypes.items():
        if str(dtype) not in DTYPES:
            raise CheckpointError(
                f"{stored.path}: {'/'.join(keys[name])} has dtype {dtype}; expected one of "
                f"{', '.join(DTYPES)}: export the weights unquantized"
            )
    return dtypes


def _given_model(given: Given, rows: int, place: str) -> tuple[PublishedModel, tuple[str, ...]]:
    """Return the model that --config or --preset describes."""
    if given.config is not None and given.preset is not None:
        raise ConfigError("--config and --preset: give one of them")
    if given.config is not None:
        return PublishedModel.from_record(read_object(given.config), str(given.config)), ()
    config = preset(cast("str", given.preset), rows)
    note = f"constants of preset {given.preset}, max_length {_CONTEXT}: {place} does not say"
    return PublishedModel(config, _CONTEXT), (note,)


def _require_same_shapes(said: Olmo3Config, found: Olmo3Config, place: str) -> None:
    """Refuse a configuration that the tensors contradict."""
    for name in ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "ffn"):
        if getattr(said, name) != getattr(found, name):
            raise CheckpointError(
                f"{place}: {name} is {getattr(said, name)} in the configuration, but the tensors "
                f"have {getattr(found, name)}; give the right --config or --preset"
            )


def _as_published(
    config: Olmo3Config, described: ModelDescription, record: Mapping[str, Any]
) -> PublishedModel:
    """Return a model of ours with the ids that its provenance remembers."""
    if described.adapter != ADAPTER:
        raise ConfigError(
            f"{described.path}: adapter is {described.adapter!r}, expected {ADAPTER!r}; convert "
            "it with the trainer that wrote it"
        )
    if config.vocab_size != described.vocab_size:
        raise ConfigError(
            f"{described.path}: vocab_size is {described.vocab_size}, but {config.vocab_size} in "
            "'model'"
        )
    eos = () if described.eos_id is None else (described.eos_id,)
    model = PublishedModel(config, described.max_length, eos)
    known = record.get("config")
    if not isinstance(known, dict):
        return model
    published = PublishedModel.from_record(
        cast("dict[str, Any]", known), f"{described.path.parent / PROVENANCE}: config"
    )
    if published.config.vocab_size != config.vocab_size or published.eos_id != described.eos_id:
        return model
    return replace(model, eos_ids=published.eos_ids, pad_id=published.pad_id, kept=published.kept)


def _files(folder: Path) -> tuple[Path, ...]:
    """Return all files below a folder, by name."""
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def _left_out(stored: StoredTree, root: Key) -> tuple[str, ...]:
    """Return what stands beside the parameters in a tree."""
    beside = {
        "/".join(key[: depth + 1])
        for key in stored.leaves
        for depth in range(len(root))
        if key[:depth] == root[:depth] and key[: depth + 1] != root[: depth + 1]
    }
    return tuple(sorted(beside))
