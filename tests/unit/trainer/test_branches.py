"""Token trees: every branch sees its own text and nothing else, through the layer's window."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon.scoring import Scorer
from evalmon.types import ScoreRequest, TokenForest, Yarn
from trainer.adapter import Olmo3LanguageModel
from trainer.architecture import Olmo3Config
from trainer.branches import stacked, unstacked
from trainer.initialize import initialize

VOCABULARY, LENGTH, WINDOW = 97, 1300, 12
CONFIG = Olmo3Config(
    VOCABULARY, 32, 5, 4, 2, 8, 48, window=WINDOW, yarn=Yarn(8.0, 16, attention_factor=1.2)
)
"""Five layers: sliding but for the fourth and the last, two heads a key head, stretched."""

BOUND = 2e-5


@pytest.fixture(scope="module")
def model() -> Olmo3LanguageModel:
    fresh = jax.tree.map(np.asarray, initialize(CONFIG, 0))
    model = Olmo3LanguageModel(CONFIG, LENGTH)
    model.load(jax.tree.map(lambda p: p * 15 if p.ndim == 2 else p, fresh))
    return model


def alone(model: Olmo3LanguageModel, item: ScoreRequest) -> NDArray[np.float32]:
    """Score a request through the plain forward pass, which knows nothing of branches."""
    ids = (*item.context, *item.continuation[:-1])
    rows = np.concatenate(list(model.log_probabilities(ids)))
    return rows[np.arange(len(item.context) - 1, len(ids)), list(item.continuation)]


def draw(*lengths: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, VOCABULARY, n).tolist()) for n in lengths]


def branching(block: int, questions: int, seed: int = 0) -> list[ScoreRequest]:
    """Return answers that share beginnings on three levels."""
    (shared,) = draw(block, seed=seed)
    found: list[ScoreRequest] = []
    for number in range(questions):
        question, start, *ends = draw(17, 3, 2, 5, 1, seed=seed + number + 1)
        found += [ScoreRequest(shared + question, start + end) for end in ends]
        found.append(ScoreRequest(shared + question, ends[0]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, 40, 700])
def test_branches_score_as_whole_texts(model: Olmo3LanguageModel, block: int) -> None:
    """Below no prefix, in one row with what is shared, and below a prefix of three parts."""
    requests = branching(block, 40 if block > 40 else 6)
    scores = Scorer(model).score(requests)
    for item, found in list(zip(requests, scores, strict=True))[::5]:
        assert np.abs(found.logprobs - alone(model, item)).max() < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "share"), [(1, True), (3, True), (16, True), (0, False)])
def test_layout_changes_rounding_alone(model: Olmo3LanguageModel, rows: int, share: bool) -> None:
    requests = branching(300, 30, seed=7)
    usual = Scorer(model).score(requests)
    for one, other in zip(usual, Scorer(model, rows, share).score(requests), strict=True):
        assert np.abs(one.logprobs - other.logprobs).max() < BOUND
        assert one.greedy == other.greedy


@pytest.mark.slow
def test_a_row_longer_than_the_others_is_taken_in_parts(model: Olmo3LanguageModel) -> None:
    (text,) = draw(LENGTH + 1)
    request = ScoreRequest(text[:1], text[1:])
    (found,) = Scorer(model).score([request])
    assert np.abs(found.logprobs - alone(model, request)).max() < BOUND


def packed(texts: Sequence[tuple[int, ...]], width: int, padding: int = 0) -> TokenForest:
    """Lay texts side by side in one row, their last tokens asked for."""
    ids = np.full((1, width), padding, np.int32)
    positions = np.zeros((1, width), np.int32)
    ends = np.arange(width, dtype=np.int32)[None].copy()
    at, picks = 0, list[int]()
    for text in texts:
        stop = at + len(text)
        ids[0, at:stop], positions[0, at:stop], ends[0, at:stop] = text, range(len(text)), stop - 1
        picks += range(at, stop)
        at = stop
    return TokenForest(
        ids, positions, ends, at, np.array(picks, np.int32), np.arange(len(picks), dtype=np.int32)
    )


@pytest.mark.parametrize("padding", [0, 96])
def test_texts_packed_in_one_row_do_not_see_each_other(
    model: Olmo3LanguageModel, padding: int
) -> None:
    """Lengths 3, 5 and 2 in a row of 16, against each alone; the id of padding is no matter."""
    texts = draw(3, 5, 2)
    together = model.score(packed(texts, 16, padding))
    start = 0
    for text in texts:
        table = np.concatenate(list(model.log_probabilities(text)))
        wanted = table[np.arange(len(text)), np.arange(start, start + len(text))]
        found = together.logprobs[start : start + len(text)]
        assert np.abs(found - wanted).max() < 1e-5
        likeliest = together.likeliest[start : start + len(text)]
        assert likeliest.tolist() == table.argmax(axis=1).tolist()
        start += len(text)


@pytest.mark.parametrize("rows", [1, 3, 4, 8])
def test_the_number_of_rows_changes_no_score(model: Olmo3LanguageModel, rows: int) -> None:
    """Eight requests of lengths 1 to 8."""
    texts = draw(*range(2, 10), seed=3)
    requests = [ScoreRequest(text[:1], text[1:]) for text in texts]
    for item, found in zip(requests, Scorer(model, rows).score(requests), strict=True):
        assert np.abs(found.logprobs - alone(model, item)).max() < 1e-5


def test_layers_are_stacked_and_taken_apart_again() -> None:
    fresh: dict[str, Any] = jax.tree.map(np.asarray, initialize(CONFIG, 0))
    made = stacked(fresh)
    assert made["layers"]["mlp"]["up_proj"]["kernel"].shape == (5, 32, 48)
    back = unstacked(made, CONFIG.layers)
    assert jax.tree.structure(back) == jax.tree.structure(fresh)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(fresh), strict=True)
    )
