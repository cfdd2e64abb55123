"""What tells whether the scores of a checkpoint can be believed."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evalmon.types import Series

__all__ = ["EqualScores", "MetricHistory", "TrustEvidence"]


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """One metric along a run, of one identity, by rising step.

    Attributes:
        metric: canonical name.
        steps: [n] steps scored.
        values: [n] the numbers.
        stderrs: [n] standard errors, None where one item gives none.
        items: [n] items each rests on.
    """

    metric: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    stderrs: tuple[float | None, ...]
    items: tuple[int, ...]

    def count_until(self, step: int) -> int:
        """Return how many points lie at or before a step."""
        return bisect_right(self.steps, step)

    def until(self, step: int) -> "MetricHistory":
        """Return the part up to and including a step."""
        end = self.count_until(step)
        return MetricHistory(
            self.metric, self.steps[:end], self.values[:end], self.stderrs[:end], self.items[:end]
        )

    def place(self, step: int) -> int | None:
        """Return the position of a step, None where it was not scored."""
        end = self.count_until(step)
        return end - 1 if end and self.steps[end - 1] == step else None


@dataclass(frozen=True, slots=True)
class EqualScores:
    """Two steps of different weights at which a metric is equal to the last bit, item by item.

    Attributes:
        metric: canonical name.
        earlier: first of the steps.
        later: the other.
        items: items compared.
    """

    metric: str
    earlier: int
    later: int
    items: int


@dataclass(frozen=True, slots=True)
class TrustEvidence:
    """What was stored of a run's scores up to one evaluation.

    Attributes:
        step: the evaluation judged.
        vocab_size: rows of the embedding, 0 where not known.
        holdout: holdout CE at the checkpoints, in nats per token.
        histories: every metric that standard errors and chance are read from.
        weights: fingerprint of the weights at each step, by rising step.
        equal_scores: metrics that are bit-equal at two steps of different weights.
        self_check: what the self-check of a step complained of.
        tokens: tokens trained on at each step.
    """

    step: int
    vocab_size: int
    holdout: Series
    histories: tuple[MetricHistory, ...] = ()
    weights: Mapping[int, str] = field(default_factory=dict[int, str])
    equal_scores: tuple[EqualScores, ...] = ()
    self_check: Mapping[int, str] = field(default_factory=dict[int, str])
    tokens: Mapping[int, int] = field(default_factory=dict[int, int])

    def until(self, step: int) -> "TrustEvidence":
        """Return what was there up to and including a step."""
        return replace(
            self,
            step=step,
            holdout=self.holdout.until(step),
            histories=tuple(item.until(step) for item in self.histories),
            weights={at: weights for at, weights in self.weights.items() if at <= step},
            equal_scores=tuple(item for item in self.equal_scores if item.later <= step),
            self_check={at: said for at, said in self.self_check.items() if at <= step},
        )

    def extent(self, step: int) -> list[object]:
        """Return, in JSON values, what of it there is up to a step: more is other evidence."""
        return [
            [[item.metric, item.count_until(step)] for item in self.histories if item.steps],
            self.weights.get(step),
            [[item.metric, item.later] for item in self.equal_scores if item.later <= step],
            {str(at): said for at, said in self.self_check.items() if at <= step},
        ]
