"""What a source is, and whether two hosts have the same one, without reading records.

Data that lies in memory already (ranges, lists, arrays of whole numbers) is looked at; of
everything else only its length, its files, its text form and its small attributes are.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from evalmon.audit.pipelines import Operation, Slice, Source

__all__ = ["read_source"]

_SMALL: Final = (bool, int, float, str, bytes, type(None))
_MOST: Final = 10_000_000
_MEMBERS: Final = 1000
_DEPTH: Final = 3


def read_source(source: Any) -> tuple[tuple[Operation, ...], str]:
    """Describe a random-access source.

    Args:
        source: what Grain was given.

    Returns:
        A source, with a slice where it counts up evenly, and what was not understood or "".
    """
    name = type(source).__name__
    steps = _arithmetic(source)
    if steps is not None:
        return (Source("range"), steps), ""
    try:
        instances = len(source)
    except (TypeError, NotImplementedError):
        instances = None
    paths = _paths(source)
    form = "data" if isinstance(source, list | tuple | np.ndarray) else "object"
    content = f"{form}:{hashlib.sha256(repr(_seen(source, _DEPTH)).encode()).hexdigest()[:16]}"
    described = Source(name, instances, paths, "" if paths else content)
    return (described,), "" if instances is not None else f"source {name}: has no length"


def _arithmetic(source: Any) -> Slice | None:
    """Return whole numbers that count up evenly as a slice of all whole numbers."""
    if type(source).__name__ == "RangeDataSource":
        source = range(source._start, source._stop, source._step)
    if isinstance(source, range):
        return Slice(source.start, source.stop, source.step) if source.step > 0 else None
    if not isinstance(source, list | tuple | np.ndarray) or isinstance(source, np.memmap):
        return None
    if not 2 <= len(source) <= _MOST:
        return None
    if not isinstance(source, np.ndarray) and {type(item) for item in source} != {int}:
        return None
    numbers: NDArray[Any] = np.asarray(source)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        return None
    start, step = int(numbers[0]), int(numbers[1]) - int(numbers[0])
    even = step > 0 and start >= 0 and bool((np.diff(numbers) == step).all())
    return Slice(start, int(numbers[-1]) + 1, step) if even else None


def _paths(source: Any) -> tuple[str, ...]:
    """Return the files a source reads, where it says them."""
    paths = getattr(source, "paths", None)
    if isinstance(paths, str):
        return (paths,)
    if isinstance(paths, list | tuple):
        return tuple(str(path) for path in cast("Sequence[Any]", paths))
    return ()


def _seen(value: Any, depth: int) -> Any:
    """Return what tells two values apart, of large ones their size and some members."""
    if isinstance(value, _SMALL):
        return value
    if isinstance(value, np.memmap):
        return (str(value.filename), value.offset, value.shape)
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return (array.shape, array.strides, repr(array.reshape(-1)[:_MEMBERS].tolist()))
    if isinstance(value, list | tuple):
        members = cast("Sequence[Any]", value)
        return (len(members), [_seen(item, depth - 1) for item in members[:_MEMBERS]])
    mapped = isinstance(value, Mapping)
    kind = "" if mapped else type(value).__qualname__
    values: Mapping[Any, Any] = value if mapped else getattr(value, "__dict__", {})
    if not depth:
        return kind
    shown = [(str(key), item) for key, item in list(values.items())[:_MEMBERS]]
    return (kind, [(key, _seen(item, depth - 1)) for key, item in shown if not callable(item)])
