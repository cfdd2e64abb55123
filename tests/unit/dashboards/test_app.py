"""The page says what the store holds, also when it holds little or cannot be read."""

import sqlite3
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboards import data
from evalmon.store import Store
from evalmon.types import CheckpointRef, Failure
from tests import synthetic_store as synthetic

APP = Path(__file__).parents[3] / "dashboards" / "app.py"


@pytest.fixture(scope="module")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with both runs, for tests that change nothing."""
    return synthetic.build(tmp_path_factory.mktemp("dashboard"))


@pytest.fixture
def app() -> AppTest:
    """Return the page, not run yet."""
    return AppTest.from_file(str(APP), default_timeout=30)


def show(app: AppTest, store: Path, monkeypatch: pytest.MonkeyPatch, run: str = "") -> AppTest:
    """Run the page on a store."""
    monkeypatch.setenv(data.ENVIRONMENT, str(store))
    monkeypatch.setattr("sys.argv", ["app.py"])
    if run:
        app.query_params["run"] = run
    app.run()
    assert not app.exception
    return app


def words(app: AppTest) -> str:
    """Return everything the page says, without the backslashes that keep it literal."""
    parts = [*app.header, *app.markdown, *app.caption, *app.info, *app.warning, *app.error]
    return "\n".join(str(part.value) for part in parts).replace("\\", "")


def test_a_missing_store_is_awaited_and_not_created(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "none.sqlite"
    show(app, store, monkeypatch)
    assert f"There is no store at {store} yet" in words(app)
    assert list(tmp_path.iterdir()) == []
    synthetic.build(tmp_path, steps=(0,)).rename(store)
    app.run()
    assert app.selectbox(key="run").options == ["clean", "double-sharded"]


def test_an_empty_store_says_how_a_run_gets_there(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(tmp_path / "s.sqlite").close()
    show(app, tmp_path / "s.sqlite", monkeypatch)
    assert "holds no run yet" in words(app)
    assert not app.selectbox


def test_a_store_of_another_version_is_told_not_raised(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "s.sqlite"
    Store.open(store).close()
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE meta SET value = '999'")
    connection.close()
    show(app, store, monkeypatch)
    assert "store of schema version 999, this evalmon reads version 2" in words(app)


def test_a_file_that_is_no_store_is_told_not_raised(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.sqlite").write_text("not a database at all, but long enough to look at" * 20)
    show(app, tmp_path / "s.sqlite", monkeypatch)
    assert "not a database" in words(app)


def test_a_run_without_evaluations_says_so(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        store.register(synthetic.describe(tmp_path, "clean"))
    show(app, tmp_path / "s.sqlite", monkeypatch)
    assert "This run has no evaluation yet" in words(app)
    assert "clean has not been judged yet." in words(app)


def test_the_page_shows_verdict_key_numbers_and_evidence(
    app: AppTest, full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(app, full_store, monkeypatch)
    assert "double-sharded is memorizing" in words(app)
    assert "data were sharded twice" in words(app)
    assert "console: delivered" in words(app)
    assert [(metric.label, metric.value.replace("\\", "")) for metric in app.metric] == [
        ("First repeat", "53.2k tokens"),
        ("Onset", "123k tokens"),
        ("First alarm", "184k tokens"),
        ("Unmatched drop", "1.000 nats"),
    ]
    assert len(app.get("plotly_chart")) == 4  # losses, unmatched drop, probe, tasks


def test_the_run_picked_is_kept_in_the_address(
    app: AppTest, full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(app, full_store, monkeypatch)
    assert app.query_params["run"] == "double-sharded"  # the one with an open alert
    app.selectbox(key="run").select("clean").run()
    assert app.query_params["run"] == "clean"
    assert "clean is healthy" in words(app)


def test_an_address_names_the_run_shown(
    app: AppTest, full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(app, full_store, monkeypatch, run="clean")
    assert app.selectbox(key="run").value == "clean"
    assert "clean is healthy" in words(app)


def test_an_address_of_a_run_that_is_gone_shows_another(
    app: AppTest, full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(app, full_store, monkeypatch, run="gone")
    assert app.query_params["run"] == "double-sharded"


def test_a_new_evaluation_is_shown_at_the_next_look(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = synthetic.build(tmp_path, steps=(70, 80))
    show(app, path, monkeypatch, run="double-sharded")
    assert "double-sharded is healthy" in words(app)
    with Store.open(path) as store:
        synthetic.add(store, synthetic.describe(tmp_path, "double-sharded"), 90)
    app.run()
    assert "double-sharded is memorizing" in words(app)


def test_an_undelivered_alert_and_a_failure_stand_out(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic.describe(tmp_path, "double-sharded")
    synthetic.write_log(run, 100)
    with Store.open(tmp_path / "s.sqlite") as store:
        store.register(run)
        synthetic.add(store, run, 100)
        store.append_attempt([store.alerts()[0].id], "console", "dead", "410 Gone")
        ref = CheckpointRef(run.name, 110, 110 * 2048, tmp_path)
        store.append_failure(Failure("downstream_tasks", ref, "EvaluationError", "no items"))
        store.beat(run.name, "restore step 120")
        show(app, tmp_path / "s.sqlite", monkeypatch)
    errors = [str(error.value).replace("\\", "") for error in app.error]
    assert errors == [
        "Not delivered — console: given up (410 Gone)",
        "Failed and not succeeded since: 1",
    ]
    assert "restore step 120" in words(app)


def test_names_are_shown_literally(
    app: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a*b*_c_ :red[x] $y$ <b>"
    with Store.open(tmp_path / "s.sqlite") as store:
        store.register(synthetic.describe(tmp_path, name))
    show(app, tmp_path / "s.sqlite", monkeypatch)
    assert app.header[0].value == (r"a\*b\*\_c\_ \:red\[x\] \$y\$ \<b\> has not been judged yet\.")
