"""A language model as lm-eval sees it: lm-eval's Hugging Face class, without Hugging Face.

What is scored, cut, put before a text and stopped at is what that class does; only where
its answer depends on how requests are batched, or where it would stop with an assertion,
is a request refused by name. Several processes each score their share of a task's items
with a model of their own, and lm-eval joins the results in the first.

Source: lm-eval 0.4.13 ``models/huggingface.py`` (HFLM), ``api/model.py`` (TemplateLM).
"""

import pickle
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from evalmon.errors import EvaluationError
from evalmon.evaluators.pairs import PairEncoder, Tokens
from evalmon.models import LanguageModel
from evalmon.scoring import Scorer, rolling_windows
from evalmon.tokenizer import TextTokenizer
from evalmon.types import ScoreRequest

__all__ = ["ONE_PROCESS", "HarnessModel", "OneProcess", "Processes"]

_ROUND: Final = 16  # tokens generated before stop strings are looked for
_PROMPTS: Final = 16  # texts continued together where the scorer sets no number

_GREEDY: Final = frozenset(
    {"do_sample", "temperature", "until", "max_gen_toks", "top_p", "top_k", "min_p", "typical_p"}
)
"""Settings of generation under which greedy text is what it is."""


class Processes(Protocol):
    """The processes that share a task's items, each with a model of its own.

    All of them make the same calls in the same order.

    Attributes:
        rank: number of this process, from 0.
        count: how many there are.
    """

    rank: int
    count: int

    def exchange(self, part: bytes) -> list[bytes]:
        """Return every process's part, by rank; return in none before all have called."""
        ...


class OneProcess:
    """A process by itself."""

    rank = 0
    count = 1

    def exchange(self, part: bytes) -> list[bytes]:
        return [part]


ONE_PROCESS: Final = OneProcess()
"""What there is where nothing else is said."""


