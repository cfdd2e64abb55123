"""lm-eval over two real processes gives what one gives: nothing lost, nothing counted twice."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from evalmon.scoring import Scorer
from evalmon.tokenizer import TextTokenizer
from evalmon.types import ForestScores, TokenForest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

WORDS = "the quick brown fox jumps over a lazy dog while two small birds sing of science"


class Bigram:
    """Log-probabilities from a fixed table: token t after token c, whatever came before."""

    dtype = stored_dtype = "float32"
    row_multiple = 1
    vocab_size = 300
    max_length = 16

    def __init__(self) -> None:
        logits = np.random.default_rng(0).normal(0, 2, (300, 300))
        self.table = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)

    def load(self, parameters: Mapping[str, Any]) -> None: ...

    def extend(self, ids: Sequence[int], prefix: Any = None) -> Any: ...

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        last = forest.ids.ravel()[forest.picks]
        return ForestScores(self.table[last, forest.targets], self.table[last].argmax(axis=1))

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]: ...

    def log_probabilities(self, ids: Sequence[int]) -> Any: ...


class Gloo:
    """Processes of torch's own."""

    def __init__(self, rank: int, count: int, place: Path) -> None:
        import torch.distributed as dist

        self.rank, self.count = rank, count
        dist.init_process_group("gloo", init_method=place.as_uri(), rank=rank, world_size=count)

    def exchange(self, part: bytes) -> list[bytes]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, part)
        return found


def rows() -> list[dict[str, Any]]:
    """Seven questions of two or three choices, and as many texts of unequal length."""
    words = WORDS.split()
    return [
        {
            "question": f"Q: {' '.join(words[n : n + 3 + 2 * n])}? A:",
            "choices": [" fox", " birds sing", " dog"][: 2 + n % 2],
            "gold": n % 2,
            "text": " ".join(words * (1 + 3 * (n % 3))),
        }
        for n in range(7)
    ]


def work(folder: str, rank: int, count: int) -> None:
    """Score both tasks and write the results down."""
    import datasets

    from evalmon.evaluators import harness
    from evalmon.evaluators.harness_model import ONE_PROCESS, HarnessModel
    from evalmon.evaluators.harness_tasks import FixedTask

    place = Path(folder)
    processes = ONE_PROCESS if count == 1 else Gloo(rank, count, place / "meeting")
    ours = HarnessModel(TextTokenizer(place / "tokenizer.json"), 0, processes=processes)
    ours.use(Scorer(Bigram()))
    shared: dict[str, Any] = {
        "custom_dataset": lambda **_: {"validation": datasets.Dataset.from_list(rows())},
        "validation_split": "validation",
        "num_fewshot": 0,
    }
    choice = {
        "task": "choices", "output_type": "multiple_choice", "doc_to_text": "question",
        "doc_to_target": "gold", "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }  # fmt: skip
    text = {
        "task": "texts", "output_type": "loglikelihood_rolling", "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    }  # fmt: skip
    found: dict[str, Any] = {}
    for config in (choice, text):
        scored = harness.run(ours, FixedTask({**shared, **config}), None)
        name = str(config["task"])
        found[name] = scored.results["results"][name], scored.results["n-samples"][name]
        found[f"{name} samples"] = [
            [sample["doc_id"], sample["filtered_resps"]] for sample in scored.samples
        ]
    (place / f"{count}-{rank}.json").write_text(json.dumps(found))


def started(folder: Path, count: int) -> list[dict[str, Any]]:
    """Let so many processes score, and return what each found."""
    running = [
        subprocess.Popen([sys.executable, __file__, str(folder), str(rank), str(count)])
        for rank in range(count)
    ]
    try:
        assert [process.wait(120) for process in running] == [0] * count
    finally:
        for process in running:
            process.kill()
    return [json.loads((folder / f"{count}-{rank}.json").read_text()) for rank in range(count)]


def test_two_processes_give_what_one_gives(tmp_path: Path):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    made.train_from_iterator([WORDS] * 4, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    work(str(tmp_path), 0, 1)
    alone = json.loads((tmp_path / "1-0.json").read_text())
    first, second = started(tmp_path, 2)
    assert first == second
    assert [len(alone[f"{name} samples"]) for name in ("choices", "texts")] == [7, 7]
    assert first["choices samples"] == alone["choices samples"]
    for (mine, answers), (theirs, expected) in zip(
        first["texts samples"], alone["texts samples"], strict=True
    ):
        assert mine == theirs
        np.testing.assert_allclose(answers, expected, rtol=1e-12)
    for name in ("choices", "texts"):
        (results, counts), (expected, total) = first[name], alone[name]
        assert counts["effective"] == total["effective"] == 7
        for metric, value in expected.items():
            if isinstance(value, float):
                assert results[metric] == pytest.approx(value, rel=1e-12), metric


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
