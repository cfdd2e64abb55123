"""A limit on how long a stranger's code may take."""

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from evalmon.errors import DataError

__all__ = ["OutOfTime", "TimeLimit"]

_GRACE = 5.0
"""Seconds after the limit in which the main thread may still raise by itself."""


class OutOfTime(BaseException):
    """The limit is over; no Exception, because loaders catch those and go on."""


class TimeLimit:
    """Ends what takes longer than the limit: by an exception, else with the process.

    A watchdog sends the main thread an alarm, which raises as soon as Python runs again. Code
    that never comes back to Python, or another thread's, it ends with the process, exit code 2.

    Args:
        seconds: limit on each guarded piece, > 0; the watchdog looks four times as often, at
            most once and at least five times a second.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._place = ""
        self._deadline: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.get_ident()
        self._alarms = threading.current_thread() is threading.main_thread()
        self._previous: Any = None

    def __enter__(self) -> Self:
        if self._alarms:
            self._previous = signal.signal(signal.SIGALRM, self._raise)
        threading.Thread(target=self._watch, name="audit time limit", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._stopped.set()
        if self._alarms:
            signal.signal(signal.SIGALRM, self._previous)

    def start(self, place: str) -> None:
        """Begin a guarded piece.

        Args:
            place: what is guarded, for the message.
        """
        self._place = place
        self._deadline = time.monotonic() + self._seconds

    def stop(self) -> None:
        """End a guarded piece."""
        self._deadline = None

    def _message(self) -> str:
        """Return what is said when the limit is over."""
        return (
            f"{self._place}: nothing came within {self._seconds:g} s; the loader hangs or is slow: "
            "correct it, or give it longer by --time-limit"
        )

    def _raise(self, number: int, frame: FrameType | None) -> None:
        """Raise in the main thread, unless the piece ended just now."""
        del number, frame
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise OutOfTime(self._message())

    def _watch(self) -> None:
        """Send alarms, and end the process when they do not help."""
        while not self._stopped.wait(min(1.0, max(self._seconds / 4, 0.2))):
            deadline = self._deadline
            late = 0.0 if deadline is None else time.monotonic() - deadline
            if late > _GRACE:
                sys.stderr.write(f"Error: {self._message()}\n")
                sys.stderr.flush()
                os._exit(DataError.exit_code)
            if late > 0 and self._alarms:
                signal.pthread_kill(self._thread, signal.SIGALRM)
