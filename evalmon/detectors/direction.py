"""The unmatched drop r of a run in one direction, with the evidence of each channel."""

from dataclasses import dataclass, replace

import numpy as np

from evalmon.detectors import channels
from evalmon.detectors.channels import BoolArray, Evidence
from evalmon.detectors.curve import Plan, Points
from evalmon.detectors.profiles import Profile, ShiftSettings, SlowSettings
from evalmon.types import FloatArray

__all__ = ["Direction", "look"]

_FREE_SPAN = (0.25, 0.50)  # of the plan: where the slow bound without a reference rises
_SPACED = 8  # evaluations whose spacing tells how often a run is evaluated
_LEVEL_NOISE = 6  # evaluations from which noise before the baseline is estimated


@dataclass(frozen=True, slots=True)
class Direction:
    """r in one direction.

    Attributes:
        unmatched: [n] r less what counts as none, the running median where there is one.
        raw: [n] the same before any median.
        sigma: [n] noise of ``unmatched``.
        evidence: one a channel in use.
        baseline: r that counts as none.
        start: first evaluation of the baseline.
        after: position after its last.
        anchored: whether r is known to be 0 without a fault (equal recipes).
    """

    unmatched: FloatArray
    raw: FloatArray
    sigma: FloatArray
    evidence: tuple[Evidence, ...]
    baseline: float
    start: int
    after: int
    anchored: bool


def look(
    points: Points, profile: Profile, plan: Plan, held: BoolArray, *, sign: float
) -> Direction:
    """Return r in one direction with the evidence of every channel in use.

    Args:
        points: the evaluations.
        profile: constants of the rule.
        plan: the schedule and the mode.
        held: [n] whether a spike holds the evidence back.
        sign: 1.0 for an unmatched drop, -1.0 for the mirrored rule.

    Returns:
        The direction; r is ``sign`` times what the points say.
    """
    span = channels.baseline_span(
        points.tokens, plan.planned_tokens, plan.warmup_tokens, profile.baseline
    )
    r = points.excess
    if plan.mode == "free" and not profile.centered:
        r = r - _slope(points, span, profile) * points.train
    r = sign * r
    own = r[slice(*span)] if len(r) > span[0] else r  # provisional until it is complete
    base = float(np.median(own)) if len(own) else 0.0
    x = channels.running_median(r, profile.median_of) - base
    if profile.lag.outlier_sigmas is not None:
        x = channels.without_outliers(x, profile.lag.outlier_sigmas)
    free = plan.mode == "free"
    moved = _moved(points, profile, free=free)
    local = channels.lagged(x, moved, points, span, plan.planned_tokens, profile.lag)
    evidence: list[Evidence] = []
    if profile.fast:
        settings = profile.fast
        if free and sign < 0:
            settings = replace(settings, slope=settings.free_mirror_slope)
        evidence.append(channels.fast(x, moved, local, held, span[1], settings))
    if profile.slow:
        tolerance = _slow_tolerance(points, plan, profile.slow, mirrored=sign < 0)
        window = _width(points, plan, profile, profile.slow.window, profile.slow.sparse_window)
        evidence.append(channels.slow(x, local.sigma, window, span, profile.slow, tolerance))
    if profile.level and plan.mode == "level":
        return _level(points, profile, plan, r, local.sigma, evidence)
    if profile.shift:
        settings = profile.shift
        if sign < 0:
            settings = replace(settings, tolerance_nats=settings.mirror_tolerance_nats)
        return _shift(points, settings, plan, r, held)
    return Direction(x, r - base, local.sigma, tuple(evidence), base, *span, anchored=False)


def _moved(points: Points, profile: Profile, *, free: bool) -> FloatArray:
    """Return [m, n] what the slope tolerance looks at: train loss, and its gap to a reference's."""
    if free or profile.fast is None:
        return points.train[None, :]
    return np.stack([points.train_gap, profile.fast.train_share * points.train])


def _slow_tolerance(
    points: Points, plan: Plan, settings: SlowSettings, *, mirrored: bool
) -> FloatArray:
    """Return [n] bound of the slow channel."""
    if plan.mode == "free" and mirrored:
        return np.full(len(points), settings.free_nats)
    if plan.mode != "free":
        return np.full(len(points), settings.reference_nats)
    levels = (settings.free_early_nats, settings.free_nats)
    return np.interp(points.tokens / plan.planned_tokens, _FREE_SPAN, levels)


