"""Which instances of a token folder one pass of a run reads.

A run counts its **positions** from 0 over what it reads; a selection says which instance of
the folder stands behind each of them. It is arithmetic, so that hundreds of millions of
instances take no memory.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import ConfigError
from trainer.data.index import InstanceIndex

__all__ = ["Portion", "Selection", "parse_ratios"]

_SUM_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Portion:
    """What is read of some ranges of instances: whole passes, then evenly spaced ones.

    Attributes:
        ranges: (first, stop) of global indices, rising, not empty, not overlapping.
        count: instances to read.
    """

    ranges: tuple[tuple[int, int], ...]
    count: int

    @property
    def available(self) -> int:
        """Return how many different instances the ranges hold, below 3 * 10^9."""
        return sum(stop - first for first, stop in self.ranges)

    @property
    def times(self) -> int:
        """Return how often the most read instance is read."""
        return -(-self.count // self.available)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the global indices of places within the portion.

        Args:
            places: [n] within 0 and ``count``.

        Returns:
            [n] global indices.

        Example:
            >>> Portion(((0, 2), (7, 8)), 5).at(np.arange(5)).tolist()
            [0, 1, 7, 0, 1]
        """
        passes, rest = divmod(self.count, self.available)
        inside = places % self.available
        if rest:
            spaced = (places - passes * self.available) * self.available // rest
            inside = np.where(places < passes * self.available, inside, spaced)
        if len(self.ranges) == 1:
            return inside + self.ranges[0][0]
        firsts = np.array([first for first, _ in self.ranges], np.int64)
        sizes = [stop - first for first, stop in self.ranges]
        before = np.array([0, *accumulate(sizes)][:-1], np.int64)
        number = np.searchsorted(before, inside, side="right") - 1
        return firsts[number] + inside - before[number]


