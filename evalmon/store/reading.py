"""Every query: what report, dashboard and monitor read."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import RowMapping, Select, func, select

from evalmon.errors import StoreError
from evalmon.store import codec, schema
from evalmon.store.database import Database
from evalmon.store.holder import Holder
from evalmon.store.records import Delivery, Heartbeat, ProbePoint, ScorePoint, StoredFailure
from evalmon.types import (
    Alert,
    CheckpointRef,
    Evaluation,
    MetricIdentity,
    RunDescription,
    Score,
    Series,
    Verdict,
)

__all__ = ["Reader"]

_Query: TypeAlias = Select[*tuple[Any, ...]]
_RUNS, _EVALUATIONS, _SCORES = schema.runs, schema.evaluations, schema.scores
_VALUES = (
    _SCORES.c.metric,
    _SCORES.c.value,
    _SCORES.c.stderr,
    _SCORES.c["items"],
    _SCORES.c.identity,
)
_ITEMS = (_SCORES.c.item_ids, _SCORES.c.item_values, _SCORES.c.item_weights)


class Reader:
    """The queries of a store; each sees one consistent state.

    Args:
        database: the opened database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def where(self) -> str:
        """Path or URL of the store, without a password."""
        return self._database.where

    @property
    def file(self) -> Path | None:
        """File of an SQLite store, None for any other."""
        return self._database.file

    def runs(self) -> tuple[str, ...]:
        """Return the runs' names, in the order in which they were registered."""
        return tuple(row["name"] for row in self._rows(select(_RUNS).order_by(_RUNS.c.number)))

    def describe(self, run: str) -> RunDescription:
        """Return what a run is.

        Raises:
            StoreError: no such run; those there are are named.
        """
        return codec.description_from(self._run(run))

    def comparison(self, run: str) -> dict[str, Any]:
        """Return the comparison settings with which the run was last watched, or nothing."""
        settings: dict[str, Any] = json.loads(self._run(run)["comparison"])
        return settings

    def checkpoints(self, run: str) -> tuple[CheckpointRef, ...]:
        """Return every checkpoint ever found, by rising step; its folder may be gone."""
        table = schema.checkpoints
        rows = self._rows(select(table).where(table.c.run == run).order_by(table.c.step))
        return tuple(
            CheckpointRef(run, row["step"], row["tokens"], Path(row["path"])) for row in rows
        )

    def stored(self, run: str, step: int) -> frozenset[tuple[str, str]]:
        """Return (evaluator, version) of what is stored at a checkpoint."""
        table = _EVALUATIONS
        query = select(table.c.evaluator, table.c.version).where(
            table.c.run == run, table.c.step == step
        )
        return frozenset((row["evaluator"], row["version"]) for row in self._rows(query))

    def evaluations(self, run: str, step: int | None = None) -> tuple[Evaluation, ...]:
        """Return evaluations by rising step, then in the order stored; scores without items."""
        query = _of_run(
            run, *_EVALUATIONS.c, schema.checkpoints.c.tokens, schema.checkpoints.c.path
        )
        if step is not None:
            query = query.where(_EVALUATIONS.c.step == step)
        rows = self._rows(query.order_by(_EVALUATIONS.c.step, _EVALUATIONS.c.id))
        scores: dict[int, list[Score]] = {row["id"]: [] for row in rows}
        join = _scores_of_run(run, _SCORES.c.evaluation, *_VALUES).order_by(_SCORES.c.metric)
        for row in self._rows(join):
            if row["evaluation"] in scores:
                scores[row["evaluation"]].append(codec.score_from(row))
        return tuple(codec.evaluation_from(row, scores[row["id"]]) for row in rows)

    def scores(
        self, run: str, step: int, *, items: bool = True, metrics: Collection[str] | None = None
    ) -> tuple[Score, ...]:
        """Return the scores at one checkpoint by metric, of each the latest stored.

        Args:
            run: the run's name.
            step: the checkpoint.
            items: read per-item values too.
            metrics: read these alone, None for all.
        """
        columns = (*_VALUES, *_ITEMS) if items else _VALUES
        query = _scores_of_run(run, *columns).where(_EVALUATIONS.c.step == step)
        if metrics is not None:
            query = query.where(_SCORES.c.metric.in_(metrics))
        rows = self._rows(query.order_by(_EVALUATIONS.c.id))
        latest = {row["metric"]: row for row in rows}
        return tuple(codec.score_from(latest[metric]) for metric in sorted(latest))

    def metrics(self, run: str) -> tuple[str, ...]:
        """Return the metrics a run has scores of, sorted."""
        query = _scores_of_run(run, _SCORES.c.metric).distinct().order_by(_SCORES.c.metric)
        return tuple(row["metric"] for row in self._rows(query))

    def points(self, run: str, metric: str) -> tuple[ScorePoint, ...]:
        """Return a metric along a run, of one identity: that of the latest evaluation."""
        return tuple(
            ScorePoint(row["step"], row["tokens"], row["value"], row["stderr"], row["items"])
            for row in self._metric(run, metric)
        )

    def histories(self, run: str) -> dict[str, tuple[ScorePoint, ...]]:
        """Return every metric along a run, each of one identity: that of its latest evaluation."""
        columns = (
            _EVALUATIONS.c.id,
            _EVALUATIONS.c.step,
            schema.checkpoints.c.tokens,
            _SCORES.c.metric,
            _SCORES.c.value,
            _SCORES.c.stderr,
            _SCORES.c["items"],
            _SCORES.c.identity_fingerprint,
        )
        query = _scores_of_run(run, *columns).order_by(_EVALUATIONS.c.step, _EVALUATIONS.c.id)
        rows: dict[str, list[RowMapping]] = {}
        for row in self._rows(query):
            rows.setdefault(row["metric"], []).append(row)
        found: dict[str, tuple[ScorePoint, ...]] = {}
        for metric, points in rows.items():
            last = max(points, key=lambda row: row["id"])["identity_fingerprint"]
            kept = {row["step"]: row for row in points if row["identity_fingerprint"] == last}
            found[metric] = tuple(
                ScorePoint(row["step"], row["tokens"], row["value"], row["stderr"], row["items"])
                for row in kept.values()
            )
        return found

    def weights(self, run: str) -> dict[int, str]:
        """Return the fingerprint of the weights scored at each step, by rising step."""
        query = _of_run(run, _EVALUATIONS.c.step, _EVALUATIONS.c.weights)
        rows = self._rows(query.order_by(_EVALUATIONS.c.step, _EVALUATIONS.c.id))
        return {row["step"]: row["weights"] for row in rows}

    def series(self, run: str, metric: str) -> Series | None:
        """Return a metric along a run as a series; None before its first score."""
        points = self.points(run, metric)
        if not points:
            return None
        return Series(
            metric=metric,
            steps=np.array([point.step for point in points], dtype=np.int64),
            tokens=np.array([point.tokens for point in points], dtype=np.int64),
            values=np.array([point.value for point in points], dtype=np.float64),
        )

    def identity(self, run: str, metric: str) -> MetricIdentity | None:
        """Return what the numbers of :meth:`series` mean; None before its first score."""
        rows = self._metric(run, metric)
        return MetricIdentity(**json.loads(rows[-1]["identity"])) if rows else None

    def identities(self, run: str) -> dict[str, MetricIdentity]:
        """Return what the numbers of :meth:`histories` mean, by metric."""
        latest = func.max(_EVALUATIONS.c.id).label("evaluation")
        last = _scores_of_run(run, _SCORES.c.metric, latest).group_by(_SCORES.c.metric).subquery()
        same = (_SCORES.c.metric == last.c.metric) & (_SCORES.c.evaluation == last.c.evaluation)
        query = select(_SCORES.c.metric, _SCORES.c.identity).join(last, same)
        rows = self._rows(query.order_by(_SCORES.c.metric))
        return {row["metric"]: MetricIdentity(**json.loads(row["identity"])) for row in rows}

    def items(self, run: str, metric: str) -> dict[int, Score]:
        """Return a metric's scores with their items, step -> score, as :meth:`series` chooses."""
        rows = self._metric(run, metric, *_ITEMS)
        return {row["step"]: codec.score_from(row) for row in rows}

    def probes(self, run: str) -> tuple[ProbePoint, ...]:
        """Return the probe results of a run, by rising step, the latest stored of each."""
        query = _of_run(run, *_EVALUATIONS.c, schema.checkpoints.c.tokens).where(
            _EVALUATIONS.c.probe.is_not(None)
        )
        found: dict[int, ProbePoint] = {}
        for row in self._rows(query.order_by(_EVALUATIONS.c.step, _EVALUATIONS.c.id)):
            result = codec.probe_from(row["probe"])
            assert result is not None
            found[row["step"]] = ProbePoint(row["step"], row["tokens"], result)
        return tuple(found.values())

    def failures(self, run: str) -> tuple[StoredFailure, ...]:
        """Return every failed attempt, by step, superseded ones included."""
        table = schema.failures
        query = select(table).where(table.c.run == run)
        return tuple(
            StoredFailure(codec.failure_from(row), row["attempt"], row["superseded"], row["at"])
            for row in self._rows(query.order_by(table.c.step, table.c.id))
        )

    def attempts(self, run: str, step: int) -> Counter[tuple[str, str]]:
        """Count the failed attempts that no success followed, by (evaluator, version)."""
        table = schema.failures
        query = select(table.c.evaluator, table.c.version).where(
            table.c.run == run, table.c.step == step, table.c.superseded.is_(False)
        )
        return Counter((row["evaluator"], row["version"]) for row in self._rows(query))

    def judged(self, run: str) -> frozenset[tuple[int, str]]:
        """Return (step, judge) of the latest verdict at each step of a run."""
        table = schema.verdicts
        query = select(table.c.step, table.c.judge).where(table.c.run == run)
        latest = {row["step"]: row["judge"] for row in self._rows(query.order_by(table.c.id))}
        return frozenset(latest.items())

    def verdicts(self, run: str) -> tuple[Verdict, ...]:
        """Return the verdicts by rising step; of a step judged again, the latest."""
        table = schema.verdicts
        query = select(table).where(table.c.run == run).order_by(table.c.step, table.c.id)
        latest = {row["step"]: row["body"] for row in self._rows(query)}
        return tuple(codec.verdict_from(body) for body in latest.values())

    def latest_verdict(self, run: str) -> Verdict | None:
        """Return the verdict at the last step judged; None before the first."""
        table = schema.verdicts
        query = select(table.c.body).where(table.c.run == run)
        rows = self._rows(query.order_by(table.c.step.desc(), table.c.id.desc()).limit(1))
        return codec.verdict_from(rows[0]["body"]) if rows else None

    def alerts(self, run: str | None = None) -> tuple[Alert, ...]:
        """Return alert episodes, of one run or all, in the order in which they opened."""
        table = schema.alerts
        query = select(table).order_by(table.c.number)
        if run is not None:
            query = query.where(table.c.run == run)
        return tuple(codec.alert_from(row) for row in self._rows(query))

    def deliveries(self, run: str | None = None) -> tuple[Delivery, ...]:
        """Return deliveries, of one run's alerts or all, in the order ordered."""
        table = schema.deliveries
        query = select(table).order_by(table.c.number)
        if run is not None:
            query = query.join(schema.alerts).where(schema.alerts.c.run == run)
        names = Delivery.__dataclass_fields__
        return tuple(Delivery(**{name: row[name] for name in names}) for row in self._rows(query))

    def heartbeats(self, run: str) -> tuple[Heartbeat, ...]:
        """Return what each evaluator process of a run is doing, since when."""
        table = schema.heartbeats
        query = select(table).where(table.c.run == run).order_by(table.c.since)
        beats: list[Heartbeat] = []
        for row in self._rows(query):
            holder = Holder(row["host"], row["pid"], row["started"])
            beats.append(Heartbeat(run, str(holder), row["stage"], row["since"], holder.alive()))
        return tuple(beats)

    def _run(self, run: str) -> RowMapping:
        """Return the row of a run."""
        rows = self._rows(select(_RUNS).where(_RUNS.c.name == run))
        if not rows:
            raise StoreError(
                f"{self.where}: no run {run!r}; it holds {list(self.runs())}."
                " Name one of these, or watch the run first."
            )
        return rows[0]

    def _metric(self, run: str, metric: str, *more: Any) -> Sequence[RowMapping]:
        """Return the rows of a metric by rising step, of the latest evaluation's identity."""
        identity = _SCORES.c.identity_fingerprint
        columns = (_EVALUATIONS.c.id, _EVALUATIONS.c.step, schema.checkpoints.c.tokens, identity)
        query = _scores_of_run(run, *columns, *_VALUES, *more).where(_SCORES.c.metric == metric)
        rows = self._rows(query.order_by(_EVALUATIONS.c.step, _EVALUATIONS.c.id))
        if not rows:
            return ()
        last = max(rows, key=lambda row: row["id"])["identity_fingerprint"]
        kept = {row["step"]: row for row in rows if row["identity_fingerprint"] == last}
        return tuple(kept.values())

    def _rows(self, query: _Query) -> Sequence[RowMapping]:
        """Run one query."""
        with self._database.reading() as connection:
            return connection.execute(query).mappings().all()


def _of_run(run: str, *columns: Any) -> _Query:
    """Select from a run's evaluations joined with their checkpoints."""
    refs = schema.checkpoints
    joined = _EVALUATIONS.join(
        refs, (refs.c.run == _EVALUATIONS.c.run) & (refs.c.step == _EVALUATIONS.c.step)
    )
    return select(*columns).select_from(joined).where(_EVALUATIONS.c.run == run)


def _scores_of_run(run: str, *columns: Any) -> _Query:
    """Select from a run's scores joined with evaluation and checkpoint."""
    refs = schema.checkpoints
    joined = _SCORES.join(_EVALUATIONS).join(
        refs, (refs.c.run == _EVALUATIONS.c.run) & (refs.c.step == _EVALUATIONS.c.step)
    )
    return select(*columns).select_from(joined).where(_EVALUATIONS.c.run == run)
