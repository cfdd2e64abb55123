"""Loss on fixed text: nats per token and bits per byte, with every document's share kept.

Documents are scored in one of two forms:

``document``
    As AI2's trainers do: a document's tokens and its end of text are one instance, cut at
    the length the model reads. The first token is conditioned on and not scored, and no
    other prefix stands before it.
``rolling``
    All of every document, after one prefix token, in windows of the model's length that
    score each token once.

The values are pooled: summed nats over summed tokens (or bytes), never a mean of
per-document values. Their standard error treats a document as one cluster. Bytes are those
of the text as it is given that the summed tokens stand for; an end of text has none, and
its nats are in ``ce_nats`` alone.

``olmo_core_ce_nats`` is the number of AI2's own evaluator: the same nats over the tokens of
the instances, one more a document than are predicted, because that evaluator also counts
the last place of an instance, whose loss is zero. It is lower by the share of first tokens
(0.2 % of documents of 500 tokens) and lies on AI2's curves.

Source: OLMo-core ``data/numpy_dataset.py`` (NumpyPaddedFSLDataset), ``data/utils.py``
(segment_documents_into_instances, get_labels) and ``eval/lm_evaluator.py``; lm-eval
``loglikelihood_rolling``; EleutherAI/lm-evaluation-harness issue 2301.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalmon import holdout as holdouts
from evalmon import metrics
from evalmon.config import EvaluationSettings, HoldoutSettings
from evalmon.errors import ConfigError, EvaluationError
from evalmon.evaluators.header import header
from evalmon.models import LanguageModel
from evalmon.scoring import Scorer, fingerprint, rolling_windows
from evalmon.tokenizer import TextTokenizer
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    MetricIdentity,
    RunDescription,
    Score,
    ScoreRequest,
)

__all__ = ["FORMS", "HoldoutLoss", "build"]

_CODE_VERSION: Final = 2  # raise it when the numbers of an unchanged checkpoint change

FORMS: Final = {
    "document": "text alone, one document an instance, from its second token on",
    "rolling": "text alone, after one prefix token, in windows",
}
"""Forms in which documents are scored, by what a metric's identity says of them."""

_UNITS: Final = {
    "ce_nats": "tokens",
    "olmo_core_ce_nats": "tokens of the instances, the first of each too",
    "bpb": "UTF-8 bytes",
}
_SCORED_BYTES: Final = "UTF-8 bytes of the tokens scored"  # which depend on the tokenizer


_Totals: TypeAlias = tuple[str, Sequence[int], NDArray[np.float64], NDArray[np.int64]]
"""A metric, the documents it has a value of, their totals and their sizes."""


@dataclass(frozen=True, slots=True)
class _Instance:
    """A document as it is scored.

    Attributes:
        id: the document's.
        requests: what is asked for.
        tokens: tokens whose probability is asked for.
        text_tokens: those of them that stand for text, the first ones.
        utf8_bytes: bytes of that text.
    """

    id: str
    requests: tuple[ScoreRequest, ...]
    tokens: int
    text_tokens: int
    utf8_bytes: int


