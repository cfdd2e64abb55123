"""Requests to a model, and what evaluators make of its answers."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evalmon.types.run import CheckpointRef

__all__ = [
    "Evaluation",
    "Failure",
    "MetricIdentity",
    "ProbeResult",
    "ResponseCache",
    "Score",
    "ScoreRequest",
    "TokenScores",
]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Tokens to score: log-probabilities of ``continuation`` after ``context``.

    Attributes:
        context: token ids conditioned on, at least one.
        continuation: token ids scored, at least one.
    """

    context: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What a model says of one request.

    Attributes:
        logprobs: [len(continuation)] natural-log probabilities, float32.
        greedy: whether every continuation token is the most likely one.
    """

    logprobs: NDArray[np.float32]
    greedy: bool


class ResponseCache(Protocol):
    """Answers of one model with one set of weights, kept so that none is asked for twice."""

    def get(self, requests: Sequence[ScoreRequest]) -> dict[ScoreRequest, TokenScores]:
        """Return the answers that are known, of whichever requests."""
        ...

    def put(self, answers: Mapping[ScoreRequest, TokenScores]) -> None:
        """Keep answers."""
        ...


@dataclass(frozen=True, slots=True)
class MetricIdentity:
    """Everything that changes a metric's meaning: only equal identities are overlaid.

    Attributes:
        task: task or holdout name.
        metric: ``ce_nats``, ``bpb``, ``acc``, ``len_norm`` …
        shots: worked examples in the prompt, None where the notion does not apply.
        prompt_set: who wrote the prompts (``lm-eval 0.4.13 arc_easy v1.0``).
        split: split of the data set.
        item_limit: items scored at most, None for all.
        normalization: divisor of the metric (``tokens``, ``bytes``, ``characters`` …).
        tokenizer: hash of the tokenizer.
        dtype: compute dtype.
        prefix_token: token id put before scored text.
        data: fingerprint of the items.
        max_length: longest context in tokens.
    """

    task: str
    metric: str
    shots: int | None
    prompt_set: str
    split: str
    item_limit: int | None
    normalization: str
    tokenizer: str
    dtype: str
    prefix_token: int | None
    data: str
    max_length: int

    @property
    def fingerprint(self) -> str:
        """Return 16 hex digits that differ when any field differs."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Score:
    """One metric at one checkpoint.

    Attributes:
        metric: canonical name, as ``eval/lm/c4_en-validation/ce_nats``.
        value: the number, finite.
        stderr: its standard error, None where one item gives none.
        items: items (documents, questions) it rests on.
        identity: what the number means.
        item_ids: one id an item, or empty.
        item_values: one value an item, in the order of ``item_ids``.
        item_weights: one weight an item (tokens, bytes), or empty for equal weights.
    """

    metric: str
    value: float
    stderr: float | None
    items: int
    identity: MetricIdentity
    item_ids: tuple[str, ...] = ()
    item_values: tuple[float, ...] = ()
    item_weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The seen-against-fresh probe: mean paired loss difference, fresh minus seen.

    Attributes:
        mean_nats: mean difference in nats per token; positive = seen text is remembered.
        low_nats: lower end of the 95 % interval.
        high_nats: upper end of the 95 % interval.
        pairs: pairs of sequences.
        ids_fingerprint: hash of the id-log records the seen sequences were drawn from:
            the evidence counts only while that log can still be read.
    """

    mean_nats: float
    low_nats: float
    high_nats: float
    pairs: int
    ids_fingerprint: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one evaluator found at one checkpoint; stored in one transaction.

    Attributes:
        evaluator: the evaluator's name.
        version: hash of its code version and settings.
        checkpoint: what was scored.
        weights: fingerprint of the weights scored.
        scores: one or more scores.
        seconds: wall time.
        probe: set by the memorization probe alone.
        artifacts: files written beside the store (lm-eval's results and samples).
        header: what else there is to know of how it was computed: dtypes, batch size,
            prefix token, versions, counts of what was merged or shared; JSON values.
    """

    evaluator: str
    version: str
    checkpoint: CheckpointRef
    weights: str
    scores: tuple[Score, ...]
    seconds: float
    probe: ProbeResult | None = None
    artifacts: tuple[Path, ...] = ()
    header: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Failure:
    """One evaluator that could not score one checkpoint, and why.

    Attributes:
        evaluator: its name (``restore`` when the weights could not be read).
        checkpoint: what was to be scored.
        error: class of the exception.
        message: its text.
    """

    evaluator: str
    checkpoint: CheckpointRef
    error: str
    message: str
