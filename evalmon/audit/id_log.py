"""The id log of a run: which instance every host drew for every step.

The trainer appends a step's records before the step runs, so a killed run may hold
records of a step that never ran, and a restart appends its replayed steps again. The
reader keeps, of every step, the copy that the final weights were trained on.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, IntArray, RepeatSummary, RunDescription

__all__ = ["ID_LOG_NAME", "IdLog", "read", "summarize"]

ID_LOG_NAME = "ids.bin"
"""Name of the id log in a run directory."""

_UNTRUSTED_INDEX = 0.01
"""Share of draws with a known text under a new index from which the logged index is
taken for wrong and the text alone identifies an instance."""

_PERIODIC = 0.95
"""Share of repeats that must come at one distance for it to be called the period."""


@dataclass(frozen=True, slots=True)
class IdLog:
    """The draws a run was trained on.

    Attributes:
        path: the file.
        records: [n] records of ID_LOG_RECORD, by step, in the order they were read.
        replayed: records left out because a later copy of their step replaced them.
    """

    path: Path
    records: NDArray[np.void]
    replayed: int

    @property
    def last_step(self) -> int:
        """Last step with records, 0 without any."""
        return int(self.records["step"][-1]) if len(self.records) else 0

    @property
    def fingerprint(self) -> str:
        """Return 32 hex digits over the records: equal exactly when the draws are."""
        return hashlib.blake2b(self.records.tobytes(), digest_size=16).hexdigest()

    def until(self, step: int) -> "IdLog":
        """Return the draws up to and including ``step``."""
        end = int(np.searchsorted(self.records["step"], step, side="right"))
        return IdLog(self.path, self.records[:end], self.replayed)


def read(run: RunDescription, until_step: int | None = None) -> IdLog | None:
    """Read the id log of a run, also while it is being written.

    Args:
        run: the run.
        until_step: leave out later steps, None for all.

    Returns:
        The draws, or None when the run has no id log. A torn record at the end, and a
        last step of which not all instances are there yet, are left out.

    Raises:
        DataError: the file cannot be read, is no id log, or a step holds another
            number of draws than a batch.
    """
    path = run.path / ID_LOG_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    head = content[: len(ID_LOG_MAGIC)]
    if not ID_LOG_MAGIC.startswith(head):
        raise DataError(
            f"{path}: begins with {head!r}, not with {ID_LOG_MAGIC!r}; this is no id log, "
            "restore the file its trainer wrote or move it away"
        )
    body = content[len(ID_LOG_MAGIC) :]
    whole = len(body) // ID_LOG_RECORD.itemsize * ID_LOG_RECORD.itemsize
    written = np.frombuffer(body[:whole], ID_LOG_RECORD)
    finished = _finished(written, run.batch_instances)
    records = _last_copies(finished, run.batch_instances)
    _check_batches(records, run.batch_instances, path)
    log = IdLog(path, records, len(finished) - len(records))
    return log if until_step is None else log.until(until_step)


def summarize(
    log: IdLog, *, planned_passes: int, tokens_per_step: int, source_instances: int
) -> RepeatSummary:
    """Count the draws that read an instance more often than planned.

    An instance is its index together with the hash of its text, so that a source that
    holds one text twice is not blamed on the loader. Where more than 1 % of the draws
    bring a known text under a new index the index cannot be trusted, and the hash alone
    counts.

    Args:
        log: the draws.
        planned_passes: times each instance is meant to be read, >= 1.
        tokens_per_step: tokens trained on by one step.
        source_instances: instances in the source, >= 1.

    Returns:
        The summary; ``repeated_fraction`` is 0 of no draws.
    """
    records = log.records
    draws = len(records)
    texts = _codes(records["text_hash"])
    pairs = _codes(records["instance"], texts)
    renamed = int(np.count_nonzero((_ranks(pairs) == 0) & (_ranks(texts) > 0)))
    keys = texts if renamed > _UNTRUSTED_INDEX * draws else pairs
    ranks = _ranks(keys)
    beyond = ranks >= planned_passes
    first = int(records["step"][int(np.argmax(beyond))]) if beyond.any() else None
    same_step = _ranks(_codes(records["step"], keys)) > 0
    period, cross_host = _pattern(records["host"], keys, beyond)
    return RepeatSummary(
        first_repeat_step=first,
        first_repeat_tokens=None if first is None else first * tokens_per_step,
        draws=draws,
        unique=int(keys.max()) + 1 if draws else 0,
        repeated=int(beyond.sum()),
        repeated_fraction=float(beyond.mean()) if draws else 0.0,
        same_step_duplicates=int(same_step.sum()),
        replayed_draws=log.replayed,
        duplicate_texts=renamed,
        planned_passes=planned_passes,
        source_instances=source_instances,
        hosts=len(np.unique(records["host"])),
        period_draws=period,
        cross_host=cross_host,
        fingerprint=log.fingerprint,
    )


def _finished(written: NDArray[np.void], batch: int) -> NDArray[np.void]:
    """Drop a last step of which not all records are there yet."""
    if not len(written):
        return written
    other = np.flatnonzero(written["step"] != written["step"][-1])
    start = int(other[-1]) + 1 if len(other) else 0
    return written if (len(written) - start) % batch == 0 else written[:start]


def _last_copies(written: NDArray[np.void], batch: int) -> NDArray[np.void]:
    """Keep of every step its last copy, and nothing of a branch that was left behind."""
    steps = written["step"].astype(np.int64)
    # A step is kept while no later record goes back before it.
    kept = written[steps <= np.minimum.accumulate(steps[::-1])[::-1]]
    # A restart may go back to that very step: then its copies stand side by side.
    _, start, count = np.unique(kept["step"], return_index=True, return_counts=True)
    from_end = np.repeat(start + count, count) - np.arange(len(kept))
    return kept[from_end <= batch]


def _check_batches(records: NDArray[np.void], batch: int, path: Path) -> None:
    """Refuse a log in which a step holds fewer draws than a batch."""
    steps, counts = np.unique(records["step"], return_counts=True)
    if (counts != batch).any():
        index = int(np.argmax(counts != batch))
        raise DataError(
            f"{path}: step {steps[index]} holds {counts[index]} draws, expected {batch} (the "
            "batch); records are missing, so repeats cannot be told: restore the whole file"
        )


def _codes(*columns: NDArray[np.unsignedinteger] | IntArray) -> IntArray:
    """Return [n] numbers 0..m-1, equal exactly where all columns are."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, inverse = np.unique(column, return_inverse=True)
        _, code = np.unique(code * (int(inverse.max(initial=0)) + 1) + inverse, return_inverse=True)
    return code.astype(np.int64)


def _ranks(codes: IntArray) -> IntArray:
    """Return [n] how often each code occurred before."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    start = np.searchsorted(ordered, ordered, side="left")
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - start
    return ranks


def _pattern(
    hosts: NDArray[np.unsignedinteger], keys: IntArray, beyond: NDArray[np.bool_]
) -> tuple[int | None, int]:
    """Return the distance shared by nearly all repeats within a host, and the repeats across."""
    if not beyond.any():
        return None, 0
    own = _ranks(hosts.astype(np.int64))
    order = np.argsort(keys, kind="stable")
    previous = np.full(len(keys), -1, np.int64)
    follows = keys[order][1:] == keys[order][:-1]
    previous[order[1:][follows]] = order[:-1][follows]
    repeats = np.flatnonzero(beyond & (previous >= 0))
    same_host = hosts[repeats] == hosts[previous[repeats]]
    inside = repeats[same_host]
    cross = int((~same_host).sum())
    if not len(inside):
        return None, cross
    distances, counts = np.unique(own[inside] - own[previous[inside]], return_counts=True)
    top = int(np.argmax(counts))
    periodic = counts[top] >= _PERIODIC * len(repeats)
    return (int(distances[top]) if periodic else None), cross
