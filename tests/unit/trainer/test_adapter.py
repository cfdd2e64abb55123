from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evalmon.errors import CheckpointError, EvaluationError
from evalmon.models import LanguageModel
from evalmon.types import ScoreRequest
from trainer.adapter import Olmo3LanguageModel
from trainer.model import Olmo3Config, bind, initialize

CONFIG = Olmo3Config(50, 16, 2, 2, 1, 8, 16, window=4)
LENGTH = 20


@pytest.fixture(scope="module")
def parameters() -> dict[str, Any]:
    """Matrices far from zero, so that predictions differ."""
    fresh = jax.tree.map(np.asarray, initialize(CONFIG, 0))
    return jax.tree.map(lambda p: p * 30 if p.ndim == 2 else p, fresh)


@pytest.fixture(scope="module")
def model(parameters: dict[str, Any]) -> Olmo3LanguageModel:
    model = Olmo3LanguageModel(CONFIG, LENGTH)
    model.load(parameters)
    return model


@pytest.fixture(scope="module")
def logprobs(parameters: dict[str, Any]) -> Any:
    """Log-probabilities of the next id after each prefix of a text, straight from the model."""
    forward = jax.jit(lambda p, ids: jax.nn.log_softmax(bind(CONFIG, p)(ids)))

    def of(text: Sequence[int]) -> np.ndarray:
        padded = np.zeros((1, LENGTH), np.int32)
        padded[0, : len(text)] = text
        return np.asarray(forward(parameters, padded))[0, : len(text)]

    return of


def _requests(number: int, seed: int = 0) -> list[ScoreRequest]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH // 2 + 1, (number, 2))
    draw = [rng.integers(0, 50, n).tolist() for n in lengths.ravel()]
    return [ScoreRequest(tuple(c), tuple(t)) for c, t in zip(draw[::2], draw[1::2], strict=True)]


def test_scores_are_the_models_own_log_probabilities(
    model: Olmo3LanguageModel, logprobs: Any
) -> None:
    requests = _requests(4)
    for request, scores in zip(requests, model.score(requests), strict=True):
        table = logprobs((*request.context, *request.continuation))
        start = len(request.context) - 1
        rows = table[start : start + len(request.continuation)]
        expected = rows[np.arange(len(rows)), list(request.continuation)]
        assert scores.logprobs.dtype == np.float32
        assert scores.logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
        assert scores.greedy == (rows.argmax(-1).tolist() == list(request.continuation))


def test_scores_do_not_depend_on_batching_or_order(model: Olmo3LanguageModel) -> None:
    requests = _requests(36)
    together = [s.logprobs for s in model.score(requests)]
    backwards = [s.logprobs for s in model.score(requests[::-1])][::-1]
    alone = [model.score([r])[0].logprobs for r in requests[:5]]
    for one, other in zip(together, backwards, strict=True):
        assert np.abs(one - other).max() < 1e-4
    for one, other in zip(together, alone, strict=False):
        assert np.abs(one - other).max() < 1e-4


def test_requests_that_share_their_inputs_are_all_answered(model: Olmo3LanguageModel) -> None:
    same = [ScoreRequest((1, 2), (token,)) for token in range(50)]
    scores = model.score(same)
    total = sum(np.exp(float(s.logprobs[0])) for s in scores)
    assert total == pytest.approx(1.0, abs=1e-4)
    assert sum(s.greedy for s in scores) == 1


def test_few_shapes_are_compiled(model: Olmo3LanguageModel) -> None:
    for seed in range(3):
        model.score(_requests(33, seed))
    compiled: Any = model
    assert compiled._hidden._cache_size() == 2
    assert compiled._head._cache_size() == 1


def test_no_requests_have_no_scores(model: Olmo3LanguageModel) -> None:
    assert model.score([]) == []
    assert model.generate([], [0], 3) == []


def test_generation_takes_the_likeliest_id_each_time(
    model: Olmo3LanguageModel, logprobs: Any
) -> None:
    prompts = [[1], [2, 3, 4]]
    for prompt, new in zip(prompts, model.generate(prompts, [], 4), strict=True):
        text = list(prompt)
        for _ in range(4):
            text.append(int(logprobs(text)[-1].argmax()))
        assert new == text[len(prompt) :]


def test_generation_ends_at_a_stop_id_and_at_the_longest_length(
    model: Olmo3LanguageModel,
) -> None:
    (free,) = model.generate([[1]], [], 6)
    (stopped,) = model.generate([[1]], [free[2]], 6)
    assert stopped == free[: free.index(free[2]) + 1]
    (full,) = model.generate([[1] * (LENGTH - 2)], [], 9)
    assert len(full) == 2
    assert model.generate([[1]], [], 0) == [[]]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ScoreRequest((1,), (50,)), "request 1: token id 50 outside the vocabulary of 50"),
        (ScoreRequest((-1,), (5,)), "token id -1"),
        (ScoreRequest((1,) * 15, (1,) * 6), "21 tokens, at most 20"),
        (ScoreRequest((), (1,)), "a token each"),
        (ScoreRequest((1,), ()), "a token each"),
    ],
)
def test_a_bad_request_is_refused(
    model: Olmo3LanguageModel, request_: ScoreRequest, says: str
) -> None:
    with pytest.raises(EvaluationError, match=says):
        model.score([ScoreRequest((1,), (2,)), request_])


def test_bad_prompts_are_refused(model: Olmo3LanguageModel) -> None:
    for prompt in ([], [50], [1] * LENGTH):
        with pytest.raises(EvaluationError, match="request 0"):
            model.generate([prompt], [], 1)


def test_broken_weights_are_an_error_and_never_a_score(
    model: Olmo3LanguageModel, parameters: dict[str, Any]
) -> None:
    request = ScoreRequest((1,), (2,))
    with pytest.raises(EvaluationError, match="no weights loaded"):
        Olmo3LanguageModel(CONFIG, LENGTH).score([request])
    before = model.score([request])[0].logprobs
    broken = jax.tree.map(np.copy, parameters)
    broken["norm"]["scale"][0] = np.nan
    model.load(broken)
    with pytest.raises(EvaluationError, match="request 0: log-probabilities are not finite"):
        model.score([request])
    model.load(parameters)
    assert model.score([request])[0].logprobs.tolist() == before.tolist()


def test_missing_extra_and_misshaped_tensors_are_named(parameters: dict[str, Any]) -> None:
    model = Olmo3LanguageModel(CONFIG, LENGTH)
    lacking = {k: v for k, v in parameters.items() if k != "lm_head"}
    with pytest.raises(CheckpointError, match=r"missing \['lm_head.kernel'\]"):
        model.load(lacking)
    with pytest.raises(CheckpointError, match=r"unknown \['bias'\]"):
        model.load({**parameters, "bias": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match=r"norm.scale: float32 \(3,\), expected"):
        model.load({**parameters, "norm": {"scale": np.zeros(3, np.float32)}})
    with pytest.raises(CheckpointError, match=r"norm.scale: float16 \(16,\), expected float32"):
        model.load({**parameters, "norm": {"scale": np.zeros(16, np.float16)}})


def test_it_is_a_language_model(model: Olmo3LanguageModel, tmp_path: Path) -> None:
    assert isinstance(model, LanguageModel)
    assert (model.vocab_size, model.max_length, model.dtype) == (50, LENGTH, "float32")
