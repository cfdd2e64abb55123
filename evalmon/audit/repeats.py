"""Repeats in an id log: draws of an instance beyond what was planned.

A **pass** holds N positions of the data order, N being the instances of the source; a batch
that would cross the end of a pass begins the next one instead (so with a constant batch B a
pass has N // B batches). An instance is meant to be drawn ``planned_passes`` times in all
and once a pass, or as often as the run says that a pass reads it. More in all, or more within
one pass, is a repeat beyond plan; other draws of an instance drawn before are planned ones.

What is repeated is judged by index and text together, so that a source that holds one text
twice is not blamed on the loader. Where more than 1 % of the draws bring a known text under
a new index the index cannot be trusted, and the text alone counts.

After a change of data on request the same index means another text, and the new data is read
from its beginning: each stretch between changes is counted by itself. Of a stretch that is
over the run says neither how many instances there were nor which of them a pass read several
times, so only repeats in all and within a step are counted in it, every instance being taken
for the most read one.

Memory beside the log's: about 12 bytes a draw.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evalmon.id_logs import IdLog, mixed
from evalmon.types import IntArray, RepeatSummary, RunDescription, Seam

__all__ = ["SPOKEN_REPEATS", "WINDOW_STEPS", "passes_of_steps", "summarize"]

WINDOW_STEPS: Final = 1000
"""Steps of a window in which a sample must show repeats."""

SPOKEN_REPEATS: Final = 3
"""Repeats of one window from which on a sample speaks."""

_UNTRUSTED_INDEX: Final = 0.01
"""Share of draws with a known text under a new index from which the logged index is
taken for wrong and the text alone identifies an instance."""

_PERIODIC: Final = 0.95
"""Share of repeats that must come at one distance for it to be called the period."""

_AT_ONCE: Final = 1 << 19  # draws looked at together


@dataclass(slots=True)
class _Counts:
    """What was counted so far.

    Attributes:
        beyond: [n] whether a draw is one beyond plan.
        previous: [n] the draw before of its instance, where it is.
    """

    beyond: NDArray[np.bool_]
    previous: NDArray[np.uint32]
    unique: int = 0
    planned: int = 0
    same_step: int = 0
    renamed: int = 0
    changed: int = 0
    multiplicity: Counter[int] = field(default_factory=Counter[int])


def summarize(log: IdLog, run: RunDescription, resumes: Sequence[int] = ()) -> RepeatSummary:
    """Count the draws that read an instance more often than planned.

    Args:
        log: the draws.
        run: its plan.
        resumes: steps of the checkpoints it went on from.

    Returns:
        The summary; ``repeated_fraction`` is 0 of no draws.
    """
    records, rate = log.records, log.rate
    counts = _Counts(np.zeros(len(records), np.bool_), np.zeros(len(records), np.uint32))
    passes = passes_of_steps(run, log.last_step)
    for part, known in _stretches(log, run):
        _count(records, part, run, passes if known else None, counts)
    repeated = int(np.count_nonzero(counts.beyond))
    first = _first(log, counts.beyond)
    step = None if first is None else int(records["step"][first])
    previous = None if first is None else int(counts.previous[first])
    draws = len(records)
    if rate > 1:
        draws = max(run.draws_at(log.last_step) - run.draws_at(log.first_step - 1), 0)
    period, cross_host = _pattern(log, run, counts) if repeated else (None, 0)
    return RepeatSummary(
        first_repeat_step=step,
        first_repeat_tokens=None if step is None else run.tokens_at(step),
        draws=draws,
        unique=counts.unique * rate,
        repeated=repeated * rate,
        repeated_fraction=repeated / len(records) if len(records) else 0.0,
        same_step_duplicates=counts.same_step * rate,
        replayed_draws=log.replayed,
        duplicate_texts=counts.renamed * rate,
        planned_passes=run.planned_passes,
        source_instances=run.source_instances,
        hosts=_hosts(records),
        period_draws=period,
        cross_host=cross_host * rate,
        fingerprint=log.fingerprint,
        planned_repeats=counts.planned * rate,
        changed_texts=counts.changed * rate,
        multiplicity=tuple((k, n * rate) for k, n in sorted(counts.multiplicity.items())),
        first_repeat_instance=None if first is None else int(records["instance"][first]),
        first_repeat_host=None if first is None else int(records["host"][first]),
        first_repeat_previous_step=None if previous is None else int(records["step"][previous]),
        first_repeat_draws=None if step is None else run.draws_at(step - 1),
        seams=_seams(records, counts, resumes),
        rate=rate,
        kept=len(records),
        coverage=(
            None
            if run.upsampled or run.data_changes
            else min(counts.unique * rate / run.source_instances, 1.0)
        ),
    )


def passes_of_steps(run: RunDescription, last: int) -> IntArray:
    """Return the pass that each step reads from.

    Args:
        run: names N and the batch of each step.
        last: last step.

    Returns:
        [last + 1] pass of step s at index s, from 0; what stands at index 0 and at steps up
        to the last change of data means nothing.

    Example:
        >>> from evalmon.audit.repeats import passes_of_steps  # N = 10, B = 4
        >>> from types import SimpleNamespace
        >>> run = SimpleNamespace(
        ...     source_instances=10, batch_instances=4, earlier_batches=[], data_changes=[]
        ... )
        >>> passes_of_steps(run, 5).tolist()
        [0, 0, 0, 1, 1, 2]
    """
    total = run.source_instances
    passes = np.zeros(last + 1, np.int64)
    position, begin = 0, max(run.data_changes, default=0)
    for until, size in [*run.earlier_batches, [last, run.batch_instances]]:
        count = min(until, last) - begin
        if count <= 0:
            continue
        number, offset = divmod(position, total)
        left, each = (total - offset) // size, max(total // size, 1)
        later = np.arange(count) - left
        passes[begin + 1 : begin + count + 1] = number + np.maximum(later // each + 1, 0)
        ended = count - 1 - left
        if ended < 0:
            position += count * size
        else:
            position = (number + 1 + ended // each) * total + (ended % each + 1) * size
        begin += count
    return passes


def _stretches(log: IdLog, run: RunDescription) -> Iterator[tuple[slice, bool]]:
    """Yield the draws between changes of data, and whether their passes are known."""
    steps, changes = log.records["step"], sorted(run.data_changes)
    edges = [0, *np.searchsorted(steps, changes, side="right").tolist(), len(steps)]
    for number, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            yield slice(begin, end), number == len(changes)


def _count(
    records: NDArray[np.void],
    part: slice,
    run: RunDescription,
    passes: IntArray | None,
    counts: _Counts,
) -> None:
    """Count one stretch: columns one after another, then draws by bucket of their texts."""
    drawn = records[part]
    texts, pairs = _distinct(drawn["text_hash"].copy()), _distinct(_keys(drawn))
    counts.renamed += pairs - texts
    counts.changed += pairs - _distinct(drawn["instance"].copy())
    trusted = pairs - texts <= _UNTRUSTED_INDEX * len(drawn)
    if trusted and pairs == len(drawn):
        counts.unique += pairs
        counts.multiplicity[1] += pairs
        return
    for rows in _buckets(drawn).each():
        found = drawn[rows]
        keys = _keys(found) if trusted else found["text_hash"].copy()
        _rank(found, rows + part.start, keys, _Plan(run, passes, upsampled=trusted), counts)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How often an instance is meant to be drawn."""

    run: RunDescription
    passes: IntArray | None
    upsampled: bool

    def groups(self, steps: IntArray) -> IntArray:
        """Return the [n] passes of steps, or the steps where passes are not known."""
        return steps if self.passes is None else self.passes[steps]

    def times(self, instances: NDArray[np.unsignedinteger]) -> IntArray:
        """Return how often a pass reads each of [n] instances."""
        times = np.ones(len(instances), np.int64)
        if self.upsampled and self.run.upsampled:
            ranges = np.array(sorted(self.run.upsampled), np.int64)
            if self.passes is None:
                return np.full(len(instances), ranges[:, 2].max())
            values = instances.astype(np.int64)
            place = np.searchsorted(ranges[:, 0], values, side="right") - 1
            inside = (place >= 0) & (values < ranges[place, 1])
            times[inside] = ranges[place[inside], 2]
        return times


