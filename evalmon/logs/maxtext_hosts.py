"""One history of a MaxText run from what its hosts printed, restarts followed.

Every host prints the same global numbers, so copies of a step are one step, not several. The
first host by name is believed; another fills only steps that it lacks, and only when both went
through the same restarts.
"""

import bisect
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evalmon.errors import DataError
from evalmon.logs.maxtext_lines import Evaluation, LogLines, Row, Start, Stream
from evalmon.restarts import resolve
from evalmon.types import IntArray

__all__ = ["History", "history"]

_FEWEST_REWINDS = 3
_MOST_RESTARTS = 200
"""More places that go back than this, and no line of a start between, are no restarts."""
_COPY_WINDOW = 32
"""Rows back in which an equal row is another host's copy, where lines do not name the host."""


@dataclass(frozen=True, slots=True)
class History:
    """A run as its log tells it.

    Attributes:
        rows: one a step, by rising step.
        evaluations: likewise.
        token_rules: (first step, tokens of one step) as processes stated them when they began.
        seams: steps from which a restart went on (the last one kept before it).
        superseded: completed steps that a restart left behind.
        alike: of these, steps whose later copy says the same.
        hosts: hosts that printed steps.
        filled: steps taken from a host other than the first.
        disagreeing: steps of which two hosts say different things.
        apart: hosts whose restarts are not those of the first, so that nothing is taken of them.
    """

    rows: tuple[Row, ...]
    evaluations: tuple[Evaluation, ...]
    token_rules: tuple[tuple[int, int], ...]
    seams: tuple[int, ...]
    superseded: int
    alike: int
    hosts: int
    filled: int
    disagreeing: tuple[int, ...]
    apart: int


@dataclass(slots=True)
class _Lane:
    """One host through all its processes, resolved."""

    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    evaluations: dict[int, Evaluation] = field(default_factory=dict[int, Evaluation])
    token_rules: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    seams: tuple[int, ...] = ()
    superseded: int = 0
    alike: int = 0
    mixed: tuple[Row, Row, int] | None = None


def history(path: Path, log: LogLines) -> History:
    """Join what the hosts printed.

    Args:
        path: the log, for messages.
        log: with at least one completed step.

    Returns:
        One row a step: of a step logged again after a restart the last copy, of several hosts'
        copies the first host's.

    Raises:
        DataError: lines that name no host are of two processes that trained apart.
    """
    streams = [stream for stream in log.streams.values() if stream.rows]
    attempts = _attempts(streams)
    hosts = max(len(attempt) for attempt in attempts)
    starts = _starts_elsewhere(log)
    lanes = [_lane([attempt[n] for attempt in attempts if n < len(attempt)], starts)
             for n in range(hosts)]  # fmt: skip
    first, others = lanes[0], lanes[1:]
    if first.mixed:
        before, after, count = first.mixed
        raise DataError(
            f"{path}: line {after.line}: step {after.step - 1} comes after step {before.step - 1} "
            f"(line {before.line}), and the log goes back so {count:,} times with other losses: "
            "the lines of two processes stand among each other, or out of order; keep the output "
            "of each process in a file of its own, or let each line name its pod ([pod/NAME/...])"
        )
    disagreeing: set[int] = set()
    filled = 0
    apart = 0
    for other in others:
        if other.seams != first.seams:
            apart += 1
            continue
        for step, row in other.rows.items():
            if step not in first.rows:
                first.rows[step] = row
                filled += 1
            elif not _agree(first.rows[step], row):
                disagreeing.add(step)
        for step, evaluation in other.evaluations.items():
            first.evaluations.setdefault(step, evaluation)
    return History(
        rows=tuple(first.rows[step] for step in sorted(first.rows)),
        evaluations=tuple(first.evaluations[step] for step in sorted(first.evaluations)),
        token_rules=tuple(first.token_rules),
        seams=first.seams,
        superseded=first.superseded,
        alike=first.alike,
        hosts=hosts,
        filled=filled,
        disagreeing=tuple(sorted(disagreeing)),
        apart=apart,
    )


def _starts_elsewhere(log: LogLines) -> list[Start]:
    """Return the starts printed by threads that print no steps."""
    silent = (stream for stream in log.streams.values() if not stream.rows)
    return sorted((s for stream in silent for s in stream.starts), key=lambda start: start.line)


def _attempts(streams: Iterable[Stream]) -> list[list[Stream]]:
    """Group streams: hosts of one attempt run side by side, a restart follows the one before."""
    attempts: list[list[Stream]] = []
    for stream in sorted(streams, key=lambda stream: stream.rows[0].line):
        if attempts and any(_side_by_side(other, stream) for other in attempts[-1]):
            attempts[-1].append(stream)
        else:
            attempts.append([stream])
    for attempt in attempts:
        attempt.sort(key=lambda stream: _natural(stream.host))
    return attempts


def _side_by_side(earlier: Stream, later: Stream) -> bool:
    """Whether two streams are two hosts, also where one's lines were put after the other's."""
    times = (earlier.first_time, earlier.last_time, later.first_time, later.last_time)
    if all(times) and times[0] <= times[1] and times[2] <= times[3]:
        return times[2] <= times[1] and times[0] <= times[3]
    if later.rows[0].line < earlier.rows[-1].line:
        return True
    resumed = [[s.resumed_step for s in stream.starts] for stream in (earlier, later)]
    if resumed[0] != resumed[1]:
        return False
    known = {row.step: row for row in earlier.rows}
    common = [(known[row.step], row) for row in later.rows if row.step in known]
    return bool(common) and all(_agree(mine, theirs) for mine, theirs in common)


