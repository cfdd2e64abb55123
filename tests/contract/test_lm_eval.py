"""Agreement with lm-eval's own Hugging Face class: same token ids, same log-probabilities."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval import utils
from lm_eval.api.instance import Instance
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from evalmon.evaluators import harness
from evalmon.evaluators.tokenizer import RunTokenizer
from evalmon.models import LanguageModel
from evalmon.package_data import TASK_FILES, passages
from evalmon.scoring import rolling_windows
from evalmon.types import RunDescription, ScoreRequest, TokenScores

EOS = "<|endoftext|>"
MAX_LENGTH = 96
ITEMS = 4


class TorchModel:
    """A transformers model as an evalmon LanguageModel, one request at a time."""

    dtype = "float32"
    stored_dtype = "float32"

    def __init__(self, model: Any, max_length: int) -> None:
        self.vocab_size = int(model.config.vocab_size)
        self.max_length = max_length
        self._model = model

    def load(self, parameters: Mapping[str, Any]) -> None: ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
        return [self._one(item) for item in requests]

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        found: list[list[int]] = []
        for prompt in prompts:
            text = list(prompt)
            while len(text) - len(prompt) < max_new_tokens and text[-1] not in stop_ids:
                text.append(int(self._logprobs(text)[-1].argmax()))
            found.append(text[len(prompt) :])
        return found

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        yield self._logprobs(ids)

    def _one(self, item: ScoreRequest) -> TokenScores:
        rows = self._logprobs([*item.context, *item.continuation[:-1]])[len(item.context) - 1 :]
        targets = np.array(item.continuation)
        return TokenScores(
            rows[np.arange(len(targets)), targets], bool((rows.argmax(1) == targets).all())
        )

    def _logprobs(self, ids: Sequence[int]) -> Any:
        import torch

        with torch.no_grad():
            logits = self._model(torch.tensor([list(ids)])).logits[0]
            return torch.log_softmax(logits.float(), dim=-1).numpy()


@dataclass(frozen=True)
class Peers:
    """lm-eval's class and ours over one model."""

    theirs: Any
    ours: harness.HarnessModel
    tasks: dict[str, harness.FixedTask]
    texts: list[str]


@pytest.fixture(scope="module")
def peers(package_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Peers:
    """A random Llama of a few thousand weights, its tokenizer trained on some passages."""
    import torch
    from lm_eval.models.huggingface import HFLM
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [document.text for document in passages(package_root)][:60]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder = tmp_path_factory.mktemp("peers")
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)
    make: Any = HFLM  # its signature is hidden behind a registering decorator
    with harness.quiet():
        theirs = make(
            pretrained=model,
            tokenizer=fast,
            batch_size=8,
            # lm-eval counts input positions; the last token of a request is only predicted.
            max_length=MAX_LENGTH - 1,
            device="cpu",
        )
        tasks = {name: harness.load_task(name, 0, ITEMS, package_root) for name in TASK_FILES}
    run = RunDescription(
        name="peers", path=folder, adapter="torch", model={}, tokenizer="tokenizer.json",
        vocab_size=600, eos_id=0, sequence_length=MAX_LENGTH, batch_instances=1, planned_steps=1,
        planned_passes=1, source_instances=1, hosts=1, loader="batch_strided", seed=0,
        warmup_steps=0, recipe="", loss={}, data="",
    )  # fmt: skip
    ours = harness.HarnessModel(RunTokenizer(run), 0)
    ours.use(TorchModel(model, MAX_LENGTH))
    return Peers(theirs, ours, tasks, texts)


pytestmark = [
    pytest.mark.torch,
    pytest.mark.package,
    pytest.mark.slow,
    # accelerate announces its own clean-up; nothing of ours is deprecated.
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:accelerate.*"),
]


def all_requests(peers: Peers) -> list[Instance]:
    return [item for task in peers.tasks.values() for item in task.instances]


def test_the_wrapped_model_is_a_language_model(peers: Peers):
    assert isinstance(peers.ours.model, LanguageModel)


def test_log_probabilities_of_the_eight_tasks_agree(peers: Peers):
    requests = all_requests(peers)
    assert len(requests) == ITEMS * (4 + 4 + 2 + 4 + 4 + 2 + 4 + 2)
    with harness.quiet():
        theirs = peers.theirs.loglikelihood(requests, disable_tqdm=True)
    ours = peers.ours.loglikelihood(requests)
    np.testing.assert_allclose([a for a, _ in ours], [a for a, _ in theirs], atol=1e-4, rtol=0)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    long = [item for item in requests if len(peers.ours.tok_encode(item.args[0])) > MAX_LENGTH]
    assert long  # some contexts were cut from the left


def test_token_ids_of_the_eight_tasks_agree(peers: Peers):
    for item in all_requests(peers):
        context, continuation = peers.ours.pairs.encode(*item.args)
        assert (list(context), list(continuation)) == peers.theirs._encode_pair(*item.args)


def test_token_ids_of_random_pairs_agree(peers: Peers):
    random_ = random.Random(0)
    whole = "\n".join(peers.texts)
    compared = 0
    for _ in range(250):
        start = random_.randrange(len(whole) - 300)
        middle, end = start + random_.randrange(1, 150), start + random_.randrange(151, 300)
        context, continuation = whole[start:middle], whole[middle:end]
        if not context.strip():
            continue
        theirs = peers.theirs._encode_pair(context, continuation)
        if not theirs[1]:
            continue  # a token across the join: lm-eval's class stops there
        ours = peers.ours.pairs.encode(context, continuation)
        assert (list(ours[0]), list(ours[1])) == theirs
        compared += 1
    assert compared >= 200


def test_an_empty_context_agrees(peers: Peers):
    requests = [Instance("loglikelihood", {}, ("", text[:80]), 0) for text in peers.texts[:5]]
    theirs = peers.theirs.loglikelihood(requests, disable_tqdm=True)
    ours = peers.ours.loglikelihood(requests)
    np.testing.assert_allclose([a for a, _ in ours], [a for a, _ in theirs], atol=1e-4, rtol=0)


def test_log_probabilities_of_whole_documents_agree(peers: Peers):
    texts = [text[:900] for text in peers.texts[:8]] + ["a", peers.texts[9][:90]]
    requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    theirs = peers.theirs.loglikelihood_rolling(requests, disable_tqdm=True)
    ours = peers.ours.loglikelihood_rolling(requests)
    np.testing.assert_allclose(ours, theirs, atol=1e-3, rtol=1e-6)
    assert max(len(peers.ours.tok_encode(text)) for text in texts) > 2 * MAX_LENGTH


@pytest.mark.parametrize("length", [0, 1, 5, 94, 95, 96, 97, 190, 191, 500])
def test_windows_are_lm_evals(length: int):
    tokens = list(range(1, length + 1))
    theirs = [
        utils.make_disjoint_window(window)
        for window in utils.get_rolling_token_windows(tokens, 0, MAX_LENGTH - 1, 1)
    ]
    ours = rolling_windows(tokens, 0, MAX_LENGTH)
    assert [(list(window.context), list(window.continuation)) for window in ours] == theirs


def test_generated_text_agrees(peers: Peers):
    options = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (text[:60], dict(options)), n)
        for n, text in enumerate(peers.texts[:5])
    ]
    with harness.quiet():
        theirs = peers.theirs.generate_until(requests, disable_tqdm=True)
    assert peers.ours.generate_until(requests) == theirs
