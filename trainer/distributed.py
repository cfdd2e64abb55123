"""Several processes on one run: which part is whose, and what they must agree on.

Every process runs the same program on the same run directory. Each holds some devices, drives
its share of the hosts and feeds its devices their rows; the first alone writes the run's files
(Orbax coordinates its own). Decisions that rest on a file or a clock are the first's.

Source: the multi-process guide of JAX (SPMD over all devices, process-local data).
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from evalmon.errors import ConfigError, EvalmonError

__all__ = [
    "first_then_others",
    "gather_records",
    "initialize_from_options",
    "is_first",
    "of_first",
    "require_hosts",
    "written_by_first",
]

_START_SECONDS: Final = 120
_END_SECONDS: Final = 20
"""How long a process waits for the others to come, and to go."""

Result = TypeVar("Result")


def initialize_from_options(
    coordinator: str | None, processes: int | None, process_id: int | None
) -> None:
    """Join the processes of a distributed run, before JAX starts; without options do nothing.

    When the others do not come within two minutes, JAX ends the process with a message of
    its own.

    Args:
        coordinator: ``HOST:PORT`` that process 0 listens on and all can reach.
        processes: how many there are.
        process_id: which this is, from 0.

    Raises:
        ConfigError: only some of the options, a number out of range, or a port in use.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == len(given):
        return
    if coordinator is None or processes is None or process_id is None:
        raise ConfigError(f"{', '.join(missing)}: needed too for a run of several processes")
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise ConfigError(f"--coordinator {coordinator!r}: not HOST:PORT")
    if processes < 1:
        raise ConfigError(f"--processes {processes}: at least 1")
    if not 0 <= process_id < processes:
        raise ConfigError(f"--process-id {process_id}: 0 to {processes - 1} with that --processes")
    if process_id == 0:
        _require_free(coordinator, int(port))
    # A signal to end shall end a process, as it does alone; a run is stopped by its STOP file.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        processes,
        process_id,
        initialization_timeout=_START_SECONDS,
        shutdown_timeout_seconds=_END_SECONDS,
    )


def is_first() -> bool:
    """Return whether this process writes the run's files and speaks for it."""
    return jax.process_index() == 0


def require_hosts(hosts: int) -> None:
    """Refuse hosts that the processes cannot share evenly.

    Raises:
        ConfigError: they are no multiple of the processes.
    """
    processes = jax.process_count()
    if hosts % processes:
        near = max(processes, round(hosts / processes) * processes)
        raise ConfigError(
            f"--hosts {hosts}: must be a multiple of --processes {processes}, each of which drives "
            f"as many; the nearest is {near}"
        )


def written_by_first(path: Path) -> Path:
    """Return the file to write to: in other processes than the first one that keeps nothing."""
    return path if is_first() else Path(os.devnull)


def gather_records(records: NDArray[np.void]) -> NDArray[np.void]:
    """Return the records of all processes, in order of the processes.

    Args:
        records: [rows of this process], as many in each process.
    """
    if jax.process_count() == 1:
        return records
    # As bytes: JAX has no 64-bit integers unless asked.
    rows = records.view(np.uint8).reshape(len(records), records.dtype.itemsize)
    gathered = np.asarray(multihost_utils.process_allgather(rows, tiled=True))
    return gathered.reshape(-1).view(records.dtype)


def of_first(value: bool) -> bool:
    """Return what the first process says, in all of them."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def first_then_others(make: Callable[[], Result], follow: Callable[[], Result]) -> Result:
    """Let the first process make something, then the others use it.

    Args:
        make: called in the first process.
        follow: called in the others once ``make`` has returned.

    Raises:
        EvalmonError: what ``make`` raised; in the others one that points to the first.
    """
    made: Any = None
    failure: EvalmonError | None = None
    if is_first():
        try:
            made = make()
        except EvalmonError as error:
            failure = error
    if not of_first(failure is None):
        raise failure or ConfigError("process 0 could not begin; its own message says why")
    return made if is_first() else follow()


def _require_free(coordinator: str, port: int) -> None:
    """Raise when something listens on the port already; JAX would crash on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"--coordinator {coordinator}: cannot listen there ({error}); give another port"
            ) from error
