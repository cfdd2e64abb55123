"""Instances that repeat a few tokens over and over, which a run may leave out of its loss.

A stretch repeats with period p where each token equals the one p before it. If m tokens in
a row do so, the stretch holds m // p + 1 whole repeats of p tokens. Counted are at least
three repeats, in the whole instance, from its first token to its last.

An instance is masked for a stretch of 32 repeats of 1 to 13 tokens. It stays in its batch;
``trainer.objective`` says what a masked instance does to the loss.

Source: OLMo-core ``data/utils.py`` (find_periodic_sequences) and ``data/numpy_dataset.py``
(InstanceFilterConfig), whose verdict this gives on every instance. MaxText
``input_pipeline/olmo_data_grain.py`` compares the first p tokens with the last p too, where p
divides the length, and may count one repeat more or less there.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import ConfigError
from trainer.names import require_known

__all__ = ["INSTANCE_FILTERS", "RepetitionFilter", "find_filter"]

_LEAST_REPEATS: Final = 3


@dataclass(frozen=True, slots=True)
class RepetitionFilter:
    """Tells which instances repeat themselves too often to be trained on.

    Attributes:
        max_period: longest repeated piece that is looked for, in tokens.
        min_period: shortest one.
        max_count: repeats from which on an instance is masked, at least 3.

    Raises:
        ConfigError: no period to look for, or fewer than three repeats.

    Example:
        >>> rule = RepetitionFilter()
        >>> rule.keeps(np.array([[7] * 31 + [0], [7] * 32])).tolist()
        [True, False]
    """

    max_period: int = 13
    min_period: int = 1
    max_count: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.min_period <= self.max_period:
            raise ConfigError(
                f"periods {self.min_period} to {self.max_period}: expected at least 1, the "
                "shortest first"
            )
        if self.max_count < _LEAST_REPEATS:
            raise ConfigError(
                f"max_count {self.max_count}: fewer than {_LEAST_REPEATS} repeats are never "
                f"counted; give {_LEAST_REPEATS} or more"
            )

    def keeps(self, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which instances count.

        Args:
            tokens: [n, L] ids of any integer type.

        Returns:
            [n] False for an instance that repeats a piece ``max_count`` times or more.
        """
        kept = np.ones(len(tokens), bool)
        for period in range(self.min_period, self.max_period + 1):
            needed = (self.max_count - 1) * period
            for row in self._suspects(tokens, period, needed):
                if kept[row] and _longest_run(tokens[row], period) >= needed:
                    kept[row] = False
        return kept

    def times(self, tokens: NDArray[np.integer]) -> int:
        """Return how often the piece that repeats most does so, 0 below three times.

        Args:
            tokens: [L] ids of one instance.
        """
        periods = range(self.min_period, self.max_period + 1)
        counts = [_longest_run(tokens, period) // period + 1 for period in periods]
        most = max(counts)
        return most if most >= _LEAST_REPEATS else 0

    @staticmethod
    def _suspects(tokens: NDArray[np.integer], period: int, needed: int) -> NDArray[np.intp]:
        """Return the rows that may hold ``needed`` tokens in a row like those before them."""
        # Such a run holds one of any positions that lie `needed` apart, and of the tokens
        # around it those half and a quarter of `needed` away on one side at least.
        first = period + needed - 1
        equal = tokens[:, first::needed] == tokens[:, first - period : -period : needed]
        if not equal.any():
            return np.empty(0, np.intp)
        rows, column = np.nonzero(equal)
        at = first + column * needed
        beside = np.zeros(rows.size, bool)
        for side in (-1, 1):
            whole = np.ones(rows.size, bool)
            for step in (needed // 4, needed // 2):
                there = at + side * step
                inside = (there >= period) & (there < tokens.shape[1])
                there = np.where(inside, there, period)
                whole &= inside & (tokens[rows, there] == tokens[rows, there - period])
            beside |= whole
        return np.unique(rows[beside])


INSTANCE_FILTERS: Final = MappingProxyType({"none": None, "repetition": RepetitionFilter()})
"""What masks instances, by name."""


def find_filter(name: str) -> RepetitionFilter | None:
    """Return the filter called ``name``, None for the one that masks nothing.

    Raises:
        ConfigError: no such filter; the nearest name is suggested.
    """
    require_known("--instance-filter", "filter", name, INSTANCE_FILTERS)
    return INSTANCE_FILTERS[name]


def _longest_run(tokens: NDArray[np.integer], period: int) -> int:
    """Return the most tokens in a row that each equal the one ``period`` before."""
    if len(tokens) <= period:
        return 0
    differs = np.flatnonzero(tokens[period:] != tokens[:-period])
    ends = np.concatenate([[-1], differs, [len(tokens) - period]])
    return int(np.diff(ends).max()) - 1
