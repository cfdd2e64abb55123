"""Takes stored alerts to their receivers; only what a receiver accepted is marked as sent.

A courier killed between sending and marking sends again, with the same alert id: at
least once, never none. One that cannot deliver tries again later, each time after twice
the wait, and never gives an alert up by itself: only a refusal makes a dead letter.
"""

from collections.abc import Callable, Sequence

from evalmon import sinks
from evalmon.sinks import Outcome, Sink
from evalmon.store import Delivery, Store

__all__ = ["Courier"]

_LEASE_SECONDS = 300.0
_LONGEST_WAIT_SECONDS = 300.0


class Courier:
    """Delivers the alerts of one run.

    Args:
        run: the run's name.
        store: holds alerts and deliveries.
        receivers: the sinks.
        clock: returns Unix seconds.
    """

    def __init__(
        self, run: str, store: Store, receivers: Sequence[Sink], clock: Callable[[], float]
    ) -> None:
        self._run, self._store, self._sinks, self._clock = run, store, receivers, clock
        self.keys = tuple(sink.key for sink in receivers)

    def pending(self) -> list[Delivery]:
        """Return the deliveries still to be made to the sinks at hand."""
        found = self._store.deliveries(self._run)
        return [item for item in found if item.status == "pending" and item.sink in self.keys]

    def due(self) -> list[tuple[Sink, list[Delivery]]]:
        """Return, by sink, the deliveries to be tried now."""
        self._store.order_deliveries(self._run, self.keys)
        now = self._clock()
        pending = [item for item in self.pending() if item.due_at <= now]
        by_sink = [(sink, [d for d in pending if d.sink == sink.key]) for sink in self._sinks]
        return [(sink, found) for sink, found in by_sink if found]

    def deliver(self, sink: Sink, due: Sequence[Delivery]) -> None:
        """Try to deliver, unless another process is at it; store each outcome at once."""
        lease = f"{self._run}/deliveries/{sink.key}"
        if not self._store.lease(lease, _LEASE_SECONDS):
            return
        try:
            told = {alert.id: alert for alert in self._store.alerts(self._run)}
            still = {(item.alert_id, item.sink) for item in self.pending()}
            wanted = [told[d.alert_id] for d in due if (d.alert_id, d.sink) in still]
            for outcome in sinks.deliver(sink, wanted) if wanted else ():
                self._store_outcome(sink, outcome, due)
        finally:
            self._store.release(lease)

    def give_up_for_now(self, sink: Sink, due: Sequence[Delivery], reason: str) -> None:
        """Store that a sink broke; its deliveries stay pending."""
        still = {(item.alert_id, item.sink) for item in self.pending()}
        left = tuple(d.alert_id for d in due if (d.alert_id, d.sink) in still)
        self._store_outcome(sink, Outcome(left, "pending", reason), due)

    def _store_outcome(self, sink: Sink, outcome: Outcome, due: Sequence[Delivery]) -> None:
        """Store what became of one message."""
        tries = max((d.attempts for d in due if d.alert_id in outcome.alert_ids), default=0)
        wait = max(outcome.wait_seconds, min(_LONGEST_WAIT_SECONDS, 2.0**tries))
        self._store.append_attempt(outcome.alert_ids, sink.key, outcome.status, outcome.error, wait)
