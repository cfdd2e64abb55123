"""Opening a store: what it refuses, and what it never loses."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from evalmon.errors import StoreError
from evalmon.store import Store
from evalmon.types import Evaluation, RunDescription


def test_a_path_and_its_url_open_the_same_store(file: Path, run: RunDescription) -> None:
    with Store.open(file) as store:
        store.register(run)
    with Store.open(f"sqlite:///{file}") as store:
        assert store.runs() == ("tiny",)
    with Store.open(str(file)) as store:
        assert store.runs() == ("tiny",)


def test_a_name_with_characters_special_in_urls_is_opened_as_written(
    tmp_path: Path, run: RunDescription
) -> None:
    file = tmp_path / "50% of #3?.sqlite"
    with Store.open(file) as store:
        store.register(run)
    with Store.open(file, read_only=True) as store:
        assert store.runs() == ("tiny",)


def test_reading_a_missing_store_names_it_and_creates_nothing(tmp_path: Path) -> None:
    file = tmp_path / "none.sqlite"
    with pytest.raises(StoreError, match=r"none.sqlite: no such store; name the one"):
        Store.open(file, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"its folder does not exist; create .*/nowhere"):
        Store.open(tmp_path / "nowhere" / "evalmon.sqlite")


def test_a_store_opened_for_reading_refuses_every_change(
    store: Store, file: Path, run: RunDescription
) -> None:
    with (
        Store.open(file, read_only=True) as reader,
        pytest.raises(StoreError, match="opened read-only"),
    ):
        reader.register(run)


def test_a_reader_follows_a_writer(
    store: Store, file: Path, evaluation: Callable[..., Evaluation]
) -> None:
    with Store.open(file, read_only=True) as reader:
        assert reader.metrics("tiny") == ()
        store.append_evaluation(evaluation(10))
        assert reader.metrics("tiny") == ("eval/lm/c4_en-validation/ce_nats",)


def test_another_schema_version_is_refused_with_both_versions(store: Store, file: Path) -> None:
    store.close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")
    connection.close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"version 7, this evalmon reads version 2; use the"):
            Store.open(file, read_only=read_only)


def test_a_foreign_database_is_refused_and_left_alone(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(StoreError, match=r"not an evalmon store \(its tables: \['mine'\]\)"):
        Store.open(file)
    with sqlite3.connect(file) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()
    assert tables == [("mine",)]


def test_a_file_that_is_no_database_is_refused(file: Path) -> None:
    file.write_text("step,loss\n" * 200)
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"evalmon.sqlite: file is not a database; name an"):
            Store.open(file, read_only=read_only)


def test_a_damaged_store_is_named_with_what_to_do(
    store: Store, file: Path, evaluation: Callable[..., Evaluation]
) -> None:
    for step in range(40):
        store.append_evaluation(evaluation(step))
    store.close()
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"evalmon.sqlite: .*malformed.*; move the file away"):
        Store.open(file)


def fill(store: Store, evaluation: Callable[..., Evaluation]) -> None:
    """Store evaluations until the disk is full."""
    for step in range(20, 2000):
        store.append_evaluation(evaluation(step))


def test_a_full_disk_is_an_error_that_loses_nothing_stored(
    store: Store, file: Path, evaluation: Callable[..., Evaluation]
) -> None:
    store.append_evaluation(evaluation(10))

    def limit(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1").close()

    event.listen(Pool, "checkout", limit)
    try:
        with pytest.raises(StoreError, match=r"disk is full; free disk space"):
            fill(store, evaluation)
    finally:
        event.remove(Pool, "checkout", limit)
    with Store.open(file) as again:
        stored = again.evaluations("tiny")
        assert stored[0].checkpoint.step == 10
        assert all(len(found.scores) == 1 for found in stored)


def test_a_store_locked_by_another_process_is_named(
    store: Store, file: Path, run: RunDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalmon.store.database._WAIT_SECONDS", 0.05)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Store.open(file) as other:
        with pytest.raises(StoreError, match=r"database is locked; another process holds it"):
            other.register(run)
        holder.execute("ROLLBACK")
        holder.close()
        other.register(run)


def test_a_store_in_a_folder_that_cannot_be_written_is_read(
    store: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Store.open(file, read_only=True) as reader:
        assert reader.runs() == ("tiny",)
    assert [item.name for item in file.parent.iterdir()] == [file.name]


def test_a_database_without_driver_is_named() -> None:
    with pytest.raises(
        StoreError, match=r"nosuchdb://me:\*\*\*@host/db: no driver for this database"
    ):
        Store.open("nosuchdb://me:secret@host/db")
    with pytest.raises(StoreError, match="not a database URL"):
        Store.open("://")


def test_processes_may_create_a_store_at_the_same_time(file: Path) -> None:
    code = "import sys; from evalmon.store import Store; Store.open(sys.argv[1]).close()"
    command = [sys.executable, "-c", code, str(file)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate()[1] for process in started] == [""] * 6
    with Store.open(file, read_only=True) as store:
        assert store.runs() == ()
