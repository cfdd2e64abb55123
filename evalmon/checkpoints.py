"""Committed checkpoints of a run, weights outside a run, and their parameters as numpy arrays.

The one file of evalmon that owns Orbax. A checkpoint is found by asking Orbax which
step folders are committed, never by trusting the newest name; its tokens come from its
own ``progress`` record; its parameters come back in the stored dtype on any machine,
without the devices or the optimizer they were saved with.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from evalmon import layouts
from evalmon.errors import CheckpointError
from evalmon.types import CheckpointRef, ModelDescription, RunDescription, weights_fingerprint

__all__ = [
    "CHECKPOINTS",
    "CheckpointListing",
    "Parameters",
    "find",
    "open_weights",
    "restore",
    "step_of",
]

CHECKPOINTS = "checkpoints"
"""Folder of a run that holds its step folders."""

_COMMIT_MARKER = "commit_success.txt"
_METADATA = "_CHECKPOINT_METADATA"
_TEMPORARY = ".orbax-checkpoint-tmp"
_ITEMS = ("params", "progress")
_FINGERPRINT = "params_fingerprint"
_STEP_NAME = re.compile(r"(?:.*[_-])?(\d+)")


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """What the checkpoint folder of a run holds.

    Attributes:
        committed: finished checkpoints, in rising order of step.
        unfinished: step folders still being written, or left behind by a killed save.
        ignored: everything else, by path.
    """

    committed: tuple[CheckpointRef, ...]
    unfinished: tuple[Path, ...]
    ignored: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The weights of one checkpoint.

    Attributes:
        tree: nested mapping of numpy arrays in their stored dtype, layers in order of number.
        fingerprint: hash over names, shapes, dtypes and bytes.
    """

    tree: Mapping[str, Any]
    fingerprint: str


def find(run: RunDescription) -> CheckpointListing:
    """List the checkpoints of a run; an empty listing before the first save.

    Folder names are a step number, perhaps zero-padded, perhaps after a prefix that ends
    in ``_`` or ``-`` (``120``, ``000120``, ``step_120``).

    Raises:
        CheckpointError: two folders mean the same step; both are named and none is
            picked.

    Source: AI-Hypercomputer/maxtext issue 5260 (a newest step that is not finished);
    google/orbax issue 1499 (names).
    """
    folder = run.path / CHECKPOINTS
    committed: dict[int, CheckpointRef] = {}
    unfinished: list[Path] = []
    ignored: list[Path] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _STEP_NAME.fullmatch(path.name.split(_TEMPORARY)[0])
        if match is None or not path.is_dir():
            ignored.append(path)
        elif _is_committed(path):
            step = int(match[1])
            if step in committed:
                raise CheckpointError(
                    f"{committed[step].path} and {path} both mean step {step}; move one of them "
                    f"out of {folder}"
                )
            tokens = _tokens(path, step)
            if tokens is None:
                unfinished.append(path)
            else:
                committed[step] = CheckpointRef(run.name, step, tokens, path)
        elif path.is_dir():
            unfinished.append(path)
    return CheckpointListing(
        tuple(committed[step] for step in sorted(committed)), tuple(unfinished), tuple(ignored)
    )


def step_of(path: Path) -> int:
    """Return the step that a folder of a listing is named for, finished or not.

    Example:
        >>> step_of(Path("checkpoints/000120.orbax-checkpoint-tmp-17"))
        120
    """
    match = _STEP_NAME.fullmatch(path.name.split(_TEMPORARY)[0])
    if match is None:
        raise CheckpointError(f"{path}: not named for a step; remove it from the checkpoints")
    return int(match[1])


def restore(ref: CheckpointRef) -> Parameters:
    """Read the parameters of a checkpoint, and nothing else of it.

    Every array comes back whole, as numpy, in the dtype it was stored in, whatever
    number of devices it was saved under. A training state saved as one tree yields its
    parameters alone (``evalmon.layouts``).

    Where the checkpoint's progress record holds ``params_fingerprint``, the arrays must
    have it: a flipped bit in an array is found by nothing else.

    Raises:
        CheckpointError: the checkpoint vanished, is cut off, is damaged, or is a tree in
            which the parameters cannot be told.

    Source: google/orbax issues 646 and 648; pytorch/pytorch issue 187138 (silent casts).
    """
    path = ref.path / "params"
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: step {ref.step} of run {ref.run} is gone (removed by its trainer?); "
            "keep checkpoints until they are scored"
        )
    return _restore(path, f"step {ref.step}", lambda: _saved_fingerprint(ref.path))


def open_weights(path: Path) -> tuple[ModelDescription, Parameters]:
    """Read what a model is and its parameters, from a run or from a weights folder.

    Args:
        path: ``RUN/checkpoints/STEP``, or a folder with ``model.json`` and ``params``.

    Raises:
        CheckpointError: neither of them, unfinished, damaged, or not the weights that
            ``provenance.json`` was written for.
    """
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: no such folder; give RUN/checkpoints/STEP or a weights folder"
        )
    if path.parent.name == CHECKPOINTS and not (path / "model.json").exists():
        run = RunDescription.load(path.parent.parent)
        step = step_of(path)
        tokens = _tokens(path, step) if _is_committed(path) else None
        if tokens is None:
            raise CheckpointError(f"{path}: unfinished or damaged; wait for it, or copy it again")
        return run.model_description, restore(CheckpointRef(run.name, step, tokens, path))
    if (path / "run.json").exists():
        raise CheckpointError(f"{path}: a run; give one checkpoint of it, {path}/checkpoints/STEP")
    if (path / "config.json").exists() and not (path / "model.json").exists():
        raise CheckpointError(
            f"{path}: published weights; make a weights folder of them first: "
            f"python -m trainer convert {path} DST"
        )
    description = ModelDescription.load(path)
    if not (path / "params").is_dir():
        raise CheckpointError(f"{path / 'params'}: no such folder; convert the weights again")
    return description, _restore(path / "params", "this model", lambda: _recorded(path))


