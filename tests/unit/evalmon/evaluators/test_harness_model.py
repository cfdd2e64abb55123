"""The model as lm-eval sees it: what is cut, refused and generated, and several processes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance

from evalmon.errors import DataError, EvaluationError
from evalmon.evaluators import harness
from evalmon.evaluators.harness_model import HarnessModel, OneProcess
from evalmon.scoring import Scorer
from evalmon.tokenizer import TextTokenizer
from evalmon.types import RunDescription

LONG = "the quick brown fox jumps over a lazy dog while two small birds"


def item(context: str, continuation: str, doc_id: int = 7) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), 0, metadata=("toy", doc_id, 1))


def rolling(text: str) -> Instance:
    return Instance("loglikelihood_rolling", {}, (text,), 0, metadata=("toy", 7, 1))


def generation(context: str, **options: Any) -> Instance:
    return Instance("generate_until", {}, (context, options), 0, metadata=("toy", 7, 1))


@pytest.fixture
def adapter(run: RunDescription, model: Any) -> HarnessModel:
    adapter = HarnessModel(TextTokenizer.of_run(run), run.prefix_id)
    adapter.use(Scorer(model))
    return adapter


# Log-likelihood.


def test_a_sum_is_that_of_the_continuations_tokens(adapter: HarnessModel, model: Any):
    ((value, greedy),) = adapter.loglikelihood([item("the fox", " sing")])
    head, rest = adapter.pairs.encode("the fox", " sing")
    before = [head[-1], *rest[:-1]]
    assert value == pytest.approx(float(model.table[before, rest].astype(np.float64).sum()))
    assert greedy is bool((model.table[before].argmax(1) == rest).all())
    assert model.asked[-1] == head + rest


def test_a_space_belongs_to_the_continuation(adapter: HarnessModel):
    first, second = adapter.loglikelihood(
        [item("Q: the fox? A: ", "dog"), item("Q: the fox? A:", " dog")]
    )
    assert first == second


@pytest.mark.parametrize("tokens", [15, 16, 17, 18])
def test_a_context_is_cut_from_the_left_to_what_the_model_reads(
    adapter: HarnessModel, model: Any, tokens: int
):
    words = "the fox"
    while len(adapter.tok_encode(f"{words} a")) < tokens:
        words += " a"
    adapter.loglikelihood([item(words, " a")])
    whole = tuple(adapter.tok_encode(f"{words} a"))
    assert len(whole) == tokens
    # 16 tokens are read, and one more is predicted.
    assert model.asked[-1] == whole[-17:]
    assert adapter.cut == ((1, 1) if tokens == 18 else (0, 0))


def test_contexts_that_were_cut_are_counted_once_each(adapter: HarnessModel):
    long, longer = (item("the fox" + " a" * n, " a") for n in (30, 31))
    adapter.loglikelihood([long, long, longer, item("the fox", " a")])
    contexts, tokens = adapter.cut
    lost = [len(adapter.tok_encode(request.args[0])) - 16 for request in (long, longer)]
    assert (contexts, tokens) == (2, sum(lost))


def test_a_continuation_fills_the_window_with_one_token_of_context(
    adapter: HarnessModel, model: Any
):
    adapter.loglikelihood([item("the fox", " a" * 16)])
    assert model.asked[-1] == tuple(adapter.tok_encode("the fox" + " a" * 16))[-17:]
    with pytest.raises(EvaluationError, match=r"task toy, item 7: the continuation has 17 tokens"):
        adapter.loglikelihood([item("the fox", " a" * 17)])


def test_an_empty_continuation_is_refused_with_task_and_item_before_any_is_scored(
    adapter: HarnessModel, model: Any
):
    with pytest.raises(EvaluationError, match=r"task toy, item 9: the continuation '' of .*fox"):
        adapter.loglikelihood([item("a", " b"), item("the fox", "", 9)])
    assert model.asked == []


def test_ids_that_lm_eval_gives_are_cut_alike(adapter: HarnessModel, model: Any):
    ids = list(range(1, 30))
    answers = adapter._loglikelihood_tokens([(("", ""), ids[:25], ids[25:])])  # pyright: ignore[reportPrivateUsage]
    assert model.asked[-1] == tuple(ids[-17:])
    assert len(answers) == 1


# Whole documents, and exactly one prefix token (fault F17).


@pytest.mark.parametrize("changes", [{}, {"eos_id": 5, "bos_id": 7}])
def test_a_document_is_scored_after_one_prefix_token(
    make_run: Callable[..., RunDescription], model: Any, changes: dict[str, Any]
):
    run = make_run(**changes)
    adapter = HarnessModel(TextTokenizer.of_run(run), run.prefix_id, bos=run.bos_id, eos=run.eos_id)
    adapter.use(Scorer(model))
    (value,) = adapter.loglikelihood_rolling([rolling(LONG)])
    ids = adapter.tok_encode(LONG)
    prefix = changes.get("bos_id", 0)
    expected = model.table[[prefix, *ids[:-1]], ids].astype("float64").sum()
    assert value == pytest.approx(float(expected))
    assert (adapter.prefix_token_id, adapter.eot_token_id) == (prefix, changes.get("eos_id", 0))
    (first, _) = adapter.loglikelihood([item("", " sing")])[0]
    sing = adapter.tok_encode(" sing")
    expected = model.table[[prefix, *sing[:-1]], sing].astype("float64").sum()
    assert first == pytest.approx(float(expected))


def test_an_empty_document_has_nothing_to_score(adapter: HarnessModel):
    assert adapter.loglikelihood_rolling([rolling("")]) == [0]


# Greedy text.


def test_generated_text_ends_before_the_first_stop_string(adapter: HarnessModel, model: Any):
    (whole,) = adapter.generate_until([generation("the fox", max_gen_toks=6)])
    (ids,) = model.generate([adapter.tok_encode("the fox")], [0], 6)
    text = TextTokenizer.decode(adapter._text, ids)  # pyright: ignore[reportPrivateUsage]
    assert whole == text.split("<|endoftext|>")[0]
    stop = whole[2:4]
    for until in (stop, [stop], ["never there", stop]):
        (found,) = adapter.generate_until([generation("the fox", max_gen_toks=6, until=until)])
        assert found == whole.split(stop)[0]


def test_long_text_is_generated_in_rounds_with_the_same_end(
    make_run: Callable[..., RunDescription], model: Any
):
    model.max_length = 80
    adapter = HarnessModel(TextTokenizer.of_run(make_run()), 0, eos=319)
    adapter.use(Scorer(model))
    prompts = ["the fox", "two small birds", ""]
    found = adapter.generate_until([generation(text, max_gen_toks=40) for text in prompts])
    for text, made in zip(prompts, found, strict=True):
        (ids,) = model.generate([adapter.tok_encode(text) or [0]], [319], 40)
        expected = adapter._text.decode(ids, skip_special=True)  # pyright: ignore[reportPrivateUsage]
        assert made == expected


def test_a_prompt_is_cut_to_leave_room_for_what_is_generated(adapter: HarnessModel, model: Any):
    asked: list[list[int]] = []
    plain = model.generate
    model.generate = lambda prompts, *rest: asked.extend(prompts) or plain(prompts, *rest)
    adapter.generate_until([generation(LONG, max_gen_toks=6)])
    assert asked == [adapter.tok_encode(LONG)[-10:]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"do_sample": True}, "sampled text"),
        ({"temperature": 0.7}, "sampled text"),
        ({"max_gen_toks": 16}, "max_gen_toks is 16, but the model reads 16"),
        ({}, "max_gen_toks is 256"),
        ({"max_gen_toks": 4, "num_beams": 3}, "'num_beams' is not greedy"),
        ({"max_gen_toks": 4, "max_length": 9}, "give lengths as max_gen_toks"),
    ],
)
def test_what_is_not_greedy_or_leaves_no_prompt_is_refused(
    adapter: HarnessModel, options: dict[str, Any], says: str
):
    with pytest.raises(EvaluationError, match=f"task toy, item 7: .*{says}"):
        adapter.generate_until([generation("the fox", **options)])


# What does not fit.


def test_without_a_model_nothing_is_scored(run: RunDescription):
    with pytest.raises(EvaluationError, match="no model"):
        HarnessModel(TextTokenizer.of_run(run), 0).loglikelihood([item("a", " b")])


def test_a_tokenizer_or_prefix_that_does_not_fit_is_refused_before_compute(
    run: RunDescription, model: Any
):
    text = TextTokenizer.of_run(run)
    with pytest.raises(EvaluationError, match=r"prefix token 320 .* outside .* of 320"):
        HarnessModel(text, 320).use(Scorer(model))
    model.vocab_size = text.vocab_size - 1
    with pytest.raises(DataError, match="but the model has"):
        HarnessModel(text, 0).use(Scorer(model))


# Several processes: each scores its share, nothing is lost or counted twice.


class Threads:
    """Processes of one test, as threads that wait for one another."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.parts: list[bytes] = [b""] * count
        self.barrier = threading.Barrier(count, timeout=20)

    def member(self, rank: int) -> Any:
        shared = self

        class Member:
            count = shared.count

            def __init__(self) -> None:
                self.rank = rank

            def exchange(self, part: bytes) -> list[bytes]:
                shared.parts[rank] = part
                shared.barrier.wait()
                found = list(shared.parts)
                shared.barrier.wait()
                return found

        return Member()


