"""The id log of a run: which instance every host drew for every step.

The trainer appends a step's records before the step runs, so a killed run may hold records
of a step that never ran, and a restart appends its replayed steps again. The reader keeps,
of every step, the copy that the final weights were trained on: a record of an earlier step
means that training went back, and voids what stood from that step on.

A record has 24 bytes: a log of 724 million instances has 17.4 GB. It is read by pieces, and
only what is new when it is read again. Above :data:`EXACT_DRAWS` planned draws a sample is
kept, one text in :data:`SAMPLED_RATE` by a hash of it, so that all draws of an instance are
kept or none is: of 724 million instances 707 thousand records, 17 MB.

Source: ``evalmon.types`` fixes the form (16 bytes of magic, then 24-byte records).
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, IntArray, RunDescription

__all__ = [
    "EXACT_DRAWS",
    "ID_LOG_NAME",
    "SAMPLED_RATE",
    "IdLog",
    "IdLogReader",
    "mixed",
    "read",
    "sampling_rate",
]

ID_LOG_NAME: Final = "ids.bin"
"""Name of the id log in a run directory."""

EXACT_DRAWS: Final = 16_000_000
"""Largest number of draws of which every one is kept: 384 MB."""

SAMPLED_RATE: Final = 1024
"""Of so many texts one is kept where there are more draws."""

_PIECE: Final = 1 << 18  # records read at once: 6 MB
_SEEN_BYTES: Final = 4096  # read again to tell a log that grew from another one


@dataclass(frozen=True, slots=True)
class IdLog:
    """The draws a run was trained on.

    Attributes:
        path: the file.
        records: [n] records of ID_LOG_RECORD, by step, in the order they were read.
        replayed: records left out because a later copy of their step replaced them.
        rate: of so many texts one is kept; 1 where every record is.
        span: first and last step, whether or not a record of them is kept; None to take
            them from the records.
    """

    path: Path
    records: NDArray[np.void]
    replayed: int
    rate: int = 1
    span: tuple[int, int] | None = None

    @property
    def first_step(self) -> int:
        """First step with records, 1 without any."""
        if self.span is not None:
            return self.span[0]
        return int(self.records["step"][0]) if len(self.records) else 1

    @property
    def last_step(self) -> int:
        """Last step with records, 0 without any."""
        if self.span is not None:
            return self.span[1]
        return int(self.records["step"][-1]) if len(self.records) else 0

    @property
    def fingerprint(self) -> str:
        """Return 32 hex digits over the records: equal exactly when those kept are."""
        digest = hashlib.blake2b(digest_size=16)
        for start in range(0, len(self.records), _PIECE):
            digest.update(self.records[start : start + _PIECE].tobytes())
        return digest.hexdigest()

    def until(self, step: int) -> "IdLog":
        """Return the draws up to and including ``step``."""
        end = int(np.searchsorted(self.records["step"], step, side="right"))
        span = (self.first_step, min(self.last_step, step))
        return replace(self, records=self.records[:end], span=span)


def read(
    run: RunDescription,
    until_step: int | None = None,
    *,
    rate: int = 1,
    progress: Callable[[int], object] | None = None,
) -> IdLog | None:
    """Read the id log of a run, also while it is being written.

    Args:
        run: the run.
        until_step: leave out later steps, None for all.
        rate: keep one text in so many, 1 for all.
        progress: told how many bytes were read since it was told last.

    Returns:
        The draws, or None when the run has no id log. A torn record at the end, and a
        last step of which not all instances are there yet, are left out.

    Raises:
        DataError: the file cannot be read, is no id log, a step holds another number of
            draws than a batch, or a step is missing between others.
    """
    log = IdLogReader(rate).read(run, progress)
    return log if log is None or until_step is None else log.until(until_step)


def sampling_rate(run: RunDescription) -> int:
    """Return 1 where all draws of the whole schedule are few enough to be kept, else more."""
    return 1 if run.draws_at(run.planned_steps) <= EXACT_DRAWS else SAMPLED_RATE


def mixed(values: NDArray[np.unsignedinteger]) -> NDArray[np.uint64]:
    """Return [n] 64-bit hashes of [n] numbers, each bit hanging on all of a number's.

    Source: the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    """
    hashes = values.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes ^= hashes >> np.uint64(shift)
        hashes *= np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(31))


class IdLogReader:
    """Reads the id log of one run again and again, each time only what is new.

    A log that became shorter or was replaced is read anew, and so is one whose run has been
    given another batch.

    Args:
        rate: keep one text in so many, 1 for all, None for :func:`sampling_rate`.
    """

    def __init__(self, rate: int | None = None) -> None:
        self._wanted = rate
        self._state: _State | None = None

    def read(
        self, run: RunDescription, progress: Callable[[int], object] | None = None
    ) -> IdLog | None:
        """Return the draws up to now, or None without a log; see :func:`read`."""
        path = run.path / ID_LOG_NAME
        rate = self._wanted or sampling_rate(run)
        try:
            with path.open("rb") as stream:
                _check_magic(stream, path)
                state, file = self._state, _file_of(stream)
                if state is None or not state.goes_on(stream, file, run, rate):
                    state = _State(file, run, rate)
                # A failure on the way leaves nothing half taken behind.
                self._state = None
                unfinished = state.take_new(stream, progress)
                self._state = state
        except FileNotFoundError:
            self._state = None
            return None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        return state.log(path, unfinished)


def _check_magic(stream: IO[bytes], path: Path) -> None:
    """Refuse a file that is something else."""
    head = stream.read(len(ID_LOG_MAGIC))
    if not ID_LOG_MAGIC.startswith(head):
        raise DataError(
            f"{path}: begins with {head!r}, not with {ID_LOG_MAGIC!r}; this is no id log, "
            "restore the file its trainer wrote or move it away"
        )


def _file_of(stream: IO[bytes]) -> tuple[int, int]:
    """Return what tells an open file from another one of its name."""
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino


def _batches_of(run: RunDescription) -> list[list[int]]:
    """Return what tells how many draws a step has."""
    return [*run.earlier_batches, [run.batch_instances]]


@dataclass(slots=True)
class _Kept:
    """Steps taken so far, and the records kept of them.

    Attributes:
        rows: buffer of records.
        count: records in it.
        shown: records in it that a reader may hold: never written over.
        span: first and last step, None before any.
        wrong: draws found by step, where these are not the batch's.
    """

    rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, ID_LOG_RECORD))
    count: int = 0
    shown: int = 0
    span: tuple[int, int] | None = None
    wrong: dict[int, int] = field(default_factory=dict[int, int])

    def reserve(self, more: int) -> None:
        """Make room for so many records."""
        if self.count + more > len(self.rows):
            grown = np.empty(max(self.count + more, len(self.rows) * 5 // 4), ID_LOG_RECORD)
            grown[: self.count] = self.rows[: self.count]
            self.rows, self.shown = grown, self.count

    def append(self, records: NDArray[np.void]) -> None:
        """Keep records of later steps."""
        self.reserve(len(records))
        end = self.count + len(records)
        shown = min(self.shown, end) - self.count
        if shown > 0 and (self.rows[self.count : self.count + shown] != records[:shown]).any():
            self.rows, self.shown = self.rows.copy(), self.count
        self.rows[self.count : end] = records
        self.count = end

    def drop_from(self, step: int) -> None:
        """Forget a step and those after it: training went back to before it."""
        assert self.span is not None
        end = int(np.searchsorted(self.rows["step"][: self.count], step))
        self.rows, self.count, self.shown = self.rows[:end].copy(), end, end
        self.span = (self.span[0], step - 1) if step > self.span[0] else None
        self.wrong = {at: count for at, count in self.wrong.items() if at < step}


class _State:
    """How far a log was read, and what was kept."""

    def __init__(self, file: tuple[int, int], run: RunDescription, rate: int) -> None:
        self._file, self._run, self._rate = file, run, rate
        self._place = len(ID_LOG_MAGIC)
        self._before = b""
        self._kept = _Kept()

    def goes_on(
        self, stream: IO[bytes], file: tuple[int, int], run: RunDescription, rate: int
    ) -> bool:
        """Tell whether a file still begins with what was read, and means the same."""
        stream.seek(self._place - len(self._before))
        same = file == self._file and stream.read(len(self._before)) == self._before
        return same and rate == self._rate and _batches_of(run) == _batches_of(self._run)

    def take_new(
        self, stream: IO[bytes], progress: Callable[[int], object] | None
    ) -> NDArray[np.void]:
        """Take every step but the last, whose records are returned: more may follow."""
        size = ID_LOG_RECORD.itemsize
        left = (stream.seek(0, 2) - self._place) // size
        if self._rate == 1:
            self._kept.reserve(left)
        stream.seek(self._place)
        unfinished = np.empty(0, ID_LOG_RECORD)
        while left:
            piece = np.fromfile(stream, ID_LOG_RECORD, min(left, _PIECE))
            if not len(piece):
                break  # cut off meanwhile
            left -= len(piece)
            if progress:
                progress(piece.nbytes)
            # Other steps end where the last one begins.
            steps = piece["step"]
            other = np.flatnonzero(steps != steps[-1])
            if not len(other) and len(unfinished) and unfinished["step"][-1] == steps[-1]:
                unfinished = np.concatenate([unfinished, piece])
                continue
            start = int(other[-1]) + 1 if len(other) else 0
            ended = (
                np.concatenate([unfinished, piece[:start]]) if len(unfinished) else piece[:start]
            )
            self._take(ended, self._kept)
            self._place += ended.nbytes
            unfinished = piece[start:]
        back = min(_SEEN_BYTES, self._place)
        stream.seek(self._place - back)
        self._before = stream.read(back)
        return unfinished

    def log(self, path: Path, unfinished: NDArray[np.void]) -> IdLog:
        """Return the draws, with those of the last step where it is whole."""
        kept, run = self._kept, self._run
        taken = (self._place - len(ID_LOG_MAGIC)) // ID_LOG_RECORD.itemsize
        if len(unfinished) and len(unfinished) % _batch(run, int(unfinished["step"][0])) == 0:
            kept.reserve(len(unfinished))
            kept = replace(kept, wrong=dict(kept.wrong))
            self._take(unfinished, kept)
            taken += len(unfinished)
        if kept.wrong:
            step, count = min(kept.wrong.items())
            raise DataError(
                f"{path}: step {step} holds {count} draws, expected {_batch(run, step)} (the "
                "batch); records are missing, so repeats cannot be told: restore the whole file"
            )
        first, last = kept.span or (1, 0)
        draws = run.draws_at(last) - run.draws_at(first - 1)
        if kept.rows is self._kept.rows:
            self._kept.shown = max(self._kept.shown, kept.count)
        rows = kept.rows[: kept.count]
        rows.flags.writeable = False
        return IdLog(path, rows, taken - draws, self._rate, (first, last))

    def _take(self, records: NDArray[np.void], kept: _Kept) -> None:
        """Keep whole steps; one that goes back voids those from it on."""
        if not len(records):
            return
        steps = records["step"].astype(np.int64)
        starts = np.concatenate([[0], np.flatnonzero(steps[1:] != steps[:-1]) + 1])
        ends = np.append(starts[1:], len(steps))
        named = steps[starts]
        turns = np.flatnonzero(named[1:] < named[:-1]) + 1
        for begin, end in zip([0, *turns], [*turns, len(named)], strict=True):
            part = slice(int(starts[begin]), int(ends[end - 1]))
            counts = (ends - starts)[begin:end]
            self._extend(kept, records[part], named[begin:end], counts)

    def _extend(
        self, kept: _Kept, records: NDArray[np.void], steps: IntArray, counts: IntArray
    ) -> None:
        """Keep the last copies of rising steps."""
        first, last = int(steps[0]), int(steps[-1])
        if kept.span is not None and first <= kept.span[1]:
            kept.drop_from(first)
        expected = _batch_sizes(self._run, steps)
        if (counts != expected).any():
            # Going back to the very last step leaves two copies of it side by side.
            from_end = np.repeat(np.cumsum(counts), counts) - np.arange(len(records))
            records = records[from_end <= np.repeat(expected, counts)]
            short = counts < expected
            kept.wrong |= dict(zip(steps[short].tolist(), counts[short].tolist(), strict=True))
        before = kept.span[1] if kept.span is not None else first - 1
        gaps = np.flatnonzero(np.diff(steps, prepend=before) > 1)
        kept.wrong |= {int(steps[gap]) - 1: 0 for gap in gaps}
        if self._rate > 1:
            records = records[mixed(records["text_hash"]) % np.uint64(self._rate) == 0]
        kept.append(records)
        kept.span = (kept.span[0] if kept.span is not None else first, last)


def _batch(run: RunDescription, step: int) -> int:
    """Return the instances of a step."""
    return run.draws_at(step) - run.draws_at(step - 1)


def _batch_sizes(run: RunDescription, steps: IntArray) -> IntArray:
    """Return [n] the instances of [n] steps."""
    sizes = np.full(len(steps), run.batch_instances)
    for last, instances in reversed(run.earlier_batches):
        sizes[steps <= last] = instances
    return sizes