def _rank(
    found: NDArray[np.void],
    places: IntArray,
    keys: NDArray[np.uint64],
    plan: _Plan,
    counts: _Counts,
) -> None:
    """Count the draws of one bucket; ``places`` are their places in the log."""
    if (unique := _distinct(keys.copy())) == len(keys):
        counts.unique += unique
        counts.multiplicity[1] += unique
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.append(np.flatnonzero(new), len(new)))
    counts.unique += unique
    for times, instances in enumerate(np.bincount(sizes).tolist()):
        if instances:
            counts.multiplicity[times] += instances
    # From here on only instances that are drawn more than once.
    several = np.repeat(sizes > 1, sizes)
    order, new = order[several], new[several]
    steps = found["step"][order].astype(np.int64)
    groups = plan.groups(steps)
    times = plan.times(found["instance"][order])
    rank = _since(new)
    inside = _since(new | np.concatenate([[True], groups[1:] != groups[:-1]]))
    same_step = _since(new | np.concatenate([[True], steps[1:] != steps[:-1]])) > 0
    beyond = (rank >= plan.run.planned_passes * times) | (inside >= times)
    counts.same_step += int(np.count_nonzero(same_step))
    counts.planned += int(np.count_nonzero(~new & ~beyond))
    place = places[order]
    at = np.flatnonzero(beyond)
    counts.beyond[place[at]] = True
    counts.previous[place[at]] = place[at - 1]


def _since(new: NDArray[np.bool_]) -> IntArray:
    """Return [n] how far each place is from the last True at or before it."""
    at = np.arange(len(new))
    return at - np.maximum.accumulate(np.where(new, at, 0))


