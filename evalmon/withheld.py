"""Why no verdict is given, however much there is to read."""

import numpy as np

from evalmon import curve_faults, loss_units, series
from evalmon.detectors.curve import CurveResult, Points
from evalmon.detectors.measuring import HOLDOUT_HOLE, UNREACHED
from evalmon.detectors.profiles import Profile
from evalmon.loss_units import LaidOver
from evalmon.run_evidence import TRAIN_METRIC, RunEvidence
from evalmon.types import Sampling, Series

__all__ = [
    "broken", "broken_off", "data_changed", "nowhere_finite", "other_unit", "reference_changed",
    "sampled",
]  # fmt: skip

_WINDOWS = 64  # windows of train loss that units are told by


def data_changed(evidence: RunEvidence, step: int) -> str:
    """Say at which step before ``step`` a run went on with other data, or ""."""
    before = [change for change in evidence.curves.data_changes if change < step]
    if not before:
        return ""
    return (
        f"data changed at step {before[0]:,}: train loss before and after it is of different text, "
        "so no verdict is given across it"
    )


def reference_changed(reference: RunEvidence, tokens: int) -> str:
    """Say that the reference went on with other data within so many tokens, or ""."""
    run = reference.description
    if run is None or all(run.tokens_at(change) >= tokens for change in run.data_changes):
        return ""
    return (
        f"data of the reference {run.name} changed at step {min(run.data_changes):,}: no verdict "
        "is given across it; choose another reference"
    )


def sampled(evidence: RunEvidence, reference: RunEvidence | None, profile: Profile) -> str:
    """Say that a train loss is a sample of an unknown kind, or ""."""
    for whose, item in (("the run's", evidence), ("the reference's", reference)):
        found = item.curves.curves.get(TRAIN_METRIC) if item else None
        if found and found.sampling is Sampling.SAMPLED:
            return (
                f"{whose} train loss is sampled, not whole: {found.note}; no verdict rests on it. "
                "Export its full history, or declare --thinned if a rule that does not look at "
                "the values chose its points"
            )
    found = evidence.curves.curves.get(TRAIN_METRIC)
    if found and profile.fast and _beside_evaluations(found.series, evidence.holdout):
        return (
            "train loss is known at evaluations alone, one point a window: rows that hold both "
            "keys were exported, or nothing else was logged; export the train loss by itself, or "
            "give --profile short if the run is one of few evaluations"
        )
    return ""


def nowhere_finite(evidence: RunEvidence, step: int) -> str:
    """Say that a train loss was logged and not one value of it is a number, or ""."""
    bad = [n for n in _bad_steps(evidence, TRAIN_METRIC) if n <= step]
    if not bad or len(evidence.train.until(step)):
        return ""
    return (
        f"no train loss up to here is a number: {len(bad):,} values are NaN or infinite, the first "
        f"at step {bad[0]:,}; look for the step at which the run diverged"
    )


def broken_off(evidence: RunEvidence, step: int, curve: CurveResult) -> str:
    """Say from where on a loss is no number up to its end, or "".

    Args:
        evidence: what the run left behind.
        step: its last evaluation.
        curve: what the rule made of it.

    Returns:
        One clause a loss: the holdout's where nothing was evaluated after ``step`` but what is no
        number, the train loss's where that is why ``step`` could not be judged.
    """
    found: list[str] = []
    metric = evidence.holdout.metric
    after = [n for n in _bad_steps(evidence, metric) if n > step]
    if after and evidence.latest:
        found.append(
            f"{metric}: no evaluation after step {step:,} is a number: {len(after):,} are NaN or "
            f"infinite, the first at step {after[0]:,}"
        )
    train = evidence.train.until(step)
    last = int(train.steps[-1]) if len(train) else 0
    bad = [n for n in _bad_steps(evidence, TRAIN_METRIC) if last < n <= step]
    if bad and last and curve.reason == UNREACHED:
        found.append(
            f"{TRAIN_METRIC}: no value after step {last:,} is a number up to the last evaluation: "
            f"{len(bad):,} are NaN or infinite, the first at step {bad[0]:,}"
        )
    return "; ".join(found)


def other_unit(
    evidence: RunEvidence, reference: RunEvidence | None, holdout: Series, curve: CurveResult
) -> str:
    """Say that a loss of run or reference is in another unit than the other's, or "".

    Args:
        evidence: what the run left behind.
        reference: what it is laid over, None when judged alone.
        holdout: the run's evaluations that can be trusted.
        curve: what the rule made of both.
    """
    if reference is None:
        return ""
    where, theirs = series.align(reference.holdout, holdout.tokens, longest_gap=HOLDOUT_HOLE)
    laid = LaidOver(holdout.metric, holdout.steps[where], holdout.values[where], theirs)
    compared = curve.mode in ("level", "reference")
    train = _trained(curve.points, reference.train) if compared else None
    named = (f"{item.name} ({item.source})" for item in (evidence.curves, reference.curves))
    return loss_units.told(laid, train, *named)


def broken(evidence: RunEvidence, reference: RunEvidence | None) -> str:
    """Say that a holdout loss is no loss of a trained model while train loss is one, or ""."""
    for whose, item in (("the run's", evidence), ("the reference's", reference)):
        found = curve_faults.broken(item.holdout) if item else ""
        if item and found and not (len(item.train) and curve_faults.broken(item.train)):
            return (
                f"{whose} {found} No verdict rests on it: export the column again, or give another "
                "--holdout"
            )
    return ""


def _trained(points: Points, reference: Series) -> LaidOver:
    """Lay train losses over each other by window, at some of the evaluations.

    The medians of both, not of their difference: a unit may raise the noise of one tenfold.
    """
    last = len(points) - 1
    begin = np.searchsorted(reference.tokens, points.tokens[:-1], side="right")
    end = np.searchsorted(reference.tokens, points.tokens[1:], side="right")
    chosen = np.unique(np.linspace(1, last, _WINDOWS).astype(int)) if last > 0 else ()
    at = [int(n) for n in chosen if end[n - 1] > begin[n - 1]]
    theirs = [float(series.medians(reference.values[begin[n - 1] : end[n - 1]])) for n in at]
    return LaidOver(TRAIN_METRIC, points.steps[at], points.train[at], np.array(theirs, np.float64))


def _bad_steps(evidence: RunEvidence, metric: str) -> list[int]:
    """Return the steps at which a metric was no finite number, in rising order."""
    return sorted(step for step, name in evidence.curves.nonfinite if name == metric)


def _beside_evaluations(train: Series, holdout: Series) -> bool:
    """Tell whether a train loss that steps over some is known at evaluations alone."""
    if len(train) < 2 or len(train) > len(holdout) or int(np.diff(train.steps).min()) < 2:
        return False
    return bool(np.isin(train.steps, holdout.steps).all())
