"""Planning: every token scored once, order kept, batches of one length, nothing not finite."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalmon.errors import EvaluationError
from evalmon.models import LanguageModel
from evalmon.scoring import fingerprint, plan, rolling_windows, score_all
from evalmon.types import ScoreRequest, TokenScores


class EchoModel:
    """Scores token t after token c as -(t + c / 1000); records how it was asked."""

    vocab_size = 1000
    dtype = "float32"
    stored_dtype = "float32"

    def __init__(self, max_length: int = 64) -> None:
        self.max_length = max_length
        self.calls: list[int] = []

    def load(self, parameters: Mapping[str, Any]) -> None: ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
        self.calls.append(len(requests))
        return [self._one(item) for item in requests]

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        return [[] for _ in prompts]

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        raise NotImplementedError

    @staticmethod
    def _one(item: ScoreRequest) -> TokenScores:
        whole = np.array([*item.context, *item.continuation], np.float32)
        start = len(item.context)
        scores = -(whole[start:] + whole[start - 1 : -1] / 1000)
        return TokenScores(scores.astype(np.float32), greedy=False)


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


@given(requests_strategy, st.integers(1, 200))
def test_a_plan_holds_every_request_once_in_batches_of_one_length(
    requests: list[ScoreRequest], batch_tokens: int
):
    found = plan(requests, 64, batch_tokens)
    places = [place for batch in found.batches for place in batch.positions]
    assert sorted(places) == list(range(len(requests)))
    inputs = [len(item.context) + len(item.continuation) - 1 for item in requests]
    for batch in found.batches:
        assert all(inputs[place] <= batch.length for place in batch.positions)
        assert batch.length in (32, 64)
        assert batch.length * len(batch.positions) <= batch_tokens or len(batch.positions) == 1
    assert found.tokens == sum(inputs)
    assert found.scored == sum(len(item.continuation) for item in requests)
    assert found.padded_tokens >= found.tokens
    assert 0 <= found.padding_share < 1


def test_accounting_of_a_small_plan():
    requests = [ScoreRequest((0,), (1,) * 32), ScoreRequest((0,), (1,) * 33)]
    found = plan(requests, 64)
    assert [(batch.length, batch.positions) for batch in found.batches] == [(64, (1,)), (32, (0,))]
    assert (found.tokens, found.scored, found.padded_tokens) == (65, 65, 96)
    assert found.padding_share == pytest.approx(1 - 65 / 96)


def test_no_requests_are_no_batches():
    assert plan([], 64).batches == ()
    assert plan([], 64).padding_share == 0
    assert score_all(EchoModel(), []) == []


def test_requests_with_equal_inputs_stand_together():
    requests = [ScoreRequest((n % 5, 7), (n,)) for n in range(10)]
    (batch,) = plan(requests, 64).batches
    first = [requests[place].context[0] for place in batch.positions]
    assert first == sorted(first)


@given(requests_strategy)
def test_scores_keep_the_order_of_requests_and_ignore_batching(requests: list[ScoreRequest]):
    model = EchoModel()
    together = score_all(model, requests)
    for item, found in zip(requests, together, strict=True):
        (alone,) = EchoModel().score([item])
        np.testing.assert_array_equal(found.logprobs, alone.logprobs)


def test_equal_requests_are_scored_once():
    model = EchoModel()
    item, other = ScoreRequest((1,), (2,)), ScoreRequest((1,), (3,))
    found = score_all(model, [item, other, item])
    assert model.calls == [2]
    assert found[0] is found[2]


def test_progress_counts_distinct_requests():
    done: list[int] = []
    score_all(EchoModel(), [ScoreRequest((1,), (n,)) for n in (2, 3, 3)], done.append)
    assert sum(done) == 2


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (ScoreRequest((), (1,)), "has 0 context and 1 continuation"),
        (ScoreRequest((1,), ()), "has 1 context and 0 continuation"),
        (ScoreRequest((1,) * 60, (2,) * 5), "has 65 tokens, the model takes 64"),
    ],
)
def test_requests_that_no_model_can_take_are_refused(request_: ScoreRequest, said: str):
    with pytest.raises(EvaluationError, match=said):
        plan([request_], 64)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_what_is_not_finite_never_becomes_a_score(value: float):
    class Broken(EchoModel):
        def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
            answers = super().score(requests)
            answers[-1].logprobs[-1] = value
            return answers

    with pytest.raises(EvaluationError, match="nothing is scored"):
        score_all(Broken(), [ScoreRequest((1,), (2, 3)), ScoreRequest((1,), (4, 5))])


def test_missing_answers_and_wrong_lengths_are_refused():
    class Short(EchoModel):
        def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
            return super().score(requests)[1:]

    class Narrow(EchoModel):
        def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
            return [TokenScores(item.logprobs[1:], False) for item in super().score(requests)]

    with pytest.raises(EvaluationError, match="answered 0 of 1"):
        score_all(Short(), [ScoreRequest((1,), (2, 3))])
    with pytest.raises(EvaluationError, match=r"shape \(1,\) for 2 tokens"):
        score_all(Narrow(), [ScoreRequest((1,), (2, 3))])


@given(st.integers(0, 200), st.integers(2, 40))
def test_windows_score_each_token_exactly_once(length: int, max_length: int):
    tokens = list(range(1, length + 1))
    windows = rolling_windows(tokens, 0, max_length)
    assert [token for window in windows for token in window.continuation] == tokens
    for window in windows:
        assert len(window.context) >= 1
        assert len(window.context) + len(window.continuation) <= max_length
        # A window is one unbroken piece of prefix and document.
        piece = (*window.context, *window.continuation)
        assert piece == tuple(range(piece[0], piece[0] + len(piece)))


def test_every_window_but_a_short_documents_is_full():
    windows = rolling_windows(list(range(1, 23)), 0, 8)
    assert [len(w.context) + len(w.continuation) for w in windows] == [8, 8, 8, 8]
    assert windows[-1] == ScoreRequest((15, 16, 17, 18, 19, 20, 21), (22,))
    assert rolling_windows([5, 6], 0, 8) == [ScoreRequest((0,), (5, 6))]


def test_a_fingerprint_differs_with_any_part():
    base = fingerprint(a=1, b="x")
    assert base == fingerprint(b="x", a=1)
    assert len({base, fingerprint(a=2, b="x"), fingerprint(a=1, b="y"), fingerprint(a=1)}) == 4
    assert len(base) == 16
