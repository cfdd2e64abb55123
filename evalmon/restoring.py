"""Restores the next checkpoint while one is scored.

Reading weights waits on a disk, scoring on the processor: done at once, reading costs
next to nothing. One checkpoint is read at a time, and at most one is held that is not yet
the model's, so a run needs memory for two.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from evalmon import checkpoints
from evalmon.checkpoints import Parameters
from evalmon.types import CheckpointRef

__all__ = ["Ahead"]


class Ahead:
    """At most one checkpoint that is being restored, or has been; use it as a context manager.

    At the end of the context nothing is held and no thread is left: a restore that has begun
    is waited for, since nothing can end it.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="restore")
        self._ref: CheckpointRef | None = None
        self._restored: Future[Parameters] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()
        self._pool.shutdown()

    def begin(self, ref: CheckpointRef) -> None:
        """Restore a checkpoint in the thread; what was restored before is forgotten."""
        if ref != self._ref:
            self._forget()
            self._ref, self._restored = ref, self._pool.submit(checkpoints.restore, ref)

    def take(self, ref: CheckpointRef) -> Parameters:
        """Return a checkpoint's parameters: restored before, or else now.

        Raises:
            CheckpointError: as :func:`evalmon.checkpoints.restore`, also where it happened in
                the thread.
        """
        if self._restored is None or ref != self._ref:
            self._forget()
            return checkpoints.restore(ref)
        try:
            return self._restored.result()
        finally:
            self._forget()

    def _forget(self) -> None:
        """Wait for the thread and let go of what it restored."""
        restored, self._ref, self._restored = self._restored, None, None
        if restored is not None and not restored.cancel():
            restored.exception()  # waits; an error nobody took belongs to no result