@dataclass(frozen=True, slots=True)
class Selection:
    """Instances that a pass reads, in the order of the folder's sources.

    Attributes:
        portions: what is read of each source, one after another.
    """

    portions: tuple[Portion, ...]

    @classmethod
    def evenly(cls, total: int, keep: int | None = None) -> Self:
        """Select instances evenly spaced over all, so that every source contributes.

        Args:
            total: instances there are, at least 1.
            keep: how many of them, None for all.

        Raises:
            ConfigError: ``keep`` is not within 1 and ``total``.

        Example:
            >>> Selection.evenly(10, 4).at(np.arange(4)).tolist()
            [0, 2, 5, 7]
        """
        if keep is not None and not 1 <= keep <= total:
            raise ConfigError(
                f"--instances {keep}: the data holds {total} instances of this sequence length; "
                f"give 1 to {total}, or more text"
            )
        return cls((Portion(((0, total),), total if keep is None else keep),))

    @classmethod
    def mixture(
        cls,
        index: InstanceIndex,
        ratios: Mapping[str, float],
        count: int | None = None,
        max_repeats: int = 1,
    ) -> Self:
        """Select so many instances of each source that they make up the wanted shares.

        Numbers are rounded by largest remainder, so that they sum to ``count`` exactly. Of a
        source that is larger than its share evenly spaced instances are read; one that is
        smaller is read whole, as often as it takes.

        Args:
            index: the instances of the folder; its sources are the files' labels.
            ratios: share of each source in the pass, above 0, summing to 1.
            count: instances of the pass; by default the most for which no source is read
                more than ``max_repeats`` times.
            max_repeats: how often a source may be read in the pass, at least 1.

        Raises:
            ConfigError: a source that is not there, shares that are none, or a source that
                would be read too often.
        """
        _check_ratios(ratios)
        if max_repeats < 1:
            raise ConfigError(f"--max-repeats {max_repeats}: at least 1, each instance once")
        sources = _named_sources(index, ratios)
        sizes = {label: sum(b - a for a, b in ranges) for label, ranges in sources.items()}
        exact = {label: Fraction(str(ratios[label])) for label in sources}
        shares = {label: share / sum(exact.values()) for label, share in exact.items()}
        if count is None:
            count = min(math.floor(max_repeats * sizes[s] / share) for s, share in shares.items())
        if count < 1:
            raise ConfigError(f"--instances {count}: a pass reads at least 1; give more text")
        wanted = _apportion(shares, count)
        for label, number in wanted.items():
            if number > max_repeats * sizes[label]:
                raise ConfigError(
                    f"--ratios: source {label!r}: {number} instances wanted, but {sizes[label]} "
                    f"are there, to be read at most {max_repeats} times; give it a smaller share "
                    "or more text, or lower --instances, or raise --max-repeats"
                )
        return cls(
            tuple(Portion(sources[label], number) for label, number in wanted.items() if number)
        )

    def __len__(self) -> int:
        return sum(portion.count for portion in self.portions)

    @property
    def fingerprint(self) -> str:
        """Return a hash of what is selected."""
        record = [[portion.ranges, portion.count] for portion in self.portions]
        return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:32]

    @property
    def upsampled(self) -> list[list[int]]:
        """Return [first, stop, times] of global indices that a pass reads more than once.

        ``times`` is that of the most read instance of the range.
        """
        found = [
            [first, stop, portion.times]
            for portion in self.portions
            if portion.times > 1
            for first, stop in portion.ranges
        ]
        merged: list[list[int]] = []
        for first, stop, times in sorted(found):
            if merged and merged[-1][1:] == [first, times]:
                merged[-1][1] = stop
            else:
                merged.append([first, stop, times])
        return merged

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the instances at positions.

        Args:
            positions: [n] within 0 and the length of the selection.

        Returns:
            [n] global indices in the folder.
        """
        if len(self.portions) == 1:
            return self.portions[0].at(positions)
        before = np.array([0, *accumulate(p.count for p in self.portions)][:-1], np.int64)
        numbers = np.searchsorted(before, positions, side="right") - 1
        chosen = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            chosen[mine] = self.portions[number].at(positions[mine] - before[number])
        return chosen


def parse_ratios(text: str) -> dict[str, float]:
    """Read the shares of sources.

    Raises:
        ConfigError: not of that form, a source named twice, or shares that are none.

    Example:
        >>> parse_ratios("web=0.7, code=0.3")
        {'web': 0.7, 'code': 0.3}
    """
    ratios: dict[str, float] = {}
    for part in text.split(","):
        label, found, number = (piece.strip() for piece in part.partition("="))
        if not found or not label:
            raise ConfigError(f"--ratios {text!r}: {part.strip()!r} is no source=share")
        if label in ratios:
            raise ConfigError(f"--ratios {text!r}: source {label!r} is named twice; name it once")
        try:
            ratios[label] = float(number)
        except ValueError:
            raise ConfigError(
                f"--ratios {text!r}: the share of {label!r} is {number!r}, no number"
            ) from None
    _check_ratios(ratios)
    return ratios


def _check_ratios(ratios: Mapping[str, float]) -> None:
    """Raise unless shares are above 0 and sum to 1."""
    for label, share in ratios.items():
        if not (math.isfinite(share) and share > 0):
            raise ConfigError(
                f"--ratios: the share of {label!r} is {share}; give one above 0, or leave the "
                "source out to read nothing of it"
            )
    total = math.fsum(ratios.values())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ConfigError(f"--ratios: the shares sum to {total:.9g}, not 1; change one of them")


def _named_sources(
    index: InstanceIndex, ratios: Mapping[str, float]
) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the ranges of global indices of each source named, in the order of the folder."""
    offsets = index.offsets.tolist()
    found: dict[str, list[tuple[int, int]]] = {}
    for file, first, stop in zip(index.folder.files, offsets[:-1], offsets[1:], strict=True):
        ranges = found.setdefault(file.label, [])
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], stop)
        elif stop > first:
            ranges.append((first, stop))
    for label in ratios:
        if label not in found:
            near = difflib.get_close_matches(label, found, n=1, cutoff=0.0)
            raise ConfigError(
                f"--ratios: {label!r} is no source of {index.folder.path}; nearest is "
                f"{near[0]!r} of {', '.join(found)}"
            )
        if not found[label]:
            raise ConfigError(
                f"--ratios: source {label!r} holds no instance of {index.sequence_length} tokens; "
                "leave it out, give more text of it, or lower --sequence-length"
            )
    return {label: tuple(ranges) for label, ranges in found.items() if label in ratios}


def _apportion(shares: Mapping[str, Fraction], count: int) -> dict[str, int]:
    """Split ``count`` by shares that sum to 1, by largest remainder; of equal ones the first."""
    whole = {label: math.floor(share * count) for label, share in shares.items()}
    left = count - sum(whole.values())
    by_remainder = sorted(shares, key=lambda label: whole[label] - shares[label] * count)
    return {label: whole[label] + (label in by_remainder[:left]) for label in shares}
