import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import cli, loop
from trainer.data.index import TokenFolder
from trainer.rundir import Run, open_run

MakeFolder = Callable[..., TokenFolder]
Call = Callable[..., int]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command line and return its exit status."""

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["trainer", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Run, bool]]:
    """Note what would be trained instead of training it."""
    calls: list[tuple[Run, bool]] = []

    def note(run: Run, *, resume: bool) -> str:
        calls.append((run, resume))
        return "completed"

    monkeypatch.setattr(loop, "train", note)
    return calls


def _new_run(data: Path, out: Path) -> list[object]:
    return [
        *("train", "--data", data, "--out", out, "--steps", 3, "--batch", 4),
        *("--sequence-length", 8),
    ]


def test_text_becomes_a_token_folder(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "some words and some more words"}\n')
    assert call("tokenize", text, "--out", tmp_path / "data", "--vocab-size", 270) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    folder = TokenFolder.open(tmp_path / "data")
    assert told["fingerprint"] == folder.fingerprint
    assert (told["documents"], told["tokens"]) == (1, folder.files[0].n_tokens)


def test_a_new_run_is_made_and_trained(
    call: Call,
    trained: list[tuple[Run, bool]],
    make_folder: MakeFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(*_new_run(make_folder(800).path, tmp_path / "mine"), "--seed", 7) == 0
    ((run, resume),) = trained
    assert not resume
    assert (run.description.name, run.settings.seed, run.settings.hosts) == ("mine", 7, 1)
    assert run.settings.warmup_steps == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["reason"] == "completed"


def test_a_run_is_resumed_with_what_it_was_made_with(
    call: Call, trained: list[tuple[Run, bool]], make_folder: MakeFolder, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    call(*_new_run(make_folder(800).path, out), "--hosts", 4)
    assert call("train", "--resume", "--out", out) == 0
    assert call("train", "--resume", "--out", out, "--hosts", 2, "--steps", 3) == 0
    assert [(run.settings.hosts, resume) for run, resume in trained] == [
        (4, False),
        (4, True),
        (2, True),
    ]
    assert open_run(out).settings.hosts == 2


def test_other_settings_are_refused_at_resume(
    call: Call,
    trained: list[tuple[Run, bool]],
    make_folder: MakeFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call(*_new_run(make_folder(800).path, tmp_path / "mine"))
    assert call("train", "--resume", "--out", tmp_path / "mine", "--seed", 5) == 2
    assert "--seed 5: the run was made with 0" in capsys.readouterr().err
    assert len(trained) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--preset", "tny"], "nearest is 'tiny'"),
        (["--loader", "double_shrad"], "nearest is 'double_shard'"),
        (["--steps", "0"], "--steps 0"),
        (["--steps", "many"], "'many' is not a valid integer"),
        (["--instances", "101"], "--instances 101"),
        (["--no-such-option"], "No such option"),
        (["--fresh-data", "absent"], "absent: no such token folder"),
    ],
)
def test_a_wrong_option_is_told_and_ends_with_2(
    call: Call,
    make_folder: MakeFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    assert call(*_new_run(make_folder(800).path, tmp_path / "run"), *words) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert told.out == ""
    assert not (tmp_path / "run").exists()


def test_options_that_a_new_run_needs_are_named(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("train", "--out", tmp_path / "run", "--steps", 3) == 2
    assert "--data, --batch, --sequence-length: needed" in capsys.readouterr().err


def test_help_lists_the_commands(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    assert {"tokenize", "train"} <= set(capsys.readouterr().out.split())
