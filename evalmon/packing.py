"""Plans what a model computes: every shared beginning once, few shapes, little padding.

Requests become a tree of tokens. A beginning that a whole group continues (the worked
examples of a task) is computed once, by itself, and the group's rows continue from it; what
a few texts share (a question and its answers) stands once in their row. Rows have few
lengths and are filled with whole subtrees, so that a compiled model meets few shapes::

    section                 worked examples                      extended once
      batch, rows [R, T]    question 1 | answers | question 2 …  continue from it
      section               …                                    a longer beginning below

No model code: :mod:`evalmon.scoring` runs a plan.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evalmon.types import ROW_TOKENS, ScoreRequest, TokenForest

__all__ = ["BATCH_TOKENS", "Batch", "Plan", "Section", "plan"]

BATCH_TOKENS: Final = 2048
"""Places of one batch, padding included; a longer text is a batch by itself."""

_LONGEST_SHARED_ROW: Final = 4 * ROW_TOKENS
"""Texts that share more than fits such a row continue from a prefix instead."""

_LEAST_PREFIX: Final = 32
"""Tokens below which a prefix of its own costs more than computing it again."""

_Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Texts:
    """The distinct texts a model reads, sorted.

    Attributes:
        ids: tokens of each.
        shared: tokens each has in common with the one before it.
        first: earliest place of each whose next token is asked for.
        requests: numbers of the requests that read it.
        totals: running sum of the tokens each adds to the one before it.
    """

    ids: list[_Ids]
    shared: _Ids
    first: _Ids
    requests: list[list[int]]
    totals: NDArray[np.int64]

    def size(self, low: int, high: int, depth: int) -> int:
        """Return the distinct tokens of the texts [low, high) from ``depth`` on."""
        added = int(self.totals[high - 1] - self.totals[low])
        return len(self.ids[low]) - depth + added


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that go to the model together.

    Attributes:
        forest: what they hold.
        owners: [P] number of the request that each pick belongs to, its picks in order.
    """

    forest: TokenForest
    owners: _Ids

    def only(self, wanted: NDArray[np.bool_]) -> "Batch":
        """Return the same rows with some of the picks alone.

        Args:
            wanted: [P] whether a pick is kept.
        """
        if wanted.all():
            return self
        picks, targets = self.forest.picks[wanted], self.forest.targets[wanted]
        forest = replace(self.forest, picks=picks, targets=targets)
        return Batch(forest, self.owners[wanted])


@dataclass(slots=True)
class Section:
    """Texts that continue one beginning.

    Attributes:
        extension: tokens by which it is longer than the beginning of the section above.
        depth: tokens of the whole beginning.
        rows: texts of each row, by number, and the row's length.
        children: sections of longer beginnings.
    """

    extension: tuple[int, ...]
    depth: int
    rows: list[tuple[int, tuple[int, ...]]] = field(
        default_factory=list[tuple[int, tuple[int, ...]]]
    )
    children: list["Section"] = field(default_factory=list["Section"])


