"""The evaluator checks itself: what is sound passes, what is not is named."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon import golden, packing
from evalmon.errors import DataError, EvaluationError
from evalmon.evaluators.self_check import SelfCheck, tolerance_nats
from evalmon.scoring import Scorer
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    ForestScores,
    RunDescription,
    ScoreRequest,
    TokenForest,
)
from tests.scoring_models import Twin, random_parameters
from trainer.architecture import Olmo3Config

LENGTH = 96


class Model:
    """Log-probabilities from a table: the last token decides, and the place of it a little."""

    dtype = "float32"
    stored_dtype = "float32"
    row_multiple = 1
    vocab_size = 97
    max_length = LENGTH

    def __init__(self) -> None:
        logits = np.random.default_rng(1).normal(0, 2, (self.vocab_size, self.vocab_size))
        self.table = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
        self.forests: list[TokenForest] = []

    def _row(self, text: Sequence[int]) -> NDArray[np.float32]:
        return self.table[text[-1]] - np.float32(0.01 * len(text))

    def load(self, parameters: Any) -> None:
        raise NotImplementedError

    def generate(self, prompts: Any, stop_ids: Any, max_new_tokens: Any) -> Any:
        raise NotImplementedError

    def extend(self, ids: Sequence[int], prefix: Any = None) -> tuple[int, ...]:
        return (*(prefix or ()), *ids)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        self.forests.append(forest)
        rows = np.stack(
            [self._row((*(prefix or ()), *forest.text_at(int(p)))) for p in forest.picks]
        )
        picked = np.take_along_axis(rows, forest.targets[:, None], axis=1)[:, 0]
        return ForestScores(picked, rows.argmax(axis=1).astype(np.int32))

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(ids), 10):
            stop = min(start + 10, len(ids))
            yield np.stack([self._row(ids[: place + 1]) for place in range(start, stop)])


@pytest.fixture
def check(make_run: Callable[..., RunDescription]) -> Callable[..., Evaluation]:
    run = make_run(vocab_size=97, sequence_length=LENGTH)
    checkpoint = CheckpointRef("run", 10, 640, run.path / "checkpoints/10")
    checkpoint.path.mkdir(parents=True)

    def evaluate(model: Any) -> Evaluation:
        return SelfCheck(run).evaluate(Scorer(model), checkpoint, run, "weights")

    return evaluate


def test_a_sound_model_passes_and_the_header_says_what_was_checked(check: Any):
    found = check(Model())
    scores = {score.metric: score for score in found.scores}
    assert set(scores) == {"self_check/max_difference_nats", "self_check/flipped_choices"}
    assert scores["self_check/max_difference_nats"].value < 2e-5
    assert scores["self_check/flipped_choices"].value == 0
    assert scores["self_check/flipped_choices"].items == 30
    header = found.header
    assert set(header["max_difference_nats"]) == {
        "plain forward", "batch size", "sharing", "long prompt", "common beginning",
    }  # fmt: skip
    assert (header["batch_size"], header["share_prefixes"]) == ([1, 3, 16], [False, True])
    assert (header["long_prompt_tokens"], header["dtype"]) == (LENGTH, "float32")
    assert header["golden"].startswith("not checked: no golden.npz")


def test_every_layout_is_really_computed_in_its_own_way(check: Any):
    model = Model()
    check(model)
    shapes = {forest.ids.shape[0] for forest in model.forests}
    assert {1, 3} <= shapes
    assert max(int((forest.ends[0] > 0).sum()) for forest in model.forests) > 100  # packed rows


class _BatchSensitive(Model):
    """Sees how many rows there are, as a mask of wrong width does."""

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        found = super().score(forest, prefix)
        return replace(found, logprobs=found.logprobs - np.float32(0.01 * (len(forest.ids) - 1)))


class _Packed(Model):
    """Lets a text see the one that was packed before it."""

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        found = super().score(forest, prefix)
        behind = (forest.picks % forest.ids.shape[1]) > forest.ends[0, 0]
        return replace(found, logprobs=found.logprobs - np.float32(0.5) * behind)


class _Forgetful(Model):
    """Forgets a beginning that was computed by itself."""

    def extend(self, ids: Sequence[int], prefix: Any = None) -> tuple[int, ...]:
        return ()


class _Short(Model):
    """Wrong where texts are longer than 70 tokens."""

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        found = super().score(forest, prefix)
        far = forest.positions.reshape(-1)[forest.picks] > 70
        return replace(found, logprobs=found.logprobs - np.float32(0.5) * far)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_BatchSensitive, r"step 10, batch size: request \d+ .* with batch_size 3 and share"),
        (_Packed, r"step 10, plain forward: request \d+ .* with batch_size 1 and share_prefixes f"),
        (_Forgetful, r"step 10, common beginning: .* with its beginning computed by itself"),
        (_Short, rf"long prompt: request 90 \({LENGTH - 1} tokens of context, 2 scored\)"),
    ],
)
def test_a_layout_that_changes_scores_is_named_with_both_values(
    check: Any, model: type[Model], message: str
):
    with pytest.raises(EvaluationError, match=message) as raised:
        check(model())
    assert "by the plain forward path; " in str(raised.value)
    assert "Do not use the scores of this checkpoint" in str(raised.value)


class _Coarse(Model):
    """Rounds what more than one row answers as bfloat16 does, and has near ties."""

    dtype = "bfloat16"

    def __init__(self) -> None:
        super().__init__()
        order = np.argsort(self.table, axis=1)
        rows = np.arange(self.vocab_size)
        self.table[rows, order[:, -2]] = self.table[rows, order[:, -1]] - np.float32(0.001)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        found = super().score(forest, prefix)
        if len(forest.ids) == 1:
            return found
        jitter = 0.01 * np.random.default_rng(0).standard_normal(len(found.logprobs))
        return replace(found, logprobs=(found.logprobs + jitter).astype(np.float32))


def test_in_bfloat16_flips_are_counted_and_larger_differences_tolerated(check: Any):
    found = check(_Coarse())
    flips = next(s for s in found.scores if s.metric == "self_check/flipped_choices")
    assert 0 < flips.value < flips.items
    assert found.header["flipped_choices"] == flips.value
    assert found.header["dtype"] == "bfloat16"
    assert tolerance_nats("float32", 10) == 5e-5 + 5e-6 * 10
    assert tolerance_nats("bfloat16", 10) == 0.25 + 0.02 * 10


def test_weights_that_are_not_finite_are_named(check: Any):
    model = Model()
    model.table[:, :] = np.nan
    with pytest.raises(EvaluationError, match="after place 0 of a text are not finite"):
        check(model)


def test_a_short_model_is_checked_as_far_as_it_reads(check: Any):
    model = Model()
    model.max_length = 4
    found = check(model)
    assert found.header["long_prompt_tokens"] == 0
    assert found.header["compared"] > 0


def golden_file(place: Path, weights: str = "weights", off: float = 0.0) -> None:
    made = golden.take(Model(), [5, 6, 7, 8], [0, 50, 96], weights)
    golden.save(place / golden.GOLDEN_NAME, replace(made, logprobs=made.logprobs + np.float32(off)))


def test_the_golden_slice_of_these_weights_is_held_against_the_model(check: Any, tmp_path: Path):
    golden_file(tmp_path / "run")
    found = check(Model())
    assert found.header["golden"].startswith("checked 12 log-probabilities of ")
    assert [s.value for s in found.scores if s.metric.endswith("golden_difference_nats")] == [0.0]


def test_a_model_that_left_its_golden_slice_is_named_with_both_values(check: Any, tmp_path: Path):
    golden_file(tmp_path / "run/checkpoints/10", off=0.001)
    with pytest.raises(EvaluationError, match=r"log-probability of token \d+ after place \d+ is "):
        check(Model())


def test_a_golden_slice_of_other_weights_is_not_checked_and_said_so(check: Any, tmp_path: Path):
    golden_file(tmp_path / "run", weights="others")
    assert "was made for weights others" in check(Model()).header["golden"]


def test_a_checkpoints_own_slice_for_other_weights_means_it_was_replaced(
    check: Any, tmp_path: Path
):
    golden_file(tmp_path / "run/checkpoints/10", weights="others")
    with pytest.raises(EvaluationError, match="made for weights others, the checkpoint holds"):
        check(Model())


def test_a_golden_slice_that_is_torn_is_no_breach(check: Any, tmp_path: Path):
    (tmp_path / "run/checkpoints/10/golden.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="no golden slice"):
        check(Model())


def test_a_new_golden_slice_is_another_version(make_run: Any, tmp_path: Path):
    run = make_run()
    before = SelfCheck(run).version
    golden_file(tmp_path / "run")
    assert SelfCheck(run).version != before


# With a real model: sliding windows of 16, texts of up to 80 tokens.


@pytest.fixture(scope="module")
def twin() -> Twin:
    config = Olmo3Config(
        vocab_size=64, width=32, layers=4, heads=2, kv_heads=1, head_dim=16, ffn=64, window=16
    )
    return Twin(config, random_parameters(config), Path("none"), 0, 80)


@pytest.mark.slow
def test_the_trainers_model_passes_in_float32(twin: Twin, tmp_path: Path):
    run, model = twin.run(tmp_path), twin.ours(tmp_path)
    place = CheckpointRef("twin", 5, 50, tmp_path / "checkpoints/5")
    found = SelfCheck(run).evaluate(Scorer(model), place, run, "w")
    assert max(found.header["max_difference_nats"].values()) < 2e-5
    assert found.header["long_prompt_tokens"] == 80


@pytest.mark.slow
def test_neither_batch_size_nor_packing_nor_padding_changes_a_score(twin: Twin, tmp_path: Path):
    model = twin.ours(tmp_path)
    rng = np.random.default_rng(3)
    requests = [
        ScoreRequest(tuple(rng.integers(1, 64, n).tolist()), tuple(rng.integers(1, 64, 2).tolist()))
        for n in (*range(1, 9), 3, 5, 2)
    ]
    alone = [Scorer(model).score([item])[0] for item in requests]
    for batch_size in (1, 3, 4, 8):
        for share in (False, True):
            together = Scorer(model, batch_size, share).score(requests)
            for one, other in zip(alone, together, strict=True):
                assert np.abs(one.logprobs - other.logprobs).max() <= 1e-5
                assert one.greedy == other.greedy
    made = packing.plan(requests, batch_rows=1)
    (batch,) = made.batches(made.root)
    ids = batch.forest.ids.copy()
    ids[0, batch.forest.tokens :] = 63
    padded = replace(batch.forest, ids=ids)
    first, second = model.score(batch.forest), model.score(padded)
    assert np.array_equal(first.logprobs, second.logprobs)