@dataclass(frozen=True, slots=True)
class _Buckets:
    """Draws in groups, all draws of one text in the same."""

    number: NDArray[np.uint8]
    buckets: int

    def each(self) -> Iterator[IntArray]:
        """Yield the places of each bucket's draws, in order."""
        if self.buckets == 1:
            yield np.arange(len(self.number))
            return
        for number in range(self.buckets):
            yield np.flatnonzero(self.number == number)


def _buckets(drawn: NDArray[np.void]) -> _Buckets:
    """Share draws out by their text's hash."""
    buckets = 1
    while buckets * _AT_ONCE < len(drawn) and buckets < 256:
        buckets *= 2
    number = np.zeros(len(drawn), np.uint8)
    if buckets > 1:
        for start in range(0, len(drawn), _AT_ONCE):
            texts = drawn["text_hash"][start : start + _AT_ONCE]
            # The upper bits: a sample is one of texts with equal lower ones.
            number[start : start + _AT_ONCE] = (mixed(texts) >> np.uint64(56)) % np.uint64(buckets)
    return _Buckets(number, buckets)


def _keys(found: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return [n] 64 bits that stand for index and text of draws.

    Two of n different ones agree with a chance of n^2 / 2^65: 3e-6 for 10 million.
    """
    keys = np.empty(len(found), np.uint64)
    for start in range(0, len(found), _AT_ONCE):
        part = found[start : start + _AT_ONCE]
        keys[start : start + _AT_ONCE] = mixed(mixed(~part["instance"]) + part["text_hash"])
    return keys


def _distinct(values: NDArray[np.uint64]) -> int:
    """Count the different numbers; the array is sorted in place."""
    values.sort()
    return int(np.count_nonzero(values[1:] != values[:-1])) + bool(len(values))


def _first(log: IdLog, beyond: NDArray[np.bool_]) -> int | None:
    """Return the first repeat; of a sample the first in a window that holds enough."""
    if not beyond.any():
        return None
    if log.rate == 1:
        return int(np.argmax(beyond))
    places = np.flatnonzero(beyond)
    windows = (log.records["step"][places].astype(np.int64) - 1) // WINDOW_STEPS
    found, counts = np.unique(windows, return_counts=True)
    loud = found[counts >= SPOKEN_REPEATS]
    return int(places[np.searchsorted(windows, loud[0])]) if len(loud) else None


def _hosts(records: NDArray[np.void]) -> int:
    """Count the hosts that drew."""
    hosts: set[int] = set()
    for start in range(0, len(records), _AT_ONCE):
        hosts.update(np.unique(records["host"][start : start + _AT_ONCE]).tolist())
    return len(hosts)


def _pattern(log: IdLog, run: RunDescription, counts: _Counts) -> tuple[int | None, int]:
    """Return the distance shared by nearly all repeats within a host, and the repeats across."""
    hosts, total, cross = log.records["host"], 0, 0
    # A sample does not tell which draw of its host one is: steps stand for it.
    sampled = log.rate > 1
    own = log.records["step"] if sampled else _own(hosts)
    inside: list[NDArray[np.uint32]] = []
    for start in range(0, len(hosts), _AT_ONCE):
        places = np.flatnonzero(counts.beyond[start : start + _AT_ONCE]) + start
        previous = counts.previous[places]
        same = hosts[places] == hosts[previous]
        total += len(places)
        cross += int(np.count_nonzero(~same))
        inside.append(own[places[same]] - own[previous[same]])
    distances = np.concatenate(inside)
    if not len(distances):
        return None, cross
    distances.sort()
    starts = np.flatnonzero(np.concatenate([[True], distances[1:] != distances[:-1]]))
    shares = np.diff(np.append(starts, len(distances)))
    top = int(np.argmax(shares))
    if shares[top] < _PERIODIC * total:
        return None, cross
    period = int(distances[starts[top]])
    return (period * run.batch_instances // max(run.hosts, 1) if sampled else period), cross


def _own(hosts: NDArray[np.unsignedinteger]) -> NDArray[np.uint32]:
    """Return [n] how many draws of its own host came before each."""
    own = np.empty(len(hosts), np.uint32)
    before: Counter[int] = Counter()
    for start in range(0, len(hosts), _AT_ONCE):
        part = hosts[start : start + _AT_ONCE]
        order = np.argsort(part, kind="stable")
        names, counts = np.unique(part, return_counts=True)
        begun = np.array([before[name] for name in names.tolist()], np.int64)
        ranks = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts, counts)
        own[start + order] = ranks + np.repeat(begun, counts)
        before.update(dict(zip(names.tolist(), counts.tolist(), strict=True)))
    return own


def _seams(records: NDArray[np.void], counts: _Counts, resumes: Sequence[int]) -> tuple[Seam, ...]:
    """Return the resumes after which instances are drawn again at once."""
    seams: list[Seam] = []
    steps = records["step"]
    for step in sorted({*resumes} - {0}):
        begin, end = np.searchsorted(steps, [step + 1, step + 2]).tolist()
        places = np.flatnonzero(counts.beyond[begin:end]) + begin
        if len(places):
            previous = int(np.median(steps[counts.previous[places]]))
            seams.append(Seam(step, len(places), previous))
    return tuple(seams)
