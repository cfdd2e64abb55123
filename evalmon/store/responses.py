"""A model's answers, kept while its checkpoint is scored, so that a killed pass asks none twice.

A cache beside the store, in a file of its own: it may be lost at any moment, and nothing
but time is. So it is never in the way. A file that is damaged is moved aside, named, and
begun anew; one that cannot be written (no space, no permission) is named, and scoring goes
on without it. And it is never believed: an answer is found only under the weights, the
model and the token ids it was given for, and only while its checksum holds.
"""

import hashlib
import json
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from evalmon.errors import StoreError
from evalmon.types import ResponseCache, ScoreRequest, TokenScores

__all__ = ["ResponseFile"]

_WAIT_SECONDS = 10.0
"""Longest wait for another process's transaction; ours last milliseconds."""

_KEPT_SECONDS = 7 * 86_400.0
"""Answers this old belong to a checkpoint that nobody finished."""

_AT_ONCE = 500  # parameters of one statement; SQLite takes at least 999
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)

_SQLITE = b"SQLite format 3\x00"
_APPLICATION_ID = 0x65766D72  # "evmr", in the header of every file made here

_PREPARE = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    "PRAGMA journal_mode = WAL",  # a reader waits for no writer
    "PRAGMA synchronous = NORMAL",  # a machine that goes down loses answers, never the file
    """CREATE TABLE IF NOT EXISTS answers (
        weights BLOB NOT NULL, request BLOB NOT NULL, greedy INTEGER NOT NULL,
        logprobs BLOB NOT NULL, checksum BLOB NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (weights, request)) WITHOUT ROWID""",
)

_Row = tuple[bytes, int, bytes, bytes]
_T = TypeVar("_T")


