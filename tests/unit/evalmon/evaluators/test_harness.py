"""The seam to lm-eval: where tokens are cut, what comes before them, which items there are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, models

from evalmon.errors import EvaluationError
from evalmon.evaluators.harness import HarnessModel
from evalmon.evaluators.tokenizer import RunTokenizer
from evalmon.types import RunDescription, ScoreRequest


def item(context: str, continuation: str) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), 0, metadata=("toy", 7, 1))


@pytest.fixture
def adapter(run: RunDescription, model: Any) -> HarnessModel:
    adapter = HarnessModel(RunTokenizer(run), run.eos_id)
    adapter.use(model)
    return adapter


@pytest.fixture
def toy(make_run: Callable[..., RunDescription], model: Any, tmp_path: Path) -> HarnessModel:
    """An adapter whose tokenizer has the pieces <eos>, a, b, c and ab."""
    vocabulary = {"<eos>": 0, "a": 1, "b": 2, "c": 3, "ab": 4}
    Tokenizer(models.BPE(vocabulary, [("a", "b")])).save(str(tmp_path / "toy.json"))
    adapter = HarnessModel(RunTokenizer(make_run(tokenizer=str(tmp_path / "toy.json"))), 0)
    adapter.use(model)
    return adapter


def test_a_token_across_the_join_leaves_the_continuation_its_own_tokens(toy: HarnessModel):
    assert toy.pairs.encode("ca", "b") == ((3, 1), (2,))
    assert toy.pairs.boundary_merges == 1
    ((value, _),) = toy.loglikelihood([item("ca", "b")])
    assert value == pytest.approx(float(toy.model.table[1, 2]))  # pyright: ignore[reportAttributeAccessIssue]


def test_pairs_without_such_a_token_are_not_counted(toy: HarnessModel):
    assert toy.pairs.encode("ac", "ab") == ((1, 3), (4,))
    assert toy.pairs.boundary_merges == 0


def test_an_empty_continuation_is_refused_with_task_and_item(toy: HarnessModel):
    with pytest.raises(EvaluationError, match=r"task toy, item 7: .* have 2 and 0 tokens"):
        toy.loglikelihood([item("ca", "")])


def test_a_space_at_the_end_of_the_context_belongs_to_the_continuation(adapter: HarnessModel):
    first = adapter.pairs.encode("Q: the fox? A: ", "dog")
    second = adapter.pairs.encode("Q: the fox? A:", " dog")
    assert first == second
    pair = adapter.loglikelihood([item("Q: the fox? A: ", "dog"), item("Q: the fox? A:", " dog")])
    assert pair[0] == pair[1]


@pytest.mark.parametrize("end", ["  ", "\n", " \n "])
def test_all_white_space_at_the_end_moves(adapter: HarnessModel, end: str):
    context, continuation = adapter.pairs.encode(f"the fox{end}", "dog")
    assert context == tuple(adapter.tok_encode("the fox"))
    assert context + continuation == tuple(adapter.tok_encode(f"the fox{end}dog"))


def test_a_context_of_white_space_alone_is_an_empty_one(adapter: HarnessModel):
    assert adapter.pairs.encode("  ", "dog") == ((0,), tuple(adapter.tok_encode("  dog")))


def test_an_empty_context_is_one_prefix_token(adapter: HarnessModel):
    context, continuation = adapter.pairs.encode("", "the fox")
    assert context == (0,)
    assert continuation == tuple(adapter.tok_encode("the fox"))


def test_a_prefix_already_in_the_text_is_not_doubled(adapter: HarnessModel):
    context, continuation = adapter.pairs.encode("", "<|endoftext|>the fox")
    assert context == (0,)
    assert continuation == tuple(adapter.tok_encode("the fox"))
    with pytest.raises(EvaluationError, match="1 and 0 tokens"):
        adapter.pairs.encode("", "<|endoftext|>")


def test_a_context_that_does_not_fit_is_cut_from_the_left(adapter: HarnessModel, model: Any):
    context = "the quick brown fox jumps over a lazy dog while two small birds"
    adapter.loglikelihood([item(context, " sing")])
    whole = tuple(adapter.tok_encode(f"{context} sing"))
    (asked,) = model.asked
    assert asked.context + asked.continuation == whole[-model.max_length :]
    assert asked.continuation == adapter.pairs.encode(context, " sing")[1]


def test_a_continuation_that_does_not_fit_is_refused(adapter: HarnessModel):
    with pytest.raises(EvaluationError, match="task toy, item 7: the continuation has"):
        adapter.loglikelihood([item("a", " the quick brown fox jumps over a lazy dog" * 4)])


def test_a_document_is_scored_in_windows_after_one_prefix_token(adapter: HarnessModel, model: Any):
    text = "the quick brown fox jumps over a lazy dog " * 3
    request = Instance("loglikelihood_rolling", {}, (text,), 0, metadata=("toy", 0, 1))
    (value,) = adapter.loglikelihood_rolling([request])
    ids = adapter.tok_encode(text)
    expected = float(model.table[[0, *ids[:-1]], ids].astype("float64").sum())
    assert value == pytest.approx(expected)
    assert sum(len(asked.continuation) for asked in model.asked) == len(ids)


def test_generated_text_ends_before_the_stop_string(adapter: HarnessModel, model: Any):
    options = {"until": ["\n"], "max_gen_toks": 6}
    request = Instance("generate_until", {}, ("the fox", options), 0, metadata=("toy", 0, 1))
    (text,) = adapter.generate_until([request])
    (ids,) = model.generate([adapter.tok_encode("the fox")], [0], 6)
    assert text == RunTokenizer.decode(adapter._text, ids).split("\n")[0]  # pyright: ignore[reportPrivateUsage]
    sampled = {"do_sample": True}
    with pytest.raises(EvaluationError, match="sampled text"):
        adapter.generate_until([Instance("generate_until", {}, ("x", sampled), 0)])


def test_no_model_no_score(run: RunDescription):
    with pytest.raises(EvaluationError, match="no model"):
        HarnessModel(RunTokenizer(run), 0).loglikelihood([item("a", " b")])


def test_requests_reach_the_model_as_they_are_encoded(adapter: HarnessModel, model: Any):
    adapter.loglikelihood([item("the fox", " sing")])
    context, continuation = adapter.pairs.encode("the fox", " sing")
    assert model.asked == [ScoreRequest(context, continuation)]
