"""Dtypes, rows of the vocabulary, and values that do not survive a change of either."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from trainer.weights.names import EMBEDDING, HEAD

__all__ = ["DTYPES", "Array", "Changes", "Counts", "blocks", "same_bits"]

Array: TypeAlias = NDArray[Any]

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
"""Dtypes that weights are stored in, by name."""

_BLOCK: Final = 1 << 21


@dataclass(slots=True)
class Counts:
    """Values that deserve a word, by tensor.

    Attributes:
        non_finite: NaN and infinity found in the source; they are kept.
        overflowed: finite values that the new dtype makes infinite.
        vanished: values that the new dtype makes zero.
    """

    non_finite: dict[str, int] = field(default_factory=dict[str, int])
    overflowed: dict[str, int] = field(default_factory=dict[str, int])
    vanished: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Changes:
    """What happens to a tensor between source and result.

    Attributes:
        dtype: dtype of all tensors, None to keep each one's.
        rows: rows of embedding and head; more are zeros, fewer are cut at the end.
    """

    dtype: np.dtype[Any] | None
    rows: int

    def dtypes(self, before: Mapping[str, np.dtype[Any]]) -> dict[str, np.dtype[Any]]:
        """Return each tensor's dtype afterwards."""
        return {name: self.dtype or dtype for name, dtype in before.items()}

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a tensor's shape afterwards."""
        return (self.rows, *shape[1:]) if name in (EMBEDDING, HEAD) else shape

    def apply(self, name: str, array: Array, counts: Counts | None = None) -> Array:
        """Return the tensor as the result has it; the very same where nothing changes.

        Args:
            name: published name.
            array: the tensor, published orientation.
            counts: where to count, None not to.
        """
        if name in (EMBEDDING, HEAD):
            array = array[: self.rows]
        changed = array
        if self.dtype is not None and self.dtype != array.dtype:
            with np.errstate(over="ignore", invalid="ignore"):
                changed = array.astype(self.dtype)
        if counts is not None:
            _count(name, array, changed, counts)
        if name in (EMBEDDING, HEAD) and len(changed) < self.rows:
            padded = np.zeros((self.rows, *changed.shape[1:]), changed.dtype)
            padded[: len(changed)] = changed
            return padded
        return changed


def blocks(array: Array) -> Iterator[Array]:
    """Yield an array in parts along its first axis, of about two million values each."""
    row = int(np.prod(array.shape[1:], dtype=np.int64))
    step = max(1, _BLOCK // max(1, row))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def same_bits(one: Array, other: Array) -> bool:
    """Tell whether two arrays are equal in dtype, shape and every bit, NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = np.dtype(f"u{one.dtype.itemsize}")
    return all(np.array_equal(a.view(bits), b.view(bits)) for a, b in _pairs(one, other))


def _count(name: str, before: Array, after: Array, counts: Counts) -> None:
    """Count what is not finite, and what a cast made infinite or zero."""
    bad = over = gone = 0
    for old, new in _pairs(before, after):
        finite = np.isfinite(old)
        bad += finite.size - int(np.count_nonzero(finite))
        if after is not before:
            over += int(np.count_nonzero(finite & ~np.isfinite(new)))
            gone += int(np.count_nonzero((new == 0) & (old != 0)))
    for number, where in (
        (bad, counts.non_finite),
        (over, counts.overflowed),
        (gone, counts.vanished),
    ):
        if number:
            where[name] = number


def _pairs(one: Array, other: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the same parts of two arrays, along the axis that is outermost in the first."""
    if one.ndim > 1 and one.strides[0] < one.strides[-1]:
        one, other = one.T, other.T
    yield from zip(blocks(one), blocks(other), strict=True)
