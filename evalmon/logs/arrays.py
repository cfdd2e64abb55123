"""pyarrow's columns as NumPy arrays, and back, without pandas.

pyarrow's own conversions, ``fill_null`` among them, import pandas where it is installed, which
takes seconds; the buffers beneath hold the same numbers.
"""

from typing import Any

import numpy as np

from evalmon.types import IntArray

__all__ = ["Column", "empty_of", "values_of", "whole_column"]

Column = Any
"""A pyarrow ChunkedArray or Array; pyarrow has no types of its own."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def values_of(column: Column, empty: float | int | None = None) -> Any:
    """Return a column of numbers as an array nobody can write to: several may hold it.

    Args:
        column: of one fixed-width type.
        empty: stands for an empty cell; None where there is none.
    """
    column = _whole(column)
    if column.null_count == 0:
        values = np.from_dlpack(column)
    else:
        assert empty is not None
        kind = np.dtype(column.type.to_pandas_dtype())
        start = column.offset * kind.itemsize
        held = np.frombuffer(column.buffers()[1], kind, len(column), start)
        values = np.where(empty_of(column), kind.type(empty), held)
    values.flags.writeable = False
    return values


def empty_of(column: Column) -> Flags:
    """Return which cells of a column are empty."""
    column = _whole(column)
    bits = column.buffers()[0]
    if column.null_count == 0 or bits is None:  # a column of no type has no bits
        return np.full(len(column), column.null_count > 0)
    there = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return there[column.offset : column.offset + len(column)] == 0


def whole_column(values: IntArray, empty: Flags | None) -> Column:
    """Return whole numbers as a column, with empty cells."""
    import pyarrow as pa

    bits = None if empty is None else pa.py_buffer(np.packbits(~empty, bitorder="little"))
    held = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.chunked_array([pa.Array.from_buffers(pa.int64(), len(values), [bits, held])])


def _whole(column: Column) -> Column:
    """Return a column as one piece."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
