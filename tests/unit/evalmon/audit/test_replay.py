"""Replay of plain Python loaders: windows, seams, findings, and what ends without a verdict."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from evalmon.audit.batches import BatchReader
from evalmon.audit.drive import DrivePlan
from evalmon.audit.replay import ReplayResult, replay
from evalmon.audit.replay_report import lines, record
from evalmon.audit.resume import parse_resume
from evalmon.audit.targets import Target
from evalmon.cli import main
from evalmon.errors import ConfigError, DataError

N = 64


def row(i: int) -> list[int]:
    return [i, i + 1, 3 * i]


def batch(ids: Any) -> dict[str, Any]:
    return {"tokens": np.array([row(int(i)) for i in ids]), "instance": np.array(ids)}


def strided(host: int, hosts: int, step: int = 0, passes: int = 1) -> Iterator[dict[str, Any]]:
    """Two instances a host and step, in order."""
    order = np.concatenate([np.random.default_rng(p).permutation(N) for p in range(passes)])
    for start in range(step * 2 * hosts, len(order), 2 * hosts):
        yield batch(order[start + host : start + 2 * hosts : hosts])


def endless(host: int, hosts: int) -> Iterator[dict[str, Any]]:
    return strided(host, hosts, passes=20)


def audit(function: Callable[..., Any], hosts: int = 4, **options: Any) -> ReplayResult:
    stop, resume = options.pop("stop", None), options.pop("resume", None)
    epochs, holdout = options.pop("epochs", 1), options.pop("holdout", None)
    options.setdefault("instances", N)
    plan = DrivePlan(
        Target("loaders:it", function), hosts, resume=parse_resume(stop, resume), **options
    )
    return replay(plan, epochs=epochs, holdout=holdout)


# The window.


def test_a_loader_that_ends_is_read_to_its_end():
    found = record(audit(strided))
    window = found["window"]
    assert (window["reason"], window["steps"], window["batches_per_host"]) == ("ended", 8, [8] * 4)
    assert (found["coverage"], found["never_read"], found["window_sufficient"]) == (1.0, 0, True)
    assert found["multiplicity"] == {"1": N}


def test_a_loader_without_end_is_read_for_twice_the_source():
    result = audit(endless)
    assert (result.stream.reason, result.counts.draws, result.exit_code) == (
        "twice_the_source", 2 * N, 0,
    )  # fmt: skip
    assert (result.beyond_planned, audit(endless, epochs=2).beyond_planned) == (N, 0)


def test_without_the_size_a_loader_without_end_is_read_for_4096_batches():
    def forever(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        while True:
            yield batch([host])

    result = audit(forever, 1, instances=None)
    assert (result.stream.reason, result.stream.batches_per_host) == ("batches", (4096,))
    assert (result.window_sufficient, result.exit_code) == (None, 3)
    assert "give --instances" in lines(result)[-1]
    assert (record(result)["coverage"], record(result)["never_read"]) == ("unknown", "unknown")


@pytest.mark.parametrize(("steps", "sufficient"), [(3, False), (4, True)])
def test_a_window_under_two_shares_cannot_show_double_sharding(steps: int, sufficient: bool):
    result = audit(endless, steps=steps)  # 8 draws a step; 2 N / S = 32
    assert result.window_sufficient is sufficient
    assert result.exit_code == (0 if sufficient else 3)


def test_a_loader_that_ends_with_its_share_unread_is_not_enough():
    def share_of_a_share(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        yield from (batch([i]) for i in range(N)[host::hosts][host::hosts])

    result = audit(share_of_a_share)
    assert (result.exit_code, result.window_sufficient) == (3, False)
    assert record(result)["never_read"] == N - N // 4


def test_hosts_may_end_at_different_steps_and_hold_other_batches():
    def uneven(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        ids = range(48) if host == 0 else range(48, N)
        for start in range(0, len(ids), 8 if host == 0 else 4):
            yield batch(ids[start : start + (8 if host == 0 else 4)])

    result = audit(uneven, 2)
    assert (result.exit_code, result.stream.batches_per_host) == (0, (6, 4))


# Findings.


def test_more_passes_than_planned_are_found_in_a_loader_that_ends():
    def twice(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        return strided(host, hosts, passes=2)

    result = audit(twice, steps=100)
    assert [(item.kind, item.count) for item in result.findings] == [("more_than_planned", N)]
    assert audit(twice, steps=100, epochs=2).exit_code == 0


def test_two_hosts_with_one_instance_in_a_step_are_found():
    def crossing(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        for step, read in enumerate(strided(host, hosts)):
            yield batch([1, 2]) if step == 3 and host < 2 else read

    kinds = {item.kind: item for item in audit(crossing).findings}
    assert kinds["same_step_duplicate"].count == 2
    assert kinds["same_step_duplicate"].first_step == 4
    assert kinds["same_step_duplicate"].examples[0]["host"] == 1


def test_one_repeat_is_enough_and_is_shown():
    def once_more(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        first: Any = None
        for step, read in enumerate(strided(host, hosts)):
            first = read if step == 0 else first
            yield first if step == 5 and host == 2 else read

    result = audit(once_more)
    finding = result.findings[0]
    assert (result.exit_code, finding.kind, finding.count, finding.first_step) == (
        1, "repeat_in_pass", 2, 6,
    )  # fmt: skip
    assert finding.examples[0]["before_step"] == 1


def test_equal_texts_of_other_instances_are_counted_and_no_finding():
    def alike(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        for read in strided(host, hosts):
            yield {**read, "tokens": read["tokens"] % 21}

    result = audit(alike)
    assert (result.exit_code, result.counts.equal_text) == (0, N - 21)


def test_rows_of_one_token_are_left_out_and_counted():
    def padded(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        for read in strided(host, hosts):
            rows = np.concatenate([read["tokens"], np.full((1, 3), 9)])
            yield {"tokens": rows}

    result = audit(padded, instances=N + 32)
    found = record(result)
    assert (result.exit_code, found["single_token_instances"], found["unique"]) == (0, 32, N)


def test_stand_ins_of_one_token_are_judged_all_the_same():
    def stand_ins(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        for read in strided(host, 1):
            yield {"tokens": np.repeat(read["instance"][:, None], 4, axis=1)}

    assert audit(stand_ins).exit_code == 1


@pytest.mark.parametrize(("repeats", "code"), [(3, 0), (4, 1)])
def test_repeats_of_texts_confirm_from_one_percent(repeats: int, code: int):
    def unnamed(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        for step in range(200):
            again = host == 0 and 100 <= step < 100 + repeats
            yield {"tokens": np.array([row(200 * host + (step - 50 if again else step))])}

    result = audit(unnamed, 2, instances=None)
    assert (result.counts.identity, result.repeat_or_equal_text) == ("text_hash", repeats)
    assert (result.counts.draws, result.exit_code) == (400, code)


def test_a_holdout_may_be_called_without_hosts():
    def evaluation() -> list[dict[str, Any]]:
        return [batch([3, 4, 1000])]

    result = audit(strided, holdout=Target("loaders:eval", evaluation))
    assert (result.exit_code, result.findings[0].count) == (1, 2)
    assert result.construction is not None
    assert result.construction.name == "holdout_is_training_data"


# Resumes.


@pytest.mark.parametrize("resume", [None, "argument", "skip", "2,argument", "8,skip"])
def test_a_position_over_all_hosts_survives_stops(resume: str | None):
    if resume and not resume.isalpha():

        def moved(host: int, hosts: int, consumed: int = 0) -> Iterator[dict[str, Any]]:
            order = np.random.default_rng(0).permutation(N)[consumed:]
            for start in range(0, len(order), 2 * hosts):
                yield batch(order[start + host : start + 2 * hosts : hosts])
    else:
        moved = strided  # pyright: ignore[reportAssignmentType]
    result = audit(moved, stop="2", resume=resume)
    assert (result.exit_code, result.counts.unique) == (0, N)
    assert result.seams[0].replayed == 0


def test_a_loader_without_position_starts_afresh_and_it_is_said():
    def simple(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        return strided(host, hosts)

    result = audit(simple, stop="3")
    assert (result.exit_code, result.seams[0].mode) == (1, "fresh")
    assert any("started afresh" in note for note in result.notes)
    assert audit(simple, stop="3", resume="skip").exit_code == 0


def test_states_that_new_loaders_refuse_are_replaced_by_skipping():
    class Picky:
        def __init__(self, host: int, hosts: int) -> None:
            self.reads = strided(host, hosts)

        def __iter__(self) -> "Picky":
            return self

        def __next__(self) -> Any:
            return next(self.reads)

        def get_state(self) -> int:
            return id(self)

        def set_state(self, state: int) -> None:
            raise ValueError("another loader's state")

    result = audit(Picky, stop="3")
    assert (result.exit_code, result.seams[0].mode) == (0, "skip")
    assert any("refused the old iterators' state" in note for note in result.notes)
    with pytest.raises(DataError, match=r"4 states saved\): raised ValueError: another loader's"):
        audit(Picky, stop="3", resume="state")


def test_a_stop_that_is_never_reached_is_said():
    assert any("before --stop-at 99" in note for note in audit(strided, stop="99").notes)


# Bad input: no verdict.


def raising(host: int, hosts: int) -> Any:
    raise RuntimeError("no such bucket")


def raising_late(host: int, hosts: int) -> Iterator[Any]:
    yield batch([host, host + 50])
    if host == 1:
        raise KeyError("step 2")


def hanging(host: int, hosts: int) -> Iterator[Any]:
    yield batch([host, host + 50])
    time.sleep(60)


def stubborn(host: int, hosts: int) -> Iterator[Any]:
    while True:
        try:
            time.sleep(60)
        except Exception:  # noqa: BLE001 - what is tested
            yield None


def changing(host: int, hosts: int) -> Iterator[Any]:
    yield batch([host])
    yield {"tokens": np.array([row(3)])}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising, (r"host 0 of 4, building the loader: raised RuntimeError: no such bucket at "
         r".*test_replay\.py:\d+; nothing is concluded")),
        (raising_late, r"host 1 of 4, step 2: raised KeyError: 'step 2' at .*test_replay\.py"),
        (hanging, r"host 0 of 4, step 2: nothing came within 0.3 s; .*--time-limit"),
        (stubborn, r"host 0 of 4, step 1: nothing came within 0.3 s"),
        (lambda host, hosts: None, "raised TypeError: 'NoneType' object is not iterable"),
        (lambda host, hosts: [{"labels": [1]}], "host 0 of 4, step 1: batch without tokens"),
        (lambda host, hosts: [{"tokens": [[1]], "instance": ["a"]}], "expected integers"),
        (changing, "step 2: no ids here, unlike in batches before"),
        (lambda host: [], "raised TypeError"),
    ],
)  # fmt: skip
def test_a_loader_that_cannot_be_used_gets_no_verdict(function: Any, message: str):
    with pytest.raises(DataError, match=message):
        audit(function, seconds=0.3)


def test_more_instances_than_the_source_holds_are_refused():
    with pytest.raises(DataError, match="--instances 60: the loaders drew 64 different instances"):
        audit(strided, instances=60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": 0}, "--hosts 0: expected at least 1"),
        ({"instances": 0}, "--instances 0"),
        ({"steps": 0}, "--steps 0"),
        ({"epochs": 0}, "--epochs 0"),
        ({"workers": -1}, "--workers -1"),
        ({"seconds": 0.0}, "--time-limit 0"),
        ({"workers": 2}, "--workers: loaders:it takes no argument 'workers'"),
        ({"arguments": {"batch": 2}}, "--arg batch: loaders:it takes no argument 'batch'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        audit(strided, **options)


def test_the_resume_argument_needs_a_parameter():
    def simple(host: int, hosts: int) -> Iterator[dict[str, Any]]:
        return strided(host, hosts)

    with pytest.raises(ConfigError, match="takes neither step nor consumed"):
        audit(simple, stop="3", resume="argument")


# The command.

LOADERS = """
import signal, time
def sound(host, hosts):
    for start in range(0, 64, 2 * hosts):
        yield {"text": [[i, i + 1, 7] for i in range(start + host, start + 2 * hosts, hosts)],
               "key": list(range(start + host, start + 2 * hosts, hosts))}
