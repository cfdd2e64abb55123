"""The response cache: no other model's answers, none asked for twice, none kept for ever."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.scoring import Scorer
from evalmon.store import ResponseFile
from evalmon.types import ResponseCache, ScoreRequest, TokenScores
from tests.unit.evalmon.store.response_models import (
    DTYPE,
    ITEMS,
    QUESTIONS,
    Opinion,
    accuracy,
    answers,
    same,
)


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