def _level(
    points: Points,
    profile: Profile,
    plan: Plan,
    r: FloatArray,
    sigma: FloatArray,
    evidence: list[Evidence],
) -> Direction:
    """Add the level channel: r as it stands."""
    settings = profile.level
    assert settings is not None
    start = _start(points, plan, settings.start_fraction, settings.warmups)
    window = _width(points, plan, profile, settings.window, settings.sparse_window)
    if settings.own_noise:
        sigma = np.hypot(points.noise, settings.holdout_noise_nats)
        found = channels.level(r, sigma, window, start, settings)
    else:
        after = channels.baseline_span(
            points.tokens, plan.planned_tokens, plan.warmup_tokens, profile.baseline
        )[1]
        sigma = _early_noise(r, sigma, start, after)
        found = channels.level(r, sigma, window, start, settings)
        found.ready[: start + _LEVEL_NOISE] = False  # too few to estimate the noise from
    return Direction(r, r, sigma, (found, *evidence), 0.0, 0, 0, anchored=True)


def _shift(
    points: Points, settings: ShiftSettings, plan: Plan, r: FloatArray, held: BoolArray
) -> Direction:
    """Use the shift channel: r against its own earlier evaluations.

    The baseline is that of the last evaluation; once the channel has alarmed, that of the
    alarm, so that what it spoke of does not become the standard.
    """
    start = _start(points, plan, settings.start_fraction, settings.warmups)
    found = channels.shift(r, points.noise, start, settings)
    fires = found.fires(held)
    at = int(np.argmax(fires)) if fires.any() else len(r) - 1
    after = max(at + 1 - settings.recent, start)
    own = r[start:after] if after > start else r
    base = float(np.median(own)) if len(own) else 0.0
    sigma = np.hypot(points.noise, settings.holdout_noise_nats)
    sigma = np.where(sigma > 0, sigma, _spread_so_far(r))
    return Direction(r - base, r - base, sigma, (found,), base, start, after, anchored=False)


def _spread_so_far(r: FloatArray) -> FloatArray:
    """Return [n] spread of one r from differences of neighbors so far, 0 before three."""
    result = np.zeros(len(r))
    for k in range(2, len(r)):
        result[k] = float(np.std(np.diff(r[: k + 1]))) / np.sqrt(2)
    return result


def _start(points: Points, plan: Plan, fraction: float, warmups: float) -> int:
    """Return the first evaluation after a fraction of the plan and so many warm-ups."""
    begin = max(fraction * plan.planned_tokens, warmups * plan.warmup_tokens)
    return int(np.searchsorted(points.tokens, begin, side="right"))


def _slope(points: Points, span: tuple[int, int], profile: Profile) -> float:
    """Return the slope of holdout on train in the baseline, clipped to the profile's range."""
    train, holdout = points.train[slice(*span)], points.holdout[slice(*span)]
    centered = train - train.mean() if len(train) else train
    power = float(centered @ centered)
    slope = float(centered @ holdout) / power if power > 0 else profile.slope_high
    return float(np.clip(slope, profile.slope_low, profile.slope_high))


def _width(points: Points, plan: Plan, profile: Profile, dense: int, sparse: int) -> int:
    """Return the window of a running median for the spacing of the first evaluations."""
    if len(points) < 2 or profile.slow is None:
        return sparse
    spacing = float(np.median(np.diff(points.tokens[:_SPACED])))
    return (
        sparse if spacing >= profile.slow.sparse_spacing_fraction * plan.planned_tokens else dense
    )


def _early_noise(r: FloatArray, sigma: FloatArray, start: int, after: int) -> FloatArray:
    """Return the noise of r: before the baseline ends, from differences of neighbors."""
    result = sigma.copy()
    for k in range(start + _LEVEL_NOISE - 1, min(after, len(r))):
        result[k] = max(float(np.std(np.diff(r[start : k + 1]))) / np.sqrt(2), float(sigma.min()))
    return result
