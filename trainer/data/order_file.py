"""Shuffles of very many instances as files: built once, then mapped by every process.

724 million instances make 2.9 GB: built by each worker of each host they would fill the
memory, and take longer than what is read in the meantime.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import WriteError

__all__ = ["stored"]

_BYTES = 4


def stored(
    path: Path, instances: int, build: Callable[[], NDArray[np.uint32]]
) -> NDArray[np.uint32]:
    """Return the content of a file of uint32, built first if it is not there whole.

    Of several processes that want it at once one builds it and the others wait. It gets its
    name when it is whole, so that one cut off by a kill is never read.

    Args:
        path: the file; its name says all that its content depends on.
        instances: numbers in it.
        build: makes them.

    Returns:
        [instances] mapped into memory, read-only.

    Raises:
        WriteError: it cannot be written.
    """
    if not _whole(path, instances):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".lock").open("w") as lock:
                # Let go by the system when a process dies, so that nobody waits for a dead one.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _whole(path, instances):
                    partial = path.with_suffix(f".partial-{os.getpid()}")
                    build().astype("<u4", copy=False).tofile(partial)
                    partial.replace(path)
        except OSError as error:
            raise WriteError(
                f"{path}: the data order cannot be written ({error}); it needs "
                f"{instances * _BYTES:,} bytes: free some space"
            ) from error
    return np.memmap(path, dtype="<u4", mode="r")


def _whole(path: Path, instances: int) -> bool:
    """Return whether the file is there with all its numbers."""
    return path.is_file() and path.stat().st_size == instances * _BYTES
