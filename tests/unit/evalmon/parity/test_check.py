"""From options to outcome, with a model and a reference whose predictions are known."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon.errors import CheckpointError, ConfigError, EvalmonError, EvaluationError
from evalmon.parity.check import ParityOptions, compare
from evalmon.parity.reference import Reference, ReferenceFacts, Rows
from evalmon.parity.result import MAX_KL, MEAN_KL, ParityResult, PromptFacts
from evalmon.parity.stored import Recorder, open_stored
from evalmon.types import ForestScores, TokenForest

V, WINDOW = 12, 4


def table(seed: int = 0, rows: int = V) -> NDArray[np.float32]:
    logits = np.random.default_rng(seed).normal(0, 2, (rows, V))
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


class TableModel:
    """Predicts from the current token alone, some positions at a time."""

    vocab_size, max_length, stored_dtype, row_multiple = V, 4, "float32", 1

    def __init__(self, values: NDArray[np.float32], part: int = 3, dtype: str = "float32") -> None:
        self.values, self.part, self.dtype = values, part, dtype
        self.lost = 0

    def load(self, parameters: Mapping[str, Any]) -> None: ...

    def extend(self, ids: Sequence[int], prefix: Any = None) -> Any:
        raise NotImplementedError

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        raise NotImplementedError

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        raise NotImplementedError

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(ids) - self.lost, self.part):
            yield self.values[list(ids[start : start + self.part])]


def reference(values: NDArray[np.float32]) -> Reference:
    def read(number: int, ids: list[int]) -> Rows:
        return lambda start, stop: (np.arange(start, stop), values[ids[start:stop]])

    facts = ReferenceFacts("hf", "huggingface", V, WINDOW, "float32", "c", {"transformers": "1"})
    return Reference(facts, read, weights_hash=lambda: "w")


TEXTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]
QUIET: list[str] = []


def check(model: TableModel, held_against: Reference | None = None, **options: Any) -> ParityResult:
    chosen = ParityOptions(Path("hf"), Path("w"), **options)
    texts = PromptFacts("random", [len(ids) for ids in TEXTS], 0)
    return compare(
        chosen, model, held_against or reference(table()), (TEXTS, texts), QUIET.append
    )  # fmt: skip


def test_equal_predictions_pass_and_every_position_counts():
    result = check(TableModel(table()))
    assert result.passed
    assert (result.divergence.positions, result.divergence.max_kl) == (10, 0.0)
    assert (result.criterion, result.threshold) == (MAX_KL, 1e-6)


@pytest.mark.parametrize("part", [1, 2, 5, 100])
def test_the_parts_a_model_answers_in_change_nothing(part: int):
    values = table()
    values[5] = table(1)[5]
    result = check(TableModel(values, part))
    assert not result.passed
    assert (result.divergence.worst.prompt, result.divergence.worst.position) == (0, 4)
    p, q = table()[5].astype(float), values[5].astype(float)
    assert result.divergence.max_kl == pytest.approx((np.exp(p) * (p - q)).sum(), rel=1e-5)


def test_bfloat16_is_judged_by_its_mean():
    result = check(TableModel(table(), dtype="bfloat16"))
    assert (result.criterion, result.threshold) == (MEAN_KL, 1.5e-3)
    assert check(TableModel(table(), dtype="bfloat16"), max_kl=0.5).criterion == MAX_KL
    assert check(TableModel(table()), mean_kl=0.5).threshold == 0.5


def test_weights_that_are_not_numbers_fail():
    values = table()
    values[9, 0] = np.nan
    result = check(TableModel(values), max_kl=1e9)
    assert not result.passed
    assert result.divergence.nonfinite == {"reference": 0, "model": 1}
    assert (result.divergence.worst.prompt, result.divergence.worst.position) == (1, 1)


def test_a_model_that_leaves_positions_out_is_an_error():
    model = TableModel(table())
    model.lost = 3
    with pytest.raises(EvaluationError, match="prompt 0: the model gave 6 predictions for 7"):
        check(model)


def test_more_likeliest_tokens_than_there_are_is_an_error():
    with pytest.raises(ConfigError, match="--top-k 13: more than the 12 entries"):
        check(TableModel(table()), top_k=13)


def test_a_reference_is_stored_and_read_again_with_the_same_outcome(tmp_path: Path):
    file = tmp_path / "golden.npz"
    values = table()
    values[2] = table(1)[2]
    first = check(TableModel(values), save_reference=file)
    assert first.saved == {"path": str(file), "positions": 10, "of_positions": 10}
    again = check(TableModel(values), open_stored(file))
    assert again.divergence == first.divergence
    assert again.reference.weights_hash == "w"
    assert again.record()["reference"]["stored_in"] == str(file)


def test_a_sample_of_positions_is_compared_where_it_belongs(tmp_path: Path):
    recorder = Recorder(tmp_path / "golden.npz", TEXTS, V, budget_bytes=4 * V * 4)
    for number, ids in enumerate(TEXTS):
        recorder.add(number, np.arange(len(ids)), table()[ids])
    recorder.save(reference(table()).facts, "w", "2")
    sampled = open_stored(tmp_path / "golden.npz")
    assert check(TableModel(table()), sampled).divergence.positions == 4
    at = {
        ids[position]
        for number, ids in enumerate(TEXTS)
        for position in sampled.read(number, ids)(0, len(ids))[0]
    }
    assert len(at) == 4
    for token in range(1, 11):
        values = table()
        values[token] = table(1)[token]
        assert check(TableModel(values), sampled).passed == (token not in at)


def test_a_reference_that_is_not_finite_is_not_stored(tmp_path: Path):
    values = table()
    values[3] = np.nan
    with pytest.raises(CheckpointError, match="hf: its log-probabilities are not finite"):
        check(TableModel(table()), reference(values), save_reference=tmp_path / "golden.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_kl": 1.0, "mean_kl": 1.0}, "--max-kl and --mean-kl: one of them"),
        ({"max_kl": -1.0}, "--max-kl -1.0: must be a number of at least 0"),
        ({"mean_kl": float("nan")}, "--mean-kl nan: must be"),
        ({"dtype": "float16"}, "--dtype 'float16': expected one of float32, bfloat16"),
        ({"top_k": 0}, "--top-k 0: must be at least 1"),
        ({"length": 0}, "--length 0"),
        ({"count": -1}, "--count -1"),
        ({"seed": -1}, "--seed -1"),
        ({"length": 10**12}, "--count 2 x --length 1000000000000: .* at most"),
        ({"count": 10**12}, "--count 1000000000000 x --length 1: .* at most"),
        ({"prompts": Path("p"), "seed": 0}, "--seed is for random prompts"),
        ({"prompts": Path("p"), "count": 3}, "--count is for random prompts"),
        ({"reference": Path("/absent")}, "/absent: no such folder or file"),
        ({"reference": Path(__file__), "prompts": Path("p")}, "--prompts: a stored reference has"),
        ({"reference": Path(__file__), "length": 8}, "--length: a stored reference has"),
        ({"reference": Path(__file__), "save_reference": Path("p")}, "--save-reference: a stored"),
    ],
)
def test_options_without_meaning_are_refused(tmp_path: Path, options: dict[str, Any], says: str):
    paths: dict[str, Any] = {"reference": tmp_path, "model": tmp_path}
    paths = {name: path for name, path in paths.items() if name not in options}
    with pytest.raises(EvalmonError, match=says) as caught:
        ParityOptions(**paths, **options).require_valid()
    assert caught.value.exit_code == 2
    ParityOptions(tmp_path, tmp_path, seed=0, length=1, count=1, max_kl=0.0).require_valid()
