import json
import math
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from trainer.runlog import RunLog

FACTS = {"mfu_convention": "x", "peak_flops_per_second": 1.0, "peak_source": "y"}


def _clock() -> Callable[[], float]:
    ticks = count(100)
    return lambda: float(next(ticks))


def _rows(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_events_are_single_lines_of_strict_json(tmp_path: Path) -> None:
    with RunLog(tmp_path / "log.jsonl", _clock()) as log:
        log.start(0, None, FACTS)
        log.step(1, 32, {"train/ce_nats": 2.5})
        log.checkpoint(1, 32)
        log.end(1, 32, "completed")
    assert _rows(tmp_path / "log.jsonl") == [
        {
            "event": "start",
            "time": 100.0,
            "segment": 0,
            "resumed_from_step": None,
            "tokens": 0,
            **FACTS,
        },
        {"event": "step", "time": 101.0, "step": 1, "tokens": 32, "train/ce_nats": 2.5},
        {"event": "checkpoint", "time": 102.0, "step": 1, "tokens": 32},
        {
            "event": "end",
            "time": 103.0,
            "step": 1,
            "tokens": 32,
            "reason": "completed",
            "message": "",
        },
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_becomes_null_and_is_named(tmp_path: Path, value: float) -> None:
    with RunLog(tmp_path / "log.jsonl", _clock()) as log:
        log.step(1, 32, {"train/ce_nats": value, "optim/lr": 0.1})
    (row,) = _rows(tmp_path / "log.jsonl")
    assert row["train/ce_nats"] is None
    assert row["optim/lr"] == 0.1
    assert row["nonfinite"] == ["train/ce_nats"]


def test_lines_are_on_disk_before_the_log_is_closed(tmp_path: Path) -> None:
    with RunLog(tmp_path / "log.jsonl", _clock()) as log:
        log.checkpoint(1, 32)
        assert len(_rows(tmp_path / "log.jsonl")) == 1


def test_a_restart_is_another_segment_and_removes_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for _ in range(2):
        with RunLog(path, _clock()) as log:
            log.start(0, None, FACTS)
        with path.open("a") as stream:
            stream.write('{"event": "step", "ti')
    with RunLog(path, _clock()) as log:
        assert log.segment == 2
        log.start(64, 2, FACTS)
    rows = _rows(path)
    assert [row["segment"] for row in rows] == [0, 1, 2]
    assert rows[2]["resumed_from_step"] == 2
