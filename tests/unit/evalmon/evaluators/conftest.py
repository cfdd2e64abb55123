"""A run with a small tokenizer, and a language model whose answers are known in closed form."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from evalmon.types import CheckpointRef, ForestScores, RunDescription, TokenForest

EOS = "<|endoftext|>"
WORDS = "the quick brown fox jumps over a lazy dog while two small birds sing of science"


class BigramModel:
    """Log-probabilities from a fixed table: token t after token c, whatever came before."""

    dtype = "float32"
    stored_dtype = "float32"
    row_multiple = 1

    def __init__(self, vocab_size: int, max_length: int) -> None:
        self.vocab_size = vocab_size
        self.max_length = max_length
        logits = np.random.default_rng(0).normal(0, 2, (vocab_size, vocab_size))
        self.table = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
        self.known: dict[tuple[int, ...], float] = {}
        self.asked: list[tuple[int, ...]] = []

    def load(self, parameters: Mapping[str, Any]) -> None:
        self.table = np.asarray(parameters["table"], np.float32)

    def extend(self, ids: Sequence[int], prefix: Any = None) -> Any:
        return (*(prefix or ()), *ids)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        texts = [(*(prefix or ()), *forest.text_at(int(place))) for place in forest.picks]
        last = [text[-1] for text in texts]
        whole = [(*text, int(to)) for text, to in zip(texts, forest.targets, strict=True)]
        self.asked += whole
        bonus = [self._bonus(text) for text in whole]
        logprobs = self.table[last, forest.targets] + np.array(bonus, np.float32)
        return ForestScores(logprobs.astype(np.float32), self.table[last].argmax(axis=1))

    def _bonus(self, text: tuple[int, ...]) -> float:
        """Return what learning texts by heart adds to each of their tokens."""
        return next((b for known, b in self.known.items() if known[: len(text)] == text), 0.0)

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        found: list[list[int]] = []
        for prompt in prompts:
            text = list(prompt)
            for _ in range(max_new_tokens):
                text.append(int(self.table[text[-1]].argmax()))
                if text[-1] in stop_ids:
                    break
            found.append(text[len(prompt) :])
        return found

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        yield self.table[list(ids)]


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 300 tokens whose id 0 ends documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def make_run(tmp_path: Path, tokenizer_file: Path) -> Callable[..., RunDescription]:
    """Return a maker of run descriptions; keyword arguments replace fields."""

    def make(**changes: Any) -> RunDescription:
        fields: dict[str, Any] = {
            "name": "run", "path": tmp_path / "run", "adapter": "bigram", "model": {},
            "tokenizer": str(tokenizer_file), "vocab_size": 320, "eos_id": 0,
            "sequence_length": 16, "batch_instances": 4, "planned_steps": 100,
            "planned_passes": 1, "source_instances": 400, "hosts": 2, "loader": "batch_strided",
            "seed": 0, "warmup_steps": 1, "recipe": "r", "loss": {}, "data": "data",
        }  # fmt: skip
        run = RunDescription(**{**fields, **changes})
        run.path.mkdir(exist_ok=True)
        return run

    return make


@pytest.fixture
def run(make_run: Callable[..., RunDescription]) -> RunDescription:
    return make_run()


@pytest.fixture
def model() -> BigramModel:
    return BigramModel(vocab_size=320, max_length=16)


@pytest.fixture
def checkpoint(run: RunDescription) -> CheckpointRef:
    return CheckpointRef("run", 10, 640, run.path / "checkpoints/10")
