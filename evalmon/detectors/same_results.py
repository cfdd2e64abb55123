"""Results that are too equal: one checkpoint under two steps, or one answer to two models.

Training moves every weight, so equal weights at two steps are one checkpoint stored twice,
or training that stood still. Scores of different weights that agree to the last bit in every
item were not computed twice: something served the first answers again.

Source: EleutherAI/lm-evaluation-harness issues 4063 and 4065 (a response cache that does not
know the model).
"""

from itertools import pairwise
from typing import Final

from evalmon.detectors.trust_evidence import TrustEvidence
from evalmon.types import Finding

__all__ = ["same_scores", "same_weights"]

_LISTED: Final = 20


def same_weights(run: str, seen: TrustEvidence) -> Finding | None:
    """Return a finding of kind ``checkpoint`` when two steps hold the same weights."""
    steps: dict[str, list[int]] = {}
    for step, weights in sorted(seen.weights.items()):
        steps.setdefault(weights, []).append(step)
    pairs = sorted(
        (
            (later, earlier, weights)
            for weights, at in steps.items()
            for earlier, later in pairwise(at)
        )
    )
    if not pairs:
        return None
    later, earlier, weights = pairs[0]
    more = f", and so do {len(pairs) - 1} further pairs" if len(pairs) > 1 else ""
    return Finding(
        detector="same_weights",
        kind="checkpoint",
        run=run,
        alarm_step=later,
        alarm_tokens=seen.tokens.get(later, 0),
        onset_tokens=seen.tokens.get(earlier),
        channel="",
        magnitude_nats=None,
        message=(
            f"steps {earlier:,} and {later:,} hold the same weights (fingerprint {weights}){more}: "
            "a checkpoint was stored twice, or training stood still"
        ),
        evidence={
            "steps": [[first, second] for second, first, _ in pairs[:_LISTED]],
            "pairs": len(pairs),
            "fingerprint": weights,
        },
    )


def same_scores(run: str, seen: TrustEvidence) -> Finding | None:
    """Return a finding of kind ``evaluator`` when different weights gave bit-equal scores.

    Only continuous values count, nats or bits an item: shares of few items coincide by chance.
    """
    equal = sorted(seen.equal_scores, key=lambda item: (item.later, item.earlier, item.metric))
    if not equal:
        return None
    first = equal[0]
    metrics = sorted({item.metric for item in equal})
    steps = sorted({step for item in equal for step in (item.earlier, item.later)})
    more = f" and {len(metrics) - 1} more" if len(metrics) > 1 else ""
    return Finding(
        detector="same_scores",
        kind="evaluator",
        run=run,
        alarm_step=first.later,
        alarm_tokens=seen.tokens.get(first.later, 0),
        onset_tokens=seen.tokens.get(first.earlier),
        channel="",
        magnitude_nats=None,
        message=(
            f"suspect cache: {metrics[0]}{more} is equal to the last bit in all {first.items:,} "
            f"items at steps {first.earlier:,} and {first.later:,}, whose weights differ; remove "
            "the response cache and score both again"
        ),
        evidence={
            "metrics": list(metrics[:_LISTED]),
            "steps": [*steps[:_LISTED]],
        },
    )
