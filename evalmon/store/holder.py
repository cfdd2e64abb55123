"""Who holds a lease: a process, told apart from one that was killed or came after it.

A process is its host, its id and its start time: a process id alone is used again.
On the same host a dead holder is seen at once, so that an evaluator restarted after
a kill goes on without waiting for a lease to expire.
"""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Holder"]


@dataclass(frozen=True, slots=True)
class Holder:
    """A process.

    Attributes:
        host: host name, with the process-id namespace where there is one.
        pid: process id there.
        started: the kernel's start time of the process, "" where it is not known.
    """

    host: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> "Holder":
        """Return this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "Holder":
        """Return the process of this id on this host."""
        return cls(_host(), pid, _started(pid) or "")

    def alive(self) -> bool | None:
        """Return whether the process runs; None when it is on another host."""
        if self.host != _host():
            return None
        started = _started(self.pid)
        return started is not None and started == self.started

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}"


@cache
def _host() -> str:
    """Name this host and, on Linux, its process-id namespace: containers may share a name."""
    namespace = Path("/proc/self/ns/pid")
    try:
        return f"{socket.gethostname()}#{namespace.readlink().name}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str | None:
    """Return the start time of a live process ("" if not known), None of a dead one."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Fields after the command name, which is in brackets and may hold anything: the first is
    # the state (Z and X are dead), the twentieth the start time in clock ticks since boot.
    values = stat.rpartition(")")[2].split()
    return None if values[0] in "ZX" else values[19]
