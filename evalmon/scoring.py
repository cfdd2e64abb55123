"""Plans what a model scores: windows over documents, buckets of length, exact accounting.

A batch holds requests of one bucket, so that a compiled model meets few shapes and pads
little. Which batch a request lands in never changes its score: that is the model's
promise (:class:`evalmon.models.LanguageModel`), and order is restored here.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalmon.errors import EvaluationError
from evalmon.models import LanguageModel
from evalmon.types import ScoreRequest, TokenScores

__all__ = ["BATCH_TOKENS", "Batch", "Plan", "fingerprint", "plan", "rolling_windows", "score_all"]

BATCH_TOKENS = 16_384
"""Input tokens of one batch at most, padding included; a longer request is one by itself."""

_LEAST_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that go to the model together.

    Attributes:
        positions: their places among all requests.
        length: bucket length; each has at most so many input tokens.
    """

    positions: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How requests are split into batches.

    Attributes:
        batches: longest first, so that memory is at its peak at once.
        tokens: input tokens of all requests: all but the last, which is only predicted.
        scored: tokens whose probability is asked for.
        padded_tokens: input tokens when each request is as long as its bucket.
    """

    batches: tuple[Batch, ...]
    tokens: int
    scored: int
    padded_tokens: int

    @property
    def padding_share(self) -> float:
        """Return the share of padding in what the model reads, in [0, 1)."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


def plan(
    requests: Sequence[ScoreRequest], max_length: int, batch_tokens: int = BATCH_TOKENS
) -> Plan:
    """Split requests into batches of one bucket length each.

    Buckets are the powers of two from 32. Within a bucket, requests with equal inputs
    (two one-token answers to one question) stand together, so that a model that reads
    equal inputs once can do so.

    Args:
        requests: what to score.
        max_length: longest request the model takes, in tokens.
        batch_tokens: input tokens of a batch at most, padding included.

    Raises:
        EvaluationError: a request without context or continuation, or longer than
            ``max_length``.

    Example:
        >>> requests = [ScoreRequest((0,), (1,) * n) for n in (3, 40, 5)]
        >>> [(batch.length, batch.positions) for batch in plan(requests, 64).batches]
        [(64, (1,)), (32, (0, 2))]
    """
    buckets: defaultdict[int, list[int]] = defaultdict(list)
    sizes = [len(item.context) + len(item.continuation) for item in requests]
    for position, (item, size) in enumerate(zip(requests, sizes, strict=True)):
        if not item.context or not item.continuation:
            raise EvaluationError(
                f"request {position} has {len(item.context)} context and "
                f"{len(item.continuation)} continuation tokens; both need at least one"
            )
        if size > max_length:
            raise EvaluationError(
                f"request {position} has {size} tokens, the model takes {max_length}; "
                "cut its context from the left"
            )
        buckets[_bucket(size - 1)].append(position)
    batches: list[Batch] = []
    for length in sorted(buckets, reverse=True):
        rows = max(1, batch_tokens // length)
        places = sorted(buckets[length], key=lambda place: _inputs(requests[place]))
        batches += [
            Batch(tuple(places[start : start + rows]), length)
            for start in range(0, len(places), rows)
        ]
    return Plan(
        batches=tuple(batches),
        tokens=sum(sizes) - len(sizes),
        scored=sum(len(item.continuation) for item in requests),
        padded_tokens=sum(batch.length * len(batch.positions) for batch in batches),
    )


def score_all(
    model: LanguageModel,
    requests: Sequence[ScoreRequest],
    progress: Callable[[int], object] | None = None,
) -> list[TokenScores]:
    """Score requests in planned batches and return the answers in their order.

    Args:
        model: the model, its weights loaded.
        requests: what to score; equal requests are scored once.
        progress: called with the number of requests done after each batch.

    Raises:
        EvaluationError: a request the model cannot take, or an answer that is missing,
            of another length, or not finite; NaN never becomes a score.
    """
    distinct = list(dict.fromkeys(requests))
    answers: dict[ScoreRequest, TokenScores] = {}
    for batch in plan(distinct, model.max_length).batches:
        asked = [distinct[position] for position in batch.positions]
        found = model.score(asked)
        if len(found) != len(asked):
            raise EvaluationError(f"the model answered {len(found)} of {len(asked)} requests")
        for request, answer in zip(asked, found, strict=True):
            _check(request, answer)
            answers[request] = answer
        if progress is not None:
            progress(len(asked))
    return [answers[request] for request in requests]


def rolling_windows(tokens: Sequence[int], prefix: int, max_length: int) -> list[ScoreRequest]:
    """Cut a document into windows that score each of its tokens exactly once.

    The first window conditions on the prefix token alone; each later one on as many
    earlier tokens as fit, at least one, so that the last is full too.

    Args:
        tokens: the document.
        prefix: token id before the first token.
        max_length: tokens a window, context and continuation, at least 2.

    Returns:
        The windows, none for an empty document.

    Source: lm-eval ``utils.get_rolling_token_windows`` with context_len 1, joined with
    ``make_disjoint_window``; its max_seq_len is our max_length - 1.

    Example:
        >>> [(w.context, w.continuation) for w in rolling_windows([1, 2, 3, 4], 0, 4)]
        [((0,), (1, 2, 3)), ((1, 2, 3), (4,))]
    """
    inputs = max_length - 1
    whole = (prefix, *tokens)
    windows: list[ScoreRequest] = []
    done = 0
    while done < len(tokens):
        end = min(done + inputs, len(tokens))
        start = max(0, end - inputs)
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


def _bucket(inputs: int) -> int:
    """Return the smallest bucket length that holds so many input tokens."""
    return max(_LEAST_LENGTH, 1 << (inputs - 1).bit_length())


def _inputs(request: ScoreRequest) -> tuple[int, ...]:
    """Return what a model has to read of a request."""
    return (*request.context, *request.continuation[:-1])


def _check(request: ScoreRequest, answer: TokenScores) -> None:
    """Raise unless the answer has one finite log-probability a continuation token."""
    logprobs = np.asarray(answer.logprobs)
    if logprobs.shape != (len(request.continuation),):
        raise EvaluationError(
            f"the model returned log-probabilities of shape {logprobs.shape} for "
            f"{len(request.continuation)} tokens"
        )
    wrong = np.flatnonzero(~np.isfinite(logprobs))
    if wrong.size:
        place = int(wrong[0])
        raise EvaluationError(
            f"log-probability {logprobs[place]} of token {request.continuation[place]} at place "
            f"{place} of a continuation; the weights are likely not finite, so nothing is scored"
        )
