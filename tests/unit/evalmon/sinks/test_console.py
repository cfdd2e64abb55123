"""The console: alerts on standard error."""

import sys
from collections.abc import Callable
from io import StringIO

import pytest

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import DeliveryError
from evalmon.sinks.console import Console
from evalmon.types import Alert


def test_alerts_go_to_standard_error(
    alert: Callable[..., Alert], capsys: pytest.CaptureFixture[str]
) -> None:
    Console(SinkSettings("console"), AlertSettings()).send([alert(1), alert(2)])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ALERT {alert(1).id} {alert(1).title}\n{alert(1).message}\n")
    assert f"ALERT {alert(2).id} {alert(2).title}\n" in err


def test_a_closed_standard_error_is_no_delivery(
    alert: Callable[..., Alert], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with pytest.raises(DeliveryError, match="standard error cannot be written"):
        Console(SinkSettings("console"), AlertSettings()).send([alert()])