def stuck(host, hosts):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    while True:
        time.sleep(1)
"""


def test_the_command_reads_a_file_and_prints_its_record_last(tmp_path: Path):
    (tmp_path / "own_loaders.py").write_text(LOADERS)
    run = [
        "audit", "replay", f"{tmp_path}/own_loaders.py:sound", "--hosts", "2", "--instances", "64",
        "--token-field", "text", "--id-field", "key",
    ]  # fmt: skip
    result = CliRunner().invoke(main, [*run, "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["sound"], found["coverage"], found["construction"]) == (True, 1.0, None)
    spoken = CliRunner().invoke(main, run)
    assert "coverage: 1.0000, never read: 0" in spoken.stdout
    assert spoken.stdout.splitlines()[-1].strip() == "sound"
    assert CliRunner().invoke(main, [*run, "--steps", "2"]).exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_module:x", "--hosts", "2"], "no module 'no_module'"),
        (["json:loads", "--hosts", "0"], "--hosts 0"),
        (["json:loads", "--hosts", "2", "--arg", "x"], "--arg x: expected NAME=VALUE"),
        (["json:loads", "--hosts", "2", "--stop-at", "x"], "--stop-at x"),
    ],
)
def test_bad_input_of_the_command_exits_2(arguments: list[str], message: str):
    result = CliRunner().invoke(main, ["audit", "replay", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.slow
def test_code_that_never_comes_back_is_ended_with_the_process(tmp_path: Path):
    (tmp_path / "stuck_loaders.py").write_text(LOADERS)
    command = [sys.executable, "-m", "evalmon", "audit", "replay", "stuck_loaders:stuck"]
    ended = subprocess.run(
        [*command, "--hosts", "2", "--time-limit", "0.5"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "nothing came within 0.5 s" in ended.stderr


def test_a_reader_can_be_told_to_go_by_text():
    result = audit(strided, reader=BatchReader(id_field="none"))
    assert (result.counts.identity, result.exit_code) == ("text_hash", 0)
