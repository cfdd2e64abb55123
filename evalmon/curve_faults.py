"""What is visibly wrong with a curve, before anything is laid over it.

A published file can hold a broken column that reads like any other: AI2's own ladder
tables hold a C4 loss that stays at 9 to 10 nats. Nothing here repairs a curve; each
fault is a sentence for the reader and for the index.
"""

import numpy as np

from evalmon.series import medians
from evalmon.types import FloatArray, Series

__all__ = ["broken", "faults", "no_measurement", "suspicions", "unusable"]

_LEARNED_TOKENS = 1_000_000_000
"""By then every language model of use is far below the loss of guessing."""
_GUESSING_NATS = 6.0
"""ln(100,352) = 11.5 and ln(50,257) = 10.8; no holdout loss of a trained model is above this."""
_RISE_NATS = {"train": 1.0, "eval": 0.3}
"""A rise between neighboring points after the first tenth that no training makes and keeps."""
_FEWEST = 5
_NO_LOSS_NATS = 12.5
"""ln(262,144): above what guessing costs with any vocabulary in use."""
_STUCK_FEWEST = 20
"""A third of so many equal to all digits is no rounding."""
_OUTLIER_NATS = 100.0
_LARGEST = 1e6
"""No loss, share or norm is as large, not even of a run that diverged."""
_NOT_JUDGED = ("optim/", "data/")


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
    if not metric.startswith(_NOT_JUDGED):
        found += _standing(series)
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


def unusable(series: Series) -> str:
    """Say why no verdict may rest on a loss at all, or "".

    Args:
        series: a loss in nats per token.

    Returns:
        A sentence that begins with the metric: values below 0, values that are percentages or
        perplexities, a loss still close to that of guessing, or a column that stands still.

    Example:
        >>> steps = np.arange(1, 11)
        >>> unusable(Series("train/ce_nats", steps, steps * 10**9, np.full(10, 2.5)))
        'train/ce_nats: all 10 points are 2.5, from step 1 to 10.'
    """
    found = [*_negative(series), *_other_unit(series)]
    found += [*(() if _rose(series) else _guessing(series)), *_standing(series)]
    return found[0] if found else ""


def no_measurement(series: Series) -> str:
    """Say why a curve cannot be what its name says of any model, sound or not, or "".

    Returns:
        A sentence that begins with the metric: a number beyond a million, a loss below 0, or a
        loss that ends above what guessing costs.

    Example:
        >>> steps = np.arange(1, 11)
        >>> no_measurement(Series("train/ce_nats", steps, steps, np.full(10, -1e308)))
        'train/ce_nats: -1e+308 at step 1 is no value of a model (10 such points).'
    """
    metric, values = series.metric, series.values
    if metric.startswith(_NOT_JUDGED):
        return ""
    huge = np.flatnonzero(np.abs(values) > _LARGEST)
    if len(huge):
        at = huge[0]
        return (
            f"{metric}: {values[at]:g} at step {series.steps[at]:,} is no value of a model "
            f"({len(huge)} such points)."
        )
    if not metric.endswith(("/ce_nats", "/bpb")):
        return ""
    found = [*_negative(series), *_other_unit(series)]
    return found[0] if found else ""


def suspicions(series: Series) -> tuple[str, ...]:
    """Return what is odd about a loss without ruling it out, one sentence each."""
    found = _loss_faults(series) if len(series) else []
    if series.metric.startswith("train/"):  # which data that comes again can bring about
        found += _stuck(series)
    outliers = np.flatnonzero(series.values > _OUTLIER_NATS)
    if len(outliers):
        at = outliers[0]
        found.append(
            f"{series.metric}: {series.values[at]:g} at step {series.steps[at]:,} is no loss a "
            f"model can have ({len(outliers)} such point{'s' if len(outliers) > 1 else ''})."
        )
    return tuple(found)


def _standing(series: Series) -> list[str]:
    """Return whether a curve stands still: all along, or one of a holdout up to its end."""
    metric, steps, values = series.metric, series.steps, series.values
    if len(values) < _FEWEST:
        return []
    if np.ptp(values) == 0:
        return [
            (
                f"{metric}: all {len(values)} points are {values[0]:g}, from step {steps[0]:,} to "
                f"{steps[-1]:,}."
            )
        ]
    return [] if metric.startswith("train/") else _stuck(series)


def _stuck(series: Series) -> list[str]:
    """Return whether a loss does not move from some point to its end."""
    metric, steps, values = series.metric, series.steps, series.values
    third = len(values) - len(values) // 3
    if len(values) < _STUCK_FEWEST or not metric.endswith(("/ce_nats", "/bpb")):
        return []
    if np.ptp(values[third:]) > 0:
        return []
    begin = int(np.flatnonzero(values != values[-1])[-1]) + 1
    return [
        (
            f"{metric}: the last {len(values) - begin} points are all {values[-1]:g}, from step "
            f"{steps[begin]:,} to {steps[-1]:,}."
        )
    ]


def _other_unit(series: Series) -> list[str]:
    """Return whether the last third lies above what guessing costs."""
    metric, values = series.metric, series.values
    if len(values) < _FEWEST or not metric.endswith("/ce_nats"):
        return []
    late = float(medians(values[len(values) - len(values) // 3 - 1 :]))
    if late <= _NO_LOSS_NATS:
        return []
    return [
        (
            f"{metric}: the median of its last third is {late:.4g} nats, more than guessing costs; "
            "it is a percentage, a perplexity or another unit."
        )
    ]


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
    return [*_negative(series), *_guessing(series)]


def _guessing(series: Series) -> list[str]:
    """Return whether a loss still lies close to that of guessing when much was trained on."""
    metric, steps, values = series.metric, series.steps, series.values
    middle = len(values) // 2
    learned = len(values) >= _FEWEST and series.tokens[middle] >= _LEARNED_TOKENS
    if not learned or not metric.endswith("/ce_nats"):
        return []
    late = float(medians(values[middle:]))
    if late <= _GUESSING_NATS:
        return []
    return [
        (
            f"{metric}: the median of its last half is {late:.3f} nats, close to guessing, from "
            f"step {steps[middle]:,}; the column is likely broken."
        )
    ]


def _rose(series: Series) -> bool:
    """Return whether the first half of a curve lies below its second: a run that diverged."""
    half = len(series) // 2
    return half > 0 and bool(medians(series.values[:half]) < medians(series.values[half:]))


def _negative(series: Series) -> list[str]:
    """Return whether a loss is below 0."""
    metric, steps, values = series.metric, series.steps, series.values
    negative = np.flatnonzero(values < 0)
    if not len(negative):
        return []
    at = negative[0]
    return [
        (
            f"{metric}: {values[at]:g} at step {steps[at]:,} is below 0, which no loss is "
            f"({len(negative)} such points)."
        )
    ]


def _lasting_rise(values: FloatArray, rise: float) -> int | None:
    """Return the first point after which all of the next three are higher than before by this."""
    begin = max(len(values) // 10, 1)
    if len(values) < begin + 3:
        return None
    ahead = np.minimum(np.minimum(values[begin:-2], values[begin + 1 : -1]), values[begin + 2 :])
    found = np.flatnonzero(ahead > values[begin - 1 : -3] + rise)
    return int(found[0]) + begin if len(found) else None
