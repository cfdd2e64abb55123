"""The response cache's file damaged, locked, full or another's: what that costs, and what not."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import StoreError
from evalmon.store import ResponseFile
from evalmon.types import ScoreRequest
from tests.unit.evalmon.store.response_models import (
    DTYPE,
    ITEMS,
    QUESTIONS,
    Opinion,
    accuracy,
    answers,
    same,
)

MARK = b"SQLite format 3\x00"


@pytest.mark.parametrize("kept", [50, 1000, 4096, 10_000])
def test_a_truncated_file_is_kept_aside_named_and_begun_anew(
    opened: ResponseFile, path: Path, said: list[str], kept: int
) -> None:
    with opened:
        opened.bind("w", **DTYPE).put(answers(500))
    torn = path.read_bytes()[:kept]
    path.write_bytes(torn)
    b = Opinion(likes=4)
    with opened:
        cache = opened.bind("w", **DTYPE)
        assert accuracy(b, cache, QUESTIONS) == [False] * ITEMS
        assert b.asked == 2 * ITEMS
        assert len(cache.get(QUESTIONS)) == 2 * ITEMS
    aside = path.with_name(f"{path.name}.damaged-1")
    assert aside.read_bytes() == torn
    (message,) = said
    assert message.startswith(f"{path}: damaged (")
    assert f"kept as {aside.name} and begun anew" in message


def test_a_file_damaged_again_is_kept_beside_the_first(opened: ResponseFile, path: Path) -> None:
    for content in (MARK + b"step,loss\n" * 500, MARK + b"x" * 5000):
        path.write_bytes(content)
        with opened:
            opened.bind("w", **DTYPE).put(answers())
    names = sorted(item.name.removeprefix(path.name) for item in path.parent.iterdir())
    assert names == ["", ".damaged-1", ".damaged-2"]


def test_an_answer_changed_on_disk_is_not_believed(
    opened: ResponseFile, path: Path, said: list[str]
) -> None:
    kept = answers()
    with opened:
        opened.bind("w", **DTYPE).put(kept)
    content = path.read_bytes()
    value = np.array([-0.1 - 8], np.float32).tobytes()
    assert content.count(value) == 1
    path.write_bytes(content.replace(value, np.array([-0.2], np.float32).tobytes()))
    with opened:
        assert opened.bind("w", **DTYPE).get([*kept]) == {}
    assert "damaged (an answer is not what was written)" in said[0]


def test_a_full_disk_costs_the_answers_not_the_scores(
    opened: ResponseFile, path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalmon.store import responses

    full = (*responses._PREPARE, "PRAGMA max_page_count = 3")  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(responses, "_PREPARE", full)
    b = Opinion(likes=4)
    many = [ScoreRequest((1, one, two), (answer,)) for one in range(40) for two in range(40)
            for answer in (3, 4)]  # fmt: skip
    with opened:
        assert accuracy(b, opened.bind("w", **DTYPE), many) == [False] * 1600
    (message,) = said
    assert message.startswith(f"{path}: database or disk is full; answers are not kept")


def test_a_folder_that_is_not_there_costs_the_answers_not_the_scores(
    tmp_path: Path, said: list[str]
) -> None:
    b = Opinion(likes=4)
    with ResponseFile(tmp_path / "nowhere" / "r.sqlite", report=said.append) as file:
        for _ in range(2):
            assert accuracy(b, file.bind("w", **DTYPE), QUESTIONS) == [False] * ITEMS
    assert b.asked == 4 * ITEMS
    (message,) = said
    assert "unable to open database file; answers are not kept" in message


def test_a_file_that_stays_locked_costs_the_answers_not_the_scores(
    opened: ResponseFile, path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalmon.store.responses._WAIT_SECONDS", 0.05)
    with opened:
        opened.bind("v", **DTYPE).put(answers())
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with opened:
        b = Opinion(likes=4)
        assert accuracy(b, opened.bind("w", **DTYPE), QUESTIONS) == [False] * ITEMS
    holder.close()
    assert len(said) == 1
    assert "database is locked; answers are not kept" in said[0]


def test_a_file_that_another_process_replaced_is_not_moved_again(
    opened: ResponseFile, path: Path, clock: Any, said: list[str]
) -> None:
    with opened, ResponseFile(path, clock, said.append) as other:
        other.bind("w", **DTYPE).put(answers())
        opened.bind("v", **DTYPE).put(answers())
        damage(path)
        assert other.bind("w", **DTYPE).get([*answers()]) == {}
        other.bind("w", **DTYPE).put(answers())
        assert opened.bind("v", **DTYPE).get([*answers()]) == {}
        assert same(opened.bind("w", **DTYPE).get([*answers()]), answers())
    assert len(said) == 1


def damage(path: Path) -> None:
    """Change every stored answer as another program would, past its checksum."""
    connection = sqlite3.connect(path)
    connection.execute("UPDATE answers SET greedy = 2")
    connection.commit()
    connection.close()


def test_where_locks_do_nothing_no_writer_poisons_another(
    path: Path, clock: Any, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def without_locks(place: Path, *rest: Any, **more: Any) -> sqlite3.Connection:
        return connect(f"file:{place}?vfs=unix-none", *rest, uri=True, **more)

    monkeypatch.setattr(sqlite3, "connect", without_locks)
    kept = answers(400)
    parts = [dict(list(kept.items())[start : start + 50]) for start in range(0, 400, 50)]
    with ResponseFile(path, clock, said.append) as one, ResponseFile(path, clock) as two:
        for first, second in zip(parts[::2], parts[1::2], strict=True):
            one.bind("w", **DTYPE).put(first)
            two.bind("v", **DTYPE).put(second)
    with ResponseFile(path, clock, said.append) as again:
        for weights in ("w", "v"):
            found = again.bind(weights, **DTYPE).get([*kept])
            assert same(found, {request: kept[request] for request in found})
            again.bind(weights, **DTYPE).put(kept)
            assert same(again.bind(weights, **DTYPE).get([*kept]), kept)


def test_a_warning_is_written_to_standard_error(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_bytes(MARK + b"step,loss")
    with ResponseFile(path) as file:
        file.bind("w", **DTYPE).put(answers())
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(f"warning: {path}: damaged (file is not a database); kept as ")


@pytest.mark.parametrize("content", [b"step,loss\n" * 500, b"{}"])
def test_a_file_of_another_kind_is_refused_and_left_alone(
    opened: ResponseFile, path: Path, content: bytes
) -> None:
    path.write_bytes(content)
    with opened, pytest.raises(StoreError, match="not a response cache; name another file as"):
        opened.bind("w", **DTYPE).put(answers())
    assert path.read_bytes() == content


@pytest.mark.parametrize("table", ["answers (a, b)", "mine (x)"])
def test_another_programs_database_is_refused_and_left_alone(
    opened: ResponseFile, path: Path, table: str
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {table}")
    content, name = path.read_bytes(), table.split(maxsplit=1)[0]
    said = rf"not a response cache \(its tables: \['{name}'\]"
    with opened, pytest.raises(StoreError, match=said):
        opened.bind("w", **DTYPE).get(QUESTIONS)
    with opened, pytest.raises(StoreError, match=said):
        opened.bind("w", **DTYPE).put(answers())
    assert path.read_bytes() == content
