"""What a comparison leaves out of its curves, said to the reader: nothing is lost silently.

Values that are no numbers, columns that are no losses, and evaluations without train loss or
without a reference. What rules a verdict out is told apart from what is only worth knowing.
"""

import re
from collections.abc import Sequence

import numpy as np

from evalmon import curve_faults
from evalmon.detectors import evaluator_trust
from evalmon.evidence import Case
from evalmon.run_evidence import TRAIN_METRIC
from evalmon.sources import Kind, Source
from evalmon.types import RunCurves, Sampling, Series

__all__ = [
    "apart", "last_tokens", "notes", "reach", "too_early", "uncovered", "unknown_names", "withheld",
]  # fmt: skip

_OF_A_METRIC = re.compile(r"[\w+-]+(/[\w+-]+)+\b")
_MOST_FAULTS = 3
_FAR_BEYOND = 1.5  # evaluation intervals of train loss after the last evaluation


def withheld(source: Source, judged: Series, whose: str) -> str:
    """Say why no verdict may rest on a run's curves, or "".

    Args:
        source: the run or its reference.
        judged: its holdout curve as far as it is judged.
        whose: "the run's" or "the reference's".

    Returns:
        One reason that names metric, values and next action.
    """
    train = source.curves.curves.get(TRAIN_METRIC)
    used = train.series.until(int(judged.steps[-1])) if train else None
    for part in (judged, used):
        found = curve_faults.unusable(part) if part is not None else ""
        if found:
            return (
                f"{whose} {found} No verdict rests on it: export the column again as the loss in "
                "nats per token, or give another "
                + ("--holdout" if part is judged else _side(whose))
            )
    return ""


def notes(run: Source, reference: Source | None, judged: Series) -> list[str]:
    """Return what a reader must know of the curves before the numbers.

    Args:
        run: the run.
        reference: what it is judged against, None when judged alone.
        judged: the run's holdout curve as far as it is judged.
    """
    found: list[str] = []
    for source, whose in ((run, "the run's"), (reference, "the reference's")):
        if source is None:
            continue
        for metric in (judged.metric, TRAIN_METRIC):
            found += _bad_values(source.curves, metric, whose)
        found += _odd(source.curves, judged.metric, whose)
        found += _known_faults(source, judged.metric, whose)
    return found + _beyond(run, judged.metric)


def reach(run: Source, reference: Source, metric: str) -> tuple[int, int]:
    """Return the tokens from and to which a run can be laid over a reference.

    Args:
        run: the run.
        reference: what it is judged against.
        metric: the holdout's loss, which both have.
    """
    theirs = reference.curves.curves[metric].series.tokens
    train = reference.curves.curves.get(TRAIN_METRIC)
    if train is None or not len(train.series) or TRAIN_METRIC not in run.curves.curves:
        return int(theirs[0]), int(theirs[-1])
    trained = train.series.tokens
    return int(max(theirs[0], trained[0])), int(min(theirs[-1], trained[-1]))


def apart(run: Source, reference: Source, metric: str) -> str:
    """Say that run and reference have no tokens in common.

    Args:
        run: the run.
        reference: what it is to be judged against.
        metric: the holdout's loss, which both have.
    """
    first, last = reach(run, reference, metric)
    tokens = run.curves.curves[metric].series.tokens
    return (
        f"no common token range: {run.name} is evaluated from {tokens[0]:,} to {tokens[-1]:,} "
        f"tokens, {reference.named} reaches from {first:,} to {last:,}"
    )


def too_early(run: Source, reference: Source | None, judged: Series) -> str:
    """Say that a run has not come yet to where its reference begins, or "".

    Args:
        run: the run.
        reference: what it is judged against, None when judged alone.
        judged: the run's holdout curve as far as it is judged.
    """
    if reference is None or judged.tokens[-1] >= reach(run, reference, judged.metric)[0]:
        return ""
    return (
        f"{apart(run, reference, judged.metric)}; wait for later evaluations, or choose another "
        "reference"
    )


def uncovered(run: Source, reference: Source | None, judged: Series, case: Case) -> list[str]:
    """Return which evaluations could not be compared: without train loss, or a reference.

    Args:
        run: the run.
        reference: what it is judged against, None when judged alone.
        judged: its holdout curve as far as it is judged.
        case: what the rule made of it.
    """
    compared = case.curve.points.tokens
    if not len(compared):
        return []
    missing = ~np.isin(judged.tokens, compared) & (judged.tokens > 0)
    if case.trust is not None:  # which has its own note
        missing &= ~np.isin(judged.steps, list(evaluator_trust.untrusted_steps(case.trust)))
    train = run.curves.curves.get(TRAIN_METRIC)
    bare = np.zeros(len(judged), bool)
    if train is not None and len(train.series):
        ends = np.searchsorted(train.series.tokens, judged.tokens, side="right")
        least = 2 if train.sampling is Sampling.THINNED else 1
        bare = np.diff(ends, prepend=0) < least
    found = _ranges(judged, missing & bare, "no train loss before them: not judged")
    theirs = reference.curves.curves.get(TRAIN_METRIC) if reference else None
    if theirs is not None and theirs.sampling is Sampling.THINNED:
        joined = missing & ~bare & (judged.tokens > theirs.series.tokens[0])
        joined &= judged.tokens < theirs.series.tokens[-1]
        found += _ranges(
            judged, joined, "no point of the reference's thinned train loss: judged with the next"
        )
        missing &= ~joined
    said = "no reference" if case.reference else "no value to compare: not judged"
    return found + _ranges(judged, missing & ~bare, said)


