"""Runs of a results store, read for a comparison: curves, evidence and answers to single items.

Whoever compares tables alone never imports this, and so no database.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from evalmon import stored_scores
from evalmon.config import ComparisonSettings
from evalmon.grounds import GroundsReader
from evalmon.logs import jsonl
from evalmon.run_evidence import RunEvidence, curves_of
from evalmon.store import Store
from evalmon.types import MetricIdentity, RunCurves, RunDescription, Score, Series

__all__ = ["answers", "documents", "evidence", "identity", "names", "read"]


def names(place: str) -> tuple[str, ...]:
    """Return the names of the runs in a store.

    Raises:
        StoreError: it cannot be read.
    """
    with Store.open(place, read_only=True) as store:
        return store.runs()


def read(
    place: str, name: str, description: RunDescription | None = None
) -> tuple[RunDescription, RunCurves]:
    """Read what run log and store say of a run together.

    Args:
        place: path or URL of the store.
        name: the run's name.
        description: what the run is, None for what the store says.

    Returns:
        What the run is, and its curves; without a train loss, and with a note, where its run
        directory is gone.

    Raises:
        StoreError: the store cannot be read or has no such run.
        DataError: the run log is missing or broken.
    """
    with Store.open(place, read_only=True) as store:
        run = description or store.describe(name)
        logged = _logged(run, store.where)
        found = store.histories(name)
        kept = {metric: found[metric] for metric in found if metric.startswith("eval/")}
        scored = stored_scores.curves(kept, store.identities(name))
    return run, replace(logged, curves={**logged.curves, **scored})


def evidence(place: str, run: RunDescription, curves: RunCurves, holdout: Series) -> RunEvidence:
    """Gather what a run left behind up to its last evaluation in ``holdout``.

    Args:
        place: path or URL of the store.
        run: what the run is.
        curves: its curves, of :func:`read`.
        holdout: its holdout curve up to the evaluation judged.

    Returns:
        The evidence, with id log, probe and what tells whether scores can be believed where its
        run directory is still there.

    Raises:
        StoreError: the store cannot be read.
        DataError: the run log is missing or broken.
    """
    if not run.path.is_dir():
        return RunEvidence(curves, holdout, curves.curves[holdout.metric].facts, run)
    name = holdout.metric.removeprefix("eval/lm/").removesuffix("-validation/ce_nats")
    with Store.open(place, read_only=True) as store:
        grounds = GroundsReader(run, store, ComparisonSettings(holdout=name)).read()
    assert grounds is not None
    ref = next(ref for ref in grounds.checkpoints if ref.step == holdout.steps[-1])
    gathered = grounds.evidence(ref)
    return replace(gathered, curves=replace(curves, notes=(*curves.notes, *grounds.notes)))


def answers(place: str, name: str, step: int, metrics: Collection[str]) -> Mapping[str, Score]:
    """Return the scores of one checkpoint that keep their items, by metric.

    Args:
        place: path or URL of the store.
        name: the run's name.
        step: the checkpoint.
        metrics: the metrics to read.

    Raises:
        StoreError: the store cannot be read.
    """
    with Store.open(place, read_only=True) as store:
        return stored_scores.answers(store, name, step, metrics)


def documents(place: str, name: str, metric: str) -> Mapping[int, Score]:
    """Return a holdout's scores with their documents, by step.

    Raises:
        StoreError: the store cannot be read.
    """
    with Store.open(place, read_only=True) as store:
        return store.items(name, metric)


def identity(place: str, name: str, metric: str) -> MetricIdentity | None:
    """Return what a stored metric means, None before its first score.

    Raises:
        StoreError: the store cannot be read.
    """
    with Store.open(place, read_only=True) as store:
        return store.identity(name, metric)


def _logged(run: RunDescription, where: str) -> RunCurves:
    """Return what a run's directory says of it."""
    if run.path.is_dir():
        return curves_of(run, jsonl.read(run))
    return RunCurves(
        name=run.name,
        source=where,
        curves={},
        tokens_per_step=run.tokens_per_step,
        planned_tokens=run.planned_tokens,
        warmup_tokens=run.tokens_at(run.warmup_steps),
        recipe=run.recipe,
        data_changes=tuple(run.data_changes),
        notes=(f"its run directory {run.path} is gone: its train loss is not known",),
    )
