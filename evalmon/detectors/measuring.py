"""Train and holdout of run and reference, brought onto the run's evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from evalmon import series
from evalmon.detectors.curve import CurveInputs, Points
from evalmon.detectors.profiles import Profile
from evalmon.types import FloatArray, IntArray, Series

__all__ = [
    "HOLDOUT_HOLE",
    "TRAIN_HOLE",
    "UNMARKED",
    "UNREACHED",
    "Measured",
    "hole",
    "join",
    "measure",
    "measure_part",
]

HOLDOUT_HOLE: Final = 2.0
"""Widest hole of a reference's holdout that is bridged, in its usual spacings."""

TRAIN_HOLE: Final = 10.0
"""The same of its train loss."""

_COLUMNS: Final = tuple(item.name for item in fields(Points) if item.name != "noise")
UNREACHED: Final = "no train loss was logged before the last evaluation"
"""Reason of an evaluation that has no window."""

UNMARKED: Final = "the reference's thinned train loss has no point among the run's windows yet"
"""Reason of one whose window is too short for the reference's train loss."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Evaluations measured, before what they say together is known.

    Attributes:
        points: one row an evaluation, its noise still 0.
        moves: [n] median |difference of neighbors| in each evaluation's window, NaN where it
            holds one point.
        counts: [n] train points of the window.
        uncovered: tokens of evaluations at which the reference has no holdout loss.
        used: train points that belong to a window.
        reason: why the last evaluation is not among the points, or "".
    """

    points: Points
    moves: FloatArray
    counts: IntArray
    uncovered: IntArray
    used: int
    reason: str


def measure(inputs: CurveInputs, profile: Profile) -> tuple[Points, str, IntArray]:
    """Bring train and holdout of run and reference onto the run's evaluations.

    Args:
        inputs: the curves.
        profile: the profile (whether the holdout is centered).

    Returns:
        The evaluations that can be judged; why the last one is not among them, or ""; and tokens
        of evaluations at which the reference has no holdout loss.
    """
    found = measure_part(inputs, profile)
    return join([found]), found.reason, found.uncovered


def join(parts: Sequence[Measured], known: FloatArray | None = None) -> Points:
    """Return the evaluations of successive parts, with the noise that each knew of by then.

    Args:
        parts: at least one.
        known: noise of all evaluations but the last part's, where that is known already.
    """
    columns = [np.concatenate([getattr(part.points, name) for part in parts]) for name in _COLUMNS]
    moves = np.concatenate([part.moves for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    return Points(*columns, noise=series.noise_of(moves, counts, known))


def measure_part(
    inputs: CurveInputs, profile: Profile, usual_tokens: tuple[float, float] | None = None
) -> Measured:
    """Measure evaluations; of a part of a run those of it alone.

    Args:
        inputs: the curves; of a part, train points since the last window, and the evaluation
            before it with those to measure.
        profile: the profile.
        usual_tokens: usual spacings of the reference's train and holdout loss, where they are
            known already.
    """
    usual_train, usual_holdout = usual_tokens or (None, None)
    run, holdout = inputs.train, inputs.holdout
    if inputs.reference_train is None or inputs.reference_holdout is None:
        where, expected = series.align(holdout, run.tokens)
        own = run.pick(series.together(where))
        between = replace(own, values=expected - own.values)
        gap = replace(holdout, values=np.zeros(len(holdout)))
    else:
        where, theirs = series.align(
            inputs.reference_train,
            run.tokens,
            longest_gap=TRAIN_HOLE,
            usual_tokens=usual_train,
        )
        own = run.pick(series.together(where))
        between = replace(own, values=own.values - theirs)
        gap = series.gap(
            holdout,
            inputs.reference_holdout,
            longest_gap=HOLDOUT_HOLE,
            usual_tokens=usual_holdout,
        )
    marks = None
    if inputs.reference_train is not None and inputs.reference_thinned:
        marks = inputs.reference_train.tokens
    within = series.windows(between, holdout, least=inputs.least, landmarks=marks)
    covered = np.searchsorted(holdout.steps, gap.steps)
    reached = np.intersect1d(covered, within.evaluations)
    inside = np.isin(within.evaluations, reached)
    levels = series.window_medians(own.steps, own.values, within)[inside]
    holdout_gap = gap.values[np.isin(covered, reached)]
    alone = inputs.reference_train is None or inputs.reference_holdout is None
    values, nothing = holdout.values[reached], np.zeros(len(reached))
    medians = nothing
    if profile.centered or not alone:
        medians = series.window_medians(between.steps, between.values, within)[inside]
    excess = holdout_gap - medians
    if alone:
        excess = medians if profile.centered else values
    points = Points(
        steps=holdout.steps[reached],
        tokens=holdout.tokens[reached],
        train=levels,
        holdout=values,
        train_gap=nothing if alone else medians,
        holdout_gap=holdout_gap,
        excess=excess,
        noise=nothing,
    )
    return Measured(
        points,
        series.window_moves(between.values, within)[inside],
        (within.stop - within.start)[inside],
        np.setdiff1d(holdout.tokens, gap.tokens),
        int(np.searchsorted(run.steps, between.steps[within.stop[-1] - 1], side="right"))
        if len(within)
        else 0,
        _reason(inputs, between, gap, reached),
    )


def hole(reference: Series, tokens: int, longest_gap: float) -> str:
    """Say between which of its points a reference has none for an evaluation, or "".

    Args:
        reference: its train or holdout loss.
        tokens: the evaluation.
        longest_gap: widest hole that is bridged, in usual spacings.
    """
    after = int(np.searchsorted(reference.tokens, tokens, side="left"))
    at = np.array([tokens], np.int64)
    if not 0 < after < len(reference) or len(
        series.align(reference, at, longest_gap=longest_gap)[0]
    ):
        return ""
    return (
        f"no reference here: its {reference.metric} has no point between "
        f"{reference.tokens[after - 1]:,} and {reference.tokens[after]:,} tokens"
    )


def _reason(inputs: CurveInputs, between: Series, gap: Series, judged: IntArray) -> str:
    """Say why the last evaluation is not judged, or ""."""
    holdout = inputs.holdout
    last = int(holdout.tokens[-1]) if len(holdout) else 0
    # A thinned log has no window of its own for every evaluation: the last judged one stands for
    # those after it.
    reached = len(judged) > 0 and (inputs.joins or judged[-1] == len(holdout) - 1)
    theirs = inputs.reference_train, inputs.reference_holdout
    if theirs[0] is not None and theirs[1] is not None:
        covered = len(gap) > 0 and gap.tokens[-1] == last
        said = "" if covered else hole(theirs[1], last, HOLDOUT_HOLE)
        if said or (covered and reached):
            return said
        if said := hole(theirs[0], last, TRAIN_HOLE):
            return said
        if not covered or not len(between):
            end = min(
                int(part.tokens[-1]) if len(part) else 0 for part in theirs if part is not None
            )
            return f"the reference (up to {end:,} tokens) has no point here"
    if not reached and inputs.reference_thinned and len(between):
        return UNMARKED
    return "" if reached else UNREACHED
