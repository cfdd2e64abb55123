"""A clock tells the order of rows only where it counts from one moment."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evalmon.errors import DataError
from evalmon.logs import clocks, tables, wandb_export
from evalmon.types import FloatArray, IntArray, RunCurves

C4 = "eval/lm/c4_en-validation/ce_nats"
TRAIN = "train/ce_nats"
STEPS: IntArray = np.arange(1, 101)
Row = tuple[str, int, float, float]


def rows(
    clock: Callable[[int], float], *, first: int = 1, last: int = 100, off: float = 0.0
) -> list[Row]:
    """Train loss each step and an evaluation each ten, with the wall time of each step."""
    steps = range(first, last + 1)
    train = [(TRAIN, step, 3.0 - step / 1000 + off, clock(step)) for step in steps]
    return train + [(C4, s, 3.5 - s / 1000, clock(s)) for s in steps if s % 10 == 0]


def table(folder: Path, given: list[Row]) -> Path:
    path = folder / "t.csv"
    lines = [f"r,{metric},{step},{step * 10},{value},{time}" for metric, step, value, time in given]
    path.write_text("\n".join(["run,metric,step,tokens,value,wall_time", *lines]) + "\n")
    return path


def steps_of(curves: RunCurves, metric: str) -> list[int]:
    return curves.curves[metric].series.steps.tolist()


RANDOM = np.random.default_rng(3).permutation(101)
NO_CLOCKS: dict[str, tuple[Callable[[int], float], str]] = {
    "it starts anew at a restart":
        (lambda step: float(step if step <= 50 else step - 50),
         "line 52 of train/ce_nats: the clock falls from 50 to 1 while the steps go on from 50 to"),
    "twice": (lambda step: float(step % 30), "line 31 of train/ce_nats: the clock falls from 29"),
    "it falls": (lambda step: 1e9 - step, "line 3 of train/ce_nats: the clock falls from 9999999"),
    "at random": (lambda step: float(RANDOM[step]), " while the steps go on from "),
    "for a moment": (lambda step: step - 2.5 * (step == 40), "line 41 of train/ce_nats: the clock"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_CLOCKS)
def test_nothing_that_was_logged_once_is_left_behind_by_a_clock(tmp_path: Path, case: str) -> None:
    clock, said = NO_CLOCKS[case]
    found = tables.read(table(tmp_path, rows(clock)))
    assert steps_of(found, TRAIN) == list(range(1, 101))
    assert steps_of(found, C4) == list(range(10, 101, 10))
    assert (found.seams, found.superseded) == ((), 0)
    assert len(found.notes) == 1
    assert said in found.notes[0]
    assert (
        "wall_time (in an export of W&B '_timestamp') must be seconds since one" in found.notes[0]
    )


def test_runtime_of_wandb_that_starts_anew_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    lines = [f"{s},{s % 60},{3.0 - s / 1000},{3.5 if s % 10 == 0 else ''},{s * 10}" for s in STEPS]
    head = "_step,_runtime,train/CE loss,eval/lm/c4_en-validation/CE loss,throughput/total tokens"
    path.write_text("\n".join([head, *lines]) + "\n")
    found = wandb_export.read(path)
    assert steps_of(found, TRAIN) == list(range(1, 101))
    assert steps_of(found, C4) == list(range(10, 101, 10))
    assert any("the clock falls from 59 to 0" in note for note in found.notes)


def test_copies_that_only_a_clock_from_one_moment_can_tell_are_refused(tmp_path: Path) -> None:
    old, new = rows(float), rows(lambda step: step - 50.0, first=51, last=55, off=0.01)
    with pytest.raises(DataError) as error:
        tables.read(table(tmp_path, old + new))
    message = str(error.value)
    assert f"step 51 of {TRAIN} twice" in message
    assert "give a column 'wall_time' in seconds since the epoch" in message
    assert "the clock falls from 100 to 1 while the steps go back from 100 to 51" in message
    found = tables.read(table(tmp_path, old + rows(lambda step: step + 50.0, first=51, last=55)))
    assert steps_of(found, TRAIN) == list(range(1, 56))


def test_a_restart_that_the_file_tells_needs_no_clock(tmp_path: Path) -> None:
    found = tables.read(table(tmp_path, rows(float) + rows(lambda step: step - 50.0, first=51)))
    assert steps_of(found, TRAIN) == list(range(1, 101))
    assert (found.seams, found.superseded) == ((50,), 50 + 5)


def test_evaluations_by_a_clock_of_their_own_are_kept_at_a_restart(tmp_path: Path) -> None:
    train = [row for row in rows(lambda step: 1e9 + step) if row[0] == TRAIN]
    again = [row for row in rows(lambda step: 1e9 + 100 + step, first=51) if row[0] == TRAIN]
    held = [row for row in rows(float) if row[0] == C4]
    found = tables.read(table(tmp_path, train + again + held))
    assert steps_of(found, C4) == list(range(10, 101, 10))
    assert found.seams == (50,)
    assert f"line 152 of {C4}: the clock says 10 at step 10, and 1000000009 at" in found.notes[0]


def shuffled(steps: IntArray, clock: FloatArray) -> tuple[IntArray, FloatArray]:
    order = np.random.default_rng(1).permutation(len(steps))
    return steps[order], clock[order]


AGAIN: IntArray = np.arange(61, 121)
SECONDS: FloatArray = 1000 + STEPS.astype(np.float64)
RESTARTED: tuple[IntArray, FloatArray] = (
    np.concatenate([STEPS, AGAIN]),
    np.concatenate([SECONDS, 2000 + AGAIN.astype(np.float64)]),
)
BY_STEP = np.argsort(RESTARTED[0], kind="stable")
CLOCKS: dict[str, tuple[IntArray, FloatArray]] = {
    "a restart": RESTARTED,
    "its parts in reversed order": (np.roll(RESTARTED[0], 60), np.roll(RESTARTED[1], 60)),
    "sorted by step": (RESTARTED[0][BY_STEP], RESTARTED[1][BY_STEP]),
    "sorted by step, the later copy first":
        (RESTARTED[0][::-1][np.argsort(RESTARTED[0][::-1], kind="stable")],
         RESTARTED[1][::-1][np.argsort(RESTARTED[0][::-1], kind="stable")]),
    "shuffled": shuffled(*RESTARTED),
    "shuffled, no restart": shuffled(STEPS, SECONDS),
    "reversed": (STEPS[::-1], SECONDS[::-1]),
    "as coarse as ten steps": (STEPS, np.floor(SECONDS / 10)),
    "it says nothing": (STEPS, np.zeros(100)),
}  # fmt: skip


@pytest.mark.parametrize("case", CLOCKS)
def test_a_clock_from_one_moment_is_trusted_however_the_rows_stand(case: str) -> None:
    assert clocks.fault(*CLOCKS[case]) is None


FAULTY: dict[str, tuple[IntArray, FloatArray, int]] = {
    "steps go back while it stands still": (np.array([3, 4, 5, 6, 1, 2]), np.ones(6), 4),
    "a process from the beginning, quicker":
        (np.tile(STEPS, 2), np.concatenate([SECONDS, 1000 + 0.9 * (SECONDS - 1000)]), 100),
    "shuffled rows numbered as they stand":
        (np.random.default_rng(1).permutation(STEPS), SECONDS, 1),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY)
def test_a_clock_that_contradicts_the_steps_is_none(case: str) -> None:
    steps, clock, at = FAULTY[case]
    found = clocks.fault(steps, clock)
    assert found is not None
    assert found.at == at