def last_tokens(curves: RunCurves) -> int:
    """Return the last tokens that a run has a row at, also one that holds no number.

    Args:
        curves: a run with at least one point.
    """
    parts = [item.series for item in curves.curves.values() if len(item.series)]
    longest = max(parts, key=lambda part: int(part.tokens[-1]))
    last, step = int(longest.tokens[-1]), int(longest.steps[-1])
    beyond = max((bad for bad, _ in curves.nonfinite), default=0)
    if beyond <= step:
        return last
    each = curves.tokens_per_step
    return max(last, beyond * each if each else round(beyond * (last / step)) if step else last)


def _bad_steps(curves: RunCurves, metric: str) -> list[int]:
    """Return the steps at which a metric was no finite number, in rising order."""
    return sorted(step for step, name in curves.nonfinite if name == metric)


def _side(whose: str) -> str:
    """Return what is to be replaced: the run or the reference."""
    return whose.removeprefix("the ").removesuffix("'s")


def _bad_values(curves: RunCurves, metric: str, whose: str) -> list[str]:
    """Return how many values were no numbers, where the reader of the source does not say it."""
    bad = _bad_steps(curves, metric)
    if not bad or any(said.startswith(f"{metric}: {len(bad):,} ") for said in curves.notes):
        return []
    return [
        (
            f"{whose} {metric}: {_count(len(bad), 'value is', 'values are')} NaN or infinite and "
            f"left out, the first at step {bad[0]:,}"
        )
    ]


def _odd(curves: RunCurves, holdout: str, whose: str) -> list[str]:
    """Return what is odd about the losses compared, but for the reason of no verdict."""
    found: list[str] = []
    parts = [
        curves.curves[name].series for name in (holdout, TRAIN_METRIC) if name in curves.curves
    ]
    unusable = [curve_faults.unusable(part) for part in parts]
    for part, said in zip(parts, unusable, strict=True):
        if not said:
            found += [f"{whose} {odd}" for odd in curve_faults.suspicions(part)]
        elif said != next(filter(None, unusable)):
            found.append(f"{whose} {said}")
    return found


def _known_faults(source: Source, metric: str, whose: str) -> list[str]:
    """Return what the index says is wrong with the curves compared."""
    if source.kind is not Kind.REFERENCE:
        return []
    from evalmon import reference

    known = [
        fault
        for fault in reference.find(source.name).known_faults
        if not (named := _OF_A_METRIC.match(fault)) or named[0] in (metric, TRAIN_METRIC)
    ]
    found = [f"{whose} known fault: {fault}" for fault in known[:_MOST_FAULTS]]
    if len(known) > _MOST_FAULTS:
        more = len(known) - _MOST_FAULTS
        found.append(f"and {more} more: evalmon reference show {source.name}")
    return found


def _beyond(run: Source, metric: str) -> list[str]:
    """Return how far train loss goes on after the last evaluation."""
    train, holdout = run.curves.curves.get(TRAIN_METRIC), run.curves.curves[metric].series
    if train is None or not len(train.series):
        return []
    last, evaluated = int(train.series.tokens[-1]), int(holdout.tokens[-1])
    interval = float(np.median(np.diff(holdout.tokens, prepend=0)))
    if any(step > holdout.steps[-1] for step in _bad_steps(run.curves, metric)):
        return []  # of which the verdict speaks
    if last - evaluated <= _FAR_BEYOND * interval:
        return []
    return [
        (
            f"train loss is logged up to {last:,} tokens, {last - evaluated:,} beyond the last "
            "evaluation: not judged"
        )
    ]


def _ranges(judged: Series, chosen: "Sequence[bool] | np.ndarray", lacks: str) -> list[str]:
    """Say of the evaluations chosen how many lie where, and what they lack."""
    at = np.flatnonzero(chosen)
    if not len(at):
        return []
    parts = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    shown = [
        f"{judged.tokens[part[0]]:,} to {judged.tokens[part[-1]]:,}"
        if len(part) > 1
        else f"{judged.tokens[part[0]]:,}"
        for part in parts[:_MOST_FAULTS]
    ]
    left = len(parts) - _MOST_FAULTS
    more = f" tokens and {left} more places" if left > 0 else " tokens"
    verb = "has" if len(at) == 1 else "have"
    where = "at" if len(parts) == len(at) else "from"
    return [
        (
            f"{_count(len(at), 'evaluation', 'evaluations')} {where} {', '.join(shown)}{more} "
            f"{verb} {lacks}"
        )
    ]


def _count(number: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def unknown_names(curves: RunCurves) -> str:
    """Return what the reader of a source says of metric names it does not know, or ""."""
    said = [note for note in curves.notes if "not known" in note]
    return f". {'; '.join(said)}" if said else ""
