"""A published reference curve beside a run: what of it is drawn, and what is known of it.

Only like is laid over like: a curve that is known to mean something else is not drawn, and
the reader is told why. What only one side states is told as well, for it is not known to be
equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalmon import reference, series
from evalmon.detectors.task_values import unlike
from evalmon.errors import ConfigError, DataError
from evalmon.likeness import curves_alike
from evalmon.reference_index import CurveEntry, Entry, Source
from evalmon.report import view
from evalmon.report.task_rows import accuracies
from evalmon.run_evidence import TRAIN_METRIC, holdout_facts, score_facts, train_facts
from evalmon.types import (
    Curve,
    Json,
    MetricIdentity,
    RunCurves,
    RunDescription,
    Sampling,
    Score,
    Series,
)

__all__ = ["Asked", "Published", "read"]

_BEYOND = 1.05
"""How far past the run's last evaluation a reference is drawn."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a reference is wanted.

    Attributes:
        run: the run it is laid beside.
        holdout: metric of the holdout.
        identity: what that means in the run, None before its first score.
        evaluations: the run's holdout scores, None before the first.
        scores: the run's scores at its latest evaluation.
    """

    run: RunDescription
    holdout: str
    identity: MetricIdentity | None
    evaluations: Series | None
    scores: Sequence[Score]


@dataclass(frozen=True, slots=True)
class Published:
    """What is shown of a reference.

    Attributes:
        about: what a reader must know of it.
        curves: its train and holdout loss within the run's tokens, those that can be drawn.
        tasks: canonical metric of an accuracy -> its curve, or why it is not laid beside the
            run's.
    """

    about: view.AboutReference
    curves: tuple[view.Curve, ...]
    tasks: Mapping[str, Curve | str]


def read(name: str, asked: Asked, notes: list[str]) -> Published | None:
    """Read what is shown of a reference curve.

    Args:
        name: its name or an alias.
        asked: what is wanted of it.
        notes: takes what could not be shown, and why.

    Returns:
        What there is of it, None where it is no reference curve or cannot be read.
    """
    try:
        entry = reference.find(name)
        tasks = [score.metric for score in accuracies(asked.scores)]
        found = reference.load(name, {TRAIN_METRIC, asked.holdout, *tasks})
    except ConfigError:
        notes.append(
            f"The reference {name} is neither a run of this store nor a reference curve (see "
            "`evalmon reference list`): it is not drawn."
        )
        return None
    except DataError as error:
        notes.append(f"The reference {name} is not drawn: {error}")
        return None
    own = _own_facts(asked)
    differences: list[str] = []
    curves: list[view.Curve] = []
    for metric in (TRAIN_METRIC, asked.holdout):
        if metric not in found.curves:
            notes.append(f"The reference {entry.name} has no {metric}: it is not drawn.")
            continue
        alike = curves_alike(metric, own[metric], found.curves[metric].facts, entry.name)
        differences += (*alike.refusals, *alike.offsets)
        if alike.refusals:
            notes.append(f"The reference's {metric} is not drawn: it does not mean the same.")
        elif asked.evaluations is not None:
            curves += _drawn(metric, found, asked, notes)
    return Published(
        about=_about(entry, found, own, tuple(differences)),
        curves=tuple(curves),
        tasks=_tasks(asked.scores, found),
    )


def _own_facts(asked: Asked) -> dict[str, dict[str, Json]]:
    """Return what is known of the run's losses, as far as published curves state the same."""
    return {TRAIN_METRIC: train_facts(asked.run), asked.holdout: holdout_facts(asked.identity)}


def _drawn(metric: str, found: RunCurves, asked: Asked, notes: list[str]) -> tuple[view.Curve, ...]:
    """Return a curve within the run's tokens, none where it has no point there."""
    curve = found.curves[metric]
    points = curve.series
    single = metric == TRAIN_METRIC and curve.sampling is not Sampling.FULL
    if metric == TRAIN_METRIC and not single and asked.holdout in found.curves:
        points = _windowed(points, found.curves[asked.holdout].series)
    assert asked.evaluations is not None
    first, last = int(asked.evaluations.tokens[0]), int(asked.evaluations.tokens[-1])
    within = points.tokens[(points.tokens >= first) & (points.tokens <= last)]
    start = max(0, int(np.searchsorted(points.tokens, first, side="right")) - 1)
    stop = int(np.searchsorted(points.tokens, _BEYOND * last, side="right")) + 1
    if not len(within) and not (len(points) and points.tokens[0] <= first <= points.tokens[-1]):
        reach = f"{points.tokens[0]:,} to {points.tokens[-1]:,}" if len(points) else "none"
        notes.append(
            f"The reference's {metric} is not drawn: it reaches over other tokens ({reach}) than "
            f"the run ({first:,} to {last:,})."
        )
        return ()
    part = slice(start, stop)
    tokens, values = points.tokens[part].tolist(), points.values[part].tolist()
    return (view.Curve(metric, found.name, tuple(tokens), tuple(values), single_steps=single),)


def _windowed(train: Series, evaluations: Series) -> Series:
    """Return medians between the reference's evaluations, as the run's own train loss has them."""
    within = series.windows(train, evaluations)
    return Series(
        train.metric,
        evaluations.steps[within.evaluations],
        evaluations.tokens[within.evaluations],
        series.window_medians(train.steps, train.values, within),
    )


def _tasks(scores: Sequence[Score], found: RunCurves) -> dict[str, Curve | str]:
    """Return the reference's accuracies, or why one is not laid beside the run's."""
    tasks: dict[str, Curve | str] = {}
    for score in accuracies(scores):
        curve = found.curves.get(score.metric)
        if curve is None:
            continue
        own = score_facts(score.metric, score.identity, score.items)
        apart = unlike(Curve(_nothing(score.metric), own), curve)
        tasks[score.metric] = f"another metric identity: {apart}" if apart else curve
    return tasks


def _nothing(metric: str) -> Series:
    """Return a series without points."""
    none = np.empty(0, np.int64)
    return Series(metric, none, none, np.empty(0, np.float64))


def _about(
    entry: Entry,
    found: RunCurves,
    own: Mapping[str, Mapping[str, Json]],
    differences: tuple[str, ...],
) -> view.AboutReference:
    """Return what a reader must know of a reference."""
    used = [entry.curves[metric] for metric in found.curves]
    facts = [
        ("model", ", ".join(filter(None, (entry.model, entry.stage)))),
        ("tokenizer", entry.tokenizer),
        *(_sampled(entry.curves[metric]) for metric in own if metric in entry.curves),
        *(_provenance(item) for item in dict.fromkeys(item.source for item in used)),
    ]
    one_sided = [
        f"{metric}: {', '.join(f'{fact} {stated[fact]}' for fact in stated if fact not in mine)}"
        for metric, mine in own.items()
        if metric in found.curves and (stated := found.curves[metric].facts).keys() - mine.keys()
    ]
    return view.AboutReference(
        name=entry.name,
        facts=tuple((label, text) for label, text in facts if text),
        differences=differences,
        one_sided=tuple(one_sided),
        known_faults=entry.known_faults,
    )


def _sampled(item: CurveEntry) -> tuple[str, str]:
    """Say how a curve's points were chosen."""
    rule = f" ({item.note})" if item.note else ""
    return item.metric, f"{item.points:,} points, {item.sampling}{rule}"


def _provenance(item: Source) -> tuple[str, str]:
    """Say where figures are from, and what they may be used under."""
    taken = f"; taken on {item.date}" if item.date else ""
    return "source", f"{item.source}; licence {item.licence}{taken}"
