"""Leases and heartbeats: two processes never do the same work, a killed one blocks nobody."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalmon.store import Holder, Store
from evalmon.types import RunDescription


@pytest.fixture
def dead() -> Holder:
    """A process that was here and is gone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        seen = Holder.of(process.pid)
        assert seen.alive()
        process.communicate(b"\n")
    return seen


def test_this_process_is_alive_and_a_reused_process_id_is_not() -> None:
    me = Holder.current()
    assert me.alive() is True
    assert me.pid == os.getpid()
    assert Holder(me.host, me.pid, "1").alive() is False
    assert Holder("elsewhere", me.pid, me.started).alive() is None


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = Holder.of(process.pid)
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, not yet waited for
    assert seen.alive() is False
    process.wait()


def test_two_processes_never_hold_the_same_lease(file: Path, clock: Any) -> None:
    other = Holder("elsewhere", 7, "1")
    with (
        Store.open(file, clock=clock) as ours,
        Store.open(file, clock=clock, holder=other) as theirs,
    ):
        assert ours.lease("tiny/10", 60)
        assert not theirs.lease("tiny/10", 60)
        assert theirs.lease("tiny/20", 60)
        clock.now += 59
        assert ours.lease("tiny/10", 60)  # renewed
        clock.now += 59
        assert not theirs.lease("tiny/10", 60)
        clock.now += 2
        assert theirs.lease("tiny/10", 60)  # expired
        assert not ours.lease("tiny/10", 60)
        ours.release("tiny/10")  # no longer ours to give back
        assert not ours.lease("tiny/10", 60)
        theirs.release("tiny/10")
        assert ours.lease("tiny/10", 60)


def test_the_lease_of_a_killed_process_is_taken_over_at_once(
    file: Path, clock: Any, dead: Holder
) -> None:
    with Store.open(file, clock=clock, holder=dead) as theirs:
        assert theirs.lease("tiny/10", 3600)
    with Store.open(file, clock=clock) as ours:
        assert ours.lease("tiny/10", 3600)


def test_a_lease_is_seen_as_taken_by_whom_it_would_be_refused(
    file: Path, clock: Any, dead: Holder
) -> None:
    other = Holder("elsewhere", 7, "1")
    with (
        Store.open(file, clock=clock) as ours,
        Store.open(file, clock=clock, holder=other) as theirs,
        Store.open(file, clock=clock, holder=dead) as gone,
    ):
        assert not ours.leased_elsewhere("tiny/10")
        assert theirs.lease("tiny/10", 60)
        assert ours.leased_elsewhere("tiny/10")
        assert not theirs.leased_elsewhere("tiny/10")
        clock.now += 60
        assert not ours.leased_elsewhere("tiny/10")
        assert gone.lease("tiny/20", 60)
        assert not ours.leased_elsewhere("tiny/20")


def test_a_heartbeat_says_what_a_process_does_since_when(store: Store, clock: Any) -> None:
    store.beat("tiny", "restore step 10")
    clock.now += 5
    store.beat("tiny", "restore step 10")
    (beat,) = store.heartbeats("tiny")
    assert (beat.stage, beat.since, beat.alive) == ("restore step 10", 1000.0, True)
    store.beat("tiny", "waiting")
    (beat,) = store.heartbeats("tiny")
    assert (beat.stage, beat.since) == ("waiting", 1005.0)


def test_heartbeats_of_dead_processes_are_forgotten_those_of_other_hosts_kept(
    file: Path, run: RunDescription, clock: Any, dead: Holder
) -> None:
    for holder in (dead, Holder("elsewhere", 7, "1")):
        with Store.open(file, clock=clock, holder=holder) as theirs:
            theirs.register(run)
            theirs.beat("tiny", "restore")
            clock.now += 1
    with Store.open(file, clock=clock) as ours:
        assert [beat.alive for beat in ours.heartbeats("tiny")] == [False, None]
        ours.beat("tiny", "waiting")
        assert [beat.alive for beat in ours.heartbeats("tiny")] == [None, True]
