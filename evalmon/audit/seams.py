"""What happens where a stream stops and goes on: the seams."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalmon.audit.counts import Counts
from evalmon.audit.drive import Segment, Stream
from evalmon.types import IntArray

__all__ = ["Positions", "Seam", "positions", "seams"]

_LOOK = 8
"""Steps after a seam in which re-read draws are its doing, times the workers."""


@dataclass(frozen=True, slots=True)
class Seam:
    """A stop, and what the first steps after it read again.

    Attributes:
        step: steps done before it.
        mode: how the hosts went on: argument, state, skip or fresh.
        hosts_before: hosts that stopped.
        hosts_after: hosts that went on.
        replayed: draws of the first steps after it that were drawn before it, too early.
        replayed_all: those of the whole segment after it.
        replayed_steps: whole steps right after it of which at least half was drawn before.
        replays_step: step that its first re-read draws come from, None without any.
        shift: where in its host's draws the first re-read draw stood, less where it stands
            after the seam; None without any.
        skipped: instances that no step read although every host ended; None where that is
            not known, or where several seams share them.
        surplus: instances thrown away beyond what was drawn before.
    """

    step: int
    mode: str
    hosts_before: int
    hosts_after: int
    replayed: int
    replayed_all: int
    replayed_steps: int
    replays_step: int | None
    shift: int | None
    skipped: int | None
    surplus: int

    def record(self) -> dict[str, Any]:
        """Return the seam as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Positions:
    """Where each judged draw stands.

    Attributes:
        segment: [m] number of its segment.
        own: [m] draws of its host before it, over the whole stream.
        inside: [m] draws of its host before it in its segment.
    """

    segment: IntArray
    own: IntArray
    inside: IntArray


def positions(stream: Stream, counts: Counts) -> Positions:
    """Place the judged draws in segments and among their host's draws."""
    host = stream.draws.host.astype(np.int64)
    number = np.arange(len(host))
    starts = np.array([segment.first_draw for segment in stream.segments])
    segment = np.searchsorted(starts, number, side="right") - 1
    most = int(host.max(initial=0)) + 1
    own = _earlier(host)
    inside = _earlier(segment * most + host)
    judged = counts.judged
    return Positions(segment[judged], own[judged], inside[judged])


def seams(stream: Stream, counts: Counts, where: Positions, workers: int) -> list[Seam]:
    """Describe every seam.

    Args:
        stream: what was drawn.
        counts: what of it again.
        where: place of each draw.
        workers: W, 0 for none.

    Returns:
        One for each stop that was reached.
    """
    passes = counts.passes
    before = np.where(passes.previous >= 0, where.segment[passes.previous], where.segment)
    crossing = passes.early & (before < where.segment)
    never = counts.size - counts.unique if stream.all_ended else None
    found: list[Seam] = []
    for number, segment in enumerate(stream.segments[1:], start=1):
        own = np.flatnonzero(where.segment == number)
        found.append(
            _seam(
                segment,
                stream.segments[number - 1],
                (counts, where),
                (own, crossing[own]),
                never if len(stream.segments) == 2 else None,
                _LOOK * max(workers, 1),
            )
        )
    return found


def _seam(
    segment: Segment,
    earlier: Segment,
    facts: tuple[Counts, Positions],
    drawn: tuple[IntArray, NDArray[np.bool_]],
    never: int | None,
    look: int,
) -> Seam:
    """Describe one seam."""
    counts, where = facts
    own, again = drawn
    steps = counts.step[own] - segment.first_step
    total = np.bincount(steps)[1:]
    reread = np.bincount(steps[again], minlength=len(total) + 1)[1:]
    half = reread * 2 >= np.maximum(total, 1)
    leading = int(np.argmin(half)) if not half.all() else len(half)
    replayed = int(reread[: max(look, leading)].sum())
    replays_step = shift = None
    if replayed:
        first_step = int(np.flatnonzero(reread)[0]) + 1
        first = own[again & (steps == first_step)]
        # The first time that each was drawn: a later one may be a replay itself.
        _, origins = np.unique(counts.passes.code, return_index=True)
        origin = origins[counts.passes.code[first]]
        values, times = np.unique(counts.step[origin], return_counts=True)
        replays_step = int(values[np.argmax(times)])
        shift = int(np.median(where.own[origin] - where.inside[first]))
    return Seam(
        step=segment.first_step,
        mode=segment.mode,
        hosts_before=earlier.hosts,
        hosts_after=segment.hosts,
        replayed=replayed,
        replayed_all=int(again.sum()),
        replayed_steps=leading,
        replays_step=replays_step,
        shift=shift,
        skipped=never,
        surplus=segment.surplus,
    )


def _earlier(keys: IntArray) -> IntArray:
    """Return how often each key occurred before."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    start = np.searchsorted(ordered, ordered, side="left")
    times = np.empty(len(keys), np.int64)
    times[order] = np.arange(len(keys)) - start
    return times
