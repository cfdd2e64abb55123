"""What an evaluator is given to score with: the settings, and a cache bound to its weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.config import EvaluationSettings
from evalmon.errors import ConfigError
from evalmon.models import LanguageModel
from evalmon.scorers import response_file, scorer
from evalmon.store import ResponseFile
from evalmon.types import RunDescription, ScoreRequest, TokenScores

REQUEST = ScoreRequest((1,), (2,))
RUN = RunDescription(
    name="tiny", path=Path("/runs/tiny"), adapter="a", model={"layers": 2}, tokenizer="t",
    vocab_size=64, eos_id=0, sequence_length=8, batch_instances=4, planned_steps=100,
    planned_passes=1, source_instances=400, hosts=1, loader="batch_strided", seed=0,
    warmup_steps=5, recipe="r", loss={}, data="data",
)  # fmt: skip


class Silent:
    """A model that answers nothing."""

    vocab_size, max_length, stored_dtype, row_multiple = 64, 8, "float32", 1

    def __init__(self, dtype: str = "float32", max_length: int = 8) -> None:
        self.dtype, self.max_length = dtype, max_length

    def load(self, parameters: Any) -> None:
        raise NotImplementedError

    def extend(self, ids: Any, prefix: Any = None) -> Any:
        raise NotImplementedError

    def score(self, forest: Any, prefix: Any = None) -> Any:
        raise NotImplementedError

    def generate(self, prompts: Any, stop_ids: Any, max_new_tokens: Any) -> Any:
        raise NotImplementedError

    def log_probabilities(self, ids: Any) -> Any:
        raise NotImplementedError


def test_the_settings_reach_the_scorer() -> None:
    settings = EvaluationSettings(batch_size=3, share_prefixes=False)
    model: LanguageModel = Silent()
    made = scorer(model, RUN, settings, "w", None, "tiny step 10 holdout_loss")
    assert made.model is model
    assert (made.batch_size, made.share_prefixes, made.cache) == (3, False, None)
    assert made.description == "tiny step 10 holdout_loss"


@pytest.mark.parametrize(
    ("run", "model", "weights"),
    [
        (RUN, Silent(), "other"),
        (RUN, Silent("bfloat16"), "w"),
        (RUN, Silent(max_length=16), "w"),
        (replace(RUN, adapter="b"), Silent(), "w"),
        (replace(RUN, model={"layers": 3}), Silent(), "w"),
    ],
)
def test_answers_are_of_one_model_with_one_set_of_weights(
    tmp_path: Path, run: RunDescription, model: LanguageModel, weights: str
) -> None:
    settings = EvaluationSettings()
    with ResponseFile(tmp_path / "r.sqlite") as file:
        first = scorer(Silent(), RUN, settings, "w", file, "").cache
        assert first is not None
        first.put({REQUEST: TokenScores(np.zeros(1, np.float32), greedy=True)})
        again = scorer(Silent(), replace(RUN, name="b"), settings, "w", file, "").cache
        other = scorer(model, run, settings, weights, file, "").cache
        assert again is not None
        assert other is not None
        assert list(again.get([REQUEST])) == [REQUEST]
        assert other.get([REQUEST]) == {}


def test_the_file_lies_beside_the_store_or_where_it_is_set(tmp_path: Path) -> None:
    store, unset = tmp_path / "evalmon.sqlite", EvaluationSettings()
    elsewhere = EvaluationSettings(response_cache=str(tmp_path / "answers.sqlite"))
    for settings, place, name in (
        (unset, store, "evalmon.sqlite.responses.sqlite"),
        (elsewhere, store, "answers.sqlite"),
        (elsewhere, None, "answers.sqlite"),
    ):
        file = response_file(settings, place)
        assert file is not None
        with file:
            cache = scorer(Silent(), RUN, settings, "w", file, "").cache
            assert cache is not None
            cache.put({REQUEST: TokenScores(np.zeros(1, np.float32), greedy=True)})
        (tmp_path / name).unlink()
    assert list(tmp_path.iterdir()) == []
    assert response_file(unset, None) is None


def test_the_store_is_no_place_for_answers(tmp_path: Path) -> None:
    store = tmp_path / "evalmon.sqlite"
    with pytest.raises(ConfigError, match=r"response_cache: .*evalmon.sqlite is the results store"):
        response_file(EvaluationSettings(response_cache=str(store)), store)
