"""Why no verdict is given, however much there is to read."""

import numpy as np

from evalmon import curve_faults
from evalmon.detectors.profiles import Profile
from evalmon.run_evidence import TRAIN_METRIC, RunEvidence
from evalmon.types import Sampling, Series

__all__ = ["broken", "data_changed", "nowhere_finite", "reference_changed", "sampled"]


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
    bad = sorted(
        n for n, metric in evidence.curves.nonfinite if metric == TRAIN_METRIC and n <= step
    )
    if not bad or len(evidence.train.until(step)):
        return ""
    return (
        f"no train loss up to here is a number: {len(bad):,} values are NaN or infinite, the first "
        f"at step {bad[0]:,}; look for the step at which the run diverged"
    )


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


def _beside_evaluations(train: Series, holdout: Series) -> bool:
    """Tell whether a train loss that steps over some is known at evaluations alone."""
    if len(train) < 2 or len(train) > len(holdout) or int(np.diff(train.steps).min()) < 2:
        return False
    return bool(np.isin(train.steps, holdout.steps).all())
