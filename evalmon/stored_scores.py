"""Scores of a results store as the curves and answers that comparisons are made of."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from evalmon.run_evidence import score_facts
from evalmon.store import ScorePoint, Store
from evalmon.types import Curve, MetricIdentity, Score, Series

__all__ = ["answers", "curves"]


def curves(
    histories: Mapping[str, Sequence[ScorePoint]], identities: Mapping[str, MetricIdentity]
) -> dict[str, Curve]:
    """Return metrics along a run as curves, by metric.

    Args:
        histories: metric -> points by rising step, at least one, of ``Store.histories``.
        identities: what they mean, of ``Store.identities``.
    """
    return {
        metric: Curve(
            _series(metric, points), score_facts(metric, identities.get(metric), points[-1].items)
        )
        for metric, points in histories.items()
    }


def answers(store: Store, run: str, step: int, metrics: Collection[str]) -> dict[str, Score]:
    """Return the scores of one checkpoint that keep their items, by metric.

    Args:
        store: holds them.
        run: the run's name.
        step: the checkpoint.
        metrics: the metrics to read.

    Raises:
        StoreError: the store cannot be read.
    """
    scores = store.scores(run, step, metrics=metrics)
    return {score.metric: score for score in scores if score.item_ids}


def _series(metric: str, points: Sequence[ScorePoint]) -> Series:
    """Return a metric's points as a series."""
    return Series(
        metric,
        np.array([at.step for at in points], np.int64),
        np.array([at.tokens for at in points], np.int64),
        np.array([at.value for at in points], np.float64),
    )
