"""Reads from a results store what tells whether the scores of a run can be believed."""

from collections.abc import Mapping, Sequence

from evalmon.detectors.trust_evidence import EqualScores, MetricHistory, TrustEvidence
from evalmon.store import ScorePoint, Store
from evalmon.types import RunDescription, Series

__all__ = ["TrustReader"]

_SELF_CHECK = ("self_check", "EvaluationError")
"""Evaluator and error of a failure that makes the other scores of its checkpoint suspect."""

_CONTINUOUS = ("/ce_nats", "/bpb")


class TrustReader:
    """Gathers evidence; which items were equal is looked up once.

    Args:
        store: holds the scores.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._equal: dict[tuple[str, str, int, int], int] = {}

    def read(
        self,
        run: RunDescription,
        holdout: Series,
        histories: Mapping[str, Sequence[ScorePoint]],
    ) -> TrustEvidence:
        """Gather what tells whether a run's scores can be believed.

        Args:
            run: the run.
            holdout: its holdout loss.
            histories: its scores, of ``Store.histories``.

        Raises:
            StoreError: the store cannot be read.
        """
        scored = tuple(
            MetricHistory(
                metric,
                tuple(point.step for point in points),
                tuple(point.value for point in points),
                tuple(point.stderr for point in points),
                tuple(point.items for point in points),
            )
            for metric, points in histories.items()
            if metric.startswith("eval/")
        )
        weights = self._store.weights(run.name)
        failures = (item for item in self._store.failures(run.name) if not item.superseded)
        return TrustEvidence(
            step=int(holdout.steps[-1]),
            vocab_size=run.vocab_size,
            holdout=holdout,
            histories=scored,
            weights=weights,
            equal_scores=self._equal_scores(run.name, scored, weights),
            self_check={
                item.failure.checkpoint.step: item.failure.message
                for item in failures
                if (item.failure.evaluator, item.failure.error) == _SELF_CHECK
            },
            tokens={ref.step: ref.tokens for ref in self._store.checkpoints(run.name)},
        )

    def _equal_scores(
        self, run: str, histories: Sequence[MetricHistory], weights: Mapping[int, str]
    ) -> tuple[EqualScores, ...]:
        """Return the continuous metrics that two steps of different weights agree in, bit by bit.

        Items are read only where two means agree to the last bit already.
        """
        found: list[EqualScores] = []
        for item in histories:
            if not item.metric.endswith(_CONTINUOUS):
                continue
            seen: dict[float, int] = {}
            for step, value in zip(item.steps, item.values, strict=True):
                earlier = seen.setdefault(value, step)
                if earlier == step or weights.get(earlier) == weights.get(step):
                    continue
                count = self._equal_items(run, item.metric, earlier, step)
                if count:
                    found.append(EqualScores(item.metric, earlier, step, count))
        return tuple(found)

    def _equal_items(self, run: str, metric: str, earlier: int, later: int) -> int:
        """Return how many items are equal to the last bit, 0 where not all of several are."""
        key = run, metric, earlier, later
        if key not in self._equal:
            values = [
                next(score.item_values for score in scores if score.metric == metric)
                for scores in (self._store.scores(run, earlier), self._store.scores(run, later))
            ]
            equal = len(values[0]) > 1 and values[0] == values[1]
            self._equal[key] = len(values[0]) if equal else 0
        return self._equal[key]
