"""The holdout alone: how a run without a train loss stands against its reference.

Nothing can be said of memorization: that takes both losses. The gap between the two
holdout curves at equal tokens tells whether the run is ahead or behind.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from evalmon import series
from evalmon.detectors.curve import CurveInputs, CurveResult, Points
from evalmon.detectors.measuring import HOLDOUT_HOLE, hole
from evalmon.detectors.profiles import Profile
from evalmon.types import FloatArray

__all__ = ["detect"]

_LEAST: Final = 6  # evaluations
_NEAR: Final = 12  # evaluations the noise is estimated from
_MEDIAN_TO_SD: Final = 1.4826
_INTERVAL: Final = 1.96


def detect(inputs: CurveInputs, profile: Profile) -> CurveResult:
    """Lay one holdout curve over another.

    Args:
        inputs: the curves; train losses are not read.
        profile: names the result, and says from where on a run is compared.

    Returns:
        A result of mode ``holdout``: its points hold the holdout gap, never an alarm, and
        the interval is that of the gap, from differences of neighboring evaluations.
    """
    reference = inputs.reference_holdout
    run = inputs.holdout
    if reference is None:
        gap, reason = run, "there is no train loss and no reference: nothing to compare"
        gap = replace(gap, values=np.zeros(len(gap)))
    else:
        gap = series.gap(run, reference, longest_gap=HOLDOUT_HOLE)
        reason = _missing(inputs, gap.tokens, profile)
    n = len(gap)
    own = run.values[np.isin(run.steps, gap.steps)]
    zeros = np.zeros(n)
    points = Points(gap.steps, gap.tokens, zeros, own, zeros, gap.values, zeros, _noise(gap.values))
    half = _INTERVAL * points.noise
    return CurveResult(
        mode="holdout",
        profile=profile.name,
        points=points,
        unmatched=zeros,
        low=-half,
        high=half,
        tolerance=np.full(n, np.inf),
        held=np.zeros(n, np.bool_),
        baseline=0.0,
        span=(0, 0),
        train_baseline=0.0,
        holdout_baseline=0.0,
        alarm=None,
        mirrored=None,
        enough_data=not reason,
        reason=reason,
    )


def _missing(inputs: CurveInputs, tokens: "np.ndarray", profile: Profile) -> str:
    """Say why the last evaluation cannot be compared, or ""."""
    reference = inputs.reference_holdout
    assert reference is not None
    if not len(tokens) or tokens[-1] != inputs.holdout.tokens[-1]:
        end = int(reference.tokens[-1]) if len(reference) else 0
        last = int(inputs.holdout.tokens[-1]) if len(inputs.holdout) else 0
        said = hole(reference, last, HOLDOUT_HOLE)
        return said or f"the reference (up to {end:,} tokens) has no point here"
    first = profile.baseline.start_fraction * inputs.planned_tokens
    later = int((tokens > first).sum())
    if later < _LEAST:
        return (
            f"{later} evaluations after {first:,.0f} tokens so far; holdout curves are compared "
            f"from the {_LEAST}th on"
        )
    return ""


def _noise(gaps: FloatArray) -> FloatArray:
    """Return [n] spread of one gap, from differences of neighbors up to it."""
    result = np.zeros(len(gaps))
    moves = np.abs(np.diff(gaps))
    for k in range(1, len(gaps)):
        result[k] = _MEDIAN_TO_SD * float(np.median(moves[max(0, k - _NEAR) : k])) / np.sqrt(2)
    return result
