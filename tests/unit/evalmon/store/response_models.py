"""Models of one opinion whose answers are kept, and answers to keep."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evalmon.scoring import Scorer
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


def accuracy(model: Opinion, cache: ResponseCache, requests: Sequence[ScoreRequest]) -> list[bool]:
    """Return of each item whether the right answer is the likelier one."""
    found = Scorer(model, cache=cache).score(requests)
    sums = [float(answer.logprobs.sum()) for answer in found]
    return [right > wrong for right, wrong in zip(sums[::2], sums[1::2], strict=True)]


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
