"""Alerts on standard error, above any progress bar."""

import sys
from collections.abc import Sequence

from tqdm import tqdm

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import DeliveryError
from evalmon.types import Alert

__all__ = ["Console"]


class Console:
    """Writes alerts to standard error."""

    key = "console"
    groups = True

    def __init__(self, _sink: SinkSettings, _alerts: AlertSettings) -> None:
        """Nothing to set."""

    def send(self, alerts: Sequence[Alert]) -> None:
        text = "\n".join(f"ALERT {alert.id} {alert.title}\n{alert.message}" for alert in alerts)
        try:
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            raise DeliveryError(f"standard error cannot be written: {error}") from error