def _restore(path: Path, whose: str, expected: Callable[[], str | None]) -> Parameters:
    """Read one item and compare it with the fingerprint recorded when it was written."""
    try:
        tree = _read(path)
        found = Parameters(tree, weights_fingerprint(tree))
        recorded = expected()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{path}: the parameters of {whose} cannot be read "
            f"({type(error).__name__}: {reason[:300]}); the checkpoint is cut off or damaged"
        ) from error
    if recorded not in (None, found.fingerprint):
        raise CheckpointError(
            f"{path}: fingerprint {found.fingerprint}, but {recorded} was saved; the parameters of "
            f"{whose} are damaged, copy them again or drop the checkpoint"
        )
    return found


def _is_committed(path: Path) -> bool:
    """Tell whether a step folder is finished, by Orbax and by its own records.

    Orbax takes any folder without a temporary name for finished where renaming is
    atomic. A copy of a tree, or a file system without such renames, can hold a folder
    whose save never ended: its metadata has no commit time, an item is missing, or its
    items have commit markers and it has none.
    """
    from orbax.checkpoint.path import step

    if not step.is_path_finalized(path):
        return False
    try:
        metadata = json.loads((path / _METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    marked = any((path / item / _COMMIT_MARKER).exists() for item in _ITEMS)
    return (
        bool(metadata.get("commit_timestamp_nsecs"))
        and all((path / item).is_dir() for item in _ITEMS)
        and (not marked or (path / _COMMIT_MARKER).exists())
    )


def _tokens(path: Path, step: int) -> int | None:
    """Return the tokens of a checkpoint's progress record, None where it has vanished.

    Raises:
        CheckpointError: the record belongs to another step.
    """
    try:
        record = _progress(path, (path / _METADATA).stat().st_mtime_ns)
    except (OSError, ValueError, TypeError):
        return None
    tokens = record.get("tokens")
    if record.get("step") != step or type(tokens) is not int or tokens < 0:
        raise CheckpointError(
            f"{path}: its progress record is {record}, expected step {step} and its tokens; "
            "the folder was renamed or belongs to another run"
        )
    return tokens


def _saved_fingerprint(path: Path) -> str | None:
    """Return the fingerprint that the trainer recorded, None where it recorded none."""
    if not (path / "progress").is_dir():
        return None
    return _progress(path, (path / _METADATA).stat().st_mtime_ns).get(_FINGERPRINT)


def _recorded(path: Path) -> str | None:
    """Return the fingerprint in a weights folder's provenance, None where none is recorded."""
    file = path / "provenance.json"
    if not file.exists():
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise TypeError(f"{file.name} is no JSON object")
    return cast("dict[str, Any]", record).get(_FINGERPRINT)


@lru_cache(maxsize=4096)
def _progress(path: Path, committed_ns: int) -> dict[str, Any]:
    """Read the progress record through Orbax; a committed record never changes."""
    import orbax.checkpoint as ocp

    del committed_ns  # part of the key: a step written again is read again
    with _quiet(), ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
        record = reader.restore((path / "progress").absolute())
    if not isinstance(record, dict):
        raise TypeError(f"progress record {record!r}")
    return cast("dict[str, Any]", record)


def _read(path: Path) -> dict[str, Any]:
    """Restore the parameters of one item as numpy arrays, whatever topology saved them."""
    import jax
    import orbax.checkpoint as ocp

    place = path.absolute()
    _ignore_late_readers()
    with _quiet(), ocp.PyTreeCheckpointer() as reader:
        stored = cast("Any", reader.metadata(place)).item_metadata
        if stored is None:
            raise ValueError("its list of arrays is missing or torn")
        root = layouts.root_of_parameters(stored.tree, str(path))
        wanted = layouts.subtree(stored.tree, root)
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        for name in reversed(root):
            wanted, as_numpy = {name: wanted}, {name: as_numpy}
        # What stands beside the parameters is as large again, twice, and is not read.
        args = ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy, partial_restore=True)
        tree = reader.restore(place, args=args)
    return layouts.numbered(layouts.subtree(tree, root), str(path))


@cache
def _ignore_late_readers() -> None:
    """Keep what is left of a failed restore from printing a traceback an array.

    The first array that cannot be read ends Orbax's event loop; TensorStore's threads, still
    reading the others, then find it closed and report that where nobody can catch it. The
    failure itself is raised to the caller.
    """
    report = sys.unraisablehook

    def unless_late(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            report(unraisable)

    sys.unraisablehook = unless_late


@contextmanager
def _quiet() -> Generator[None]:
    """Keep absl from warning that an item has no step metadata of its own."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
