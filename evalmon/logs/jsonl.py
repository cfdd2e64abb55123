"""The run log of a run directory: JSON lines, one event each, read into series.

A restart repeats steps: it begins with a ``start`` event that names the step it
resumed from, and whatever was logged beyond that step belongs to an abandoned
branch. Each step keeps its last copy; the others are counted as superseded.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from evalmon.errors import DataError
from evalmon.types import RunDescription, Series

__all__ = ["LOG_NAME", "RunLog", "Segment", "read"]

LOG_NAME = "log.jsonl"
"""Name of the run log in a run directory."""

_NOT_METRICS = frozenset({"event", "time", "step", "tokens", "nonfinite"})
_NONFINITE = re.compile(r"[+-]?(nan|inf(inity)?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a run between two starts.

    Attributes:
        resumed_from_step: step of the checkpoint it resumed from, None for a fresh start.
        first_step: first step it logged, None when it logged none.
        last_step: last step it logged.
    """

    resumed_from_step: int | None
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run log, read.

    Attributes:
        path: the file.
        series: metric -> its finite values, one a step.
        segments: parts of the run between starts, in order.
        last_step: last step logged, 0 when there is none.
        last_time: Unix time of the last line that carries one, None without.
        ended: whether the last event is an ``end``.
        end_reason: ``completed``, ``stopped`` or ``failed``; "" while it goes on.
        end_message: the trainer's own words.
        nonfinite: (step, metric) of every value that was not a finite number.
        superseded: step records that a later segment replaced.
    """

    path: Path
    series: dict[str, Series]
    segments: tuple[Segment, ...]
    last_step: int
    last_time: float | None
    ended: bool
    end_reason: str
    end_message: str
    nonfinite: tuple[tuple[int, str], ...]
    superseded: int


@dataclass(slots=True)
class _State:
    """What has been read so far."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    starts: list[int | None] = field(default_factory=list[int | None])
    ranges: list[tuple[int, int] | None] = field(default_factory=list[tuple[int, int] | None])
    step: int = 0
    superseded: int = 0
    time: float | None = None
    end: Mapping[str, Any] | None = None


def read(run: RunDescription, until_step: int | None = None) -> RunLog:
    """Read the log of a run, also while it is being written.

    Args:
        run: the run.
        until_step: leave out later steps, None for all.

    Returns:
        One value a step and metric; an empty ``series`` before the first step.

    Raises:
        DataError: no log, it cannot be read, or a line other than a torn last one is
            not an event of a run log.
    """
    path = run.path / LOG_NAME
    state = _State()
    for line, event in _events(path):
        _take(state, event, f"{path}:{line}")
    rows = {
        n: row for n, row in sorted(state.rows.items()) if until_step is None or n <= until_step
    }
    series, nonfinite = _series(rows)
    return RunLog(
        path=path,
        series=series,
        segments=tuple(
            Segment(start, *(steps or (None, None)))
            for start, steps in zip(state.starts, state.ranges, strict=True)
        ),
        last_step=max(rows, default=0),
        last_time=state.time,
        ended=state.end is not None,
        end_reason=str(state.end["reason"]) if state.end else "",
        end_message=str(state.end.get("message", "")) if state.end else "",
        nonfinite=nonfinite,
        superseded=state.superseded,
    )


def _events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, event); a torn last line is left for the next reading."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(
            f"{path}: no run log; wait for the trainer's first line or give its run directory"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    lines = content.split(b"\n")
    torn: DataError | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        # Python's parser reads bare NaN and Infinity, which many trainers write.
        try:
            loaded: object = json.loads(line)
        except ValueError as error:
            if torn:
                raise torn from error
            torn = DataError(
                f"{path}:{number}: not JSON ({error}): {_excerpt(line)}; "
                "repair or remove this line, each line must be one JSON object"
            )
            if number == len(lines):  # no newline yet: still being written
                return
            continue
        if not isinstance(loaded, dict) or "event" not in loaded:
            raise DataError(
                f"{path}:{number}: expected a JSON object with 'event', got {_excerpt(line)}; "
                "is this the run log of a trainer?"
            )
        event = cast("dict[str, Any]", loaded)
        if torn and event["event"] != "start":  # only a kill and restart may leave a torn line
            raise torn
        torn = None
        yield number, event
    if torn:
        raise torn


def _excerpt(line: bytes) -> str:
    """Return the beginning of a line for a message."""
    return repr(line[:60].decode("utf-8", errors="replace"))


def _take(state: _State, event: dict[str, Any], place: str) -> None:
    """Add one event to the state."""
    time = event.get("time")
    if isinstance(time, int | float) and math.isfinite(time):
        state.time = float(time)
    kind = event["event"]
    state.end = event if kind == "end" else None
    if kind == "start":
        resumed = event.get("resumed_from_step")
        state.starts.append(None if resumed is None else _whole(event, "resumed_from_step", place))
        state.ranges.append(None)
        _abandon(state, after=state.starts[-1] or 0)
    elif kind == "step":
        step = _whole(event, "step", place)
        _whole(event, "tokens", place)
        if not state.ranges:
            state.starts.append(None)
            state.ranges.append(None)
        if step <= state.step:  # also a trainer that rewinds without a start event
            _abandon(state, after=step - 1)
        state.rows[step] = event
        state.step = step
        first, _ = state.ranges[-1] or (step, step)
        state.ranges[-1] = (min(first, step), step)
    elif kind == "end":
        if not isinstance(event.get("reason"), str):
            raise DataError(
                f"{place}: an 'end' event needs a 'reason', got {event.get('reason')!r}"
            )
    elif kind != "checkpoint":
        raise DataError(
            f"{place}: unknown event {kind!r}; expected start, step, checkpoint or end: "
            "use the evalmon its trainer was built for"
        )


def _abandon(state: _State, *, after: int) -> None:
    """Drop the steps of an earlier segment that a restart left behind."""
    left = [step for step in state.rows if step > after]
    state.superseded += len(left)
    for step in left:
        del state.rows[step]


def _whole(event: Mapping[str, Any], name: str, place: str) -> int:
    """Return a field that must be a whole number."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(
            f"{place}: {name!r} must be a whole number >= 0, got {value!r}; "
            "repair or remove this line"
        )
    return value


def _series(
    rows: Mapping[int, Mapping[str, Any]],
) -> tuple[dict[str, Series], tuple[tuple[int, str], ...]]:
    """Turn step records into one series a metric, and the list of non-finite values."""
    values: dict[str, list[tuple[int, int, float]]] = {}
    nonfinite: list[tuple[int, str]] = []
    for step, row in rows.items():
        named = cast("list[object]", row.get("nonfinite") or [])
        bad = {str(name) for name in named}
        for name, value in row.items():
            if name in _NOT_METRICS:
                continue
            points = values.setdefault(name, [])
            if isinstance(value, int | float) and not isinstance(value, bool):
                if math.isfinite(value):
                    points.append((step, int(row["tokens"]), float(value)))
                else:
                    bad.add(name)
            elif isinstance(value, str) and "/" in name and _NONFINITE.fullmatch(value.strip()):
                bad.add(name)
        nonfinite.extend((step, name) for name in sorted(bad))
    series = {
        name: Series(
            name,
            np.array([point[0] for point in points], np.int64),
            np.array([point[1] for point in points], np.int64),
            np.array([point[2] for point in points], np.float64),
        )
        for name, points in values.items()
        if points
    }
    return series, tuple(nonfinite)
