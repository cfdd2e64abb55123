"""How often a loader's own source holds each text, where it can be read.

A Grain loader keeps the source it reads: a ``DataLoader`` its data source, a chain of datasets
its root. Nothing of Grain is imported for it: what has records by number is asked for them.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalmon.audit.batches import BatchReader
from evalmon.errors import DataError
from evalmon.types import text_hashes

__all__ = ["loader_workers", "source_copies"]

_MOST_RECORDS = 1_000_000
_WRAPPERS = ("_data_source", "_dataset", "_ds", "_source")


def source_copies(
    loader: Any, hashes: NDArray[np.uint64], reader: BatchReader, *, seconds: float
) -> NDArray[np.int64] | None:
    """Return how often the source holds the text of each draw.

    Args:
        loader: what a host's callable returned.
        hashes: [n] text of each draw.
        reader: takes tokens out of records.
        seconds: limit on reading.

    Returns:
        [n] counts of at least 1; None where the source cannot be read, holds more than a
        million records, or not all the texts that were drawn.
    """
    source = _root(loader)
    if source is None:
        return None
    held = _texts(source, reader, time.monotonic() + seconds)
    if held is None:
        return None
    texts, counts = np.unique(held, return_counts=True)
    place = np.minimum(np.searchsorted(texts, hashes), len(texts) - 1)
    return counts[place] if (texts[place] == hashes).all() else None


def loader_workers(loader: Any) -> int:
    """Return the worker processes that a Grain loader says it has, 0 where it says none."""
    seen = 0
    for part in (*_chain(loader), *_chain(getattr(loader, "_dataset", None))):
        for name in ("multiprocessing_options", "_multiprocessing_options"):
            count = getattr(getattr(part, name, None), "num_workers", 0)
            seen = max(seen, count if isinstance(count, int) else 0)
        cycle = getattr(part, "_cycle_length", 0)
        seen = max(seen, cycle if isinstance(cycle, int) else 0)
    return seen


def _chain(loader: Any) -> list[Any]:
    """Return a loader and what it is made of, from the outside in; a fork ends it."""
    found = [loader]
    while len(found) < 100:
        # Attributes as they are stored: a property could compute, or raise.
        stored = getattr(found[-1], "__dict__", {})
        parents = stored.get("_parents") or ()
        inner = parents[0] if len(parents) == 1 else None
        for name in () if parents else _WRAPPERS:
            inner = inner if inner is not None else stored.get(name)
        if inner is None or any(inner is known for known in found):
            break
        found.append(inner)
    return found


def _root(loader: Any) -> Any:
    """Return the innermost part with a length and records by number, None without one."""
    last = _chain(loader)[-1]
    by_number = hasattr(last, "__len__") and hasattr(last, "__getitem__")
    return last if by_number and not isinstance(last, (dict, str, bytes)) else None


def _texts(source: Any, reader: BatchReader, deadline: float) -> NDArray[np.uint64] | None:
    """Return the hash of each record, None where records are no single instances."""
    try:
        count = len(source)
        if not 0 < count <= _MOST_RECORDS:
            return None
        hashes = np.empty(count, np.uint64)
        for number in range(count):
            tokens, _ = reader.read(source[number], f"record {number}")
            if len(tokens) != 1 or time.monotonic() > deadline:
                return None
            hashes[number] = text_hashes(tokens)[0]
    except (DataError, LookupError, TypeError, ValueError, OverflowError, OSError):
        return None
    return hashes
