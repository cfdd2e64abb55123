"""Batch size and what stands in padding change no score but for rounding (fault F18)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.evaluators.header import header
from evalmon.models import LanguageModel
from evalmon.scoring import Scorer
from evalmon.types import ForestScores, ScoreRequest, TokenForest
from tests.scoring_models import Twin, random_parameters
from trainer.architecture import Olmo3Config

CONFIG = Olmo3Config(64, width=16, layers=5, heads=2, kv_heads=1, head_dim=8, ffn=32, window=4)
EOS_ID = 5
REQUESTS = [
    ScoreRequest(tuple(ids[:-1]), tuple(ids[-1:]))
    for ids in (np.random.default_rng(n).integers(6, 64, n + 2).tolist() for n in range(8))
]


def twin() -> Twin:
    return Twin(CONFIG, random_parameters(CONFIG), Path("none.json"), EOS_ID, 16)


class Padded:
    """A model that finds another id in padding."""

    def __init__(self, model: LanguageModel, padding: int) -> None:
        self._model, self._padding = model, padding
        self.replaced = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        read = np.zeros(forest.ids.shape, np.bool_)
        for place in forest.picks.tolist():
            row, column = divmod(place, forest.ids.shape[1])
            read[row, : column + 1] |= forest.ends[row, : column + 1] >= column
        assert read.sum() == forest.tokens
        self.replaced += int((~read).sum())
        ids = np.where(read, forest.ids, self._padding).astype(np.int32)
        return self._model.score(replace(forest, ids=ids), prefix)


def scores(model: Any, requests: Sequence[ScoreRequest], size: int) -> tuple[Any, list[bool]]:
    found = Scorer(model, batch_size=size).score(requests)
    return np.concatenate([item.logprobs for item in found]), [item.greedy for item in found]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return twin().ours(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("padding", [0, EOS_ID])
def test_a_score_is_the_same_in_every_batch_and_beside_every_padding(
    model: LanguageModel, padding: int
):
    expected = [scores(model, [item], 1) for item in REQUESTS]
    other: Any = Padded(model, padding)
    for size in (1, 3, 4, 8):
        logprobs, greedy = scores(other, REQUESTS, size)
        np.testing.assert_allclose(
            logprobs, np.concatenate([one for one, _ in expected]), atol=1e-5, rtol=0
        )
        assert greedy == [flag for _, (flag,) in expected]
    assert other.replaced > 0


def test_a_result_says_in_which_batch_and_precision_it_was_computed(tmp_path: Path):
    half = twin().ours(tmp_path, "bfloat16")
    scorer = Scorer(half, batch_size=3)
    scorer.score(REQUESTS)
    found = header(scorer, twin().run(tmp_path))
    assert (found["batch_size"], found["dtype"], found["stored_dtype"]) == (
        3,
        "bfloat16",
        "float32",
    )
    assert found["prefix_token"] == EOS_ID
