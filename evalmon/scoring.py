"""Scores requests: plans them, lets the model compute, gives answers in order, and counts.

Which row and batch a request lands in never changes its score but for rounding: that is
the model's promise (:class:`evalmon.models.LanguageModel`). What was computed is counted
exactly, so that waste is seen.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from evalmon import packing
from evalmon.errors import EvaluationError
from evalmon.models import LanguageModel
from evalmon.packing import Batch, Section
from evalmon.types import ROW_TOKENS, ResponseCache, ScoreRequest, TokenScores

__all__ = ["Accounting", "Scorer", "fingerprint", "rolling_windows"]


@dataclass(slots=True)
class Accounting:
    """What was computed so far.

    Attributes:
        requests: distinct requests put to the model.
        tokens_scored: tokens whose probability was asked for.
        tokens_distinct: tokens of the tree of all texts, each shared one counted once.
        tokens_computed: tokens the model read, padding apart.
        tokens_padded: the same with padding.
    """

    requests: int = 0
    tokens_scored: int = 0
    tokens_distinct: int = 0
    tokens_computed: int = 0
    tokens_padded: int = 0

    @property
    def computed_over_distinct(self) -> float:
        """Tokens computed over those that no plan could save, at least 1; 1 before any."""
        return self.tokens_computed / self.tokens_distinct if self.tokens_distinct else 1.0

    @property
    def padding_share(self) -> float:
        """Share of padding in what the model read, in [0, 1)."""
        return 1 - self.tokens_computed / self.tokens_padded if self.tokens_padded else 0.0


@dataclass(slots=True)
class _Beginning:
    """The beginning of a section, computed when a batch first needs it."""

    section: Section
    above: "_Beginning | None"
    computed: Any = None


@dataclass
class Scorer:
    """Scores requests with one model and its present weights.

    Attributes:
        model: the model, its weights loaded.
        batch_size: rows computed at a time, 0 for as many as hold ``packing.BATCH_TOKENS``.
        share_prefixes: compute text that requests share once.
        cache: answers of these weights that are known already, None to ask for all.
        description: text before the progress bar, "" for none; a bar shows on a terminal only.
        accounting: what was computed so far.
    """

    model: LanguageModel
    batch_size: int = 0
    share_prefixes: bool = True
    cache: ResponseCache | None = None
    description: str = ""
    accounting: Accounting = field(default_factory=Accounting)

    def score(self, requests: Sequence[ScoreRequest]) -> list[TokenScores]:
        """Return the answers in the order of the requests; equal requests are scored once.

        Args:
            requests: what to score.

        Raises:
            EvaluationError: a request the model cannot take, or an answer that is not finite;
                NaN never becomes a score.
        """
        distinct = list(dict.fromkeys(requests))
        self._check(distinct)
        answers = {} if self.cache is None else self.cache.get(distinct)
        if len(answers) < len(distinct):
            with tqdm(
                total=len(distinct),
                initial=len(answers),
                desc=self.description,
                unit="request",
                disable=None if self.description else True,
                leave=False,
            ) as bar:
                self._compute(distinct, answers, bar)
        return [answers[item] for item in requests]

    def _check(self, requests: Sequence[ScoreRequest]) -> None:
        """Refuse, before anything is computed, what the model cannot take."""
        longest, vocabulary = self.model.max_length + 1, self.model.vocab_size
        for number, item in enumerate(requests):
            if not item.context or not item.continuation:
                raise EvaluationError(
                    f"request {number} has {len(item.context)} context and "
                    f"{len(item.continuation)} continuation tokens; both need at least one"
                )
            size = len(item.context) + len(item.continuation)
            if size > longest:
                raise EvaluationError(
                    f"request {number} has {size} tokens, the model reads {longest - 1} and "
                    "predicts one more; cut its context from the left"
                )
            high = max(*item.context, *item.continuation)
            low = min(*item.context, *item.continuation)
            if low < 0 or high >= vocabulary:
                raise EvaluationError(
                    f"request {number}: token id {low if low < 0 else high} outside the "
                    f"vocabulary of {vocabulary}; was it made with the run's tokenizer?"
                )

    def _compute(
        self,
        requests: Sequence[ScoreRequest],
        answers: dict[ScoreRequest, TokenScores],
        bar: "tqdm[Any]",
    ) -> None:
        """Let the model answer what is not answered yet.

        The plan is that of all requests, whatever is known: an answer that was lost comes out
        again bit for bit.
        """
        made = packing.plan(
            requests,
            batch_rows=self.batch_size,
            row_multiple=self.model.row_multiple,
            share=self.share_prefixes,
        )
        known = np.array([item in answers for item in requests])
        missing = [item for item, done in zip(requests, known, strict=True) if not done]
        self.accounting.requests += len(missing)
        self.accounting.tokens_scored += sum(len(item.continuation) for item in missing)
        self.accounting.tokens_distinct += made.tokens_distinct
        open_sections = [(made.root, _Beginning(made.root, None))]
        while open_sections:
            section, beginning = open_sections.pop()
            for batch in made.batches(section):
                wanted = ~known[batch.owners]
                if not wanted.any():
                    continue
                found = self._answers(batch.only(wanted), self._extend(beginning), requests)
                answers |= found
                if self.cache is not None:
                    self.cache.put(found)
                bar.update(len(found))
                bar.set_postfix(tokens=f"{self.accounting.tokens_computed:,}", refresh=False)
            open_sections += [(child, _Beginning(child, beginning)) for child in section.children]

    def _extend(self, beginning: "_Beginning") -> Any:
        """Return what the model made of a section's beginning, computing it the first time."""
        ids, above = beginning.section.extension, beginning.above
        if ids and beginning.computed is None:
            self.accounting.tokens_computed += len(ids)
            self.accounting.tokens_padded += -(-len(ids) // ROW_TOKENS) * ROW_TOKENS
            before = None if above is None else self._extend(above)
            beginning.computed = self.model.extend(ids, before)
        return beginning.computed

    def _answers(
        self, batch: Batch, prefix: Any, requests: Sequence[ScoreRequest]
    ) -> dict[ScoreRequest, TokenScores]:
        """Compute a batch and take its answers apart, request by request."""
        forest = batch.forest
        self.accounting.tokens_computed += forest.tokens
        self.accounting.tokens_padded += forest.ids.size
        found = self.model.score(forest, prefix)
        logprobs = np.asarray(found.logprobs, np.float32)
        if logprobs.shape != forest.targets.shape:
            raise EvaluationError(
                f"the model returned log-probabilities of shape {logprobs.shape} for "
                f"{len(forest.targets)} tokens"
            )
        hit = np.asarray(found.likeliest) == forest.targets
        cuts = np.flatnonzero(np.diff(batch.owners)) + 1
        starts, stops = [0, *cuts.tolist()], [*cuts.tolist(), len(logprobs)]
        answers: dict[ScoreRequest, TokenScores] = {}
        for start, stop in zip(starts, stops, strict=True):
            request = requests[int(batch.owners[start])]
            part = logprobs[start:stop]
            _require_finite(request, part)
            answers[request] = TokenScores(part.copy(), bool(hit[start:stop].all()))
        return answers


def rolling_windows(tokens: Sequence[int], prefix: int, max_length: int) -> list[ScoreRequest]:
    """Cut a document into windows that score each of its tokens exactly once.

    The first window conditions on the prefix token alone; each later one on as many
    earlier tokens as fit, at least one, so that the last is full too.

    Args:
        tokens: the document.
        prefix: token id before the first token.
        max_length: tokens the model reads, at least 1: a window has one more, the last of
            which is only predicted.

    Returns:
        The windows, none for an empty document.

    Source: lm-eval ``utils.get_rolling_token_windows`` with context_len 1, joined with
    ``make_disjoint_window``.

    Example:
        >>> [(w.context, w.continuation) for w in rolling_windows([1, 2, 3, 4], 0, 3)]
        [((0,), (1, 2, 3)), ((1, 2, 3), (4,))]
    """
    whole = (prefix, *tokens)
    windows: list[ScoreRequest] = []
    done = 0
    while done < len(tokens):
        end = min(done + max_length, len(tokens))
        start = max(0, end - max_length)
        windows.append(ScoreRequest(whole[start : done + 1], whole[done + 1 : end + 1]))
        done = end
    return windows


def fingerprint(**parts: Any) -> str:
    """Return 16 hex digits over JSON values that differ when any of them differs.

    Example:
        >>> fingerprint(limit=25, task="piqa") == fingerprint(task="piqa", limit=25)
        True
    """
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _require_finite(request: ScoreRequest, logprobs: NDArray[np.float32]) -> None:
    """Raise where a log-probability is no number."""
    wrong = np.flatnonzero(~np.isfinite(logprobs))
    if wrong.size:
        place = int(wrong[0])
        raise EvaluationError(
            f"log-probability {logprobs[place]} of token {request.continuation[place]} at place "
            f"{place} of a continuation; the weights are likely not finite, so nothing is scored"
        )