class HarnessModel(TemplateLM):
    """Scores lm-eval's requests with an evalmon model.

    Args:
        tokenizer: the run's tokenizer.
        prefix_token: id put before text without context: the beginning of text, where the
            tokenizer has such a token, else its end.
        bos: id that begins every context of AI2's rule, None where there is none.
        apart: encode contexts and continuations by AI2's rule, else by lm-eval's.
        eos: id that ends generated text, None for ``prefix_token``.
        processes: who shares the items.

    Attributes:
        pairs: encodes context and continuation, and remembers how.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prefix_token: int,
        *,
        bos: int | None = None,
        apart: bool = False,
        eos: int | None = None,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        super().__init__()
        self._text = tokenizer
        self._prefix = prefix_token
        self._eos = prefix_token if eos is None else eos
        self._processes = processes
        self._rank, self._world_size = processes.rank, processes.count
        self._scorer: Scorer | None = None
        self._cut: dict[Tokens, int] = {}
        self.pairs = PairEncoder(tokenizer, prefix_token, bos=bos, apart=apart)

    def use(self, scorer: Scorer) -> None:
        """Score with this model from now on.

        Raises:
            DataError: the tokenizer has ids that the model lacks.
            EvaluationError: the prefix or the end of text is no id of the model.
        """
        size = scorer.model.vocab_size
        self._text.require_fit(size, "the model")
        if not 0 <= self._prefix < size or not 0 <= self._eos < size:
            raise EvaluationError(
                f"prefix token {self._prefix} or end of text {self._eos} outside the model's "
                f"vocabulary of {size}; mend bos_id or eos_id in run.json"
            )
        self._scorer = scorer

    @property
    def cut(self) -> tuple[int, int]:
        """Return how many distinct contexts were cut from the left, and tokens lost in all."""
        return len(self._cut), sum(self._cut.values())

    @property
    def scorer(self) -> Scorer:
        """Return the scorer in use."""
        if self._scorer is None:
            raise EvaluationError("no model is loaded; call use() first")
        return self._scorer

    @property
    def model(self) -> LanguageModel:
        """Return the model in use."""
        return self.scorer.model

    @property
    def eot_token_id(self) -> int:
        return self._eos

    @property
    def prefix_token_id(self) -> int:
        return self._prefix

    @property
    def max_length(self) -> int:
        """Return the longest input in tokens."""
        return self.model.max_length

    @property
    def max_gen_toks(self) -> int:
        """Return how many tokens are generated where a request does not say."""
        return 256

    @property
    def tokenizer_name(self) -> str:
        return self._text.fingerprint

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        del add_special_tokens, kwargs  # what stands before a text is added where it is scored
        return self._text.encode(string)

    def encode(self, items: Sequence[Instance]) -> list[tuple[Tokens, Tokens]]:
        """Return the token ids of requests' contexts and continuations.

        Raises:
            EvaluationError: a continuation without tokens; task and item are named.
        """
        pairs = [cast("tuple[str, str]", item.args) for item in items]
        self.pairs.encode_all(pairs)
        found: list[tuple[Tokens, Tokens]] = []
        for item, pair in zip(items, pairs, strict=True):
            try:
                found.append(self.pairs.checked(*pair))
            except EvaluationError as error:
                raise EvaluationError(f"{_place(item)}: {error}") from error
        return found

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        del disable_tqdm  # the scorer has a bar of its own
        encoded = zip(requests, self.encode(requests), strict=True)
        return self._sums([self._fit(_place(item), *pair) for item, pair in encoded])

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[float]:
        del disable_tqdm
        texts = self._text.encode_batch([item.args[0] for item in requests])
        groups = [rolling_windows(ids, self._prefix, self.max_length) for ids in texts]
        windows = [window for group in groups for window in group]
        # As many in each process, as lm-eval's class has it; an equal window is computed once.
        most = max(self._gather("windows", len(windows)))
        padded = windows + windows[:1] * (most - len(windows))
        sums = iter(self._sums(padded)[: len(windows)])
        return [sum(next(sums)[0] for _ in group) for group in groups]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        del disable_tqdm
        prompts: list[list[int]] = []
        stops: list[list[str]] = []
        limits: defaultdict[int, list[int]] = defaultdict(list)
        for number, item in enumerate(requests):
            context, options = cast("tuple[str, dict[str, Any]]", item.args)
            until, longest = self._options(item, options)
            ids = self._text.encode(context)
            opening = list(self._text.opening)
            if ids[:1] != [self._prefix] and ids[: len(opening)] != opening:
                ids = opening + ids
            prompts.append((ids or [self._prefix])[-(self.max_length - longest) :])
            stops.append(until)
            limits[longest].append(number)
        found: dict[int, str] = {}
        size = self.scorer.batch_size or _PROMPTS
        for longest, numbers in limits.items():
            for start in range(0, len(numbers), size):
                group = numbers[start : start + size]
                texts = self._continue(
                    [prompts[n] for n in group], [stops[n] for n in group], longest
                )
                found |= dict(zip(group, texts, strict=True))
        return [found[number] for number in range(len(requests))]

    def all_gather(self, tensor: Any) -> Any:
        if self.world_size == 1:
            return tensor
        parts = self._gather("tensor", tensor.reshape(-1).tolist())
        joined = tensor.new_tensor([value for part in parts for value in part])
        return joined.reshape(-1, *tensor.shape[1:])

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any]:
        parts = self._gather("object", obj)
        return parts if self.rank == dst else cast("list[Any]", None)

    def barrier(self) -> None:
        self._gather("barrier", None)

    def shared(self, value: Any) -> Any:
        """Return the first process's value in all of them."""
        return self._gather("shared", value if self.rank == 0 else None)[0]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        del kwargs
        return self._sums(
            [
                self._fit(f"request {number}", tuple(head), tuple(rest))
                for number, (_, head, rest) in enumerate(requests)
            ]
        )

    def _gather(self, kind: str, value: Any) -> list[Any]:
        """Return a value of every process, by rank."""
        if self.world_size == 1:
            return [value]
        parts = self._processes.exchange(pickle.dumps((kind, value)))
        # They come from the processes this one was started with, which run the same code.
        found = [cast("tuple[str, Any]", pickle.loads(part)) for part in parts]  # noqa: S301
        if any(theirs != kind for theirs, _ in found):
            raise EvaluationError(
                f"the {self.world_size} processes are out of step: they sent "
                f"{[theirs for theirs, _ in found]}; a task needs an item for each of them"
            )
        return [theirs for _, theirs in found]

    def _sums(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, bool]]:
        """Return each continuation's summed log-probability, and whether it is the likeliest."""
        return [
            (float(np.sum(answer.logprobs, dtype=np.float64)), bool(answer.greedy))
            for answer in self.scorer.score(requests)
        ]

    def _fit(self, place: str, head: Tokens, rest: Tokens) -> ScoreRequest:
        """Cut a context from the left to what the model reads."""
        longest = self.max_length
        if len(rest) > longest:
            raise EvaluationError(
                f"{place}: the continuation has {len(rest)} tokens, the model reads {longest} "
                "with at least one of context; leave the item out or take a longer window"
            )
        room = longest + 1 - len(rest)
        if len(head) > room:
            self._cut[head] = len(head) - room
        return ScoreRequest(head[-room:], rest)

    def _options(self, item: Instance, options: dict[str, Any]) -> tuple[list[str], int]:
        """Return a request's stop strings and longest text; refuse what is not greedy."""
        settings = cast("dict[str, Any]", normalize_gen_kwargs(options, self.max_gen_toks))
        if settings.get("do_sample"):
            raise EvaluationError(
                f"{_place(item)}: asks for sampled text; only greedy text is reproducible"
            )
        if unknown := sorted(set(settings) - _GREEDY):
            raise EvaluationError(
                f"{_place(item)}: generation setting {unknown[0]!r} is not greedy text alone; "
                "leave it out of generation_kwargs, and give lengths as max_gen_toks"
            )
        longest = int(settings["max_gen_toks"])
        if not 0 < longest < self.max_length:
            raise EvaluationError(
                f"{_place(item)}: max_gen_toks is {longest}, but the model reads "
                f"{self.max_length} tokens with at least one of context; set it below that"
            )
        end = self._text.decode([self._eos])
        return handle_stop_sequences(list(settings["until"]), eos=end), longest

    def _continue(
        self, prompts: list[list[int]], stops: list[list[str]], longest: int
    ) -> list[str]:
        """Generate the texts of prompts, up to their stop strings."""
        new: list[list[int]] = [[] for _ in prompts]
        texts = [""] * len(prompts)
        left = list(range(len(prompts)))
        while left:
            rounds = min(_ROUND, longest - len(new[left[0]]))
            grown = self.model.generate(
                [prompts[row] + new[row] for row in left], [self._eos], rounds
            )
            still: list[int] = []
            for row, ids in zip(left, grown, strict=True):
                new[row] += ids
                whole = self._text.decode(new[row], skip_special=True)
                texts[row] = postprocess_generated_text(whole, stops[row], None)
                ended = not ids or ids[-1] == self._eos or len(new[row]) >= longest
                if not ended and texts[row] == whole:
                    still.append(row)
            left = still
        return texts


def _place(item: Instance) -> str:
    """Name an item for a message."""
    return f"task {item.task_name}, item {item.doc_id}"
