"""The trainer's model behind evalmon's protocol: scores, continuations, weights of any dtype."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from evalmon.errors import CheckpointError, ConfigError, EvaluationError
from evalmon.models import LanguageModel, find_model
from evalmon.scoring import Scorer
from evalmon.types import ModelDescription, ScoreRequest, TokenForest, Yarn
from trainer.adapter import Olmo3LanguageModel, open_model
from trainer.architecture import Olmo3Config
from trainer.branches import Branches, Prefix
from trainer.initialize import initialize
from trainer.model import bind

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
    for request, scores in zip(requests, Scorer(model).score(requests), strict=True):
        table = logprobs((*request.context, *request.continuation))
        start = len(request.context) - 1
        rows = table[start : start + len(request.continuation)]
        expected = rows[np.arange(len(rows)), list(request.continuation)]
        assert scores.logprobs.dtype == np.float32
        assert scores.logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
        assert scores.greedy == (rows.argmax(-1).tolist() == list(request.continuation))


def test_scores_do_not_depend_on_batching_or_order(model: Olmo3LanguageModel) -> None:
    requests = _requests(36)
    together = [s.logprobs for s in Scorer(model).score(requests)]
    backwards = [s.logprobs for s in Scorer(model).score(requests[::-1])][::-1]
    alone = [Scorer(model).score([r])[0].logprobs for r in requests[:5]]
    for one, other in zip(together, backwards, strict=True):
        assert np.abs(one - other).max() < 1e-4
    for one, other in zip(together, alone, strict=False):
        assert np.abs(one - other).max() < 1e-4


def test_requests_that_share_their_inputs_are_all_answered(model: Olmo3LanguageModel) -> None:
    same = [ScoreRequest((1, 2), (token,)) for token in range(50)]
    scores = Scorer(model).score(same)
    total = sum(np.exp(float(s.logprobs[0])) for s in scores)
    assert total == pytest.approx(1.0, abs=1e-4)
    assert sum(s.greedy for s in scores) == 1


def test_new_weights_compile_nothing_and_their_prefixes_do_not_last(
    parameters: dict[str, Any],
) -> None:
    model = Olmo3LanguageModel(CONFIG, 400)
    model.load(parameters)
    block = tuple(np.random.default_rng(0).integers(0, 50, 300).tolist())
    requests = [ScoreRequest((*block, n % 50, n), (n // 50,) * 20) for n in range(50)]
    first = Scorer(model).score(requests)
    prefix = model.extend(block)
    compiled: Any = model
    calls = [compiled._rows, compiled._grow, compiled._append, compiled._head]
    sizes = [call._cache_size() for call in calls]
    assert sizes == [2, 2, 2, 1]  # below a prefix one row and eight; its first part, its second
    model.load(jax.tree.map(lambda p: p * 1.01, parameters))
    second = Scorer(model).score(requests)
    assert [call._cache_size() for call in calls] == sizes
    assert first[0].logprobs.tolist() != second[0].logprobs.tolist()
    with pytest.raises(EvaluationError, match="with other weights; extend it again"):
        model.extend((1,), prefix)


def test_no_requests_have_no_scores(model: Olmo3LanguageModel) -> None:
    assert Scorer(model).score([]) == []
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
        (ScoreRequest((1,) * 15, (1,) * 7), "22 tokens, the model reads 20"),
    ],
)
def test_a_bad_request_is_refused(
    model: Olmo3LanguageModel, request_: ScoreRequest, says: str
) -> None:
    with pytest.raises(EvaluationError, match=says):
        Scorer(model).score([ScoreRequest((1,), (2,)), request_])


def test_bad_prompts_are_refused(model: Olmo3LanguageModel) -> None:
    for prompt in ([], [50], [1] * LENGTH):
        with pytest.raises(EvaluationError, match="prompt 0"):
            model.generate([prompt], [], 1)


def test_a_forest_outside_the_vocabulary_is_refused(model: Olmo3LanguageModel) -> None:
    wrong, zero = np.array([[50]], np.int32), np.array([[0]], np.int32)
    forest = TokenForest(wrong, zero, zero, 1, zero[0], zero[0])
    with pytest.raises(EvaluationError, match="token id 50 outside the vocabulary of 50"):
        model.score(forest)
    with pytest.raises(EvaluationError, match="without a token"):
        model.extend((), model.extend((1,)))
    with pytest.raises(EvaluationError, match="by another model"):
        model.extend((1,), "a prefix")


def test_broken_weights_are_an_error_and_never_a_score(
    model: Olmo3LanguageModel, parameters: dict[str, Any]
) -> None:
    request = ScoreRequest((1,), (2,))
    with pytest.raises(EvaluationError, match="no weights loaded"):
        Scorer(Olmo3LanguageModel(CONFIG, LENGTH)).score([request])
    before = Scorer(model).score([request])[0].logprobs
    broken = jax.tree.map(np.copy, parameters)
    broken["norm"]["scale"][0] = np.nan
    model.load(broken)
    with pytest.raises(EvaluationError, match="log-probability nan of token 2 at place 0"):
        Scorer(model).score([request])
    model.load(parameters)
    assert Scorer(model).score([request])[0].logprobs.tolist() == before.tolist()


def test_missing_extra_and_misshaped_tensors_are_named(parameters: dict[str, Any]) -> None:
    model = Olmo3LanguageModel(CONFIG, LENGTH)
    lacking = {k: v for k, v in parameters.items() if k != "lm_head"}
    with pytest.raises(CheckpointError, match=r"missing \['lm_head.kernel'\]"):
        model.load(lacking)
    with pytest.raises(CheckpointError, match=r"unknown \['bias'\]"):
        model.load({**parameters, "bias": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match=r"norm.scale: float32 \(3,\), expected \(16,\)"):
        model.load({**parameters, "norm": {"scale": np.zeros(3, np.float32)}})
    with pytest.raises(CheckpointError, match=r"norm.scale: int8 \(16,\), expected \(16,\) in one"):
        model.load({**parameters, "norm": {"scale": np.zeros(16, np.int8)}})
    with pytest.raises(
        CheckpointError,
        match=r"\w+ is float32, but norm.scale is float16; store all of them in one",
    ):
        model.load({**parameters, "norm": {"scale": np.zeros(16, np.float16)}})
    assert model.stored_dtype == ""


def _rows(model: Olmo3LanguageModel, ids: Sequence[int]) -> np.ndarray:
    return np.concatenate(list(model.log_probabilities(ids)))


def test_log_probabilities_are_those_of_every_position(
    model: Olmo3LanguageModel, logprobs: Any
) -> None:
    text = np.random.default_rng(0).integers(0, 50, LENGTH).tolist()
    rows = _rows(model, text)
    assert (rows.shape, rows.dtype) == ((LENGTH, 50), np.float32)
    assert np.abs(rows - logprobs(text)).max() < 1e-5
    (scores,) = Scorer(model).score([ScoreRequest(tuple(text[:1]), tuple(text[1:]))])
    chosen = rows[np.arange(LENGTH - 1), text[1:]]
    assert np.abs(scores.logprobs - chosen).max() < 1e-5


def test_log_probabilities_come_in_parts_of_any_length(model: Olmo3LanguageModel) -> None:
    text = np.random.default_rng(1).integers(0, 50, 1200).tolist()
    parts = list(model.log_probabilities(text))
    assert [len(part) for part in parts] == [512, 512, 176]
    assert len(text) > model.max_length
    # Causal: a shorter text, padded to another length, has the same log-probabilities.
    assert np.abs(np.concatenate(parts)[:33] - _rows(model, text[:33])).max() < 1e-5
    assert [len(part) for part in model.log_probabilities(text[:1])] == [1]


@pytest.mark.parametrize("bad", [[], [50], [0, -1]])
def test_text_without_log_probabilities_is_refused_before_the_first_part(
    model: Olmo3LanguageModel, bad: list[int]
) -> None:
    with pytest.raises(EvaluationError, match="text 0"):
        model.log_probabilities(bad)


def test_broken_weights_show_in_log_probabilities(parameters: dict[str, Any]) -> None:
    broken = jax.tree.map(np.copy, parameters)
    broken["lm_head"]["kernel"][0, 7] = np.nan
    model = Olmo3LanguageModel(CONFIG, LENGTH)
    model.load(broken)
    assert np.isnan(_rows(model, [1, 2, 3])).all()


DTYPES = {
    "float32": np.float32, "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16, "float64": np.float64,
}  # fmt: skip


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_the_dtype_stored_and_the_dtype_computed_in_are_both_known(
    parameters: dict[str, Any], stored: str, compute: str
) -> None:
    model = open_model(_description(), compute)
    narrow = jax.tree.map(lambda p: p.astype(DTYPES[stored]), parameters)
    model.load(narrow)
    assert (model.dtype, model.stored_dtype) == (compute, stored)
    exact = Olmo3LanguageModel(CONFIG, LENGTH)
    exact.load(jax.tree.map(lambda p: p.astype(np.float32), narrow))
    text = list(range(20))
    tolerance = 1e-5 if compute == "float32" else 0.3
    error = np.abs(_rows(model, text) - _rows(exact, text)).max()
    assert error < tolerance
    assert (error > 1e-3) == (compute == "bfloat16")


def test_narrow_weights_stay_narrow_in_memory(parameters: dict[str, Any]) -> None:
    held: Any = Olmo3LanguageModel(CONFIG, LENGTH)
    held.load(jax.tree.map(lambda p: p.astype(ml_dtypes.bfloat16), parameters))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(held._parameters)} == {"bfloat16"}
    computed: Any = open_model(_description(), "bfloat16")
    computed.load(parameters)
    assert str(computed._parameters["lm_head"]["kernel"].dtype) == "bfloat16"
    assert str(computed._parameters["norm"]["scale"].dtype) == "float32"


def test_bfloat16_weights_never_put_the_loss_on_bfloat16s_grid(parameters: dict[str, Any]) -> None:
    """Between 2 and 4 bfloat16 knows only multiples of 1/64, three times a move that matters."""
    grid = np.array([2.705, 2.711]).astype(ml_dtypes.bfloat16).astype(float)
    assert grid.tolist() == [2.703125, 2.71875]
    model = open_model(_description(), "bfloat16")
    model.load(parameters)
    rows = _rows(model, list(range(20))).astype(np.float64)
    assert np.abs(np.log(np.exp(rows).sum(axis=-1))).max() < 1e-5
    scores = Scorer(model).score([ScoreRequest((1,), tuple(range(2, 20)))])[0].logprobs
    assert scores.dtype == np.float32
    assert (scores != scores.astype(ml_dtypes.bfloat16).astype(np.float32)).mean() > 0.8


def test_float32_is_float32_on_every_kind_of_device(parameters: dict[str, Any]) -> None:
    """GPUs and TPUs multiply float32 with fewer bits unless each product says otherwise."""
    model: Any = Olmo3LanguageModel(CONFIG, LENGTH)
    model.load(parameters)
    parameters = model._parameters
    ids, places = np.zeros((1, 32), np.int32), np.zeros(32, np.int32)
    rows, known = Branches(*[jax.numpy.asarray(ids)] * 3), jax.numpy.zeros((2, 32, 1, 8))
    calls = {
        model._hidden: (parameters, ids),
        model._every: (parameters, np.zeros((32, 16), np.float32)),
        model._head: (parameters, np.zeros((32, 16), np.float32), places, (places, places)),
        model._rows: (parameters, rows, None),
        model._grow: (parameters, rows, Prefix(known, known, jax.numpy.int32(3))),
    }
    for call, arguments in calls.items():
        with model._computing():
            text = call.lower(*arguments).as_text()
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert products
        assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


def test_head_and_log_probabilities_never_hold_a_long_text_at_once(
    parameters: dict[str, Any],
) -> None:
    """What reaches numpy at a time is one part."""
    model = Olmo3LanguageModel(CONFIG, LENGTH)
    model.load(parameters)
    text = [1] * 4096
    for _ in model.log_probabilities(text):
        pass
    tracemalloc.start()
    for _ in model.log_probabilities(text):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 50 * 4096


def _description(**changes: Any) -> ModelDescription:
    fields: dict[str, Any] = {
        "path": Path("weights/model.json"),
        "adapter": "olmo3",
        "model": asdict(CONFIG),
        "vocab_size": 50,
        "max_length": LENGTH,
    }
    return ModelDescription(**{**fields, **changes})


def test_a_model_is_built_from_its_description() -> None:
    model = find_model(_description())
    assert isinstance(model, Olmo3LanguageModel)
    assert (model.dtype, model.max_length) == ("float32", LENGTH)
    assert find_model(_description(), "bfloat16").dtype == "bfloat16"
    yarn = asdict(Yarn(8.0, 16))
    assert find_model(_description(model={**asdict(CONFIG), "yarn": yarn})).dtype == "float32"


@pytest.mark.parametrize(
    ("description", "dtype", "says"),
    [
        (_description(vocab_size=51), None, "'vocab_size' is 50, but the file's own is 51"),
        (_description(model={**asdict(CONFIG), "heds": 2}), None, "nearest is 'heads'"),
        (_description(), "float8", "compute dtype: 'dtype' is 'float8'"),
        (_description(), "float64", "JAX_ENABLE_X64=1"),
    ],
)
def test_a_description_of_no_model_is_refused(
    description: ModelDescription, dtype: str | None, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        open_model(description, dtype)


def test_it_is_a_language_model(model: Olmo3LanguageModel) -> None:
    assert isinstance(model, LanguageModel)
    assert (model.vocab_size, model.max_length, model.dtype) == (50, LENGTH, "float32")


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        (
            "fsdp=3",
            "evaluation.mesh 'fsdp=3' does not fit: fsdp=3 does not divide the model's width",
        ),
        ("width=2", "evaluation.mesh 'width=2' does not fit: 'width=2'"),
        ("data=64", "needs 64 devices, but there are"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_by_the_settings_name(mesh: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_model(_description(), None, mesh)
