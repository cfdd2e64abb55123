"""Sinks: an alert to the outside world. One file and one row of the table each.

==============  ========================  =======================================
kind            target                    delivered means
==============  ========================  =======================================
``console``     none                      written to standard error
``webhook``     http or https URL         the receiver answered 2xx
``command``     a command line            it ended with status 0
==============  ========================  =======================================

``send`` returns when the alert is delivered and raises DeliveryError otherwise. The
caller marks an alert as sent only after that, so that a killed sender sends again
(at least once, with the same alert id) and never forgets.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import ConfigError, DeliveryError
from evalmon.sinks import command, console, webhook
from evalmon.types import Alert

__all__ = ["SINKS", "Outcome", "Sink", "build", "deliver"]


class Sink(Protocol):
    """A receiver of alerts."""

    @property
    def key(self) -> str:
        """Names the receiver in the store, without a secret."""
        ...

    @property
    def groups(self) -> bool:
        """Whether it takes several alerts as one message."""
        ...

    def send(self, alerts: Sequence[Alert]) -> None:
        """Deliver alerts as one message; a sink that does not group gets one alert.

        Raises:
            DeliveryError: not delivered; it says whether a later try may succeed.
        """
        ...


SINKS: dict[str, Callable[[SinkSettings, AlertSettings], Sink]] = {
    "console": console.Console,
    "webhook": webhook.Webhook,
    "command": command.Command,
}
"""Kind of sink to its factory."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message.

    Attributes:
        alert_ids: alerts in it.
        status: ``delivered``, ``pending`` (try again) or ``dead`` (refused for good).
        error: what the receiver said, or "".
        wait_seconds: how long the receiver asked to be left alone.
    """

    alert_ids: tuple[str, ...]
    status: str
    error: str = ""
    wait_seconds: float = 0.0


def build(settings: AlertSettings) -> tuple[Sink, ...]:
    """Make the configured sinks, each receiver once.

    Raises:
        ConfigError: an unknown kind, or a target the kind cannot use.
    """
    sinks: dict[str, Sink] = {}
    for item in settings.sinks:
        if item.kind not in SINKS:
            near = difflib.get_close_matches(item.kind, SINKS, n=1) or list(SINKS)
            raise ConfigError(
                f"alerts.sinks: unknown kind {item.kind!r}; did you mean {' or '.join(near)}?"
            )
        sink = SINKS[item.kind](item, settings)
        sinks[sink.key] = sink
    return tuple(sinks.values())


def deliver(sink: Sink, alerts: Sequence[Alert]) -> Iterator[Outcome]:
    """Send alerts, grouped where the sink groups; a refused group is sent one by one.

    Yields:
        One outcome a message, as soon as it is known: store it before asking for the next.
    """
    messages = [tuple(alerts)] if sink.groups else [(alert,) for alert in alerts]
    for message in messages:
        ids = tuple(alert.id for alert in message)
        try:
            sink.send(message)
        except DeliveryError as error:
            if not error.retryable and len(message) > 1:
                for alert in message:
                    yield from deliver(sink, [alert])
                continue
            status = "pending" if error.retryable else "dead"
            yield Outcome(ids, status, str(error), error.wait_seconds)
        else:
            yield Outcome(ids, "delivered")
