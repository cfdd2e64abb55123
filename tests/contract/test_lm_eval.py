"""Agreement with lm-eval's own Hugging Face class: same token ids, same log-probabilities."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval import utils
from lm_eval.api.instance import Instance
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from evalmon.evaluators import harness, harness_tasks
from evalmon.evaluators.harness_model import HarnessModel
from evalmon.evaluators.harness_tasks import FixedTask
from evalmon.evaluators.suites import TaskChoice
from evalmon.models import LanguageModel
from evalmon.package_data import TASK_FILES, passages
from evalmon.scoring import Scorer, rolling_windows
from evalmon.tokenizer import TextTokenizer
from evalmon.types import ForestScores, TokenForest

EOS, BOS = "<|endoftext|>", "<s>"
EOS_ID, BOS_ID = 0, 1
MAX_LENGTH = 96
ITEMS = 4


class TorchModel:
    """A transformers model as an evalmon LanguageModel, one text at a time."""

    dtype = "float32"
    stored_dtype = "float32"
    row_multiple = 1

    def __init__(self, model: Any, max_length: int) -> None:
        self.vocab_size = int(model.config.vocab_size)
        self.max_length = max_length
        self._model = model

    def load(self, parameters: Mapping[str, Any]) -> None: ...

    def extend(self, ids: Sequence[int], prefix: Any = None) -> Any:
        return (*(prefix or ()), *ids)

    def score(self, forest: TokenForest, prefix: Any = None) -> ForestScores:
        texts = [(*(prefix or ()), *forest.text_at(int(place))) for place in forest.picks]
        after: dict[tuple[int, ...], NDArray[np.float32]] = {}
        for text in sorted(set(texts), key=len, reverse=True):
            if text not in after:
                rows = self._logprobs(text)
                after |= {text[: n + 1]: row for n, row in enumerate(rows)}
        rows = np.stack([after[text] for text in texts])
        return ForestScores(
            rows[np.arange(len(rows)), forest.targets], rows.argmax(axis=1).astype(np.int32)
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
    ) -> list[list[int]]:
        found: list[list[int]] = []
        for prompt in prompts:
            text = list(prompt)
            while len(text) - len(prompt) < max_new_tokens:
                text.append(int(self._logprobs(text)[-1].argmax()))
                if text[-1] in stop_ids:
                    break
            found.append(text[len(prompt) :])
        return found

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        yield self._logprobs(ids)

    def _logprobs(self, ids: Sequence[int]) -> Any:
        import torch

        with torch.no_grad():
            logits = self._model(torch.tensor([list(ids)])).logits[0]
            return torch.log_softmax(logits.float(), dim=-1).numpy()


@dataclass(frozen=True)
class Pair:
    """lm-eval's class and ours over one model and one tokenizer."""

    theirs: Any
    ours: HarnessModel


@dataclass(frozen=True)
class Peers:
    """The pairs, and what they score.

    Attributes:
        plain: the tokenizer has no beginning of text.
        begun: it has one, and does not add it.
        adding: it has one, and adds it to every text.
    """

    plain: Pair
    begun: Pair
    adding: Pair
    tasks: dict[str, FixedTask]
    texts: list[str]


