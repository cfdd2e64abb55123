"""Values along a run."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["FloatArray", "IntArray", "Series", "ToleranceBand"]

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one metric along a run, in rising order of step.

    Attributes:
        metric: canonical name.
        steps: [n] optimizer updates completed.
        tokens: [n] tokens trained on.
        values: [n] the numbers, all finite.
    """

    metric: str
    steps: IntArray
    tokens: IntArray
    values: FloatArray

    def __len__(self) -> int:
        return len(self.steps)

    def until(self, step: int) -> "Series":
        """Return the part up to and including ``step``."""
        return self.pick(slice(int(np.searchsorted(self.steps, step, side="right"))))

    def pick(self, where: "slice | IntArray | NDArray[np.bool_]") -> "Series":
        """Return some of its points, in the order they have."""
        return Series(self.metric, self.steps[where], self.tokens[where], self.values[where])


@dataclass(frozen=True, slots=True)
class ToleranceBand:
    """A value's range that counts as no change.

    Attributes:
        tokens: [n] positions.
        low: [n] lower edge.
        high: [n] upper edge.
    """

    tokens: IntArray
    low: FloatArray
    high: FloatArray
