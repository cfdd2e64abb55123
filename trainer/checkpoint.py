"""Checkpoints: the file of the trainer that knows how Orbax stores a run.

A checkpoint holds three items: ``params`` and ``optimizer`` (arrays) and ``progress``
(JSON: step, tokens, position, and the fingerprint of the parameters, because Orbax does
not notice a flipped bit). It is written in the background and counts from the moment Orbax
has renamed its directory to the bare step number.

On disk nothing hangs on how a run holds its state (``trainer.canonical``): a checkpoint goes
on with any mesh, any number of processes, scanned or not. A dtype is never changed on the way
in or out.
"""

import json
from pathlib import Path
from typing import Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.path import step as step_paths

from evalmon.errors import CheckpointError, WriteError
from trainer.canonical import (
    Stacked,
    canonical_copy,
    canonical_shapes,
    canonical_shardings,
    fingerprint,
    in_layout_of,
)
from trainer.late_threads import be_quiet, first_line
from trainer.progress import FINGERPRINT, Progress, progress_of, read_record
from trainer.update import TrainState

__all__ = ["Checkpoints", "load_start"]

_ORBAX_ERRORS: Final = (OSError, ValueError, TypeError, KeyError, RuntimeError, AttributeError)
"""What a full disk, a torn file or another shape surfaces as."""

_WAIT_SECONDS: Final = 300
"""How long a process of a distributed run waits for another's part of a checkpoint."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: ``RUN/checkpoints``; leftovers of a save that a kill cut off are never
            resumed from, and are gone by the next save.
        stacked: shapes of the model if the run's layers are stacked (``trainer.layout``),
            None if they are not.
    """

    def __init__(self, directory: Path, stacked: Stacked = None) -> None:
        be_quiet()
        self._directory = directory.resolve()
        self._stacked = stacked
        options = ocp.CheckpointManagerOptions(
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(timeout_secs=_WAIT_SECONDS),
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)
        self._pending: Progress | None = None

    @property
    def latest(self) -> int | None:
        """Return the step of the last committed checkpoint."""
        return self._manager.latest_step()

    def save(self, state: TrainState, progress: Progress) -> list[Progress]:
        """Start to write a checkpoint; the state may be overwritten as soon as this returns.

        Returns:
            Checkpoints committed since the last call.

        Raises:
            WriteError: this or an earlier checkpoint could not be written.
        """
        committed = self.wait()
        copy = canonical_copy(state, self._stacked)
        self._pending = progress
        try:
            self._manager.save(
                progress["step"],
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(copy.params),
                    optimizer=ocp.args.StandardSave(copy.optimizer),
                    progress=ocp.args.JsonSave({**progress, FINGERPRINT: fingerprint(copy.params)}),
                ),
            )
        except _ORBAX_ERRORS as error:
            raise self._lost(progress["step"], error) from error
        return committed

    def poll(self) -> list[Progress]:
        """Return the checkpoint committed since the last call, without waiting.

        Raises:
            WriteError: it could not be written.
        """
        busy = self._pending is None or self._manager.is_saving_in_progress()
        return [] if busy else self.wait()

    def wait(self) -> list[Progress]:
        """Wait for the checkpoint being written and return it.

        Raises:
            WriteError: it could not be written.
        """
        pending = self._pending
        if pending is None:
            return []
        self._pending = None
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except _ORBAX_ERRORS as error:
            raise self._lost(pending["step"], error) from error
        if not (self._directory / str(pending["step"])).is_dir():
            raise self._lost(pending["step"], "Orbax left no committed directory")
        return [pending]

    def restore(self, template: TrainState) -> tuple[TrainState, Progress]:
        """Read the last committed checkpoint.

        Args:
            template: a state of the same shapes and dtypes on the devices to restore to, or
                its ``placed_shapes``; their number need not be that it was saved from.

        Raises:
            CheckpointError: none is committed, or it is torn or of other shapes or dtypes.
        """
        step = self.latest
        if step is None:
            raise CheckpointError(
                f"{self._directory}: no committed checkpoint to resume from; start a new run"
            )
        path = self._directory / str(step)
        way_out = "remove this directory to resume from the checkpoint before it"
        params = _read(path / "params", template.params, self._stacked, way_out)
        optimizer = _read(path / "optimizer", template.optimizer, self._stacked, way_out)
        return TrainState(params, optimizer), progress_of(path, way_out)

    def close(self) -> None:
        """Wait for the background and end its threads; errors were raised by ``wait``."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _lost(self, step: int, cause: object) -> WriteError:
        """Describe a checkpoint that was not written."""
        kept = sorted(int(p.name) for p in self._directory.iterdir() if p.name.isdigit())
        return WriteError(
            f"{self._directory / str(step)}: checkpoint could not be written "
            f"({first_line(cause)}); last durable step is {kept[-1] if kept else None}. "
            "Free some space or mend the disk, then go on with --resume"
        )


def load_start(
    path: Path,
    template: TrainState,
    *,
    with_optimizer: bool,
    stacked: Stacked = None,
) -> TrainState:
    """Read what a new run starts from.

    Parameters that are stored narrower than they are trained in are widened, which changes no
    value; nothing is ever narrowed.

    Args:
        path: ``RUN/checkpoints/STEP`` of any run, or a folder that ``convert`` wrote.
        template: the new run's state on its devices.
        with_optimizer: whether moments and their history are read too, or stay the
            template's.
        stacked: shapes of the model if the new run's layers are stacked.

    Raises:
        CheckpointError: it is not there, not committed, torn, or of other shapes or dtypes.
    """
    place, way_out = path.resolve(), "give another checkpoint to --init-from"
    needed = ("params", "optimizer") if with_optimizer else ("params",)
    missing = [item for item in needed if not (place / item).is_dir()]
    if missing:
        raise CheckpointError(
            f"{path}: holds no {' and no '.join(missing)}; --init-from takes RUN/checkpoints/STEP, "
            "or for parameters alone a folder that `python -m trainer convert` wrote"
        )
    if not step_paths.is_path_finalized(place):
        raise CheckpointError(f"{path}: its save never ended; {way_out}")
    be_quiet()
    params = _read(place / "params", template.params, stacked, way_out, widen=True)
    if not with_optimizer:
        return TrainState(params, template.optimizer)
    return TrainState(params, _read(place / "optimizer", template.optimizer, stacked, way_out))


def _read(item: Path, template: Any, stacked: Stacked, way_out: str, *, widen: bool = False) -> Any:
    """Read one item onto the devices of ``template``, undamaged and in its stored dtype.

    With ``widen``, floats that are stored narrower than the template's become as wide.
    """
    target = canonical_shapes(template, stacked)
    if jax.process_count() == 1:
        how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    else:
        how = jax.tree.map(
            lambda leaf, sharding: ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape),
            target,
            canonical_shardings(target, template),
        )
    try:
        with ocp.PyTreeCheckpointer() as reader:
            stored = reader.metadata(item).item_metadata
            if stored is None:
                raise ValueError("its list of arrays is missing or torn")
            as_stored = _narrowed(target, stored.tree) if widen else target
            _require_same(item, stored.tree, as_stored)
            values = reader.restore(item, args=ocp.args.PyTreeRestore(as_stored, restore_args=how))
    except _ORBAX_ERRORS as error:
        raise _unreadable(item.parent, error, way_out) from error
    saved = _saved_fingerprint(item.parent, way_out) if item.name == "params" else None
    if saved and fingerprint(values) != saved:
        raise CheckpointError(
            f"{item.parent}: damaged, its parameters are not those that were saved; {way_out}"
        )
    if widen:
        values = jax.tree.map(lambda v, leaf: v.astype(leaf.dtype), values, target)
    return in_layout_of(template, values, stacked)


def _narrowed(target: Any, stored: Any) -> Any:
    """Return the target in the stored dtypes, where all their values are also the target's."""
    found = _by_name(stored)

    def narrow(path: tuple[Any, ...], leaf: Any) -> Any:
        have = found.get(jax.tree_util.keystr(path, simple=True, separator="."))
        if have is None or jnp.promote_types(have.dtype, leaf.dtype) != leaf.dtype:
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, have.dtype)

    return jax.tree_util.tree_map_with_path(narrow, target)


