"""The command line: quick to start, exact in its exit codes, clear in its errors."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from evalmon.cli import main
from evalmon.types import RunDescription
from tests import synthetic_store

HEAVY = {
    "datasets", "flax", "grain", "jax", "lm_eval", "numpy", "orbax", "pandas", "plotly", "pyarrow",
    "sqlalchemy", "streamlit", "tokenizers", "torch", "transformers",
}  # fmt: skip


@pytest.mark.parametrize(
    "start",
    ["import evalmon", "import evalmon.cli; evalmon.cli.main(['--help'], standalone_mode=False)"],
)
def test_start_up_loads_no_heavy_library(start: str) -> None:
    code = f"{start}\nimport sys, json\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert loaded & HEAVY == set()


def test_a_folder_that_is_not_a_run_is_refused_by_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["watch", str(tmp_path), "--once"])
    assert result.exit_code == 2
    assert f"{tmp_path}: not a run directory (no run.json)" in result.output


def test_a_missing_run_is_refused_by_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["report", str(tmp_path / "absent")])
    assert result.exit_code == 2
    assert "no such run directory" in result.output


def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    settings = tmp_path / "evalmon.toml"
    settings.write_text("[evaluation]\nitem_limits = 3\n")
    result = CliRunner().invoke(main, ["watch", str(tmp_path), "--config", str(settings)])
    assert result.exit_code == 2
    assert "unknown setting 'item_limits'; did you mean 'item_limit'?" in result.output


def test_a_checkpoint_is_named_by_its_step_directory(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["evaluate", str(tmp_path)])
    assert result.exit_code == 2
    assert "give RUN/checkpoints/STEP" in result.output


def test_the_demo_never_replaces_a_folder_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "not empty and not an earlier demo" in result.output
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_report_never_creates_a_store(tmp_path: Path) -> None:
    run = synthetic_store.describe(tmp_path, "clean")
    synthetic_store.write_log(run)
    run.save()
    store = tmp_path / "absent.sqlite"
    result = CliRunner().invoke(main, ["report", str(run.path), "--store", str(store)])
    assert result.exit_code == 4
    assert str(store) in result.output
    assert not store.exists()


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by none"), PermissionError(13, "denied", "a/file"), OSError("odd")]
)
def test_an_error_that_nobody_foresaw_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: Path) -> None:
        raise error

    monkeypatch.setattr(RunDescription, "load", fails)
    result = CliRunner().invoke(main, ["watch", str(tmp_path), "--json"])
    assert result.exit_code == 4
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in fails" in result.stderr
    assert lines[-1] == (
        f"unexpected error, a fault of evalmon: {type(error).__name__}: {error}; please report it "
        "with the traceback above"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [(click.UsageError("no"), 2), (click.exceptions.Exit(7), 7), (SystemExit(3), 3)],
)
def test_an_end_that_was_meant_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def ends(_: Path) -> None:
        raise error

    monkeypatch.setattr(RunDescription, "load", ends)
    result = CliRunner().invoke(main, ["watch", str(tmp_path)])
    assert (result.exit_code, "unexpected error" in result.stderr) == (code, False)


def test_an_interrupted_command_is_not_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDescription, "load", interrupted)
    result = CliRunner().invoke(main, ["watch", str(tmp_path)])
    assert result.exit_code == 130
    assert "what was stored is kept" in result.output
