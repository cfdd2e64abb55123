"""The run log: restarts, non-finite values, torn and malformed lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalmon.errors import DataError
from evalmon.logs import jsonl
from evalmon.types import RunDescription


def run_at(path: Path) -> RunDescription:
    return RunDescription(
        name="a", path=path, adapter="olmo3", model={}, tokenizer="tokenizer.json", vocab_size=8,
        eos_id=0, sequence_length=4, batch_instances=2, planned_steps=300, planned_passes=1,
        source_instances=600, hosts=2, loader="batch_strided", seed=0, warmup_steps=0, recipe="r",
        loss={}, data="data",
    )  # fmt: skip


def start(resumed: int | None = None, segment: int = 0) -> dict[str, Any]:
    return {"event": "start", "time": 1.0, "segment": segment, "resumed_from_step": resumed}


def step(n: int, loss: float | None, **more: Any) -> dict[str, Any]:
    return {
        "event": "step",
        "time": 1.0 + n,
        "step": n,
        "tokens": 8 * n,
        "train/ce_nats": loss,
    } | more


def write(path: Path, *events: dict[str, Any], tail: str = "") -> RunDescription:
    text = "".join(json.dumps(event) + "\n" for event in events)
    (path / "log.jsonl").write_text(text + tail)
    return run_at(path)


def test_each_metric_becomes_a_series_by_step_and_tokens(tmp_path: Path):
    run = write(tmp_path, start(), step(1, 3.0), step(2, 2.5, **{"optim/lr": 0.1}))
    log = jsonl.read(run)
    loss = log.series["train/ce_nats"]
    assert (loss.steps.tolist(), loss.tokens.tolist()) == ([1, 2], [8, 16])
    assert loss.values.tolist() == [3.0, 2.5]
    assert log.series["optim/lr"].steps.tolist() == [2]
    assert (log.last_step, log.ended, log.superseded) == (2, False, 0)


def test_steps_logged_again_after_a_restart_keep_the_later_value(tmp_path: Path):
    first = [step(n, 2.0) for n in range(1, 213)]
    again = [step(n, 2.01) for n in range(201, 251)]
    log = jsonl.read(write(tmp_path, start(), *first, start(200, 1), *again))
    loss = log.series["train/ce_nats"]
    assert loss.steps.tolist() == list(range(1, 251))
    assert loss.values[199] == 2.0
    assert set(loss.values[200:]) == {2.01}
    assert log.superseded == 12
    assert [(s.resumed_from_step, s.first_step, s.last_step) for s in log.segments] == [
        (None, 1, 212),
        (200, 201, 250),
    ]


def test_an_abandoned_branch_is_left_out_before_the_restart_reaches_it(tmp_path: Path):
    first = [step(n, 2.0) for n in range(1, 213)]
    log = jsonl.read(write(tmp_path, start(), *first, start(200, 1), step(201, 2.01)))
    assert log.series["train/ce_nats"].steps[-1] == log.last_step == 201
    assert log.superseded == 12


def test_a_rewind_without_a_start_event_keeps_the_later_value_too(tmp_path: Path):
    log = jsonl.read(write(tmp_path, step(1, 3.0), step(2, 2.0), step(2, 1.5), step(3, 1.0)))
    assert log.series["train/ce_nats"].values.tolist() == [3.0, 1.5, 1.0]
    assert log.superseded == 1


def test_non_finite_values_are_gaps_and_are_listed(tmp_path: Path):
    lines = [
        '{"event":"step","step":1,"tokens":8,"train/ce_nats":2.5}',
        '{"event":"step","step":2,"tokens":16,"train/ce_nats":NaN,"optim/lr":1e-4}',
        '{"event":"step","step":3,"tokens":24,"train/ce_nats":-Infinity}',
        '{"event":"step","step":4,"tokens":32,"train/ce_nats":"NaN"}',
        '{"event":"step","step":5,"tokens":40,"train/ce_nats":1e999}',
        '{"event":"step","step":6,"tokens":48,"train/ce_nats":null,"nonfinite":["train/ce_nats"]}',
        '{"event":"step","step":7,"tokens":56,"note":"NaN was seen","train/ce_nats":2.0}',
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    log = jsonl.read(run_at(tmp_path))
    assert log.series["train/ce_nats"].steps.tolist() == [1, 7]
    assert log.series["optim/lr"].values.tolist() == [1e-4]
    assert log.nonfinite == tuple((n, "train/ce_nats") for n in range(2, 7))
    assert "note" not in log.series


def test_a_value_that_is_merely_missing_is_not_called_non_finite(tmp_path: Path):
    log = jsonl.read(write(tmp_path, step(1, None), step(2, 2.0)))
    assert log.nonfinite == ()
    assert log.series["train/ce_nats"].steps.tolist() == [2]


def test_a_torn_last_line_is_left_for_the_next_reading(tmp_path: Path):
    run = write(tmp_path, start(), step(1, 3.0), tail='{"event":"step","step":2,"tok')
    assert jsonl.read(run).series["train/ce_nats"].steps.tolist() == [1]
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('ens":16,"train/ce_nats":2.0}\n')
    assert jsonl.read(run).series["train/ce_nats"].steps.tolist() == [1, 2]


def test_a_line_torn_by_a_kill_before_a_restart_is_passed_over(tmp_path: Path):
    torn = (
        '{"event":"step","st\n' + json.dumps(start(1, 1)) + "\n" + json.dumps(step(2, 2.0)) + "\n"
    )
    log = jsonl.read(write(tmp_path, start(), step(1, 3.0), tail=torn))
    assert log.series["train/ce_nats"].steps.tolist() == [1, 2]


def test_a_malformed_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path):
    run = write(tmp_path, start(), tail='{"event":"st\n' + json.dumps(step(2, 2.0)) + "\n")
    with pytest.raises(DataError, match=r"log\.jsonl:2: not JSON"):
        jsonl.read(run)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"loss": 1}', "with 'event'"),
        ("[1, 2]", "with 'event'"),
        ('{"event":"stepp"}', "unknown event 'stepp'"),
        ('{"event":"step","step":1.5,"tokens":8}', "'step' must be a whole number"),
        ('{"event":"step","step":1,"tokens":-8}', "'tokens' must be a whole number"),
        ('{"event":"end","step":1,"tokens":8}', "needs a 'reason'"),
    ],
)
def test_a_line_that_is_no_event_is_an_error_with_its_place(tmp_path: Path, line: str, said: str):
    (tmp_path / "log.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=said) as caught:
        jsonl.read(run_at(tmp_path))
    assert f"{tmp_path / 'log.jsonl'}:1" in str(caught.value)


def test_a_missing_log_is_an_error_that_says_what_to_do(tmp_path: Path):
    with pytest.raises(DataError, match="no run log; wait"):
        jsonl.read(run_at(tmp_path))


def test_a_run_has_ended_only_while_the_end_is_its_last_event(tmp_path: Path):
    end = {"event": "end", "time": 5.0, "step": 1, "tokens": 8, "reason": "stopped", "message": "m"}
    log = jsonl.read(write(tmp_path, start(), step(1, 3.0), end))
    assert (log.ended, log.end_reason, log.end_message, log.last_time) == (
        True,
        "stopped",
        "m",
        5.0,
    )
    log = jsonl.read(write(tmp_path, start(), step(1, 3.0), end, start(1, 1)))
    assert (log.ended, log.end_reason) == (False, "")


def test_reading_up_to_a_step_leaves_out_later_ones(tmp_path: Path):
    run = write(tmp_path, start(), step(1, 3.0), step(2, None, nonfinite=["train/ce_nats"]))
    log = jsonl.read(run, until_step=1)
    assert log.last_step == 1
    assert log.nonfinite == ()


def test_an_empty_log_has_no_series(tmp_path: Path):
    log = jsonl.read(write(tmp_path))
    assert (log.series, log.last_step, log.last_time) == ({}, 0, None)