def _saved_fingerprint(path: Path, way_out: str) -> str | None:
    """Return what the parameters' fingerprint was when they were written, None if not noted."""
    if (path / "progress").is_dir():
        return read_record(path, way_out).get(FINGERPRINT)
    try:
        return json.loads((path / "provenance.json").read_text(encoding="utf-8")).get(FINGERPRINT)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path / 'provenance.json'}: {error}; {way_out}") from error


def _require_same(item: Path, stored: Any, target: Any) -> None:
    """Raise when arrays have other names, shapes or dtypes than the run's; Orbax would cast."""
    found, wanted = _by_name(stored), _by_name(target)
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise CheckpointError(
            f"{item}: lacks {missing or 'nothing'} and has {extra or 'nothing'} beside what this "
            "run trains; is it of the same model and optimizer?"
        )
    for name, leaf in wanted.items():
        have = (str(found[name].dtype), tuple(found[name].shape))
        want = (str(leaf.dtype), tuple(leaf.shape))
        if have != want:
            raise CheckpointError(
                f"{item}: {name} is stored as {have[0]} {list(have[1])}, but this run trains "
                f"{want[0]} {list(want[1])}; nothing is cast unasked: give the run that model, or "
                "convert the weights (`python -m trainer convert`, --dtype)"
            )


def _by_name(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree, or of Orbax's list of it, by dotted name."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _unreadable(path: Path, cause: object, way_out: str) -> CheckpointError:
    """Describe a checkpoint that could not be read."""
    return CheckpointError(f"{path}: cannot be restored ({first_line(cause)}); {way_out}")
