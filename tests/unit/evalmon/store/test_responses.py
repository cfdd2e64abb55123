"""The response cache: no other model's answers, none asked for twice, nothing that it breaks."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import StoreError
from evalmon.scoring import Scorer
from evalmon.store import ResponseFile
from evalmon.types import ForestScores, ResponseCache, ScoreRequest, TokenForest, TokenScores

ITEMS = 50
DTYPE = {"dtype": "float32", "adapter": "a", "settings": {"layers": 2}, "code": 1}
QUESTIONS = [ScoreRequest((1, 10 + item), (answer,)) for item in range(ITEMS) for answer in (3, 4)]
"""Of each item the right answer, token 3, then the wrong one."""


class Opinion:
    """A model that finds one of two answers likelier, and counts what it is asked."""

    vocab_size, max_length, dtype, stored_dtype, row_multiple = 100, 8, "float32", "float32", 1

    def __init__(self, likes: int) -> None:
        self.likes, self.asked = likes, 0

    def load(self, parameters: Any) -> None:
        raise NotImplementedError

    def extend(self, ids: Any, prefix: Any = None) -> Any:
        return (*(prefix or ()), *ids)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        self.asked += len(forest.targets)
        liked = forest.targets == self.likes
        values = np.where(liked, np.float32(-0.1), np.float32(-2.3))
        return ForestScores(values, np.full(len(values), self.likes, np.int32))

    def generate(self, prompts: Any, stop_ids: Any, max_new_tokens: Any) -> Any:
        raise NotImplementedError

    def log_probabilities(self, ids: Any) -> Any:
        raise NotImplementedError


class Killed:
    """A cache whose process is ended by signal 9 after so many answers."""

    def __init__(self, cache: ResponseCache, after: int) -> None:
        self.cache, self.left = cache, after

    def get(self, requests: Sequence[ScoreRequest]) -> dict[ScoreRequest, TokenScores]:
        return self.cache.get(requests)

    def put(self, answers: Mapping[ScoreRequest, TokenScores]) -> None:
        for item in answers.items():
            if not self.left:
                os.kill(os.getpid(), 9)
            self.cache.put(dict([item]))
            self.left -= 1


def accuracy(model: Opinion, cache: ResponseCache, requests: Sequence[ScoreRequest]) -> list[bool]:
    """Return of each item whether the right answer is the likelier one."""
    found = Scorer(model, cache=cache).score(requests)
    sums = [float(answer.logprobs.sum()) for answer in found]
    return [right > wrong for right, wrong in zip(sums[::2], sums[1::2], strict=True)]


MARK = b"SQLite format 3\x00"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evalmon.sqlite.responses.sqlite"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def opened(path: Path, clock: Any, said: list[str]) -> ResponseFile:
    return ResponseFile(path, clock, said.append)


def answers(count: int = ITEMS) -> dict[ScoreRequest, TokenScores]:
    """Answers of one or two tokens, no two alike."""
    values = {}
    for item in range(count):
        tokens = tuple(range(1 + item % 2))
        logprobs = np.array([-0.1 - item - place / 4 for place in tokens], np.float32)
        values[ScoreRequest((7, item), tokens)] = TokenScores(logprobs, item % 3 == 0)
    return values


def same(
    found: Mapping[ScoreRequest, TokenScores], expected: Mapping[ScoreRequest, TokenScores]
) -> bool:
    """Return whether answers are equal to the last bit."""
    return found.keys() == expected.keys() and all(
        found[key].logprobs.tobytes() == expected[key].logprobs.tobytes()
        and found[key].logprobs.dtype == np.float32
        and found[key].greedy is expected[key].greedy
        for key in expected
    )


def test_one_path_gives_each_model_its_own_answers(opened: ResponseFile) -> None:
    a, b = Opinion(likes=3), Opinion(likes=4)
    with opened:
        assert accuracy(a, opened.bind("weights of a", **DTYPE), QUESTIONS) == [True] * ITEMS
        assert accuracy(b, opened.bind("weights of b", **DTYPE), QUESTIONS) == [False] * ITEMS
        assert a.asked == b.asked == 2 * ITEMS  # B was asked every request
        assert accuracy(b, opened.bind("weights of b", **DTYPE), QUESTIONS) == [False] * ITEMS
        assert accuracy(a, opened.bind("weights of a", **DTYPE), QUESTIONS) == [True] * ITEMS
        assert a.asked == b.asked == 2 * ITEMS


def run_until_killed(path: str, part: int) -> None:
    """Ask B every second item, until four fifths of the answers are kept; in a process."""
    requests = QUESTIONS[2 * part :: 4] + QUESTIONS[2 * part + 1 :: 4]
    with ResponseFile(Path(path)) as file:
        cache = Killed(file.bind("weights of b", **DTYPE), len(requests) * 4 // 5)
        Scorer(Opinion(likes=4), cache=cache).score(requests)


def test_what_two_killed_processes_kept_is_not_asked_again_by_one(path: Path) -> None:
    with ResponseFile(path) as file:
        accuracy(Opinion(likes=3), file.bind("weights of a", **DTYPE), QUESTIONS)
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1])['run_until_killed'](sys.argv[2],"
        " int(sys.argv[3]))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, __file__, str(path), str(part)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in (0, 1)
    ]
    assert [process.communicate()[1] for process in started] == ["", ""]
    assert [process.returncode for process in started] == [-9, -9]
    b = Opinion(likes=4)
    with ResponseFile(path) as file:
        assert accuracy(b, file.bind("weights of b", **DTYPE), QUESTIONS) == [False] * ITEMS
    assert b.asked == 2 * ITEMS // 5


def test_answers_come_back_to_the_last_bit(opened: ResponseFile) -> None:
    kept = answers(1234)  # more than one statement's
    with opened:
        cache = opened.bind("w", **DTYPE)
        cache.put(kept)
        other = ScoreRequest((7,), (0, 1))
        assert same(cache.get([*kept, other]), kept)
        assert cache.get([]) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "bfloat16"},
        {"adapter": "b"},
        {"settings": {"layers": 3}},
        {"code": 2},
    ],
)
def test_an_answer_counts_for_the_model_alone_that_gave_it(
    opened: ResponseFile, changed: dict[str, Any]
) -> None:
    with opened:
        opened.bind("w", **DTYPE).put(answers())
        assert opened.bind("w", **{**DTYPE, **changed}).get([*answers()]) == {}
        assert opened.bind("v", **DTYPE).get([*answers()]) == {}


def test_where_the_context_ends_is_part_of_a_request(opened: ResponseFile) -> None:
    with opened:
        cache = opened.bind("w", **DTYPE)
        cache.put({ScoreRequest((1, 2), (3,)): TokenScores(np.zeros(1, np.float32), True)})
        assert cache.get([ScoreRequest((1,), (2, 3)), ScoreRequest((1, 2), (4,))]) == {}


def test_a_scored_checkpoint_leaves_nothing_and_the_file_does_not_grow(
    opened: ResponseFile, path: Path
) -> None:
    sizes: list[int] = []
    for step in range(10):
        with opened:
            opened.bind(f"w{step}", **DTYPE).put(answers(500))
            opened.bind(f"w{step}", **{**DTYPE, "code": 0}).put(answers(10))
            opened.drop(f"w{step}")
        sizes.append(path.stat().st_size)
    assert sizes == [sizes[0]] * 10
    with opened:
        assert opened.bind("w3", **DTYPE).get([*answers()]) == {}


def test_only_the_weights_named_are_forgotten(opened: ResponseFile) -> None:
    with opened:
        opened.bind("w", **DTYPE).put(answers())
        opened.bind("v", **DTYPE).put(answers())
        opened.drop("w")
        assert opened.bind("w", **DTYPE).get([*answers()]) == {}
        assert same(opened.bind("v", **DTYPE).get([*answers()]), answers())


def test_forgetting_makes_no_file(opened: ResponseFile, path: Path) -> None:
    with opened:
        opened.drop("w")
    assert not path.exists()


def test_answers_of_a_checkpoint_that_nobody_finished_end_after_a_week(
    opened: ResponseFile, clock: Any
) -> None:
    with opened:
        opened.bind("w", **DTYPE).put(answers())
    clock.now += 6 * 86_400
    with opened:
        assert same(opened.bind("w", **DTYPE).get([*answers()]), answers())
    clock.now += 2 * 86_400
    with opened:
        assert opened.bind("w", **DTYPE).get([*answers()]) == {}


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