@dataclass(frozen=True, slots=True)
class Plan:
    """How requests are computed.

    Attributes:
        root: the section of no beginning.
        tokens_distinct: tokens of the tree of all texts, each shared one counted once.
        batch_rows: rows of a batch at most, 0 for as many as hold ``BATCH_TOKENS``.
        row_multiple: rows of a batch are a multiple of it.
        share: whether what texts share is computed once.
    """

    root: Section
    tokens_distinct: int
    batch_rows: int
    row_multiple: int
    share: bool
    _texts: _Texts
    _requests: Sequence[ScoreRequest]

    def batches(self, section: Section) -> Iterator[Batch]:
        """Yield a section's batches, longest rows first, so that memory is at its peak at once."""
        by_length: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        for length, texts in section.rows:
            by_length[length].append(texts)
        for length in sorted(by_length, reverse=True):
            rows, start = by_length[length], 0
            for count in self._counts(len(rows), length):
                yield self._batch(rows[start : start + count], count, length, section.depth)
                start += count

    def _counts(self, rows: int, length: int) -> Iterator[int]:
        """Split rows into batches of few sizes: the full one, a quarter of it, and so on."""
        multiple = self.row_multiple
        wanted = self.batch_rows or BATCH_TOKENS // length
        size = max(-(-wanted // multiple), 1) * multiple
        while rows > 0:
            while size > max(rows, multiple):
                size = max(size // 4 // multiple, 1) * multiple
            yield size
            rows -= size

    def _batch(self, rows: Sequence[tuple[int, ...]], count: int, length: int, depth: int) -> Batch:
        """Lay rows out as a forest of ``count`` rows."""
        ids = np.zeros((count, length), np.int32)
        positions = np.zeros((count, length), np.int32)
        ends = np.tile(np.arange(length, dtype=np.int32), (count, 1))
        picks: list[_Ids] = []
        targets: list[_Ids] = []
        owners: list[_Ids] = []
        tokens = 0
        for row, texts in enumerate(rows):
            places = self._row(texts, depth, (ids[row], positions[row], ends[row]))
            tokens += places.used
            for text, branch in zip(texts, places.branches, strict=True):
                for number in self._texts.requests[text]:
                    request = self._requests[number]
                    first = len(request.context) - 1 - depth
                    asked = branch[first : first + len(request.continuation)]
                    picks.append(row * length + asked)
                    targets.append(np.array(request.continuation, np.int32))
                    owners.append(np.full(len(asked), number, np.int32))
        forest = TokenForest(
            ids, positions, ends, tokens, np.concatenate(picks), np.concatenate(targets)
        )
        return Batch(forest, np.concatenate(owners))

    def _row(self, texts: tuple[int, ...], depth: int, into: tuple[_Ids, _Ids, _Ids]) -> "_Places":
        """Write the tree of some texts, in their order, into a row."""
        ids, positions, ends = into
        branch = np.zeros(0, np.int32)
        branches: list[_Ids] = []
        used, before = 0, -1
        for text in texts:
            kept = 0
            if before >= 0:
                if self.share:
                    kept = int(self._texts.shared[before + 1 : text + 1].min()) - depth
                ends[branch[kept:]] = used - 1
            tokens = self._texts.ids[text][depth + kept :]
            places = np.arange(used, used + len(tokens), dtype=np.int32)
            ids[places] = tokens
            positions[places] = np.arange(depth + kept, depth + kept + len(tokens))
            branch = np.concatenate([branch[:kept], places])
            branches.append(branch)
            used, before = used + len(tokens), text
        ends[branch] = used - 1
        return _Places(branches, used)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where each text of a row stands, and how many places are used."""

    branches: list[_Ids]
    used: int


def plan(
    requests: Sequence[ScoreRequest],
    *,
    batch_rows: int = 0,
    row_multiple: int = 1,
    share: bool = True,
) -> Plan:
    """Plan how requests are computed.

    Args:
        requests: at least one; each with context and continuation.
        batch_rows: rows of a batch at most, 0 for as many as hold ``BATCH_TOKENS``.
        row_multiple: rows of a batch are a multiple of it.
        share: compute what texts share once; False to compute each text by itself.

    Example:
        >>> requests = [ScoreRequest((5, 6), (7, 8)), ScoreRequest((5, 6), (9, 8))]
        >>> made = plan(requests)
        >>> [batch.forest.tokens for batch in made.batches(made.root)]  # 5 6 7 | 9
        [4]
    """
    texts = _sorted_texts(requests)
    root = Section((), 0)
    units = _divide(texts, root) if share else [(root, t, t + 1) for t in range(len(texts.ids))]
    by_section: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    sections = {id(root): root}
    for section, low, high in units:
        sections[id(section)] = section
        by_section[id(section)].append((low, high))
    for key, members in by_section.items():
        section = sections[key]
        section.rows = _fill(texts, members, section.depth)
    distinct = texts.size(0, len(texts.ids), 0)
    return Plan(root, distinct, batch_rows, row_multiple, share, texts, requests)


def _sorted_texts(requests: Sequence[ScoreRequest]) -> _Texts:
    """Return the distinct inputs in order of their tokens, and what neighbors share."""
    numbers: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, item in enumerate(requests):
        read = (*item.context, *item.continuation[:-1])
        numbers[np.array(read, ">u4").tobytes()].append(number)
    keys = sorted(numbers)
    ids = [np.frombuffer(key, ">u4").astype(np.int32) for key in keys]
    shared = np.array([0, *(_common(a, b) for a, b in pairwise(ids))], np.int32)
    lengths = np.array([len(text) for text in ids])
    first = [min(len(requests[n].context) - 1 for n in numbers[key]) for key in keys]
    return _Texts(
        ids,
        shared,
        np.array(first, np.int32),
        [numbers[key] for key in keys],
        np.cumsum(lengths - shared, dtype=np.int64),
    )


def _common(a: _Ids, b: _Ids) -> int:
    """Return how many tokens two texts begin with in common."""
    length = min(len(a), len(b))
    differing = np.flatnonzero(a[:length] != b[:length])
    return int(differing[0]) if differing.size else length


def _divide(texts: _Texts, root: Section) -> list[tuple[Section, int, int]]:
    """Divide the tree into subtrees that fit a row, below prefixes where they share much.

    Returns:
        (section, low, high): texts [low, high) are one unit of a section's rows.
    """
    units: list[tuple[Section, int, int]] = []
    open_groups = [(root, 0, len(texts.ids))]
    while open_groups:
        section, low, high = open_groups.pop()
        size = texts.size(low, high, section.depth)
        if high - low == 1 or size <= ROW_TOKENS:
            units.append((section, low, high))
            continue
        inner = texts.shared[low + 1 : high]
        common = int(inner.min())
        reach = min(common, int(texts.first[low:high].min()))
        if size > _LONGEST_SHARED_ROW and reach - section.depth >= _LEAST_PREFIX:
            extension = texts.ids[low][section.depth : reach].tolist()
            below = Section(tuple(extension), reach)
            section.children.append(below)
            open_groups.append((below, low, high))
        elif size <= _LONGEST_SHARED_ROW and common - section.depth >= _LEAST_PREFIX:
            units.append((section, low, high))
        else:
            cuts = [low, *(low + 1 + np.flatnonzero(inner == common)).tolist(), high]
            open_groups += [(section, start, stop) for start, stop in pairwise(cuts)]
    return units


def _fill(
    texts: _Texts, units: Sequence[tuple[int, int]], depth: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Fill rows with units, largest first, each into the fullest row that has room for it.

    Returns:
        Length and sorted texts of each row.
    """
    sizes = [(texts.size(low, high, depth), low, high) for low, high in units]
    rows: list[list[int]] = []
    lengths: list[int] = []
    rooms: list[tuple[int, int]] = []
    for size, low, high in sorted(sizes, key=lambda unit: (-unit[0], unit[1])):
        found = bisect_left(rooms, (size, -1))
        if found < len(rooms):
            room, row = rooms.pop(found)
        else:
            room, row = _row_length(size), len(rows)
            rows.append([])
            lengths.append(room)
        rows[row] += range(low, high)
        insort(rooms, (room - size, row))
    return [(length, tuple(sorted(row))) for length, row in zip(lengths, rows, strict=True)]


def _row_length(size: int) -> int:
    """Return the shortest row that holds so many tokens: a power of two of least rows."""
    return ROW_TOKENS * (1 << max(0, (-(-size // ROW_TOKENS) - 1).bit_length()))
