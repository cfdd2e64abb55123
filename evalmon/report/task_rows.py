"""Task accuracies of a run's latest evaluation, beside its reference's at equal tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from evalmon.detectors.evaluator_trust import chance_of
from evalmon.likeness import identity_differences
from evalmon.metrics import Interval, wilson_interval
from evalmon.report.view import TaskRow
from evalmon.series import align
from evalmon.store import Store
from evalmon.types import CheckpointRef, Curve, Score

__all__ = ["accuracies", "beside_curves", "beside_run"]

_ACCURACIES = ("acc", "len_norm")
_LONGEST_HOLE = 2.0  # median spacings of a published curve that are bridged


def accuracies(scores: Sequence[Score]) -> tuple[Score, ...]:
    """Return the scores that are task accuracies."""
    return tuple(score for score in scores if score.identity.metric in _ACCURACIES)


def beside_run(
    store: Store,
    scores: Sequence[Score],
    last: CheckpointRef | None,
    peers: Sequence[CheckpointRef],
) -> tuple[TaskRow, ...]:
    """Lay a run's accuracies beside those of another run of the store.

    Args:
        store: holds the other run's scores.
        scores: the run's scores at its latest evaluation.
        last: that checkpoint, None before the first.
        peers: the other run's checkpoints, none without a reference.

    Returns:
        One row an accuracy; the reference's is of its last checkpoint at or before the same
        tokens, and shown only under an equal metric identity.
    """
    if last is None:
        return ()
    peer = max(
        (ref for ref in peers if ref.tokens <= last.tokens),
        key=lambda ref: ref.tokens,
        default=None,
    )
    others: dict[str, Score] = {}
    if peer is not None:
        others = {score.metric: score for score in store.scores(peer.run, peer.step, items=False)}
    return tuple(
        _of_run(score, others.get(score.metric), last, peer) for score in accuracies(scores)
    )


def beside_curves(
    scores: Sequence[Score], curves: Mapping[str, Curve | str], tokens: int
) -> tuple[TaskRow, ...]:
    """Lay a run's accuracies beside published curves.

    Args:
        scores: the run's scores at its latest evaluation.
        curves: canonical metric -> published curve, or why it is not laid beside.
        tokens: tokens of that evaluation.

    Returns:
        One row an accuracy; the reference's is read at the same tokens, linearly in log tokens,
        never beyond its range or across a hole in its points.
    """
    return tuple(
        _of_curve(score, curves.get(score.metric, "not in the reference"), tokens)
        for score in accuracies(scores)
    )


def _of_run(
    score: Score, other: Score | None, last: CheckpointRef, peer: CheckpointRef | None
) -> TaskRow:
    """Return one accuracy; a reference of another metric identity is not shown."""
    note = ""
    if other is None:
        note = "not scored" if peer else ""
    elif other.identity != score.identity:
        fields = (
            item.partition(":")[0] for item in identity_differences(score.identity, other.identity)
        )
        other, note = None, f"another metric identity ({', '.join(fields)})"
    elif peer is not None and peer.tokens != last.tokens:
        note = "at fewer tokens"
    return _row(
        score,
        _wilson(other.value, other.items) if other else None,
        other.stderr if other else None,
        peer.tokens if other and peer else None,
        note,
    )


def _of_curve(score: Score, curve: Curve | str, tokens: int) -> TaskRow:
    """Return one accuracy beside a published curve."""
    if isinstance(curve, str):
        return _row(score, None, None, None, curve)
    where, values = align(curve.series, np.array([tokens]), longest_gap=_LONGEST_HOLE)
    if not len(where):
        return _row(score, None, None, None, "not evaluated at these tokens")
    value, items = float(values[0]), curve.facts.get("items")
    if not isinstance(items, int) or items < 1:
        return _row(score, None, None, None, f"{value:.3f}, of an unknown number of questions")
    return _row(score, _wilson(value, items), None, tokens, "")


def _row(
    score: Score,
    reference: Interval | None,
    stderr: float | None,
    tokens: int | None,
    note: str,
) -> TaskRow:
    """Return one row."""
    return TaskRow(
        task=score.identity.task,
        shots=score.identity.shots,
        metric=score.identity.metric,
        items=score.items,
        run=_wilson(score.value, score.items),
        stderr=score.stderr,
        reference=reference,
        reference_stderr=stderr,
        reference_items=reference.items if reference else None,
        reference_tokens=tokens,
        chance=chance_of(score.identity.task),
        note=note,
    )


def _wilson(value: float, items: int) -> Interval:
    """Return an accuracy with its 95 % Wilson interval, which is wide at 0 and 1 too."""
    return wilson_interval(round(value * items), items)
