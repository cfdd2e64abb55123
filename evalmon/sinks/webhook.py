"""Alerts as JSON over HTTP.

========================  ====================================================
answer                    what happens
========================  ====================================================
2xx                       delivered (unless a JSON body says ``"ok": false``)
429                       tried again, not before its ``Retry-After``
other 3xx, 4xx            once more in a short form, then given up: a dead letter
5xx, no connection        tried again now, then in later passes
========================  ====================================================

The id of the alert is the header ``Idempotency-Key`` and a field of the body, so that a
receiver can drop an alert that is told again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import ConfigError, DeliveryError
from evalmon.types import Alert

if TYPE_CHECKING:
    import httpx

__all__ = ["BODY_BYTES", "SHORT_BODY_BYTES", "Webhook", "body"]

BODY_BYTES = 39_000
"""Longest body; Slack takes 40,000 characters of text."""

SHORT_BODY_BYTES = 1_900
"""Longest body of the second try after a refusal; Discord takes 2,000 characters."""

_LONGEST_WAIT_SECONDS = 5.0
"""Longest wait within a pass: nothing is scored meanwhile. A longer one is left to a later pass."""


class Webhook:
    """Posts alerts to a URL.

    Args:
        sink: its target is the URL.
        alerts: timeout of a request, tries within one pass.
        transport: replaces the network (``httpx.MockTransport``).
        sleep: waits between tries.

    Raises:
        ConfigError: the target is not an http or https URL.
    """

    groups = True

    def __init__(
        self,
        sink: SinkSettings,
        alerts: AlertSettings,
        transport: "httpx.BaseTransport | None" = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(sink.target)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "alerts.sinks: a webhook's target must be an http or https URL,"
                f" got {parts.scheme or 'none'}://{parts.hostname or ''}"
            )
        self._url, self._settings = sink.target, alerts
        self._transport, self._sleep = transport, sleep
        # The path of a webhook is often its secret: only its hash is shown.
        digest = hashlib.blake2b(sink.target.encode(), digest_size=4).hexdigest()
        self.key = f"webhook:{parts.hostname}:{digest}"

    def send(self, alerts: Sequence[Alert]) -> None:
        import httpx
        from tenacity import Retrying, retry_if_exception, stop_after_attempt

        tries = Retrying(
            stop=stop_after_attempt(self._settings.attempts),
            wait=lambda state: _wait(state.outcome.exception() if state.outcome else None),
            retry=retry_if_exception(_again_now),
            sleep=self._sleep,
            reraise=True,
        )
        timeout = self._settings.timeout_seconds
        with httpx.Client(transport=self._transport, timeout=timeout) as client:
            try:
                tries(self._post, client, alerts, BODY_BYTES)
            except DeliveryError as error:
                if error.retryable or len(alerts) > 1:
                    raise
                tries(self._post, client, alerts, SHORT_BODY_BYTES)

    def _post(self, client: "httpx.Client", alerts: Sequence[Alert], limit: int) -> None:
        """Try once."""
        import httpx

        headers = {"Content-Type": "application/json", "Idempotency-Key": _identify(alerts)}
        try:
            response = client.post(self._url, content=body(alerts, limit), headers=headers)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise DeliveryError(f"{self.key}: {reason}") from error
        if response.is_success and not _denies(response):
            return
        said = " ".join(response.text.split())[:200]
        raise DeliveryError(
            f"{self.key}: answered {response.status_code}: {said}",
            retryable=response.is_success
            or response.status_code == 429
            or response.is_server_error,
            wait_seconds=_retry_after(response.headers),
        )


def body(alerts: Sequence[Alert], limit: int) -> bytes:
    """Return the JSON body of one message, at most ``limit`` bytes, the facts first.

    Too long a text is cut at its end; alerts that do not fit even then are counted.

    Args:
        alerts: one alert or more.
        limit: bytes, at least 600.
    """
    shown = list(alerts)
    while True:
        more = len(alerts) - len(shown)
        heading = "" if len(alerts) == 1 else f"{len(alerts)} alerts\n"
        if more:
            heading += f"{more} of them not shown: read the report\n"
        # Of several alerts only the first line of the message, which holds the facts.
        lines = 1 if len(alerts) > 1 else None
        messages = ["\n".join(alert.message.splitlines()[:lines]) for alert in shown]
        titles = [alert.title[:200] for alert in shown]
        text = heading + "\n".join("\n".join(pair) for pair in zip(titles, messages, strict=True))
        record: dict[str, Any] = {
            "text": text,
            "id": _identify(alerts),
            "alerts": [_facts(alert) for alert in shown],
        }
        data = _encode(record)
        while len(data) > limit and len(text) > 200:
            # Escapes make a character up to six bytes long: cut by what is surely too much.
            text = text[: max(200, len(text) - max(1, (len(data) - limit) // 6))]
            data = _encode({**record, "text": text + "…"})
        if len(data) <= limit or len(shown) == 1:
            return data
        shown = shown[: max(1, len(shown) * 3 // 4)]


def _facts(alert: Alert) -> dict[str, Any]:
    """Return the fields of an alert that a program reads."""
    return {
        "id": alert.id,
        "run": alert.run[:100],
        "cause": alert.cause,
        "verdict": str(alert.verdict),
        "step": alert.opened_step,
        "tokens": alert.opened_tokens,
    }


def _encode(record: dict[str, Any]) -> bytes:
    """Write strict JSON as UTF-8."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode()


def _identify(alerts: Sequence[Alert]) -> str:
    """Return the id of a message: that of its alert, or a hash of those of its alerts."""
    if len(alerts) == 1:
        return alerts[0].id
    text = ",".join(alert.id for alert in alerts)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _denies(response: "httpx.Response") -> bool:
    """Return whether a 2xx answer says in JSON that nothing was delivered."""
    try:
        answer = response.json()
    except ValueError:
        return False
    return isinstance(answer, dict) and (
        answer.get("ok") is False or answer.get("success") is False
    )


def _retry_after(headers: "httpx.Headers") -> float:
    """Read Retry-After, seconds or a date (counted from the answer's own Date); 0 for none."""
    value = headers.get("Retry-After", "")
    try:
        return max(0.0, min(float(value), 86_400.0))
    except ValueError:
        pass
    try:
        until, now = (parsedate_to_datetime(text) for text in (value, headers.get("Date", "")))
        return max(0.0, min((until - now).total_seconds(), 86_400.0))
    except (TypeError, ValueError):
        return 0.0


def _again_now(error: BaseException) -> bool:
    """Return whether to try again within this pass."""
    return (
        isinstance(error, DeliveryError)
        and error.retryable
        and error.wait_seconds <= _LONGEST_WAIT_SECONDS
    )


def _wait(error: BaseException | None) -> float:
    """Return the seconds before the next try within this pass."""
    return max(0.5, error.wait_seconds if isinstance(error, DeliveryError) else 0.0)