class HoldoutLoss:
    """Scores one holdout.

    Args:
        settings: which holdout, and in which form.
        run: gives tokenizer, prefix token and length.

    Raises:
        ConfigError: the holdout or the form is not known.
        DataError: its file or the tokenizer cannot be used, or the tokenizer has ids that
            the run's model lacks.
        FetchError: it had to be fetched and could not be.
    """

    def __init__(self, settings: HoldoutSettings, run: RunDescription) -> None:
        if settings.form not in FORMS:
            raise ConfigError(
                f"evaluation.holdouts: form {settings.form!r} of {settings.name!r} is not known; "
                f"known are {sorted(FORMS)}"
            )
        self._form = settings.form
        self._holdout = holdouts.load(settings)
        self._limit = settings.limit or None
        self._tokenizer = TextTokenizer.of_run(run)
        self._tokenizer.require_fit(run.vocab_size, str(run.path / "run.json"))
        self._eos = run.eos_id
        self._prefix = run.prefix_id if self._form == "rolling" else None
        self._instances: dict[int, list[_Instance]] = {}
        self.name = f"holdout_loss:{settings.name}"
        self.version = fingerprint(
            code=_CODE_VERSION,
            holdout=self._holdout.name,
            form=self._form,
            data=self._holdout.fingerprint,
            limit=self._limit,
            tokenizer=self._tokenizer.fingerprint,
            prefix=self._prefix,
            eos=self._eos,
            sequence_length=run.sequence_length,
        )

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        """Return "": text can be scored at every checkpoint."""
        del checkpoint, run
        return ""

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Score the holdout with the weights loaded into the scorer's model.

        Raises:
            DataError: the tokenizer has ids that the model lacks.
            EvaluationError: the model cannot score it, or answers with values that are
                not finite.
        """
        started = time.monotonic()
        self._tokenizer.require_fit(scorer.model.vocab_size, "the model")
        instances = self._documents(scorer.model.max_length)
        nats, text_nats = _summed(scorer, instances)
        scored = np.array([item.tokens for item in instances])
        # A document of one token has no text left to score once that is conditioned on.
        texts = [n for n, item in enumerate(instances) if item.utf8_bytes]
        every = range(len(instances))
        made: list[_Totals] = [("ce_nats", every, nats, scored)]
        if self._form == "document":
            made.append(("olmo_core_ce_nats", every, nats, scored + 1))
        if texts:
            sizes = np.array([item.utf8_bytes for item in instances])[texts]
            made.append(("bpb", texts, text_nats[texts] / math.log(2), sizes))
        return Evaluation(
            evaluator=self.name,
            version=self.version,
            checkpoint=checkpoint,
            weights=weights,
            scores=tuple(
                self._score(scorer.model, metric, [instances[n].id for n in kept], totals, sizes)
                for metric, kept, totals, sizes in made
            ),
            seconds=time.monotonic() - started,
            header=header(
                scorer,
                run,
                form=self._form,
                prefix_token=self._prefix,
                documents=len(instances),
                documents_without_scored_text=[
                    item.id for item in instances if not item.utf8_bytes
                ],
                tokens_scored=int(scored.sum()),
                utf8_bytes=sum(item.utf8_bytes for item in instances),
                token_perplexity=metrics.perplexity(float(nats.sum()), int(scored.sum())),
            ),
        )

    def _documents(self, max_length: int) -> list[_Instance]:
        """Encode the documents once for all checkpoints."""
        if max_length not in self._instances:
            self._instances = {max_length: self._encoded(max_length)}
        return self._instances[max_length]

    def _encoded(self, max_length: int) -> list[_Instance]:
        """Make the documents into what is scored of them."""
        if self._form == "document" and max_length < 2:
            raise EvaluationError(
                f"holdout {self._holdout.name}: an instance of {max_length} token leaves none to "
                "score; take a model that reads at least 2"
            )
        found: list[_Instance] = []
        texts = self._tokenizer.encode_spans([item.text for item in self._holdout.documents])
        for item, (ids, before) in zip(
            self._holdout.documents, ((t.ids, t.bytes_before) for t in texts), strict=True
        ):
            if not ids:
                raise EvaluationError(
                    f"document {item.id!r} of holdout {self._holdout.name} has no tokens under "
                    f"{self._tokenizer.path}; remove it"
                )
            if self._prefix is not None:
                windows = tuple(rolling_windows(ids, self._prefix, max_length))
                found.append(_Instance(item.id, windows, len(ids), len(ids), before[-1]))
                continue
            whole = (*ids, self._eos)[:max_length]
            kept = min(len(ids), len(whole))
            found.append(
                _Instance(
                    id=item.id,
                    requests=(ScoreRequest(whole[:1], whole[1:]),),
                    tokens=len(whole) - 1,
                    text_tokens=kept - 1,
                    utf8_bytes=before[kept] - before[1],
                )
            )
        return found

    def _score(
        self,
        model: LanguageModel,
        metric: str,
        ids: Sequence[str],
        totals: NDArray[np.float64],
        sizes: NDArray[np.int64],
    ) -> Score:
        """Pool one metric over the documents."""
        found = metrics.pooled_ratio(totals, sizes)
        partial = metric == "bpb" and self._form == "document"
        return Score(
            metric=f"eval/lm/{self._holdout.name}-validation/{metric}",
            value=found.value,
            stderr=found.stderr,
            items=found.items,
            identity=MetricIdentity(
                task=self._holdout.name,
                metric=metric,
                shots=None,
                prompt_set=FORMS[self._form],
                split="validation",
                item_limit=self._limit,
                normalization=_SCORED_BYTES if partial else _UNITS[metric],
                tokenizer=self._tokenizer.fingerprint,
                dtype=model.dtype,
                prefix_token=self._prefix,
                data=self._holdout.fingerprint,
                max_length=model.max_length,
            ),
            item_ids=tuple(ids),
            item_values=tuple((totals / sizes).tolist()),
            item_weights=tuple(float(size) for size in sizes),
        )


def build(settings: EvaluationSettings, run: RunDescription) -> list[HoldoutLoss]:
    """Return one evaluator a holdout."""
    return [HoldoutLoss(item, run) for item in settings.holdouts]


def _summed(
    scorer: Scorer, instances: Sequence[_Instance]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each document's nats, and those of its text alone."""
    answers = iter(scorer.score([request for item in instances for request in item.requests]))
    nats = np.zeros((len(instances), 2))
    for row, item in zip(nats, instances, strict=True):
        logprobs = np.concatenate([next(answers).logprobs for _ in item.requests])
        row[0] = -np.sum(logprobs, dtype=np.float64)
        row[1] = -np.sum(logprobs[: item.text_tokens], dtype=np.float64)
    return nats[:, 0], nats[:, 1]
