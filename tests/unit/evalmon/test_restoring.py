"""Restoring ahead: in a thread, one at a time, one held, and nothing left behind."""

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon import checkpoints
from evalmon.checkpoints import Parameters
from evalmon.errors import CheckpointError
from evalmon.restoring import Ahead
from evalmon.types import CheckpointRef

PATIENCE = 20.0
"""Seconds after which a thread that never comes fails a test."""


def at(step: int) -> CheckpointRef:
    """A checkpoint."""
    return CheckpointRef("tiny", step, step, Path(f"/runs/tiny/checkpoints/{step}"))


class Disk:
    """Restores what it is asked for, and notes in which thread, and how many at once."""

    def __init__(self) -> None:
        self.threads: dict[int, str] = {}
        self.errors: dict[int, Exception] = {}
        self.began, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.busy = self.most = 0
        self.kept: dict[int, weakref.ref[Any]] = {}

    def restore(self, ref: CheckpointRef) -> Parameters:
        self.busy += 1
        self.most = max(self.most, self.busy)
        self.threads[ref.step] = threading.current_thread().name
        self.began.set()
        assert self.may_end.wait(PATIENCE)
        self.busy -= 1
        if ref.step in self.errors:
            raise self.errors[ref.step]
        array = np.full(2, ref.step)
        self.kept[ref.step] = weakref.ref(array)
        return Parameters({"x": array}, f"w{ref.step}")

    def held(self) -> set[int]:
        """Return the steps whose parameters somebody holds."""
        gc.collect()
        return {step for step, array in self.kept.items() if array() is not None}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made, before = Disk(), threading.active_count()
    monkeypatch.setattr(checkpoints, "restore", made.restore)
    yield made
    assert threading.active_count() == before


def test_a_restore_goes_on_while_something_else_is_done(disk: Disk) -> None:
    disk.may_end.clear()
    with Ahead() as ahead:
        ahead.begin(at(10))
        assert disk.began.wait(PATIENCE)
        disk.may_end.set()  # until here the checkpoint was not there: this thread did not wait
        assert ahead.take(at(10)).fingerprint == "w10"
    assert disk.threads[10].startswith("restore")


def test_what_was_not_begun_is_restored_when_it_is_asked_for(disk: Disk) -> None:
    with Ahead() as ahead:
        assert ahead.take(at(10)).fingerprint == "w10"
        ahead.begin(at(20))
        assert ahead.take(at(30)).fingerprint == "w30"
        assert ahead.take(at(20)).fingerprint == "w20"
    main = threading.current_thread().name
    assert (disk.threads[10], disk.threads[30], disk.threads[20]) == (main,) * 3
    assert disk.most == 1


def test_one_is_restored_at_a_time_and_one_is_held(disk: Disk) -> None:
    with Ahead() as ahead:
        for step in (10, 20, 30):
            ahead.begin(at(step))
            ahead.begin(at(step))  # it is at it
        found = ahead.take(at(30))
        assert found.tree["x"].tolist() == [30, 30]
        assert disk.held() == {30}
        del found
        assert disk.held() == set()
    assert disk.most == 1


def test_an_error_comes_when_the_checkpoint_is_asked_for(disk: Disk) -> None:
    disk.errors[10] = CheckpointError("cut off")
    disk.errors[20] = RuntimeError("RESOURCE_EXHAUSTED")
    with Ahead() as ahead:
        ahead.begin(at(10))
        with pytest.raises(CheckpointError, match="cut off"):
            ahead.take(at(10))
        ahead.begin(at(20))
        with pytest.raises(RuntimeError, match="RESOURCE"):
            ahead.take(at(20))
        ahead.begin(at(10))  # nobody asks for it


def test_an_interrupted_user_waits_for_the_thread(disk: Disk) -> None:
    disk.may_end.clear()

    def interrupted() -> None:
        with Ahead() as ahead:
            ahead.begin(at(10))
            assert disk.began.wait(PATIENCE)
            threading.Timer(0, disk.may_end.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert disk.busy == 0
    assert disk.held() == set()
