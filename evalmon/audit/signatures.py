"""Which construction makes a stream that repeats: its signature in the draws.

Every rule looks at measured draws alone: whether hosts draw alike in a step, whether copies
stand side by side, whether they keep to one host, at what distance they come, and what the
first steps after a stop read again. N is the source, S the hosts, T the draws of all hosts.
"""

import numpy as np

from evalmon.audit.constructions import Construction, find_construction
from evalmon.audit.counts import Counts
from evalmon.audit.drive import Stream
from evalmon.audit.seams import Positions, Seam
from evalmon.types import IntArray

__all__ = ["construction"]

_NEARLY_ALL = 0.95


def construction(
    stream: Stream,
    counts: Counts,
    where: Positions,
    found: list[Seam],
    *,
    instances: int | None,
    workers: int,
) -> Construction | None:
    """Return the construction whose signature fits, None where none does.

    Args:
        stream: what was drawn.
        counts: what of it again.
        where: place of each draw.
        found: the seams.
        instances: N, None where it is not known.
        workers: W, 0 for none.
    """
    early = counts.passes.early
    if not early.any():
        return _without_repeats(stream, counts, instances, workers)
    facts = _Facts(stream, counts, where, _size(stream, counts, instances))
    within = facts.within_segments()
    code = facts.stream_code(within)
    at_seam = facts.seam_code([seam for seam in found if seam.replayed_all], doubled=code in _TWICE)
    if code == "K" and facts.goes_back():
        at_seam = "L"
    if at_seam and (at_seam == "L" or code is None or 2 * len(within) < early.sum()):
        code = at_seam if at_seam == "L" or code not in _TWICE else code
    if code == "E'" and counts.unique <= facts.hosts:
        # Of hosts that read one instance each nobody knows whether they would move on.
        return Construction(code, (*find_construction(code).fits, "C2"))
    return None if code is None else find_construction(code)


_TWICE = ("E", "E'", "K")


def _without_repeats(
    stream: Stream, counts: Counts, instances: int | None, workers: int
) -> Construction | None:
    """Return what leaves a little out and repeats nothing."""
    if instances is None or not stream.all_ended:
        return None
    missing = counts.size - counts.unique
    if not 0 < missing <= counts.loose:
        return None
    return find_construction("O" if workers else "P")


def _size(stream: Stream, counts: Counts, instances: int | None) -> int:
    """Return N, or the least that it can be."""
    if instances is not None:
        return counts.size
    if counts.identity == "instance" and len(stream.draws) and stream.draws.instance.min() >= 0:
        return max(int(stream.draws.instance.max()) + 1, counts.unique)
    return counts.unique