def together(
    count: int, run: RunDescription, model: Any, work: Callable[[HarnessModel], Any]
) -> list[Any]:
    """Let ``count`` processes do the same with a model each."""
    threads = Threads(count)

    def one(rank: int) -> Any:
        adapter = HarnessModel(
            TextTokenizer.of_run(run), run.prefix_id, processes=threads.member(rank)
        )
        adapter.use(Scorer(type(model)(model.vocab_size, model.max_length)))
        return work(adapter)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_windows_of_unequal_shares_give_what_one_process_gives(
    run: RunDescription, model: Any, adapter: HarnessModel
):
    texts = [LONG, "the fox", LONG * 3, "", "two birds"]
    shares = together(
        2, run, model, lambda a: a.loglikelihood_rolling([rolling(t) for t in texts[a.rank :: 2]])
    )
    found = [shares[n % 2][n // 2] for n in range(len(texts))]
    assert found == pytest.approx(adapter.loglikelihood_rolling([rolling(t) for t in texts]))


def test_a_process_without_windows_pads_nothing(run: RunDescription, model: Any):
    shares = together(
        2, run, model, lambda a: a.loglikelihood_rolling([rolling(LONG if a.rank else "")])
    )
    assert shares[0] == [0]
    assert shares[1][0] < 0


def test_objects_are_gathered_in_one_process_and_shared_with_all(run: RunDescription, model: Any):
    def work(a: HarnessModel) -> Any:
        a.barrier()
        return a.gather_object({"rank": a.rank}, dst=1), a.shared(f"from {a.rank}")

    assert together(3, run, model, work) == [
        (None, "from 0"),
        ([{"rank": 0}, {"rank": 1}, {"rank": 2}], "from 0"),
        (None, "from 0"),
    ]


def test_processes_out_of_step_are_told(run: RunDescription, model: Any):
    def work(a: HarnessModel) -> str:
        with pytest.raises(EvaluationError, match="out of step") as raised:
            a.gather_object(1) if a.rank else a.barrier()
        return str(raised.value)

    assert all("an item for each" in text for text in together(2, run, model, work))


def test_a_task_needs_an_item_for_each_process(run: RunDescription):
    adapter = HarnessModel(TextTokenizer.of_run(run), 0, processes=Threads(3).member(0))
    for items, limit in (([0, 1], None), (list(range(9)), 2)):
        task: Any = SimpleNamespace(task_name="toy", eval_docs=items)
        with pytest.raises(EvaluationError, match="task toy: 2 items for 3 processes"):
            harness.run(adapter, task, limit)


def test_one_process_asks_nobody(adapter: HarnessModel):
    assert (adapter.rank, adapter.world_size) == (0, 1)
    assert adapter.gather_object(3) == [3]
    assert adapter.shared(4) == 4
    assert OneProcess().exchange(b"x") == [b"x"]
