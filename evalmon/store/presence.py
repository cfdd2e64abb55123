"""Who does what now: leases on work, and heartbeats that make a stalled process visible."""

from collections.abc import Callable

from sqlalchemy import RowMapping, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from evalmon.errors import StoreError
from evalmon.store import schema
from evalmon.store.database import Database
from evalmon.store.holder import Holder
from evalmon.store.reading import Reader

__all__ = ["Presence"]


class Presence(Reader):
    """Leases and heartbeats of a store.

    Args:
        database: the opened database.
        clock: returns Unix seconds.
        holder: the process that writes.
    """

    def __init__(self, database: Database, clock: Callable[[], float], holder: Holder) -> None:
        super().__init__(database)
        self._clock = clock
        self._holder = holder

    def lease(self, resource: str, seconds: float) -> bool:
        """Take or renew a lease, so that no two processes do the same work.

        A lease that expired, or whose holder is known to be dead, is taken over.

        Args:
            resource: what is leased.
            seconds: how long the lease holds unless renewed.

        Returns:
            False while another process holds it.
        """
        table, now, me = schema.leases, self._clock(), self._holder
        row = {"host": me.host, "pid": me.pid, "started": me.started, "until": now + seconds}
        here = table.c.resource == resource
        try:
            with self._database.writing() as connection:
                held = connection.execute(select(table).where(here)).mappings().one_or_none()
                if held is None:
                    connection.execute(insert(table).values(resource=resource, **row))
                    return True
                if self._refused(held):
                    return False
                connection.execute(update(table).where(here).values(row))
                return True
        except StoreError as error:
            if isinstance(error.__cause__, IntegrityError):  # another process was first
                return False
            raise

    def leased_elsewhere(self, resource: str) -> bool:
        """Return whether :meth:`lease` would be refused now: another process is at it."""
        table = schema.leases
        with self._database.reading() as connection:
            query = select(table).where(table.c.resource == resource)
            held = connection.execute(query).mappings().one_or_none()
        return held is not None and self._refused(held)

    def release(self, resource: str) -> None:
        """Give a lease back; one that another process has taken over stays."""
        me = self._holder
        same = {"resource": resource, "host": me.host, "pid": me.pid, "started": me.started}
        with self._database.writing() as connection:
            connection.execute(delete(schema.leases).filter_by(**same))

    def beat(self, run: str, stage: str) -> None:
        """Store what this process is doing; processes known to be dead are forgotten."""
        table, me = schema.heartbeats, self._holder
        mine = {"run": run, "host": me.host, "pid": me.pid, "started": me.started}
        with self._database.writing() as connection:
            query = select(table).where(table.c.run == run, table.c.host == me.host)
            for row in connection.execute(query).mappings().all():
                other = Holder(row["host"], row["pid"], row["started"])
                if other == me and row["stage"] == stage:
                    return  # still at it, since then
                if other == me or other.alive() is False:
                    key = {"run": run, "host": other.host, "pid": other.pid}
                    connection.execute(delete(table).filter_by(**key))
            connection.execute(insert(table).values(stage=stage, since=self._clock(), **mine))

    def _refused(self, held: RowMapping) -> bool:
        """Return whether a lease is another live process's, and still holds."""
        holder = Holder(held["host"], held["pid"], held["started"])
        if holder == self._holder or held["until"] <= self._clock():
            return False
        return holder.alive() is not False
