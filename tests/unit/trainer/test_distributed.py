import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from evalmon.errors import ConfigError, DataError
from evalmon.types import ID_LOG_RECORD
from trainer.distributed import (
    first_then_others,
    gather_records,
    initialize_from_options,
    is_first,
    of_first,
    require_hosts,
    written_by_first,
)

As = Callable[[int, int], None]


@pytest.fixture
def as_process(monkeypatch: pytest.MonkeyPatch) -> As:
    """Let this process take itself for one of several."""

    def become(process: int, processes: int) -> None:
        monkeypatch.setattr(jax, "process_index", lambda: process)
        monkeypatch.setattr(jax, "process_count", lambda: processes)

    return become


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Note how JAX would be joined instead of joining it."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **_: calls.append(a))
    return calls


def test_without_options_nothing_is_joined(joined: list[tuple[Any, ...]]) -> None:
    initialize_from_options(None, None, None)
    assert joined == []


def test_the_options_are_those_of_jax(joined: list[tuple[Any, ...]]) -> None:
    initialize_from_options("node1:1234", 4, 3)
    assert joined == [("node1:1234", 4, 3)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("node:1", None, None), "--processes, --process-id: needed too"),
        ((None, 2, 0), "--coordinator: needed too"),
        (("node", 2, 0), "--coordinator 'node': not HOST:PORT"),
        ((":1", 2, 0), "--coordinator ':1': not HOST:PORT"),
        (("node:70000", 2, 0), "--coordinator 'node:70000': not HOST:PORT"),
        (("node:1", 0, 0), "--processes 0: at least 1"),
        (("node:1", 2, 2), "--process-id 2: 0 to 1"),
        (("node:1", 2, -1), "--process-id -1: 0 to 1"),
    ],
)
def test_wrong_options_are_refused(
    joined: list[tuple[Any, ...]], options: tuple[Any, Any, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        initialize_from_options(*options)
    assert says in str(error.value)
    assert joined == []


def test_a_port_in_use_is_refused_by_the_process_that_would_listen(
    joined: list[tuple[Any, ...]],
) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        place = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"cannot listen there .* give another port"):
            initialize_from_options(place, 2, 0)
        initialize_from_options(place, 2, 1)
    assert joined == [(place, 2, 1)]


@pytest.mark.parametrize(("hosts", "near"), [(1, 2), (3, 4), (5, 4)])
def test_hosts_that_processes_cannot_share_are_refused(
    as_process: As, hosts: int, near: int
) -> None:
    require_hosts(hosts)
    as_process(0, 2)
    with pytest.raises(ConfigError, match=f"multiple of --processes 2.* the nearest is {near}"):
        require_hosts(hosts)
    require_hosts(4)


def test_only_the_first_process_writes(as_process: As, tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert is_first()
    assert written_by_first(file) == file
    as_process(1, 2)
    assert not is_first()
    written_by_first(file).write_text("lost")
    assert not file.exists()


def test_records_are_gathered_in_order_of_the_processes_to_the_last_bit(
    as_process: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [np.zeros(2, ID_LOG_RECORD) for _ in range(2)]
    for number, part in enumerate(parts):
        part["host"] = number
        part["instance"] = 2**40 + number
        part["text_hash"] = 2**64 - 1 - number
    assert gather_records(parts[0]) is parts[0]

    def gather(rows: np.ndarray, *, tiled: bool) -> np.ndarray:
        assert tiled
        assert rows.dtype == np.uint8
        return np.concatenate([rows, parts[1].view(np.uint8).reshape(2, -1)])

    as_process(0, 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    assert gather_records(parts[0]).tolist() == np.concatenate(parts).tolist()


def _no() -> Any:
    raise AssertionError("called in the wrong process")


def test_the_others_follow_what_the_first_says(
    as_process: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_first(value=True)
    assert first_then_others(lambda: "made", _no) == "made"
    said = [True]
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda _: np.asarray(said[0]))
    as_process(1, 2)
    assert of_first(value=False)
    assert first_then_others(_no, lambda: "followed") == "followed"
    said[0] = False
    with pytest.raises(ConfigError, match="process 0 could not begin"):
        first_then_others(_no, _no)


def test_a_failure_of_the_first_is_told_to_the_others_and_raised(
    as_process: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def broadcast(value: np.ndarray) -> np.ndarray:
        told.append(bool(value))
        return value

    def fail() -> Any:
        raise DataError("no data")

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    as_process(0, 2)
    with pytest.raises(DataError, match="no data"):
        first_then_others(fail, _no)
    assert told == [False]
