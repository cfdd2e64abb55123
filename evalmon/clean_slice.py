"""A holdout without the documents that are in the training text.

A holdout that holds training text falls with train loss when that text is memorized: it
hides what it is there to show. The documents that did not leak still show it. Pooled as
:mod:`evalmon.evaluators.holdout_loss` pools: nats of all documents over their tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from evalmon import metrics
from evalmon.errors import DataError
from evalmon.types import DocumentOverlap, Json, LeakageReport, Score, Series

__all__ = ["CleanSlice", "without_leaked"]

_NAMED = 3  # documents named in a sentence


@dataclass(frozen=True, slots=True)
class CleanSlice:
    """A holdout's loss with and without the documents that leaked.

    Attributes:
        clean: loss of the documents that are not in the training text.
        whole: loss of all documents.
        documents: how many those are.
        contaminated: the documents left out, those there whole first.
    """

    clean: Series
    whole: Series
    documents: int
    contaminated: tuple[DocumentOverlap, ...]

    @property
    def reason(self) -> str:
        """What was left out, as a sentence."""
        left = len(self.contaminated)
        named = ", ".join(
            f"{item.id} {'whole' if item.exact else f'share {item.share:.2f}'}"
            for item in self.contaminated[:_NAMED]
        )
        more = ", …" if left > _NAMED else ""
        return (
            f"holdout contaminated: {left} of {self.documents} documents are in the training text "
            f"({named}{more}); judged on the other {self.documents - left}"
        )

    @property
    def evidence(self) -> list[Json]:
        """The documents left out as JSON values: n-grams they have, and found in training text."""
        return [
            {
                "id": item.id,
                "share": round(item.share, 6),
                "exact": item.exact,
                "ngrams": item.ngrams,
                "found": item.found,
            }
            for item in self.contaminated
        ]


def without_leaked(
    whole: Series, scores: Mapping[int, Score], report: LeakageReport, where: str
) -> CleanSlice:
    """Leave the documents that leaked out of a holdout's loss.

    Args:
        whole: loss of all documents along a run, in nats per token.
        scores: step -> its score with one value and weight a document.
        report: which documents leaked.
        where: store the scores are from, for messages.

    Returns:
        Both series, on the same steps.

    Raises:
        DataError: a checkpoint's score keeps no documents, the report is of another holdout,
            names a document that was not scored, or leaves none.
    """
    leaked = {item.id for item in report.leaked}
    empty = [
        step for step in whole.steps.tolist() if step not in scores or not scores[step].item_ids
    ]
    if empty:
        shown = ", ".join(f"{step:,}" for step in empty[:5]) + (", …" if len(empty) > 5 else "")
        raise DataError(
            f"{where}: {whole.metric} keeps no value a document at step {shown}; evaluate these "
            "checkpoints again with evalmon, which keeps them"
        )
    values = [
        _pooled(scores[step], leaked, report, f"{where}: {whole.metric} at step {step:,}")
        for step in whole.steps.tolist()
    ]
    last = scores[int(whole.steps[-1])]
    return CleanSlice(
        clean=replace(whole, values=np.array(values, np.float64)),
        whole=whole,
        documents=len(last.item_ids),
        contaminated=tuple(sorted(report.leaked, key=lambda i: (-i.exact, -i.share, i.id))),
    )


def _pooled(score: Score, leaked: set[str], report: LeakageReport, place: str) -> float:
    """Return the loss of the documents of one score that did not leak."""
    if score.identity.data != report.fingerprint:
        raise DataError(
            f"{place} is of a holdout of fingerprint {score.identity.data}, the report of "
            f"{report.holdout} with {report.fingerprint}; run `evalmon audit leakage` with the "
            "file that was scored"
        )
    ids = np.array(score.item_ids)
    absent = sorted(leaked - set(score.item_ids))
    if absent:
        raise DataError(
            f"{place}: document {absent[0]!r} of the report was not scored ({len(absent)} of "
            f"{len(leaked)}); run `evalmon audit leakage` with the file that was scored"
        )
    kept = ~np.isin(ids, sorted(leaked))
    if not kept.any():
        raise DataError(
            f"{place}: all {len(ids)} documents are in the training text, none is left to judge "
            "by; score another holdout"
        )
    weights = np.array(score.item_weights or np.ones(len(ids)))[kept]
    return metrics.pooled_ratio(np.array(score.item_values)[kept] * weights, weights).value
