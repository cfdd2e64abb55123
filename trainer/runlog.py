"""The run log: strict JSON, one object a line, on disk as soon as it is written.

Source: ``evalmon.types`` fixes the form of the run directory.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["RunLog"]


class RunLog:
    """Appends events to ``log.jsonl``.

    Args:
        path: the file, made if it is not there. A line cut off by a kill is removed, so
            that the next event does not run into it.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stream = path.open("ab")
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            os.truncate(path, whole)
        starts = content[:whole].count(b'{"event": "start"')
        self.segment = starts
        """Number of this part of the run: 0, then one more after each restart."""

    def start(self, tokens: int, resumed_from_step: int | None, facts: Mapping[str, Any]) -> None:
        """Log the beginning of a segment.

        Args:
            tokens: tokens trained on before it.
            resumed_from_step: step of the checkpoint it goes on from, None for a new run.
            facts: what MFU means here.
        """
        self._write(
            "start",
            segment=self.segment,
            resumed_from_step=resumed_from_step,
            tokens=tokens,
            **facts,
        )

    def step(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Log one update; a value that is not finite becomes null and is named."""
        nonfinite = [name for name, value in values.items() if not math.isfinite(value)]
        clean = {name: None if name in nonfinite else value for name, value in values.items()}
        extra = {"nonfinite": nonfinite} if nonfinite else {}
        self._write("step", step=step, tokens=tokens, **clean, **extra)

    def checkpoint(self, step: int, tokens: int) -> None:
        """Log a checkpoint that is committed."""
        self._write("checkpoint", step=step, tokens=tokens)

    def end(self, step: int, tokens: int, reason: str, message: str = "") -> None:
        """Log the end of a segment.

        Args:
            step: last update made.
            tokens: tokens trained on.
            reason: ``completed``, ``stopped`` or ``failed``.
            message: why it failed.
        """
        self._write("end", step=step, tokens=tokens, reason=reason, message=message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def _write(self, event: str, **values: Any) -> None:
        """Append one line and hand it to the system."""
        record = {"event": event, "time": self._clock(), **values}
        self._stream.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._stream.flush()