class ResponseFile:
    """The file of answers, opened when it is first needed; use it as a context manager.

    Several processes may use one file. Not for several threads.

    Args:
        path: the SQLite file.
        clock: returns Unix seconds.
        report: told what happened to a file that cannot be used, for a person to read.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        report: Callable[[str], object] | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._report = report or _warn
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        self._given_up = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def bind(self, weights: str, **model: Any) -> ResponseCache:
        """Return the answers of one model.

        Args:
            weights: fingerprint of its parameters.
            model: all else its answers depend on but the request, as JSON values: compute
                dtype, adapter, the adapter's settings, version of the code.

        Raises:
            StoreError: from the cache's methods, where the file is another program's.
        """
        facts = json.dumps([weights, model], sort_keys=True, allow_nan=False)
        return _Answers(self, _short(weights.encode()), hashlib.blake2b(facts.encode()).digest())

    def drop(self, weights: str) -> None:
        """Forget every answer of these weights; the space is used again."""
        if not self._path.exists():
            return

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM answers WHERE weights = ?", (_short(weights.encode()),))

        self.attempt(work, None)

    def now(self) -> float:
        """Return the time, Unix seconds."""
        return self._clock()

    def attempt(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """Do something with the file, or without it.

        Args:
            work: what to do; done again in a new file where the old one is damaged.
            otherwise: returned where the file cannot be used.

        Raises:
            StoreError: the file is another program's.
        """
        for last in (False, False, True):  # another process may be moving the file too
            if self._given_up:
                break
            try:
                return work(self._open())
            except sqlite3.Error as error:
                self.close()
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code in _DAMAGED and not last:
                    self._move_aside(str(error))
                else:
                    self._give_up(str(error))
        return otherwise

    def _open(self) -> sqlite3.Connection:
        """Open the file, whole and ours."""
        if self._connection is None:
            self._require_sqlite()
            connection = sqlite3.connect(self._path, _WAIT_SECONDS, isolation_level=None)
            self._connection, self._opened = connection, _identity(self._path)
            with closing(
                connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ) as found:
                tables = {name for (name,) in found}
            begun = self._path.stat().st_size > 0
            if tables - {"answers"} or (begun and not self._is_ours(connection, tables)):
                self.close()
                raise StoreError(
                    f"{self._path}: not a response cache (its tables: {sorted(tables)}); name "
                    "another file as evaluation.response_cache"
                )
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if said != "ok":
                raise _damage(said)
            for statement in _PREPARE:
                connection.execute(statement).close()
            oldest = self._clock() - _KEPT_SECONDS
            connection.execute("DELETE FROM answers WHERE at < ?", (oldest,)).close()
        return self._connection

    def _require_sqlite(self) -> None:
        """Refuse a file of another kind; one that is cut off within its mark may be ours."""
        with suppress(OSError):
            with self._path.open("rb") as file:
                mark = file.read(len(_SQLITE))
            if not _SQLITE.startswith(mark):
                raise StoreError(
                    f"{self._path}: not a response cache; name another file as "
                    "evaluation.response_cache"
                )

    @staticmethod
    def _is_ours(connection: sqlite3.Connection, tables: set[str]) -> bool:
        """Tell whether a file that is not empty is a response cache, or one just begun."""
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        return mark == _APPLICATION_ID or not tables

    def _move_aside(self, reason: str) -> None:
        """Keep a damaged file under another name, unless another process has done so."""
        if _identity(self._path) != self._opened:
            return
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        try:
            self._path.replace(aside)
            for part in ("-wal", "-shm"):  # of the damaged file: the new one must not read them
                with suppress(FileNotFoundError):
                    Path(f"{self._path}{part}").replace(f"{aside}{part}")
        except OSError as error:
            self._give_up(f"{reason}, and it cannot be moved aside ({error.strerror})")
            return
        self._report(
            f"{self._path}: damaged ({reason}); kept as {aside.name} and begun anew, so answers "
            "of a checkpoint half scored are asked for again"
        )

    def _give_up(self, reason: str) -> None:
        """Go on without the file."""
        self._given_up = True
        self._report(
            f"{self._path}: {reason}; answers are not kept, so a checkpoint half scored begins "
            "anew after a kill. Free space, or name another file as evaluation.response_cache"
        )


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of one model in a file."""

    file: ResponseFile
    weights: bytes
    model: bytes

    def get(self, requests: Sequence[ScoreRequest]) -> dict[ScoreRequest, TokenScores]:
        """Return what is known of these requests."""
        return self.file.attempt(lambda connection: self._find(connection, requests), {})

    def put(self, answers: Mapping[ScoreRequest, TokenScores]) -> None:
        """Keep answers: all of them, or after a kill none."""
        at = self.file.now()
        rows = [(self.weights, *self._row(*item), at) for item in answers.items()]
        self.file.attempt(lambda connection: _insert(connection, rows), None)

    def _find(
        self, connection: sqlite3.Connection, requests: Sequence[ScoreRequest]
    ) -> dict[ScoreRequest, TokenScores]:
        """Look requests up."""
        known = "SELECT 1 FROM answers WHERE weights = ? LIMIT 1"
        if connection.execute(known, (self.weights,)).fetchone() is None:
            return {}
        asked = {self._key(request): request for request in requests}
        found: dict[ScoreRequest, TokenScores] = {}
        for keys in _batches(asked):
            marks = ",".join("?" * len(keys))
            query = (
                "SELECT request, greedy, logprobs, checksum FROM answers "  # noqa: S608 - marks
                f"WHERE weights = ? AND request IN ({marks})"
            )
            for row in connection.execute(query, (self.weights, *keys)):
                request = asked[row[0]]
                found[request] = _answer(row, len(request.continuation))
        return found

    def _row(self, request: ScoreRequest, answer: TokenScores) -> _Row:
        """Return request, greedy, logprobs and checksum."""
        key, logprobs = self._key(request), np.asarray(answer.logprobs, "<f4").tobytes()
        greedy = int(answer.greedy)
        return key, greedy, logprobs, _checksum(key, greedy, logprobs)

    def _key(self, request: ScoreRequest) -> bytes:
        """Hash a request to this model."""
        context, continuation = request.context, request.continuation
        size = len(context)
        data = struct.pack(f"<{1 + size + len(continuation)}I", size, *context, *continuation)
        return hashlib.blake2b(data, digest_size=16, key=self.model).digest()


def _warn(said: str) -> None:
    """Write a warning to standard error, above any progress bar."""
    from tqdm import tqdm

    tqdm.write(f"warning: {said}", file=sys.stderr)


def _damage(reason: str) -> sqlite3.DatabaseError:
    """Return the error that SQLite would raise had it seen the damage itself."""
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _answer(row: _Row, tokens: int) -> TokenScores:
    """Read an answer and check it."""
    key, greedy, logprobs, checksum = row
    if checksum != _checksum(key, greedy, logprobs) or len(logprobs) != 4 * tokens:
        raise _damage("an answer is not what was written")
    return TokenScores(np.frombuffer(logprobs, "<f4").astype(np.float32), bool(greedy))


def _insert(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows in one transaction; what another process was first with stays."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.execute("COMMIT")


def _checksum(key: bytes, greedy: int, logprobs: bytes) -> bytes:
    """Hash what an answer's row holds."""
    return _short(key + bytes([greedy & 0xFF]) + logprobs)


def _short(data: bytes) -> bytes:
    """Return 8 bytes that differ when the data does."""
    return hashlib.blake2b(data, digest_size=8).digest()


def _batches(keys: Mapping[bytes, object]) -> Iterator[list[bytes]]:
    """Yield keys, so many that one statement takes them."""
    rest = iter(keys)
    while batch := list(islice(rest, _AT_ONCE)):
        yield batch


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file a path names now, None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
