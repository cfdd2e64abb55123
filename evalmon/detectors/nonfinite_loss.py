"""A train loss that is not a number, or infinite: the run has diverged or its log is broken."""

from collections.abc import Sequence

from evalmon.types import Finding

__all__ = ["finding"]

_WATCHED = "train/ce_nats"
_LISTED = 20


def finding(
    run: str, nonfinite: Sequence[tuple[int, str]], *, tokens_per_step: int | None
) -> Finding | None:
    """Return a finding when a train loss was not finite.

    Args:
        run: the run's name.
        nonfinite: (step, metric) of values that were not finite.
        tokens_per_step: tokens trained on by one step; where steps differ only the step is told.

    Returns:
        A finding of kind ``divergence`` at the first such step, or None.

    Example:
        >>> finding("a", [(2, "train/ce_nats")], tokens_per_step=10).message
        'non-finite train loss at step 2'
    """
    steps = sorted({step for step, metric in nonfinite if metric == _WATCHED})
    if not steps:
        return None
    later = len(steps) - 1
    tokens = steps[0] * (tokens_per_step or 0)
    more = f" and {later} later step{'s' if later > 1 else ''}" if later else ""
    return Finding(
        detector="nonfinite_loss",
        kind="divergence",
        run=run,
        alarm_step=steps[0],
        alarm_tokens=tokens,
        onset_tokens=tokens if tokens_per_step else None,
        channel="",
        magnitude_nats=None,
        message=f"non-finite train loss at step {steps[0]}{more}",
        evidence={"steps": list(steps[:_LISTED]), "count": len(steps)},
    )
