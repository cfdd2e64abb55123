"""From store and run directory to a :class:`~evalmon.report.view.RunView`."""

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from evalmon import bands, series
from evalmon.errors import EvalmonError
from evalmon.likeness import identity_differences
from evalmon.logs import jsonl
from evalmon.report import literal, references, task_rows
from evalmon.report.references import Published
from evalmon.report.trust import self_check_facts
from evalmon.report.view import Curve, Marker, RunView, UnmatchedTrace
from evalmon.run_evidence import TRAIN_METRIC
from evalmon.store import Delivery, Store, StoredFailure
from evalmon.types import CheckpointRef, RunDescription, Series, Verdict

__all__ = ["OVERDUE_SECONDS", "TrainReader", "collect", "train_windows"]

OVERDUE_SECONDS = 300.0
"""Age at which an undelivered alert counts as stuck."""

TrainReader: TypeAlias = Callable[[RunDescription, Series], Series]
"""Run and its evaluations -> train loss windowed between them."""

_HOLDOUT = re.compile(r"eval/lm/(.+)-validation/ce_nats")


def collect(
    store: Store,
    run_name: str,
    *,
    commands: Sequence[str] = (),
    clock: Callable[[], float] = time.time,
    read_train: TrainReader | None = None,
) -> RunView:
    """Gather everything a reader is shown about one run.

    Args:
        store: an opened store; read-only is enough.
        run_name: the run.
        commands: command lines that reproduce the run, shown before the report's own.
        clock: returns Unix seconds; tells which deliveries are overdue.
        read_train: reads windowed train loss, by default :func:`train_windows`; a page
            that refreshes gives one that remembers.

    Returns:
        The view; what could not be read is named in its ``notes``.

    Raises:
        StoreError: the store holds no such run, or cannot be read.
    """
    run = store.describe(run_name)
    verdicts = store.verdicts(run_name)
    verdict = verdicts[-1] if verdicts else None
    settings = store.comparison(run_name)
    reference = (verdict.reference if verdict else settings.get("reference")) or None
    notes: list[str] = []
    holdout_name = _holdout_name(store.metrics(run_name), settings)
    peer = _peer(store, run_name, reference, holdout_name, notes)
    runs = (run,) if peer is None else (run, peer)
    holdouts = {item.name: store.series(item.name, holdout_name) for item in runs}
    trains = {
        item.name: _train(item, holdouts[item.name], read_train or train_windows, notes)
        for item in runs
    }
    marks = {item.name: store.checkpoints(item.name) for item in runs}
    last = _last(marks[run_name], verdict, holdouts[run_name])
    deliveries = store.deliveries(run_name)
    scores = store.scores(run_name, last.step, items=False) if last else ()
    published: Published | None = None
    if reference is not None and reference not in store.runs():
        asked = references.Asked(
            run, holdout_name, store.identity(run_name, holdout_name), holdouts[run_name], scores
        )
        published = references.read(reference, asked, notes)
    drawn = published.curves if published else ()
    return RunView(
        run=run,
        reference=reference,
        step=last.step if last else None,
        tokens=last.tokens if last else None,
        progress=last.tokens / run.planned_tokens if last else None,
        verdict=verdict,
        train=(*_curves(trains, marks), *(item for item in drawn if item.metric == TRAIN_METRIC)),
        holdout=(
            *_curves(holdouts, marks),
            *(item for item in drawn if item.metric == holdout_name),
        ),
        holdout_name=holdout_name,
        unmatched=_unmatched(verdicts, trains[run_name]),
        markers=_markers(run, verdict),
        tasks=(
            task_rows.beside_curves(scores, published.tasks, last.tokens if last else 0)
            if published
            else task_rows.beside_run(store, scores, last, marks[peer.name] if peer else ())
        ),
        probes=store.probes(run_name),
        alerts=store.alerts(run_name),
        deliveries=deliveries,
        stuck=_stuck(deliveries, clock()),
        failures=_standing(store.failures(run_name)),
        identities=tuple((score.metric, score.identity) for score in scores),
        commands=(*commands, *_commands(run, store.where)),
        heartbeats=store.heartbeats(run_name),
        self_check=_self_check(store, run_name, last),
        notes=tuple(notes),
        literal=literal.trace(trains[run_name], holdouts[run_name]),
        published=published.about if published else None,
    )


def train_windows(run: RunDescription, evaluations: Series) -> Series:
    """Read a run's log and reduce train loss to one median an evaluation.

    Args:
        run: the run; its directory must still be there.
        evaluations: series whose points end the windows.

    Returns:
        Median train CE since the previous evaluation, nats per token; evaluations
        without train steps before them, as step 0, are left out.

    Raises:
        DataError: there is no log, or it cannot be read.
    """
    points = jsonl.read(run).series.get(TRAIN_METRIC)
    if points is None:
        none = np.empty(0, np.int64)
        return Series(TRAIN_METRIC, none, none, np.empty(0, np.float64))
    within = series.windows(points, evaluations)
    return Series(
        TRAIN_METRIC,
        evaluations.steps[within.evaluations],
        evaluations.tokens[within.evaluations],
        series.window_medians(points.steps, points.values, within),
    )


