"""Alerts to a program: the alert as JSON on its standard input."""

import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import ConfigError, DeliveryError
from evalmon.types import Alert

__all__ = ["Command"]

_KEPT = 500
"""Characters kept of what a failing program wrote."""


class Command:
    """Runs a program for each alert, without a shell.

    The program gets the alert as one JSON object on standard input and its id in the
    environment variable ``EVALMON_ALERT_ID``: the same id when it is told again.

    Args:
        sink: its target is a command line in shell quoting.
        alerts: its timeout bounds the program.

    Raises:
        ConfigError: the command line is empty or has an open quote.
    """

    groups = False

    def __init__(self, sink: SinkSettings, alerts: AlertSettings) -> None:
        try:
            self._arguments = shlex.split(sink.target)
        except ValueError as error:
            raise ConfigError(f"alerts.sinks: command {sink.target!r}: {error}") from error
        if not self._arguments:
            raise ConfigError("alerts.sinks: a command needs a target, the command line to run")
        self._timeout = alerts.timeout_seconds
        digest = hashlib.blake2b(sink.target.encode(), digest_size=4).hexdigest()
        self.key = f"command:{Path(self._arguments[0]).name}:{digest}"

    def send(self, alerts: Sequence[Alert]) -> None:
        (alert,) = alerts
        name = self._arguments[0]
        try:
            result = subprocess.run(
                self._arguments,
                input=json.dumps(asdict(alert), allow_nan=False),
                env={**os.environ, "EVALMON_ALERT_ID": alert.id},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DeliveryError(f"{name}: did not end within {self._timeout:g} s") from error
        except OSError as error:
            raise DeliveryError(f"{name}: cannot be started ({error.strerror})") from error
        if result.returncode:
            said = (result.stderr or result.stdout).strip()[-_KEPT:]
            raise DeliveryError(f"{name}: ended with status {result.returncode}: {said}")
