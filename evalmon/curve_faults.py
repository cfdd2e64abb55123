"""What is visibly wrong with a curve, before anything is laid over it.

A published file can hold a broken column that reads like any other: AI2's own ladder
tables hold a C4 loss that stays at 9 to 10 nats. Nothing here repairs a curve; each
fault is a sentence for the reader and for the index.
"""

import numpy as np

from evalmon.types import FloatArray, Series

__all__ = ["broken", "faults"]

_LEARNED_TOKENS = 1_000_000_000
"""By then every language model of use is far below the loss of guessing."""
_GUESSING_NATS = 6.0
"""ln(100,352) = 11.5 and ln(50,257) = 10.8; no holdout loss of a trained model is above this."""
_RISE_NATS = {"train": 1.0, "eval": 0.3}
"""A rise between neighboring points after the first tenth that no training makes and keeps."""
_FEWEST = 5


def faults(series: Series) -> tuple[str, ...]:
    """Return what is wrong with a curve, one sentence each; nothing for a sound one.

    Args:
        series: the curve; losses are known by their names (``…/ce_nats``, ``…/bpb``), shares by
            ``eval/downstream/…``.

    Returns:
        Sentences that begin with the metric and name a step.

    Example:
        >>> steps = np.arange(1, 11)
        >>> faults(Series("train/ce_nats", steps, steps * 10**9, 9.5 - steps / 50))[0][:55]
        'train/ce_nats: the median of its last half is 9.340 nat'
    """
    metric, values = series.metric, series.values
    found: list[str] = []
    if metric.endswith(("/ce_nats", "/bpb")):
        found += _loss_faults(series)
    elif metric.startswith("eval/downstream/"):
        outside = np.flatnonzero((values < 0) | (values > 1))
        if len(outside):
            at = outside[0]
            found.append(
                f"{metric}: {values[at]:g} at step {series.steps[at]:,} is no share of right "
                f"answers ({len(outside)} such points)."
            )
    if (
        not metric.startswith(("optim/", "data/"))
        and len(values) >= _FEWEST
        and np.ptp(values) == 0
    ):
        found.append(
            f"{metric}: all {len(values)} points are {values[0]:g}, from step "
            f"{series.steps[0]:,} to {series.steps[-1]:,}."
        )
    return tuple(found)


def broken(series: Series) -> str:
    """Say why a loss cannot be one of a trained model at all, or "".

    A loss that rises and stays up is not among the reasons: training and evaluators can do that.

    Example:
        >>> steps = np.arange(1, 11)
        >>> broken(Series("train/ce_nats", steps, steps * 10**9, 3.5 - steps / 50))
        ''
    """
    found = _impossible(series)
    return found[0] if found else ""


def _loss_faults(series: Series) -> list[str]:
    """Return what no loss does: be negative, stay at that of guessing, rise and stay up."""
    metric, steps, values = series.metric, series.steps, series.values
    found = _impossible(series)
    rise = _lasting_rise(values, _RISE_NATS["train" if metric.startswith("train/") else "eval"])
    if rise is not None:
        found.append(
            f"{metric}: rises from {values[rise - 1]:.3f} to {values[rise]:.3f} at step "
            f"{steps[rise]:,} and stays up; that is another metric, or broken."
        )
    return found


def _impossible(series: Series) -> list[str]:
    """Return what no trained model's loss is: negative, or at that of guessing."""
    metric, steps, values = series.metric, series.steps, series.values
    found: list[str] = []
    negative = np.flatnonzero(values < 0)
    if len(negative):
        at = negative[0]
        found.append(
            f"{metric}: {values[at]:g} at step {steps[at]:,} is below 0, which no loss is "
            f"({len(negative)} such points)."
        )
    half = values[len(values) // 2 :]
    learned = len(values) >= _FEWEST and series.tokens[len(values) // 2] >= _LEARNED_TOKENS
    if learned and metric.endswith("/ce_nats") and np.median(half) > _GUESSING_NATS:
        found.append(
            f"{metric}: the median of its last half is {np.median(half):.3f} nats, close to "
            f"guessing, from step {steps[len(values) // 2]:,}; the column is likely broken."
        )
    return found


def _lasting_rise(values: FloatArray, rise: float) -> int | None:
    """Return the first point after which all of the next three are higher than before by this."""
    begin = max(len(values) // 10, 1)
    if len(values) < begin + 3:
        return None
    ahead = np.minimum(np.minimum(values[begin:-2], values[begin + 1 : -1]), values[begin + 2 :])
    found = np.flatnonzero(ahead > values[begin - 1 : -3] + rise)
    return int(found[0]) + begin if len(found) else None
