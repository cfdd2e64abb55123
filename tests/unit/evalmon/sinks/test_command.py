"""The command: the alert on standard input, its id in the environment, status 0 = delivered."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import ConfigError, DeliveryError
from evalmon.sinks import deliver
from evalmon.sinks.command import Command
from evalmon.types import Alert


def command(code: str, *arguments: str, timeout: float = 10.0) -> Command:
    """Make a sink that runs Python code."""
    target = shlex.join([sys.executable, "-c", code, *arguments])
    return Command(SinkSettings("command", target), AlertSettings(timeout_seconds=timeout))


def test_a_program_gets_each_alert_whole_and_its_id(
    alert: Callable[..., Alert], tmp_path: Path
) -> None:
    out = tmp_path / "it's here.jsonl"
    code = (
        "import os, sys; open(sys.argv[1], 'a').write("
        "os.environ['EVALMON_ALERT_ID'] + ' ' + sys.stdin.read() + chr(10))"
    )
    outcomes = list(deliver(command(code, str(out)), [alert(1), alert(2, "ü\n")]))
    assert [outcome.status for outcome in outcomes] == ["delivered", "delivered"]
    lines = [line.split(" ", 1) for line in out.read_text().splitlines()]
    assert [key for key, _ in lines] == [alert(1).id, alert(2).id]
    assert [json.loads(text) for _, text in lines] == [asdict(alert(1)), asdict(alert(2, "ü\n"))]


def test_a_failing_program_keeps_what_it_said_and_is_tried_again(
    alert: Callable[..., Alert],
) -> None:
    sink = command("import sys; sys.exit('no route to pager')")
    (outcome,) = deliver(sink, [alert()])
    assert outcome.status == "pending"
    assert outcome.error.endswith("ended with status 1: no route to pager")


def test_a_program_that_does_not_read_its_input_is_no_failure(alert: Callable[..., Alert]) -> None:
    command("pass").send([alert(1, "x" * 1_000_000)])


def test_a_program_that_hangs_is_ended(alert: Callable[..., Alert]) -> None:
    sink = command("input(); import threading; threading.Event().wait()", timeout=0.3)
    with pytest.raises(DeliveryError, match=r"did not end within 0\.3 s"):
        sink.send([alert(1, "\n")])


def test_a_missing_program_is_named(alert: Callable[..., Alert]) -> None:
    sink = Command(SinkSettings("command", "/no/such/pager --now"), AlertSettings())
    with pytest.raises(DeliveryError, match=r"/no/such/pager: cannot be started \(No such file"):
        sink.send([alert()])


@pytest.mark.parametrize(
    ("target", "message"), [("", "needs a target"), ("pager 'x", "No closing quotation")]
)
def test_a_command_line_that_cannot_be_read_is_refused(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Command(SinkSettings("command", target), AlertSettings())
