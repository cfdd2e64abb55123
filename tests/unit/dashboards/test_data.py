"""The store is read when it changes, never written, and answers do not pile up."""

import gc
import os
import tracemalloc
from pathlib import Path

import pytest

from dashboards import data
from evalmon.errors import StoreError
from evalmon.store import Store
from tests import synthetic_store as synthetic


def test_the_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.ENVIRONMENT, "from-environment")
    assert data.locate([]) == "from-environment"
    assert data.locate(["--store", "from-option"]) == "from-option"
    monkeypatch.delenv(data.ENVIRONMENT)
    assert data.locate([]) == "demo/evalmon.sqlite"


def test_an_unchanged_store_is_not_read_again(tmp_path: Path) -> None:
    store = str(synthetic.build(tmp_path, steps=(0, 10)))
    assert data.view(store, "clean").train[0] is data.view(store, "clean").train[0]


def test_a_replaced_store_is_read_again(tmp_path: Path) -> None:
    store = synthetic.build(tmp_path, steps=(0, 10))
    assert data.runs(str(store)) == ("clean", "double-sharded")
    with Store.open(tmp_path / "other.sqlite") as other:
        other.register(synthetic.describe(tmp_path, "only"))
    (tmp_path / "other.sqlite").replace(store)
    assert data.runs(str(store)) == ("only",)


def test_reading_changes_nothing_and_creates_nothing(tmp_path: Path) -> None:
    store = synthetic.build(tmp_path, steps=(0, 10))
    before = store.read_bytes()
    data.view(str(store), "clean")
    assert store.read_bytes() == before
    with pytest.raises(StoreError, match="no such store"):
        data.runs(str(tmp_path / "none.sqlite"))
    assert not (tmp_path / "none.sqlite").exists()


def test_a_run_with_an_open_alert_is_shown_first(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        runs = [synthetic.describe(tmp_path, name) for name in ("double-sharded", "clean")]
        for run in runs:
            store.register(run)
        assert data.first_shown(str(tmp_path / "s.sqlite")) == "clean"
        synthetic.add(store, runs[0], 100)
    assert data.first_shown(str(tmp_path / "s.sqlite")) == "double-sharded"


@pytest.mark.slow
def test_memory_is_flat_over_many_refreshes(tmp_path: Path) -> None:
    store = synthetic.build(tmp_path)
    sizes: list[int] = []
    tracemalloc.start()
    try:
        for number in range(40):
            os.utime(store, (number, number))
            data.view(str(store), "double-sharded")
            if number % 20 == 19:
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] < 1.2 * sizes[0]
