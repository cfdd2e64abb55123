"""Connections to the store's database; the one place where its errors become StoreError.

SQLite keeps a write-ahead log and syncs it at every commit, so that a process killed at
any moment loses nothing committed and leaves nothing half. Writers take the write lock
when their transaction begins, so that none reads a state it can then not write to.
"""

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, select
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from evalmon.errors import StoreError
from evalmon.store.schema import SCHEMA_VERSION, meta, metadata

__all__ = ["Database"]

_WAIT_SECONDS = 30.0
"""Longest wait for another process's transaction; ours last milliseconds."""

_ACTIONS = {
    "locked": "another process holds it; end that process or try again",
    "disk is full": "free disk space, then start again: nothing stored is lost",
    "disk i/o error": "check disk and quota, then start again: nothing stored is lost",
    "malformed": "move the file away and start again; checkpoints still there are scored anew",
    "not a database": "name an evalmon store, or move the file away and start again",
    "readonly": "give this user write access to the file and its folder",
    "unable to open": "check that the folder exists and is writable",
    "no such table": "move the file away and start again; checkpoints still there are scored anew",
}


class Database:
    """An opened store: transactions, and the checks made once at opening.

    Args:
        url: database URL, or path of an SQLite file.
        read_only: refuse to write, and never create a file.

    Raises:
        StoreError: it cannot be opened, is no evalmon store, or is of another version.
    """

    def __init__(self, url: str | Path, *, read_only: bool = False) -> None:
        parsed = _parse(url)
        self.read_only = read_only
        self.where = parsed.render_as_string(hide_password=True).removeprefix("sqlite:///")
        self.file = _file_of(parsed)
        self._engine = self._create(parsed)
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """Give a connection that sees one consistent state."""
        with self._errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """Give a connection whose changes are committed together, or not at all."""
        if self.read_only:
            raise StoreError(f"{self.where}: opened read-only; open it for writing to change it")
        with self._errors(), self._engine.execution_options(writes=True).begin() as connection:
            yield connection

    def _create(self, url: URL) -> Engine:
        """Create the engine; SQLite gets its pragmas and explicit transactions."""
        if url.get_backend_name() != "sqlite":
            return self._engine_of(url)
        path = _file_of(url)
        if path is not None:
            if self.read_only and not path.is_file():
                raise StoreError(
                    f"{path}: no such store; name the one an evaluator writes (evalmon watch RUN)"
                )
            if not path.parent.is_dir():
                raise StoreError(f"{path}: its folder does not exist; create {path.parent}")
            if self.read_only:
                url = _read_only(path)
        engine = self._engine_of(url)
        event.listen(engine, "connect", _pragmas if not self.read_only else _manual_transactions)
        event.listen(engine, "begin", _begin)
        return engine

    def _engine_of(self, url: URL) -> Engine:
        """Create an engine, naming a driver that is missing."""
        waits = {"timeout": _WAIT_SECONDS} if url.get_backend_name() == "sqlite" else {}
        try:
            return create_engine(url, connect_args=waits)
        except (NoSuchModuleError, ImportError) as error:
            raise StoreError(
                f"{self.where}: no driver for this database ({error}); install it, or name an"
                " SQLite file"
            ) from error

    def _check(self) -> None:
        """Create the tables of a new store; refuse one that is foreign or of another version."""
        with self.reading() as connection:
            tables = set(inspect(connection).get_table_names())
        if not tables and not self.read_only:
            with self.writing() as connection:  # a second process waits here, then finds them
                metadata.create_all(connection)
                if not connection.execute(select(meta.c.key)).all():
                    row = {"key": "schema_version", "value": str(SCHEMA_VERSION)}
                    connection.execute(meta.insert().values(row))
        elif meta.name not in tables:
            raise StoreError(
                f"{self.where}: not an evalmon store (its tables: {sorted(tables)});"
                " name another file"
            )
        with self.reading() as connection:
            query = select(meta.c.value).where(meta.c.key == "schema_version")
            found = connection.execute(query).scalar()
        if found != str(SCHEMA_VERSION):
            raise StoreError(
                f"{self.where}: store of schema version {found}, this evalmon reads version"
                f" {SCHEMA_VERSION}; use the evalmon that wrote it, or name a new store: it is"
                " filled from the checkpoints still there"
            )

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Turn the database's errors into a StoreError with file and next action."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            actions = [text for key, text in _ACTIONS.items() if key in reason.lower()]
            action = actions[0] if actions else "check that the database can be reached"
            raise StoreError(f"{self.where}: {reason}; {action}") from error


def _parse(url: str | Path) -> URL:
    """Read a URL, or a path as the URL of an SQLite file."""
    if isinstance(url, Path) or "://" not in url:
        return URL.create("sqlite", database=str(Path(url).absolute()))
    try:
        return make_url(url)
    except ArgumentError as error:
        raise StoreError(f"{url}: not a database URL; give a path, or sqlite:///PATH") from error


def _file_of(url: URL) -> Path | None:
    """Return the file of an SQLite database, None for any other and for one in memory."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def _read_only(path: Path) -> URL:
    """Return the URL that opens an SQLite file without changing it.

    In a folder we may not write to, SQLite cannot share its log's index; with no log
    left behind, nobody is writing, and the file can be read as immutable.
    """
    query = {"uri": "true", "mode": "ro"}
    log = path.with_name(path.name + "-wal")
    if not os.access(path.parent, os.W_OK) and not log.exists():
        query["immutable"] = "1"
    return URL.create("sqlite", database="file:" + quote(str(path.absolute())), query=query)


def _manual_transactions(connection: sqlite3.Connection, _record: Any) -> None:
    """Leave the beginning of transactions to us: the driver would begin too late."""
    connection.isolation_level = None


def _pragmas(connection: sqlite3.Connection, record: Any) -> None:
    """Make a connection durable."""
    _manual_transactions(connection, record)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    """Begin a transaction; a writer's takes the write lock at once."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
