"""`evalmon reference` says what it left out, and refuses what cannot be before it works on it."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from evalmon import reference, reference_build
from evalmon.errors import ConfigError, DataError

from .reference_commands import call, record, refused, rows, table

TRAIN, C4 = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder that is looked through, not there yet."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "curves"))
    return tmp_path / "curves"


def test_what_the_reader_left_out_or_sorted_is_said(tmp_path: Path):
    text = rows() + rows(metric="train/loss_x") + f"a,{C4},1300,13000000000,\n"
    result = call("add", table(tmp_path, text), "--name", "mine")
    assert result.exit_code == 0
    assert "note: left out, not known: train/loss_x" in result.stderr
    assert "note: 1 rows without a value were left out, the first in line 26" in result.stderr
    back = "".join(line + "\n" for line in reversed(rows().splitlines()))
    found = record("add", table(tmp_path, back), "--name", "back")
    assert found["notes"] == [f"{C4}: rows are in reversed order of step, and were sorted"]


def test_tokens_a_step_that_contradict_the_table_are_said(tmp_path: Path):
    path = table(tmp_path, rows())
    found = record("add", path, "--name", "mine", "--tokens-per-step", "7")
    assert found["notes"] == ["tokens are the file's own, not 7 a step as given"]
    assert found["tokens_per_step"] == 10_000_000
    found = record("add", path, "--name", "same", "--tokens-per-step", "1e7")
    assert found["notes"] == []


def test_token_options_are_whole_and_of_this_world(tmp_path: Path, folder: Path):
    path = table(tmp_path, rows())
    for option in ("--planned-tokens", "--warmup-tokens", "--tokens-per-step"):
        for text, said in (
            ("99999999999999999999", "more than any training"),
            ("x", "not a number"),
        ):
            result = call("add", path, "--name", "mine", option, text)
            assert (result.exit_code, said in result.stderr) == (2, True)
    said = refused(ConfigError, "add", path, "--name", "mine", "--warmup-tokens", "12000000001")
    assert "more than the 12,000,000,000 tokens that a reaches" in said
    long = ("--planned-tokens", "1e12", "--warmup-tokens", "1000000000001")
    assert "1,000,000,000,000 tokens of the schedule" in refused(
        ConfigError, "add", path, "--name", "mine", *long
    )
    assert not folder.exists()
    found = record(
        "add", path, "--name", "mine", "--planned-tokens", "1e12", "--warmup-tokens", "0"
    )
    assert (found["planned_tokens"], found["warmup_tokens"]) == (10**12, 0)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        said = refused(DataError, "add", path, "--name", "mine")
        assert said.startswith(f"{path}: no file but a folder or a pipe; save the table to a file")


def test_numbers_of_no_model_are_refused_without_a_warning(tmp_path: Path, folder: Path):
    huge = "".join(
        f"a,{m},{n},{n * 64},{1e308 * (-1) ** n}\n" for m in (TRAIN, C4) for n in range(1, 60)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = refused(DataError, "add", table(tmp_path, huge), "--name", "mine")
    assert f"{TRAIN}: -1e+308 at step 1 is no value of a model (59 such points)" in said
    assert not folder.exists()


def test_a_broken_index_of_the_users_is_said_after_ours(tmp_path: Path, folder: Path):
    call("add", table(tmp_path, rows()), "--name", "mine")
    (folder / "index.toml").write_text("[[[broken")
    result = call("list")
    assert isinstance(result.exception, DataError)
    assert len(result.stdout.splitlines()) == 13
    said = call("list", "--json")
    (line,) = said.stdout.splitlines()
    found = json.loads(line)
    assert (len(found["references"]), found["faults"]) == (13, [str(result.exception)])
    assert isinstance(said.exception, DataError)
    assert call("show", "olmo3-7b-stage1").exit_code == 0
    (fault,) = record("verify", code=1)["faults"]
    named = record("verify", "mine", "olmo3-7b-stage1", code=1)
    assert named["checked"] == ["mine", "olmo3-7b-stage1"]
    assert fault["message"] in named["faults"][0]["message"]
    assert call("verify", "olmo3-7b-stage1").exit_code == 0
    other = ("--folder", tmp_path / "other")
    added = record("add", table(tmp_path, rows()), "--name", "mine", *other)
    assert added["warnings"] == [fault["message"]]


def test_add_says_that_an_index_is_gone_and_goes_on(tmp_path: Path, folder: Path):
    call("add", table(tmp_path, rows()), "--name", "mine")
    (folder / "index.toml").unlink()
    (said,) = record("add", table(tmp_path, rows()), "--name", "next")["warnings"]
    assert said.startswith(f"{folder}: curves (mine) and no index.toml")
    (fault,) = record("verify", code=1)["faults"]
    assert fault["file"].startswith(str(folder / "mine"))


def test_a_folder_that_is_not_there_is_said(folder: Path):
    said = f"{reference.FOLDER_VARIABLE}={folder}: no such folder"
    assert refused(ConfigError, "verify").startswith(said)
    assert f"note: {said}" in call("list").stderr


def test_build_looks_at_the_names_before_it_reads_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def opened(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(reference_build, "open_history", opened)
    assert "give ENTITY/PROJECT/RUN" in refused(ConfigError, "build", "wandb", "a/b", "--name", "A")
    wandb = ("build", "wandb", "a/b/c", "--tokens-per-step", "9")
    assert "there already" in refused(ConfigError, *wandb, "--name", "olmo3-7b-stage1")
    assert "--name 'A'" in refused(ConfigError, *wandb, "--name", "A")
    assert "nothing says how many tokens" in refused(ConfigError, *wandb[:3], "--name", "a")
    said = refused(ConfigError, *wandb, "--name", "a", "--eval-key", "c5")
    assert "'c5' is not in the dictionary" in said


def test_build_checkpoints_loads_no_heavy_library_for_a_folder_that_is_none(tmp_path: Path):
    code = (
        "import sys\nfrom evalmon.cli import main\n"
        f"try: main(['reference', 'build', 'checkpoints', {str(tmp_path)!r}, '--name', 'a'])\n"
        "except SystemExit as end: assert end.code == 2\n"
        "print({'jax', 'pyarrow', 'sqlalchemy', 'tqdm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "not a run directory" in done.stderr
    assert done.stdout.strip() == "set()"
