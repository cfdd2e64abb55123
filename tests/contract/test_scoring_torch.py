"""Our scores are those of lm-eval's Hugging Face class, however texts are shared and packed.

Both read the same weights in float32, through one tokenizer whose prompts are longer than
the sliding window, some longer than what the models read.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from numpy.typing import NDArray

from evalmon.evaluators.harness import quiet
from evalmon.evaluators.harness_model import HarnessModel
from evalmon.models import LanguageModel
from evalmon.package_data import passages
from evalmon.scoring import Scorer, rolling_windows
from evalmon.tokenizer import TextTokenizer
from evalmon.types import ScoreRequest, TokenScores
from tests.scoring_models import (
    Twin,
    random_parameters,
    suite_tasks,
    train_tokenizer,
    trained_parameters,
)
from trainer.architecture import Olmo3Config

pytestmark = [
    pytest.mark.torch,
    pytest.mark.package,
    pytest.mark.slow,
    # accelerate announces its own clean-up; nothing of ours is deprecated.
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:accelerate.*"),
]

CONFIG = Olmo3Config(
    1024, width=32, layers=4, heads=4, kv_heads=2, head_dim=8, ffn=64, window=32
)  # fmt: skip
LENGTH = 288
ITEMS, ITEMS_5SHOT, DOCUMENTS = 200, 6, 12
EOS_ID = 0
VARIED = 160
"""Requests of the tests that score the same ones in many ways."""


@dataclass(frozen=True)
class Peers:
    """lm-eval's class and ours over one model."""

    twin: Twin
    model: LanguageModel
    theirs: Any
    ours: HarnessModel


def bound(tokens: int) -> float:
    """Return how far two summed log-probabilities of so many tokens may be apart."""
    return 5e-5 + 5e-6 * tokens


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads wait for each other in a loop, which takes ten times as long here."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def texts(package_root: Path) -> list[str]:
    return [document.text for document, _ in zip(passages(package_root), range(200), strict=False)]