def _holdout_name(metrics: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Return the holdout metric the rule uses: the one set, C4, or the first there is."""
    found = [metric for metric in metrics if _HOLDOUT.fullmatch(metric)]
    for name in (settings.get("holdout"), "c4_en"):
        metric = f"eval/lm/{name}-validation/ce_nats"
        if metric in found:
            return metric
    return found[0] if found else ""


def _peer(
    store: Store, run: str, reference: str | None, holdout: str, notes: list[str]
) -> RunDescription | None:
    """Return the reference run, if it is in the store and its holdout means the same."""
    if reference is None or reference not in store.runs():
        return None
    own, other = store.identity(run, holdout), store.identity(reference, holdout)
    if own is not None and other is not None and own != other:
        notes.append(
            f"The reference {reference} is not drawn: its {holdout} differs in "
            f"{'; '.join(identity_differences(own, other))}."
        )
        return None
    return store.describe(reference)


def _train(
    run: RunDescription, holdout: Series | None, read: TrainReader, notes: list[str]
) -> Series | None:
    """Return windowed train loss, or say why there is none."""
    if holdout is None:
        return None
    try:
        return read(run, holdout)
    except EvalmonError as error:
        notes.append(f"The train loss of {run.name} is not drawn: {error}")
        return None


def _last(
    refs: Sequence[CheckpointRef], verdict: Verdict | None, holdout: Series | None
) -> CheckpointRef | None:
    """Return the checkpoint judged last; before a verdict the one scored last."""
    step = verdict.step if verdict else None
    if step is None and holdout is not None:
        step = int(holdout.steps[-1])
    return next((ref for ref in refs if ref.step == step), None)


def _curves(
    found: Mapping[str, Series | None], marks: Mapping[str, Sequence[CheckpointRef]]
) -> tuple[Curve, ...]:
    """Return one line a run; a checkpoint without a value between others is a gap."""
    curves: list[Curve] = []
    for run, points in found.items():
        if points is None or not len(points):
            continue
        values = dict(zip(points.tokens.tolist(), points.values.tolist(), strict=True))
        first, last = min(values), max(values)
        missed = {ref.tokens for ref in marks[run] if first < ref.tokens < last}
        tokens = tuple(sorted(missed | set(values)))
        curves.append(Curve(points.metric, run, tokens, tuple(values.get(item) for item in tokens)))
    return tuple(curves)


def _unmatched(verdicts: Sequence[Verdict], train: Series | None) -> UnmatchedTrace | None:
    """Return the unmatched drop along the run, with the train loss the holdout supports."""
    if all(item.unmatched_nats is None for item in verdicts):
        return None
    levels: dict[int, float] = {}
    if train is not None:
        levels = dict(zip(train.steps.tolist(), train.values.tolist(), strict=True))
    low: list[float | None] = []
    high: list[float | None] = []
    for item in verdicts:
        level, drop, tolerance = levels.get(item.step), item.unmatched_nats, item.tolerance_nats
        if level is None or drop is None or tolerance is None:
            low.append(None)
            high.append(None)
            continue
        band = bands.around(
            np.array([item.tokens]), np.array([level + drop]), np.array([tolerance])
        )
        low.append(float(band.low[0]))
        high.append(float(band.high[0]))
    return UnmatchedTrace(
        tokens=tuple(item.tokens for item in verdicts),
        unmatched_nats=tuple(item.unmatched_nats for item in verdicts),
        low_nats=tuple(item.unmatched_low_nats for item in verdicts),
        high_nats=tuple(item.unmatched_high_nats for item in verdicts),
        tolerance_nats=tuple(item.tolerance_nats for item in verdicts),
        supported_low_nats=tuple(low),
        supported_high_nats=tuple(high),
    )


def _markers(run: RunDescription, verdict: Verdict | None) -> tuple[Marker, ...]:
    """Return the vertical lines that are known."""
    if verdict is None:
        return ()
    places = {
        "first repeat": verdict.first_repeat_tokens,
        "onset": verdict.onset_tokens,
        "alarm": verdict.alarm_tokens,
    }
    return tuple(
        Marker(kind, tokens, tokens / run.planned_tokens)
        for kind, tokens in places.items()
        if tokens is not None
    )


def _self_check(store: Store, run: str, last: CheckpointRef | None) -> tuple[tuple[str, str], ...]:
    """Return what the self-check of the latest evaluation says, as (label, text)."""
    if last is None:
        return ()
    found = [item for item in store.evaluations(run, last.step) if item.evaluator == "self_check"]
    if found:
        return self_check_facts(last.step, found[-1])
    said = [
        item.failure
        for item in store.failures(run)
        if item.failure.evaluator == "self_check"
        and item.failure.checkpoint.step == last.step
        and not item.superseded
    ]
    if not said:
        return (("self-check", f"not run at step {last.step:,}"),)
    return (("self-check", f"failed at step {last.step:,}: {said[-1].message}"),)


def _stuck(deliveries: Sequence[Delivery], now: float) -> frozenset[tuple[str, str]]:
    """Return the deliveries given up, or undelivered for too long."""
    return frozenset(
        (item.alert_id, item.sink)
        for item in deliveries
        if item.status == "dead"
        or (item.status == "pending" and now - item.created_at > OVERDUE_SECONDS)
    )


def _standing(failures: Sequence[StoredFailure]) -> tuple[StoredFailure, ...]:
    """Return the last failed attempt of what has not succeeded since."""
    last = {
        (item.failure.checkpoint.step, item.failure.evaluator): item
        for item in failures
        if not item.superseded
    }
    return tuple(last.values())


def _commands(run: RunDescription, store: str) -> tuple[str, ...]:
    """Return the command lines that judge the run again and show it."""
    report = ["evalmon", "report", str(run.path), "--store", store]
    page = ["streamlit", "run", "dashboards/app.py", "--", "--store", store]
    return shlex.join(report), shlex.join(page)
