"""Scoring: order kept, equal requests once, layout without effect, nothing not finite."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalmon.errors import EvaluationError
from evalmon.models import LanguageModel
from evalmon.scoring import Scorer, fingerprint, rolling_windows
from evalmon.types import ForestScores, ScoreRequest, TokenForest, TokenScores


class EchoModel:
    """Scores token t after token c as -(t + c / 1000), the longer text c ends the less."""

    vocab_size = 1000
    dtype = "float32"
    stored_dtype = "float32"
    row_multiple = 1

    def __init__(self, max_length: int = 64) -> None:
        self.max_length = max_length
        self.asked: list[int] = []

    def load(self, parameters: Mapping[str, Any]) -> None: ...

    def extend(self, ids: Sequence[int], prefix: Any = None) -> Any:
        return (*(prefix or ()), *ids)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        self.asked.append(len(forest.picks))
        texts = [(*(prefix or ()), *forest.text_at(int(place))) for place in forest.picks]
        return ForestScores(
            np.array(
                [
                    -(target + text[-1] / 1000 + len(text) / 1e6)
                    for text, target in zip(texts, forest.targets, strict=True)
                ],
                np.float32,
            ),
            forest.targets,
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        return [[] for _ in prompts]

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        raise NotImplementedError


def answer(item: ScoreRequest) -> NDArray[np.float32]:
    """Return what EchoModel says of a request."""
    whole = np.array([*item.context, *item.continuation], np.float64)
    start = len(item.context)
    lengths = np.arange(start, len(whole))
    return -(whole[start:] + whole[start - 1 : -1] / 1000 + lengths / 1e6).astype(np.float32)


def test_the_fake_is_a_language_model():
    assert isinstance(EchoModel(), LanguageModel)


requests_strategy = st.lists(
    st.builds(
        ScoreRequest,
        st.lists(st.integers(0, 9), min_size=1, max_size=40).map(tuple),
        st.lists(st.integers(0, 9), min_size=1, max_size=24).map(tuple),
    ),
    max_size=30,
)


@given(requests_strategy, st.integers(0, 4), st.booleans())
def test_scores_keep_the_order_of_requests_whatever_the_layout(
    requests: list[ScoreRequest], rows: int, share: bool
):
    found = Scorer(EchoModel(), rows, share).score(requests)
    for item, scores in zip(requests, found, strict=True):
        np.testing.assert_array_equal(scores.logprobs, answer(item))
        assert scores.greedy


def test_no_requests_have_no_scores():
    scorer = Scorer(EchoModel())
    assert scorer.score([]) == []
    assert (scorer.accounting.computed_over_distinct, scorer.accounting.padding_share) == (1, 0)


def test_equal_requests_are_scored_once():
    model = EchoModel()
    item, other = ScoreRequest((1,), (2,)), ScoreRequest((1,), (3,))
    found = Scorer(model).score([item, other, item])
    assert model.asked == [2]
    assert found[0] is found[2]


def test_what_is_computed_is_counted():
    block = tuple(range(300))
    requests = [ScoreRequest((*block, *[n] * 90), (n, 2)) for n in range(20)]
    scorer = Scorer(EchoModel(1000))
    scorer.score(requests)
    counts = scorer.accounting
    assert (counts.requests, counts.tokens_scored) == (20, 40)
    assert counts.tokens_distinct == counts.tokens_computed == 300 + 20 * 91
    assert counts.tokens_padded == 512 + 10 * 256  # two units of 91 tokens fill a row
    assert counts.computed_over_distinct == 1
    assert counts.padding_share == pytest.approx(1 - 2120 / 3072)


class Remembering:
    """Answers known already, and those that come."""

    def __init__(self) -> None:
        self.known: dict[ScoreRequest, TokenScores] = {}

    def get(self, requests: Sequence[ScoreRequest]) -> dict[ScoreRequest, TokenScores]:
        return {item: self.known[item] for item in requests if item in self.known}

    def put(self, answers: Mapping[ScoreRequest, TokenScores]) -> None:
        self.known |= answers


def test_only_what_the_cache_does_not_know_is_asked():
    model, cache = EchoModel(), Remembering()
    requests = [ScoreRequest((1,), (n,)) for n in range(10)]
    Scorer(model, cache=cache).score(requests[:8])
    found = Scorer(model, cache=cache).score(requests)
    assert model.asked == [8, 2]
    assert [float(item.logprobs[0]) for item in found] == [float(answer(r)[0]) for r in requests]


def test_a_lost_answer_is_computed_in_the_same_layout_again():
    block = tuple(range(300))
    requests = [ScoreRequest((*block, *[n] * 90), (n, 2)) for n in range(40)]
    forests: list[list[TokenForest]] = []

    class Noting(EchoModel):
        def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
            forests[-1].append(forest)
            return super().score(forest, prefix)

    for lost in (range(40), [7, 8], []):
        cache = Remembering()
        if len(lost) < 40:
            kept = [item for n, item in enumerate(requests) if n not in lost]
            cache.known = {item: TokenScores(answer(item), greedy=True) for item in kept}
        forests.append([])
        Scorer(Noting(1000), cache=cache).score(requests)
    whole, again, nothing = forests
    assert not nothing
    assert sum(len(forest.picks) for forest in again) == 4
    for forest in again:
        assert any(np.array_equal(forest.ids, other.ids) for other in whole)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (ScoreRequest((), (1,)), "request 1 has 0 context and 1 continuation"),
        (ScoreRequest((1,), ()), "request 1 has 1 context and 0 continuation"),
        (ScoreRequest((1,) * 60, (2,) * 6), "request 1 has 66 tokens, the model reads 64 and"),
        (ScoreRequest((1,), (1000,)), "request 1: token id 1000 outside the vocabulary of 1000"),
        (ScoreRequest((-1,), (5,)), "request 1: token id -1 outside"),
    ],
)
def test_what_no_model_can_take_is_refused_before_any_is_asked(request_: ScoreRequest, said: str):
    model = EchoModel()
    with pytest.raises(EvaluationError, match=said):
        Scorer(model).score([ScoreRequest((1,), (2,)), request_])
    assert model.asked == []
    Scorer(model).score([ScoreRequest((1,) * 60, (2,) * 5)])


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_what_is_not_finite_never_becomes_a_score(value: float):
    class Broken(EchoModel):
        def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
            found = super().score(forest, prefix)
            found.logprobs[-1] = value
            return found

    with pytest.raises(EvaluationError, match="nothing is scored"):
        Scorer(Broken()).score([ScoreRequest((1,), (2, 3)), ScoreRequest((1,), (4, 5))])


def test_missing_answers_are_refused():
    class Short(EchoModel):
        def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
            found = super().score(forest, prefix)
            return ForestScores(found.logprobs[1:], found.likeliest)

    with pytest.raises(EvaluationError, match=r"shape \(1,\) for 2 tokens"):
        Scorer(Short()).score([ScoreRequest((1,), (2, 3))])


@given(st.integers(0, 200), st.integers(1, 40))
def test_windows_score_each_token_exactly_once(length: int, max_length: int):
    tokens = list(range(1, length + 1))
    windows = rolling_windows(tokens, 0, max_length)
    assert [token for window in windows for token in window.continuation] == tokens
    for window in windows:
        assert len(window.context) >= 1
        assert len(window.context) + len(window.continuation) <= max_length + 1
        # A window is one unbroken piece of prefix and document.
        piece = (*window.context, *window.continuation)
        assert piece == tuple(range(piece[0], piece[0] + len(piece)))


def test_every_window_but_a_short_documents_is_full():
    windows = rolling_windows(list(range(1, 23)), 0, 7)
    assert [len(w.context) + len(w.continuation) for w in windows] == [8, 8, 8, 8]
    assert windows[-1] == ScoreRequest((15, 16, 17, 18, 19, 20, 21), (22,))
    assert rolling_windows([5, 6], 0, 8) == [ScoreRequest((0,), (5, 6))]


def test_a_fingerprint_differs_with_any_part():
    base = fingerprint(a=1, b="x")
    assert base == fingerprint(b="x", a=1)
    assert len({base, fingerprint(a=2, b="x"), fingerprint(a=1, b="y"), fingerprint(a=1)}) == 4
    assert len(base) == 16