class _Facts:
    """Measures of a stream with early repeats."""

    def __init__(self, stream: Stream, counts: Counts, where: Positions, size: int) -> None:
        self.stream, self.counts, self.where = stream, counts, where
        self.size = max(size, 1)
        self.hosts = stream.segments[0].hosts

    def within_segments(self) -> IntArray:
        """Return the early draws that their own segment repeats, though no pass ends in between.

        After a fault at a seam, the next passes of a segment are early too: they are its
        doing, not the stream's.
        """
        previous = self.counts.passes.previous
        again = np.flatnonzero(self.counts.passes.early & (previous >= 0))
        where = self.where.segment
        again = again[where[again] == where[previous[again]]]
        kept = np.ones(len(again), np.bool_)
        for number, segment in enumerate(self.stream.segments):
            own = where[again] == number
            starts = {segment.first_draw, 0}
            draws, before = again[own], previous[again[own]]
            together = min(self._same_turn(draws, before, at, self.size) for at in starts)
            if number and together < 0.05 * len(draws):
                kept[own] = False
        return again[kept]

    def stream_code(self, again: IntArray) -> str | None:
        """Return what fits the repeats inside segments."""
        if not len(again) or self.hosts < 2:
            return self._mixed(again) if len(again) else None
        counts, previous = self.counts, self.counts.passes.previous[again]
        inside = counts.host[again] == counts.host[previous]
        if self._alike() >= _NEARLY_ALL:
            return "D"
        distance = (self.where.own[again] - self.where.own[previous])[inside]
        if inside.all():
            values, times = np.unique(distance, return_counts=True)
            period = int(values[np.argmax(times)])
            if times.max() >= _NEARLY_ALL * len(again):
                return "C2" if period == 1 and self._moves_on() else "E'"
        if self._turns_early(again, previous) and self._as_of_turns():
            return "E" if inside.mean() > _NEARLY_ALL else "K"
        first_pass = self.where.own[again] < self.size
        if not (inside & first_pass).any() and self._as_of_seeds():
            return "G"
        return self._mixed(again)

    def seam_code(self, found: list[Seam], *, doubled: bool) -> str | None:
        """Return what fits the draws re-read after a stop."""
        for seam in found:
            number = next(
                number
                for number, segment in enumerate(self.stream.segments[1:])
                if segment.first_step == seam.step
            )
            before = self.stream.segments[number + 1]
            per_host = before.first_draw / seam.hosts_before
            changed = seam.hosts_before != seam.hosts_after
            batch = per_host / seam.step
            near = seam.replays_step is not None and seam.replays_step > seam.step / 2
            if seam.shift and seam.replayed_steps and self.hosts > 1 and not changed:
                # An offset of r steps, or of r - 1, that the stride does not multiply.
                wanted = (per_host / seam.hosts_before, (per_host - batch) / seam.hosts_before)
                landed = min(abs(seam.shift - value) for value in wanted) <= max(batch / 2, 1)
                if landed and (doubled or not near):
                    return "L"
            length = int((self.where.segment == number + 1).sum())
            prefix = seam.replayed_all >= 0.9 * min(before.first_draw, length)
            if seam.replays_step == 1 and (seam.mode == "fresh" or prefix):
                return "Q"
            whole_step = seam.replayed == round(batch * seam.hosts_after)
            if whole_step and seam.replayed_steps == 1 and seam.replays_step == seam.step:
                return "N"
            if changed:
                return "J"
            if near and seam.replayed:
                return "M"
        return None

    def goes_back(self) -> bool:
        """Return whether a resume went back to turns of the slices that were read before.

        Where the offset is added after the stride, the draws after a stop at step r start at
        position r b of the slices. If S does not divide r b they are what no host has read of
        these turns: then no draw of a turn is found among the earlier ones of that turn,
        against a share of 1/S by chance; if it does, nearly all are.
        """
        share = max(self.size // self.hosts, 1)
        first = self.where.segment == 0
        code, turns = self.counts.passes.code, self._turns(0, share)
        base = len(code) + 1
        old = turns[first] * base + code[first]
        in_turn = np.bincount(turns[first])
        for number, segment in enumerate(self.stream.segments[1:], start=1):
            own = self.where.segment == number
            per_host = segment.first_draw // self.hosts
            for start in (per_host, per_host - per_host // segment.first_step):
                turns = self._turns(start, share)[own]
                # Where a sound resume is in that same turn too, nothing is told apart.
                sound = self._turns(segment.first_draw, share)[own]
                near = (turns < len(in_turn)) & (turns != sound)
                expected = float(in_turn[turns[near]].sum()) / self.size
                seen = int(np.isin((turns * base + code[own])[near], old).sum())
                if expected >= 10 and not expected / 3.3 < seen < 3 * expected:
                    return True
        return False

    def _alike(self) -> float:
        """Return the share of judged draws that another host drew in the same step."""
        counts = self.counts
        base = int(counts.passes.code.max()) + 1
        pairs = counts.step * base + counts.passes.code
        shared = np.isin(pairs, pairs[counts.same_step])
        return float(shared.mean())

    def _moves_on(self) -> bool:
        """Return whether hosts read more than one instance each."""
        return self.counts.unique > self.hosts

    def _turns_early(self, again: IntArray, previous: IntArray) -> bool:
        """Return whether no instance comes twice in N/S draws of one turn of the sampler.

        A sampler that holds one host's slice of n = N // S, driven by a loader with stride S,
        is at position q = jS + h of its slices at the host's j-th draw; turn q // n of it
        holds no record twice. Where a resume went back, q starts at another place: each that
        a known fault starts from is tried.
        """
        hosts, share = self.hosts, self.size // self.hosts
        if not share or len(again) < 3:
            return False
        within = self.where.segment[again]
        violations = expected = 0.0
        for number, segment in enumerate(self.stream.segments):
            own = within == number
            repeats = int(own.sum())
            if not repeats:
                continue
            per_host = segment.first_draw // max(segment.hosts, 1)
            batch = per_host // max(segment.first_step, 1)
            starts = {per_host * hosts, per_host, max(per_host - batch, 0), 0}
            counted = [self._same_turn(again[own], previous[own], at, share) for at in starts]
            length = int((self.where.segment == number).sum())
            violations += min(counted)
            expected += repeats * min(1.0, share / max(length, 1))
        return violations < expected / 3

    def _turns(self, start: int, share: int) -> IntArray:
        """Return the turn of each draw in a sampler of ``share`` records that starts there."""
        return (start + self.where.inside * self.hosts + self.counts.host) // share

    def _as_of_seeds(self) -> bool:
        """Return whether as many instances are left out as hosts of own seeds leave out."""
        share = len(self.counts.judged) / self.hosts / self.size
        if len(self.stream.segments) > 1 or share > 1:
            return True
        return abs(1 - self.counts.unique / self.size - (1 - share) ** self.hosts) < 0.1

    def _as_of_turns(self) -> bool:
        """Return whether instances come as often as T S / N turns of N/S random draws make them.

        Each turn holds an instance with probability 1/S, so that of N none-drawn and once-drawn
        ones are binomial. Told only for a stream without seams, whose turns are whole.
        """
        turns = len(self.counts.judged) * self.hosts / self.size
        if len(self.stream.segments) > 1 or turns < 2:
            return True
        share = 1 / self.hosts
        times = np.bincount(np.bincount(self.counts.passes.code), minlength=2)
        never = (1 - share) ** turns
        once = turns * share * (1 - share) ** (turns - 1)
        unread = 1 - self.counts.unique / self.size
        return max(abs(unread - never), abs(times[1] / self.size - once)) < 0.1

    def _same_turn(self, again: IntArray, previous: IntArray, start: int, share: int) -> int:
        """Return the repeats inside one turn of a sampler that starts at ``start``."""
        turns = self._turns(start, share)
        return int((turns[again] == turns[previous]).sum())

    def _mixed(self, again: IntArray) -> str | None:
        """Return what fits repeats that follow no turns, among all hosts alike."""
        counts, previous = self.counts, self.counts.passes.previous[again]
        inside = float((counts.host[again] == counts.host[previous]).mean())
        if abs(inside - 1 / self.hosts) > 0.5 / self.hosts + 0.1:
            return None
        most = int(np.bincount(counts.passes.code).max())
        return "H" if most <= 2 * -(-len(counts.judged) // self.size) else "H2"
