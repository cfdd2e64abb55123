"""Loss on fixed text: nats per token and bits per byte, with every document's share kept.

Each document is scored by itself after one prefix token (the run's end-of-text id), in
windows of the model's length that score each token once. The values are pooled: summed
nats over summed tokens (or bytes), never a mean of per-document values. Their standard
error treats a document as one cluster.

Source: lm-eval ``loglikelihood_rolling``; EleutherAI/lm-evaluation-harness issue 2301.
"""

import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from evalmon import holdout as holdouts
from evalmon import metrics
from evalmon.config import EvaluationSettings, HoldoutSettings
from evalmon.errors import EvaluationError
from evalmon.evaluators.tokenizer import RunTokenizer
from evalmon.models import LanguageModel
from evalmon.scoring import fingerprint, rolling_windows, score_all
from evalmon.types import CheckpointRef, Evaluation, MetricIdentity, RunDescription, Score

__all__ = ["HoldoutLoss", "build"]

_CODE_VERSION: Final = 1  # raise it when the numbers of an unchanged checkpoint change


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A document's tokens and its size in bytes."""

    id: str
    tokens: tuple[int, ...]
    utf8_bytes: int


class HoldoutLoss:
    """Scores one holdout.

    Args:
        settings: which holdout.
        run: gives tokenizer, prefix token and length.

    Raises:
        ConfigError: the holdout is not known.
        DataError: its file cannot be used.
        FetchError: it had to be fetched and could not be.
    """

    def __init__(self, settings: HoldoutSettings, run: RunDescription) -> None:
        self._holdout = holdouts.load(settings)
        self._limit = settings.limit or None
        self._tokenizer = RunTokenizer(run)
        self._prefix = run.eos_id
        self.name = f"holdout_loss:{settings.name}"
        self.version = fingerprint(
            code=_CODE_VERSION,
            holdout=self._holdout.name,
            data=self._holdout.fingerprint,
            limit=self._limit,
            tokenizer=self._tokenizer.fingerprint,
            prefix=self._prefix,
            sequence_length=run.sequence_length,
        )

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        """Return "": text can be scored at every checkpoint."""
        del checkpoint, run
        return ""

    def evaluate(
        self, model: LanguageModel, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Score the holdout with the weights loaded into ``model``.

        Raises:
            EvaluationError: the model cannot score it, or answers with values that are
                not finite.
        """
        del run
        started = time.monotonic()
        documents = self._documents
        windows = [
            rolling_windows(item.tokens, self._prefix, model.max_length) for item in documents
        ]
        answers = iter(score_all(model, [request for group in windows for request in group]))
        nats = np.array(
            [
                -sum(float(np.sum(next(answers).logprobs, dtype=np.float64)) for _ in group)
                for group in windows
            ]
        )
        scores = (
            self._score(model, "ce_nats", nats, [len(item.tokens) for item in documents]),
            self._score(model, "bpb", nats / math.log(2), [item.utf8_bytes for item in documents]),
        )
        return Evaluation(
            evaluator=self.name,
            version=self.version,
            checkpoint=checkpoint,
            weights=weights,
            scores=scores,
            seconds=time.monotonic() - started,
        )

    @cached_property
    def _documents(self) -> list[_Encoded]:
        """Encode the documents once for all checkpoints."""
        encoded = [
            _Encoded(item.id, tuple(self._tokenizer.encode(item.text)), len(item.text.encode()))
            for item in self._holdout.documents
        ]
        for item in encoded:
            if not item.tokens:
                raise EvaluationError(
                    f"document {item.id!r} of holdout {self._holdout.name} has no tokens under "
                    f"{self._tokenizer.path}; remove it"
                )
        return encoded

    def _score(
        self, model: LanguageModel, metric: str, totals: "np.ndarray", sizes: list[int]
    ) -> Score:
        """Pool one metric over the documents."""
        found = metrics.pooled_ratio(totals, sizes)
        return Score(
            metric=f"eval/lm/{self._holdout.name}-validation/{metric}",
            value=found.value,
            stderr=found.stderr,
            items=found.items,
            identity=MetricIdentity(
                task=self._holdout.name,
                metric=metric,
                shots=None,
                prompt_set="text alone",
                split="validation",
                item_limit=self._limit,
                normalization="tokens" if metric == "ce_nats" else "UTF-8 bytes",
                tokenizer=self._tokenizer.fingerprint,
                dtype=model.dtype,
                prefix_token=self._prefix,
                data=self._holdout.fingerprint,
                max_length=model.max_length,
            ),
            item_ids=tuple(item.id for item in self._documents),
            item_values=tuple(
                (total / size) for total, size in zip(totals.tolist(), sizes, strict=True)
            ),
            item_weights=tuple(float(size) for size in sizes),
        )


def build(settings: EvaluationSettings, run: RunDescription) -> list[HoldoutLoss]:
    """Return one evaluator a holdout."""
    return [HoldoutLoss(item, run) for item in settings.holdouts]
