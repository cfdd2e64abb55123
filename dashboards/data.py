"""Read-only queries, remembered until the store's files change."""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from evalmon.report.collect import collect, train_windows
from evalmon.report.view import RunView
from evalmon.store import Store
from evalmon.types import RunDescription, Series

__all__ = ["Activity", "activity", "first_shown", "is_missing", "locate", "runs", "view"]

ENVIRONMENT = "EVALMON_STORE"
"""Names the store when ``--store`` does not."""

_DEFAULT = "demo/evalmon.sqlite"
_RECHECK_SECONDS = 15.0  # deliveries become overdue without any file changing


@dataclass(frozen=True, slots=True)
class Activity:
    """What one evaluator process is doing.

    Attributes:
        holder: the process, as ``host/pid``.
        stage: what it does.
        seconds: for how long.
        alive: False when it is known to be gone; None when that cannot be told.
    """

    holder: str
    stage: str
    seconds: float
    alive: bool | None


def locate(arguments: Sequence[str]) -> str:
    """Return path or URL of the store: ``--store``, else ``EVALMON_STORE``, else the demo's.

    Args:
        arguments: the command line after Streamlit's own.

    Example:
        >>> locate(["--store", "runs/evalmon.sqlite"])
        'runs/evalmon.sqlite'
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--store", default=os.environ.get(ENVIRONMENT) or _DEFAULT)
    known, _ = parser.parse_known_args(arguments)
    return str(known.store)


def is_missing(store: str) -> bool:
    """Tell whether the store is a file that is not there (yet)."""
    return "://" not in store and not Path(store).is_file()


def runs(store: str) -> tuple[str, ...]:
    """Return the runs' names, in the order in which they were registered.

    Raises:
        StoreError: the store is missing, of another version, or cannot be read.
    """
    return _runs(store, _stamp(store))


def first_shown(store: str) -> str | None:
    """Return the run to show when none is picked: the last with an open alert, else the last."""
    names = runs(store)
    with Store.open(store, read_only=True) as opened:
        alerted = {alert.run for alert in opened.alerts() if alert.status == "open"}
    return next((name for name in reversed(names) if name in alerted), (None, *names)[-1])


def view(store: str, run: str) -> RunView:
    """Return everything shown about a run, read again when the store's files change.

    Raises:
        StoreError: the store cannot be read, or holds no such run.
    """
    return _view(store, run, _stamp(store), int(time.time() / _RECHECK_SECONDS))


def activity(shown: RunView) -> tuple[Activity, ...]:
    """Return what the evaluators of a run are doing now."""
    now = time.time()
    return tuple(
        Activity(beat.holder, beat.stage, max(0.0, now - beat.since), beat.alive)
        for beat in shown.heartbeats
    )


def _stamp(store: str) -> tuple[tuple[int, int], ...]:
    """Return what changes whenever the store does: time and size of its files.

    SQLite writes to a log beside the file first; reading alone may leave an empty one. A
    database behind a URL has no files here: it is asked again every second.
    """
    if "://" in store and not store.startswith("sqlite:///"):
        return ((int(time.time()), 0),)
    path = Path(store.removeprefix("sqlite:///"))
    files = (path, path.with_name(path.name + "-wal"))
    found = [file.stat() for file in files if file.is_file()]
    return tuple((status.st_mtime_ns, status.st_size) for status in found if status.st_size)


@st.cache_resource(max_entries=4, show_spinner=False)
def _runs(store: str, stamp: tuple[tuple[int, int], ...]) -> tuple[str, ...]:
    """Ask for the runs' names; ``stamp`` makes the answer of changed files another one."""
    del stamp
    with Store.open(store, read_only=True) as opened:
        return opened.runs()


@st.cache_resource(max_entries=16, show_spinner=False)
def _view(store: str, run: str, stamp: tuple[tuple[int, int], ...], recheck: int) -> RunView:
    """Collect a run's view; ``stamp`` and ``recheck`` only tell answers apart."""
    del stamp, recheck
    with Store.open(store, read_only=True) as opened:
        return collect(opened, run, read_train=_read_train)


def _read_train(run: RunDescription, evaluations: Series) -> Series:
    """Read windowed train loss once an evaluation: a long log is not read at every refresh."""
    key = (str(run.path), evaluations.steps.tobytes())
    return _train(key, _run=run, _evaluations=evaluations)


@st.cache_resource(max_entries=16, show_spinner=False)
def _train(key: tuple[str, bytes], *, _run: RunDescription, _evaluations: Series) -> Series:
    """Read a run's log; ``key`` is the run directory and the evaluations' steps."""
    del key
    return train_windows(_run, _evaluations)
