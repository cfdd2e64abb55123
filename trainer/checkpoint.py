"""Checkpoints: the one file of the trainer that knows Orbax.

A checkpoint holds three items: ``params`` and ``optimizer`` (arrays) and ``progress``
(JSON: step, tokens, instances, and the fingerprint of the parameters, because Orbax does
not notice a flipped bit). It is written in the background and counts from the moment Orbax
has renamed its directory to the bare step number.
"""

import logging
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final, Self, TypedDict

import jax
import numpy as np
import orbax.checkpoint as ocp

from evalmon.errors import CheckpointError, WriteError
from evalmon.types import weights_fingerprint
from trainer.update import TrainState

__all__ = ["Checkpoints", "Progress"]

_ORBAX_ERRORS: Final = (OSError, ValueError, TypeError, KeyError, RuntimeError)
"""What a full disk, a torn file or another shape surfaces as."""


class Progress(TypedDict):
    """How far a run is: updates made, tokens trained on, instances read by all hosts."""

    step: int
    tokens: int
    instances: int


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: ``RUN/checkpoints``; leftovers of a save that a kill cut off are never
            resumed from, and are gone by the next save.
    """

    def __init__(self, directory: Path) -> None:
        # Orbax logs every phase of a save, and an error once for each of its threads; our log
        # has the events, and what went wrong is raised here.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        _ignore_late_threads()
        self._directory = directory.resolve()
        options = ocp.CheckpointManagerOptions(cleanup_tmp_directories=True)
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
        # Copied here, because a background writer may look at the very memory that the
        # next update takes over.
        copy = jax.tree.map(np.array, state)
        self._pending = progress
        try:
            self._manager.save(
                progress["step"],
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(copy.params),
                    optimizer=ocp.args.StandardSave(copy.optimizer),
                    progress=ocp.args.JsonSave(
                        {**progress, "params_fingerprint": weights_fingerprint(copy.params)}
                    ),
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
            template: a state of the same shapes, on the devices to restore to.

        Raises:
            CheckpointError: none is committed, or it is torn or of other shapes.
        """
        step = self.latest
        if step is None:
            raise CheckpointError(
                f"{self._directory}: no committed checkpoint to resume from; start a new run"
            )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(abstract.params),
                    optimizer=ocp.args.StandardRestore(abstract.optimizer),
                    progress=ocp.args.JsonRestore(),
                ),
            )
        except _ORBAX_ERRORS as error:
            raise CheckpointError(
                f"{self._directory / str(step)}: cannot be restored ({_first_line(error)}); "
                "remove this directory to resume from the checkpoint before it"
            ) from error
        record = restored["progress"]
        progress: Progress = {
            "step": record["step"],
            "tokens": record["tokens"],
            "instances": record["instances"],
        }
        saved = record.get("params_fingerprint")
        if saved and weights_fingerprint(jax.tree.map(np.array, restored["params"])) != saved:
            raise CheckpointError(
                f"{self._directory / str(step)}: damaged, its parameters are not those that were "
                "saved; remove this directory to resume from the checkpoint before it"
            )
        return TrainState(restored["params"], restored["optimizer"]), progress

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
            f"({_first_line(cause)}); last durable step is {kept[-1] if kept else None}. "
            "Free some space or mend the disk, then go on with --resume"
        )


@cache
def _ignore_late_threads() -> None:
    """Keep what is left of a failed save or restore from printing a traceback an array.

    The first array that fails ends Orbax's event loop; TensorStore's threads, still at the
    others, then find it closed and report that where nobody can catch it. The failure
    itself is raised to the caller.
    """
    report = sys.unraisablehook

    def unless_late(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            report(unraisable)

    sys.unraisablehook = unless_late


def _first_line(cause: object) -> str:
    """Return the first line of an error's text, or its class."""
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__