def train(texts: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of 600 tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[EOS, BOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def random_llama() -> Any:
    """A Llama of a few thousand weights that ends its texts now and then."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=EOS_ID, initializer_range=0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight[EOS_ID] *= 2.5
    return model


def pair(model: Any, tokenizer: Tokenizer, folder: Path, **tokens: str) -> Pair:
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    file = folder / f"{'-'.join(tokens)}{tokenizer.post_processor is None}.json"
    tokenizer.save(str(file))
    prefix = BOS_ID if "bos_token" in tokens else EOS_ID
    ours = HarnessModel(TextTokenizer(file), prefix, bos=prefix or None, eos=EOS_ID)
    ours.use(Scorer(TorchModel(model, MAX_LENGTH)))
    make: Any = HFLM  # its signature is hidden behind a registering decorator
    with harness.quiet():
        theirs = make(
            pretrained=model,
            tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens),
            batch_size=8,
            max_length=MAX_LENGTH,
            device="cpu",
        )
    return Pair(theirs, ours)


@pytest.fixture(scope="module")
def peers(package_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a model this small only waits for its threads
    folder = tmp_path_factory.mktemp("peers")
    texts = [document.text for document, _ in zip(passages(package_root), range(60), strict=False)]
    model, tokenizer = random_llama(), train(texts)
    plain = pair(model, tokenizer, folder, eos_token=EOS)
    begun = pair(model, tokenizer, folder, eos_token=EOS, bos_token=BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    adding = pair(model, tokenizer, folder, eos_token=EOS, bos_token=BOS)
    tasks = {
        name: harness_tasks.load_task(TaskChoice(name, name, 0, "", False), ITEMS, package_root)
        for name in TASK_FILES
    }
    yield Peers(plain, begun, adding, tasks, texts)
    torch.set_num_threads(threads)


pytestmark = [
    pytest.mark.torch,
    pytest.mark.package,
    pytest.mark.slow,
    # accelerate announces its own clean-up; nothing of ours is deprecated.
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:accelerate.*"),
]


def all_requests(peers: Peers) -> list[Instance]:
    return [item for task in peers.tasks.values() for item in task.instances]


def pair_of(context: str, continuation: str) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), 0, metadata=("pairs", 0, 1))


def rolling(text: str) -> Instance:
    return Instance("loglikelihood_rolling", {}, (text,), 0, metadata=("texts", 0, 1))


def require_agreement(pair: Pair, requests: list[Instance]) -> None:
    with harness.quiet():
        theirs = pair.theirs.loglikelihood(requests, disable_tqdm=True)
    ours = pair.ours.loglikelihood(requests)
    np.testing.assert_allclose([a for a, _ in ours], [a for a, _ in theirs], atol=1e-4, rtol=0)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_the_wrapped_model_is_a_language_model(peers: Peers):
    assert isinstance(peers.plain.ours.model, LanguageModel)


def test_log_probabilities_of_the_eight_tasks_agree(peers: Peers):
    requests = all_requests(peers)
    assert len(requests) == ITEMS * (4 + 4 + 2 + 4 + 4 + 2 + 4 + 2)
    require_agreement(peers.plain, requests)
    ours = peers.plain.ours
    assert any(len(ours.tok_encode(item.args[0])) > MAX_LENGTH for item in requests)


def test_token_ids_of_the_eight_tasks_agree(peers: Peers):
    for item in all_requests(peers):
        context, continuation = peers.plain.ours.pairs.encode(*item.args)
        assert (list(context), list(continuation)) == peers.plain.theirs._encode_pair(*item.args)


@pytest.mark.parametrize("kind", ["plain", "adding"])
@pytest.mark.parametrize("end", ["", " ", "  ", "\n"])
def test_token_ids_of_random_pairs_agree(peers: Peers, kind: str, end: str):
    random_ = random.Random(0)
    both: Pair = getattr(peers, kind)
    whole = "\n".join(peers.texts)
    compared = 0
    for _ in range(250):
        start = random_.randrange(len(whole) - 300)
        middle, stop = start + random_.randrange(1, 150), start + random_.randrange(151, 300)
        context, continuation = whole[start:middle] + end, whole[middle:stop]
        if not context.strip():
            continue
        theirs = both.theirs._encode_pair(context, continuation)
        if not theirs[1]:
            continue  # a token across the join: lm-eval's class stops there
        ours = both.ours.pairs.encode(context, continuation)
        assert (list(ours[0]), list(ours[1])) == theirs
        compared += 1
    assert compared >= 200


@pytest.mark.parametrize("kind", ["plain", "begun", "adding"])
def test_a_context_that_is_empty_or_brings_the_prefix_along_agrees(peers: Peers, kind: str):
    both: Pair = getattr(peers, kind)
    assert both.ours.prefix_token_id == both.theirs.prefix_token_id
    assert both.ours.eot_token_id == both.theirs.eot_token_id
    requests = [pair_of("", text[:80]) for text in peers.texts[:5]]
    requests += [pair_of("", f"{EOS}{text[:40]}") for text in peers.texts[:3]]
    requests += [pair_of(text[:50], text[50:90]) for text in peers.texts[:5]]
    if kind != "plain":
        requests += [pair_of("", f"{BOS}{text[:40]}") for text in peers.texts[:3]]
        requests += [pair_of(f"{BOS}{text[:50]}", text[50:90]) for text in peers.texts[:3]]
    require_agreement(both, requests)


@pytest.mark.parametrize("rest", [1, 2, 20, MAX_LENGTH - 1, MAX_LENGTH])
def test_requests_that_are_cut_agree(peers: Peers, rest: int):
    ids = peers.plain.ours.tok_encode(" ".join(peers.texts))
    heads = [1, MAX_LENGTH - rest, MAX_LENGTH - rest + 1, MAX_LENGTH - rest + 2, 150]
    requests = [(("", ""), ids[:n], ids[n : n + rest]) for n in heads if n > 0]
    with harness.quiet():
        theirs = peers.plain.theirs._loglikelihood_tokens(requests, disable_tqdm=True)
    ours = peers.plain.ours._loglikelihood_tokens(requests)  # pyright: ignore[reportPrivateUsage]
    np.testing.assert_allclose([a for a, _ in ours], [a for a, _ in theirs], atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["plain", "begun"])
def test_log_probabilities_of_whole_documents_agree(peers: Peers, kind: str):
    both: Pair = getattr(peers, kind)
    texts = [text[:900] for text in peers.texts[:8]] + ["a", peers.texts[9][:90]]
    requests = [rolling(text) for text in texts]
    theirs = both.theirs.loglikelihood_rolling(requests, disable_tqdm=True)
    ours = both.ours.loglikelihood_rolling(requests)
    np.testing.assert_allclose(ours, theirs, atol=1e-3, rtol=1e-6)
    assert max(len(both.ours.tok_encode(text)) for text in texts) > 2 * MAX_LENGTH


def test_a_tokenizer_that_adds_its_prefix_gives_documents_one_and_not_two(peers: Peers):
    requests = [rolling(text[:300]) for text in peers.texts[:4]]
    ours = peers.adding.ours.loglikelihood_rolling(requests)
    np.testing.assert_allclose(
        ours, peers.begun.theirs.loglikelihood_rolling(requests, disable_tqdm=True), rtol=1e-6
    )
    twice = peers.adding.theirs.loglikelihood_rolling(requests, disable_tqdm=True)
    assert (np.abs(np.array(twice) - ours) > 1).any()


@given(length=st.integers(0, 500), most=st.integers(1, 100))
def test_windows_are_lm_evals(length: int, most: int):
    tokens = list(range(1, length + 1))
    theirs = [
        utils.make_disjoint_window(window)
        for window in utils.get_rolling_token_windows(tokens, 0, most, 1)
    ]
    ours = rolling_windows(tokens, 0, most)
    assert [(list(window.context), list(window.continuation)) for window in ours] == theirs
    assert sum(len(window.continuation) for window in ours) == length


@pytest.mark.parametrize("kind", ["plain", "adding"])
def test_generated_text_agrees(peers: Peers, kind: str):
    both: Pair = getattr(peers, kind)
    settings: list[dict[str, Any]] = [
        {"until": ["\n"], "max_gen_toks": 8},
        {"until": "e", "max_new_tokens": 20, "temperature": 0.0},
        {"until": [" the", "er", "in"], "max_gen_toks": 24, "do_sample": False},
        {"max_gen_toks": 40, "do_sample": False, "temperature": 0.0},
        {"until": [], "max_gen_toks": MAX_LENGTH - 60},
    ]
    prompts = [text[:60] for text in peers.texts[:6]] + [peers.texts[0][:900]]
    requests = [
        Instance("generate_until", {}, (prompt, dict(options)), 0, metadata=("texts", 0, 1))
        for options in settings
        for prompt in prompts
    ]
    with harness.quiet():
        theirs = both.theirs.generate_until(requests, disable_tqdm=True)
    assert both.ours.generate_until(requests) == theirs
    free = [len(both.ours.tok_encode(text)) for text in theirs[-len(prompts) :]]
    assert min(free) < 30  # some end of themselves