@pytest.fixture(scope="module")
def tokenizer_file(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return train_tokenizer(place, texts, CONFIG.vocab_size)


@pytest.fixture(scope="module")
def random_twin(tokenizer_file: Path) -> Twin:
    return Twin(CONFIG, random_parameters(CONFIG), tokenizer_file, EOS_ID, LENGTH)


@pytest.fixture(scope="module")
def model(random_twin: Twin, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """Return the model of all weights, so that it compiles once."""
    return random_twin.ours(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module", params=["random", "trained"])
def peers(
    request: pytest.FixtureRequest, texts: list[str], random_twin: Twin, model: LanguageModel
) -> Peers:
    twin, tokenizer = random_twin, TextTokenizer(random_twin.tokenizer)
    if request.param == "trained":
        tokens = np.array([i for text in texts for i in (*tokenizer.encode(text), EOS_ID)])
        rows = tokens[: len(tokens) // 64 * 64].reshape(-1, 64)
        twin = replace(twin, parameters=trained_parameters(CONFIG, rows, steps=60))
    model.load(twin.parameters)
    ours = HarnessModel(tokenizer, EOS_ID, apart=True)
    ours.use(Scorer(model))
    return Peers(twin, model, twin.theirs(batch_size=32), ours)


def encoded(peers: Peers, items: Sequence[Instance]) -> list[ScoreRequest]:
    """Return the token ids that our class scores, cut to what the model reads."""
    pairs = [peers.ours.pairs.encode(*item.args) for item in items]
    return [ScoreRequest(head[-(LENGTH + 1 - len(rest)) :], rest) for head, rest in pairs]


def by_lm_eval(peers: Peers, requests: Sequence[ScoreRequest]) -> list[tuple[float, bool]]:
    """Let lm-eval's class score token ids."""
    pairs = [(("", ""), list(item.context), list(item.continuation)) for item in requests]
    with quiet():
        return peers.theirs._loglikelihood_tokens(pairs, disable_tqdm=True)


def sums(answers: Sequence[TokenScores]) -> NDArray[np.float64]:
    return np.array([np.sum(item.logprobs, dtype=np.float64) for item in answers])


def require_close(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], requests: Sequence[ScoreRequest]
) -> None:
    limits = np.array([bound(len(item.continuation)) for item in requests])
    excess = np.abs(ours - theirs) - limits
    worst = int(excess.argmax())
    assert excess[worst] <= 0, (ours[worst], theirs[worst], requests[worst])


ON_EIGHT_DEVICES = """
import json, sys
from pathlib import Path
import jax, numpy as np
from evalmon.scoring import Scorer
from evalmon.types import ScoreRequest
from tests.scoring_models import Twin, random_parameters
from trainer.architecture import Olmo3Config

assert jax.device_count() == 8
record = json.loads((Path(sys.argv[1]) / "work.json").read_text())
config = Olmo3Config.from_record(record["config"], "test")
twin = Twin(config, random_parameters(config), Path(), 0, record["length"])
requests = [ScoreRequest(tuple(a), tuple(b)) for a, b in record["requests"]]
model = twin.ours(Path(sys.argv[1]), mesh=sys.argv[2])
answers = Scorer(model).score(requests)
print(json.dumps([float(np.sum(item.logprobs, dtype=np.float64)) for item in answers]))
"""


def test_no_mesh_of_devices_changes_a_score(
    random_twin: Twin, model: LanguageModel, texts: list[str], tmp_path: Path
) -> None:
    tokenizer = TextTokenizer(random_twin.tokenizer)
    requests = [
        window
        for text in texts[:6]
        for window in rolling_windows(tokenizer.encode(text), EOS_ID, LENGTH)
    ]
    shared = requests[0].context + requests[0].continuation[:150]
    requests += [ScoreRequest(shared, (n, n + 1)) for n in range(1, 9)]
    pairs = [(item.context, item.continuation) for item in requests]
    record = {"config": asdict(CONFIG), "length": LENGTH, "requests": pairs}
    (tmp_path / "work.json").write_text(json.dumps(record))
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-c", ON_EIGHT_DEVICES, str(tmp_path), "data=2,fsdp=2,tensor=2"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        check=True,
        stdout=subprocess.PIPE,
    )
    model.load(random_twin.parameters)
    found = np.array(json.loads(done.stdout.splitlines()[-1]))
    require_close(found, sums(Scorer(model).score(requests)), requests)


@pytest.mark.parametrize(
    ("suite", "items"), [("olmo-core8-0shot", ITEMS), ("olmes-core8-5shot", ITEMS_5SHOT)]
)
def test_log_likelihoods_and_predictions_of_the_eight_tasks(
    peers: Peers, package_root: Path, suite: str, items: int
) -> None:
    tasks = suite_tasks(suite, items, package_root)
    assert len(tasks) == 8
    compared = predicted = near = long = 0
    for task in tasks.values():
        found = task.instances
        requests = encoded(peers, found)
        theirs = by_lm_eval(peers, requests)
        ours = peers.ours.loglikelihood(found)
        a, b = np.array([x for x, _ in ours]), np.array([x for x, _ in theirs])
        require_close(a, b, requests)
        compared += len(found)
        long += sum(len(item.context) + len(item.continuation) > CONFIG.window for item in requests)
        assert np.ptp(a) > 1  # sharp enough to show an error
        choices: defaultdict[int | None, list[int]] = defaultdict(list)
        for number, item in enumerate(found):
            choices[item.doc_id].append(number)
        assert len(choices) == items
        for numbers in choices.values():
            predicted += 1
            if a[numbers].argmax() != b[numbers].argmax():
                first, second = np.sort(b[numbers])[-2:]
                tokens = max(len(requests[n].continuation) for n in numbers)
                assert second - first < 2 * bound(tokens)
                near += 1
    assert predicted == 8 * items
    assert near <= predicted / 100
    assert long > compared / 2


def test_whether_a_continuation_is_the_likeliest_agrees(peers: Peers, texts: list[str]) -> None:
    """Half of them are what lm-eval's class itself finds the likeliest."""
    import torch

    requests: list[ScoreRequest] = []
    for text in texts[:40]:
        context = tuple(peers.ours.tok_encode(text)[:40])
        with torch.no_grad():
            best = int(peers.theirs.model(torch.tensor([context])).logits[0, -1].argmax())
        requests += [
            ScoreRequest(context, (best,)), ScoreRequest(context, ((best + 1) % 1024,)),
        ]  # fmt: skip
    theirs = [greedy for _, greedy in by_lm_eval(peers, requests)]
    ours = [item.greedy for item in Scorer(peers.model).score(requests)]
    assert ours == theirs == [True, False] * 40


def test_whole_documents(peers: Peers, texts: list[str]) -> None:
    joined = ["\n".join(texts[n : n + 3]) for n in range(0, DOCUMENTS, 3)]
    chosen = [*joined, *texts[:DOCUMENTS], "a", texts[-1][:100]]
    items = [Instance("loglikelihood_rolling", {}, (text,), n) for n, text in enumerate(chosen)]
    with quiet():
        theirs = peers.theirs.loglikelihood_rolling(items, disable_tqdm=True)
    ours = peers.ours.loglikelihood_rolling(items)
    lengths = [len(peers.ours.tok_encode(text)) for text in chosen]
    assert max(lengths) > 3 * LENGTH
    for a, b, length in zip(ours, theirs, lengths, strict=True):
        assert abs(a - b) <= bound(length)


@pytest.fixture(scope="module")
def varied(peers: Peers, package_root: Path, texts: list[str]) -> list[ScoreRequest]:
    """Requests of all tasks, of both suites, and windows of documents."""
    found: list[ScoreRequest] = []
    for suite, items in (("olmo-core8-0shot", 3), ("olmes-core8-5shot", 1)):
        for task in suite_tasks(suite, items, package_root).values():
            found += encoded(peers, task.instances)
    for text in texts[:8]:
        found += rolling_windows(peers.ours.tok_encode(text), EOS_ID, LENGTH)[:3]
    return found[:VARIED]


def test_no_batch_size_order_or_sharing_changes_a_score(
    peers: Peers, varied: list[ScoreRequest]
) -> None:
    reference = np.array([value for value, _ in by_lm_eval(peers, varied)])
    usual = sums(Scorer(peers.model).score(varied))
    require_close(usual, reference, varied)
    for batch_size in (1, 3, 16):
        for share in (True, False):
            order = np.random.default_rng(batch_size).permutation(len(varied))
            answers = Scorer(peers.model, batch_size, share).score([varied[n] for n in order])
            found = np.empty(len(varied))
            found[order] = sums(answers)
            require_close(found, usual, varied)
            require_close(found, reference, varied)
