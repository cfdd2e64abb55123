"""Effects on results. What belongs together is one transaction: all of it is stored, or nothing.

=====================  =======================================================
one transaction        holds
=====================  =======================================================
``append_evaluation``  everything one evaluator found at one checkpoint
``append_verdict``     a verdict, the alert episodes it changed, the deliveries
                       they ordered
``append_attempt``     the outcome of one try to deliver
=====================  =======================================================
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from sqlalchemy import Connection, delete, func, insert, select, update

from evalmon.errors import CheckpointError, StoreError
from evalmon.store import codec, schema
from evalmon.store.database import Database
from evalmon.store.holder import Holder
from evalmon.store.presence import Presence
from evalmon.types import (
    Alert,
    AlertStatus,
    CheckpointRef,
    Evaluation,
    Failure,
    RunDescription,
    Verdict,
)

__all__ = ["Store"]


class EpisodeChanges(Protocol):
    """What a verdict changes among the alert episodes."""

    @property
    def opened(self) -> Sequence[Alert]:
        """New episodes: each is told to every receiver."""
        ...

    @property
    def updated(self) -> Sequence[Alert]:
        """Episodes that go on."""
        ...

    @property
    def resolved(self) -> Sequence[Alert]:
        """Episodes that ended."""
        ...


class Store(Presence):
    """A store opened for reading and writing; use it as a context manager.

    Args:
        database: the opened database.
        clock: returns Unix seconds.
        holder: the process that writes, by default this one.

    Example:
        >>> with Store.open("sqlite://") as store:
        ...     store.runs()
        ()
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        holder: Holder | None = None,
    ) -> None:
        super().__init__(database, clock, holder or Holder.current())

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
        holder: Holder | None = None,
    ) -> Self:
        """Open a store, creating it where there is none.

        Args:
            url: path of an SQLite file, or a database URL.
            read_only: refuse every change and never create a store (SQLite may put its log
                and index, two side files, beside one that is there).
            clock: returns Unix seconds.
            holder: the process that writes, by default this one.

        Raises:
            StoreError: it cannot be opened, is no evalmon store, or of another version.
        """
        return cls(Database(url, read_only=read_only), clock, holder)

    def close(self) -> None:
        """Close every connection."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, run: RunDescription, comparison: Mapping[str, Any] | None = None) -> None:
        """Store what a run is, and with which settings it is compared.

        Raises:
            StoreError: another run of this name is stored: its scores would mix.
        """
        table = schema.runs
        row = {
            "name": run.name,
            "path": str(run.path.absolute()),
            "description": codec.description_text(run),
        }
        if comparison is not None:
            row["comparison"] = json.dumps(comparison, allow_nan=False)
        with self._database.writing() as connection:
            query = select(table).where(table.c.name == run.name)
            known = connection.execute(query).mappings().one_or_none()
            if known is None:
                connection.execute(insert(table).values({"comparison": "{}", **row}))
                return
            changed = _changed(codec.description_from(known), run)
            if changed:
                raise StoreError(
                    f"{self.where}: run {run.name!r} is stored with other settings"
                    f" ({', '.join(changed)}); name another store, or another run"
                )
            connection.execute(update(table).where(table.c.name == run.name).values(row))

    def note_checkpoints(self, found: Iterable[CheckpointRef]) -> None:
        """Store checkpoints that are not stored yet."""
        refs = tuple(found)
        known = {ref for run in {ref.run for ref in refs} for ref in self.checkpoints(run)}
        if known.issuperset(refs):
            return
        with self._database.writing() as connection:
            for ref in refs:
                self._note(connection, ref, "")

    def note_weights(self, ref: CheckpointRef, weights: str) -> None:
        """Store the fingerprint of a checkpoint's weights.

        Raises:
            CheckpointError: the checkpoint was scored with other weights before.
        """
        table = schema.checkpoints
        here = (table.c.run == ref.run) & (table.c.step == ref.step)
        with self._database.writing() as connection:
            self._note(connection, ref, weights)
            known = connection.execute(select(table.c.weights).where(here)).scalar_one()
            if known not in ("", weights):
                raise CheckpointError(
                    f"{self.where}: step {ref.step} of run {ref.run!r} was scored with weights"
                    f" {known}, {ref.path} holds {weights}: another run's checkpoint; name"
                    " another store, or another run"
                )
            connection.execute(update(table).where(here).values(weights=weights))

    def append_evaluation(self, evaluation: Evaluation) -> bool:
        """Store what one evaluator found, once; earlier failures of it become superseded.

        Returns:
            False when this evaluator version is stored at this checkpoint already.

        Raises:
            EvaluationError: a number is not finite; nothing is stored.
        """
        codec.refuse_non_finite(evaluation)
        ref = evaluation.checkpoint
        same = {
            "run": ref.run,
            "step": ref.step,
            "evaluator": evaluation.evaluator,
            "version": evaluation.version,
        }
        with self._database.writing() as connection:
            if _exists(connection, schema.evaluations, same):
                return False
            self._note(connection, ref, evaluation.weights)
            row = codec.evaluation_row(evaluation, self._clock())
            result = connection.execute(insert(schema.evaluations).values(row))
            number = result.inserted_primary_key
            assert number is not None
            for score in evaluation.scores:
                connection.execute(insert(schema.scores).values(codec.score_row(score, number[0])))
            table = schema.failures
            restored = {**same, "evaluator": "restore", "version": ""}
            for key in (same, restored):
                connection.execute(
                    update(table).filter_by(**key).values(superseded=True)  # history is kept
                )
        return True

    def append_failure(self, failure: Failure, version: str = "") -> int:
        """Store one failed attempt.

        Returns:
            The number of attempts that have failed so far.
        """
        ref, table = failure.checkpoint, schema.failures
        same = {
            "run": ref.run,
            "step": ref.step,
            "evaluator": failure.evaluator,
            "version": version,
        }
        with self._database.writing() as connection:
            self._note(connection, ref, "")
            query = select(func.max(table.c.attempt)).filter_by(**same)
            attempt = (connection.execute(query).scalar() or 0) + 1
            rest = {
                "tokens": ref.tokens,
                "path": str(ref.path),
                "attempt": attempt,
                "error": failure.error,
                "message": failure.message,
                "superseded": False,
                "at": self._clock(),
            }
            connection.execute(insert(table).values({**same, **rest}))
        return attempt

    def append_verdict(
        self,
        verdict: Verdict,
        judge: str,
        update_episodes: Callable[[Sequence[Alert]], EpisodeChanges],
        sinks: Sequence[str] = (),
    ) -> None:
        """Store a verdict with the alert changes and deliveries that follow from it.

        A verdict of the same judge at the same step is replaced.

        Args:
            verdict: the verdict.
            judge: key of settings and data extent it rests on.
            update_episodes: the run's episodes -> what the verdict changes.
            sinks: keys of the receivers told of each new episode.

        Raises:
            StoreError: the store cannot be written, or a number is not finite.
        """
        try:
            body = codec.verdict_text(verdict)
        except ValueError as error:
            raise StoreError(
                f"verdict of {verdict.run} at step {verdict.step}: {error}; report this fault"
            ) from error
        key = {"run": verdict.run, "step": verdict.step, "judge": judge}
        now = self._clock()
        with self._database.writing() as connection:
            connection.execute(delete(schema.verdicts).filter_by(**key))
            row = {**key, "verdict": str(verdict.verdict), "body": body, "at": now}
            connection.execute(insert(schema.verdicts).values(row))
            query = select(schema.alerts).where(schema.alerts.c.run == verdict.run)
            rows = connection.execute(query.order_by(schema.alerts.c.number)).mappings()
            changes = update_episodes([codec.alert_from(row) for row in rows])
            for alert in (*changes.updated, *changes.resolved):
                values = codec.alert_row(alert)
                table = schema.alerts
                connection.execute(update(table).where(table.c.id == alert.id).values(values))
            for alert in changes.opened:
                connection.execute(insert(schema.alerts).values(codec.alert_row(alert)))
                for sink in sinks:
                    self._order(connection, alert.id, sink)

    def set_alert_status(self, alert_id: str, status: AlertStatus) -> None:
        """Acknowledge, mute or reopen an episode.

        Raises:
            StoreError: no such alert.
        """
        table = schema.alerts
        change = update(table).where(table.c.id == alert_id).values(status=str(status))
        with self._database.writing() as connection:
            if connection.execute(change).rowcount != 1:
                raise StoreError(f"{self.where}: no alert {alert_id!r}; list them with the report")

    def order_deliveries(self, run: str, sinks: Iterable[str]) -> None:
        """Order what is missing for open episodes: a receiver configured later hears of them."""
        have = {(delivery.alert_id, delivery.sink) for delivery in self.deliveries(run)}
        missing = [
            (alert.id, sink)
            for alert in self.alerts(run)
            if alert.status is AlertStatus.OPEN
            for sink in sinks
            if (alert.id, sink) not in have
        ]
        if missing:
            with self._database.writing() as connection:
                for alert_id, sink in missing:
                    if not _exists(
                        connection, schema.deliveries, {"alert_id": alert_id, "sink": sink}
                    ):
                        self._order(connection, alert_id, sink)

    def append_attempt(
        self, alert_ids: Iterable[str], sink: str, status: str, error: str = "", wait: float = 0.0
    ) -> None:
        """Store the outcome of one try to deliver.

        Args:
            alert_ids: alerts the try was for.
            sink: key of the receiver.
            status: ``pending``, ``delivered`` or ``dead``.
            error: what went wrong, or "".
            wait: seconds before which it is not tried again.
        """
        table, now = schema.deliveries, self._clock()
        with self._database.writing() as connection:
            for alert_id in alert_ids:
                connection.execute(
                    update(table)
                    .where(table.c.alert_id == alert_id, table.c.sink == sink)
                    .values(
                        status=status,
                        attempts=table.c.attempts + 1,
                        error=error,
                        updated_at=now,
                        due_at=now + wait,
                    )
                )

    def _note(self, connection: Connection, ref: CheckpointRef, weights: str) -> None:
        """Insert a checkpoint, or follow its folder when the run has moved."""
        table = schema.checkpoints
        key = {"run": ref.run, "step": ref.step}
        if _exists(connection, table, key):
            moved = update(table).filter_by(**key).where(table.c.path != str(ref.path))
            connection.execute(moved.values(path=str(ref.path)))
            return
        row = {**key, "tokens": ref.tokens, "path": str(ref.path), "weights": weights}
        connection.execute(insert(table).values(row))

    def _order(self, connection: Connection, alert_id: str, sink: str) -> None:
        """Insert a pending delivery."""
        now = self._clock()
        row = {"alert_id": alert_id, "sink": sink, "status": "pending", "attempts": 0, "error": ""}
        times = {"created_at": now, "updated_at": now, "due_at": now}
        connection.execute(insert(schema.deliveries).values({**row, **times}))


def _exists(connection: Connection, table: Any, key: Mapping[str, Any]) -> bool:
    """Return whether a row with these values is there."""
    return connection.execute(select(table).filter_by(**key).limit(1)).first() is not None


def _changed(known: RunDescription, now: RunDescription) -> list[str]:
    """Name the settings whose change makes it another run (data may move, a plan may grow)."""
    names = ("adapter", "model", "recipe", "loader", "seed", "hosts", "tokens_per_step")
    return [
        f"{name} {getattr(known, name)!r} -> {getattr(now, name)!r}"
        for name in names
        if getattr(known, name) != getattr(now, name)
    ]