def _agree(mine: Row, theirs: Row) -> bool:
    """Whether two copies of a step say the same, NaN and NaN included."""
    same = mine.nats == theirs.nats or (math.isnan(mine.nats) and math.isnan(theirs.nats))
    return same and not (mine.weight < theirs.weight or mine.weight > theirs.weight)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sorting key in which host 2 comes before host 10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _lane(streams: Sequence[Stream], starts: Sequence[Start]) -> _Lane:
    """Follow one host through its restarts."""
    rows = [row for stream in streams for row in stream.rows]
    evaluations = [found for stream in streams for found in stream.evaluations]
    own = [start for stream in streams for start in stream.starts]
    own = own or list(starts)
    rows = _without_copies(rows, [start.line for start in own])
    resolved = resolve(np.array([row.step for row in rows], np.int64))
    kept = [rows[i] for i in resolved.kept.tolist()]
    branches = _branches(rows, own)
    pending = own[-1].resumed_step if own and own[-1].line > rows[-1].line else None
    if pending:  # a restart that has not come to a step yet
        branches.append((own[-1].line, own[-1].line, pending + 1))
        kept = [row for row in kept if row.step <= pending] or kept
    lane = _Lane({row.step: row for row in kept}, superseded=len(rows) - len(kept))
    left = (rows[i] for i in resolved.superseded.tolist())
    lane.alike = sum(row.step in lane.rows and _agree(row, lane.rows[row.step]) for row in left)
    if lane.superseded and 2 * lane.alike <= lane.superseded:
        lane.mixed = _mixed(rows, [start.line for start in own])
    for found in evaluations:
        if not any(_abandoned(found, *branch) for branch in branches):
            lane.evaluations[found.step] = found
    seams = set(resolved.seams)
    lines = [row.line for row in rows]
    for start in own:
        after = bisect.bisect(lines, start.line)
        if after == len(rows):
            continue
        step = rows[after].step
        if after > 0 and step in lane.rows:
            seams.add(max((row.step for row in kept if row.step < step), default=step - 1))
        if start.tokens_per_step:
            lane.token_rules = [rule for rule in lane.token_rules if rule[0] < step]
            lane.token_rules.append((step, start.tokens_per_step))
    lane.seams = tuple(sorted(seams))
    return lane


def _without_copies(rows: list[Row], starts: Sequence[int]) -> list[Row]:
    """Drop copies that other hosts printed among these lines without saying who they are."""
    steps: IntArray = np.array([row.step for row in rows], np.int64)
    behind = steps[1:] <= np.maximum.accumulate(steps)[:-1]
    copies: set[int] = set()
    for i in (np.flatnonzero(behind) + 1).tolist():
        begun = bisect.bisect(starts, rows[i].line)
        for other in rows[max(0, i - _COPY_WINDOW) : i]:
            same_process = bisect.bisect(starts, other.line) == begun
            if other.step == rows[i].step and _agree(other, rows[i]) and same_process:
                copies.add(i)
                break
    return [row for i, row in enumerate(rows) if i not in copies] if copies else rows


def _mixed(rows: Sequence[Row], starts: Sequence[int]) -> tuple[Row, Row, int] | None:
    """Return the first place at which the lines of two processes alternate, and how many there are.

    A restart logs a stretch again and goes on. Of two processes each takes up the step after its
    own last one, so that steps go back to where they had been left, or go back at every few lines.
    """
    rises = [b.step - a.step for a, b in itertools.pairwise(rows) if b.step > a.step]
    usual = int(np.median(rises)) if rises else 1
    left: set[int] = set()  # steps after those at which the log went elsewhere
    back: list[tuple[Row, Row]] = []
    taken_up = 0
    for before, after in itertools.pairwise(rows):
        if after.step == before.step + usual:
            continue
        if after.step <= before.step and bisect.bisect(starts, before.line) == bisect.bisect(
            starts, after.line
        ):
            back.append((before, after))
            taken_up += after.step in left
        left.add(before.step + usual)
    if len(back) < _FEWEST_REWINDS:
        return None
    alternates = taken_up > 1 and 2 * taken_up >= len(back)
    if alternates or 4 * len(back) > len(rows) or len(back) > _MOST_RESTARTS:
        return (*back[0], len(back))
    return None


def _branches(rows: Sequence[Row], starts: Sequence[Start]) -> list[tuple[int, int, int]]:
    """Return (last line before, first line after, first step after) of every rewind."""
    lines = [start.line for start in starts]
    branches: list[tuple[int, int, int]] = []
    for before, after in itertools.pairwise(rows):
        if after.step > before.step:
            continue
        between = bisect.bisect(lines, before.line)
        if between < len(lines) and lines[between] < after.line:  # the exact place is known
            branches.append((lines[between], lines[between], after.step))
        else:
            branches.append((before.line, after.line, after.step))
    return branches


def _abandoned(found: Evaluation, before: int, after: int, step: int) -> bool:
    """Whether an evaluation belongs to a branch that a restart left behind.

    Evaluations are printed before or after their step, so between the last line of the old
    branch and the first of the new one only a result for the new one's first step is new.
    """
    return found.step >= step and found.line < (before if found.step == step else after)
