import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trainer import cli, loop
from trainer.data.index import TokenFolder
from trainer.rundir import Run, open_run
from trainer.writers import Writer

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

    def note(run: Run, *, resume: bool, writers: Sequence[Writer]) -> str:
        calls.append((run, resume))
        for writer in writers:
            writer.start(0)
            writer.close()
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
        (["--recipe", "olmo3-7b-stage3"], "nearest is 'olmo3-7b-stage2'"),
        (["--recipe", "olmo3-7b-stage2"], "starts from stage 1 at step 1,413,814"),
        (["--without-optimizer"], "only with --init-from"),
        (["--init-from", "absent"], "--init-from absent: no committed checkpoint"),
        (["--dtype", "float64"], "set JAX_ENABLE_X64=1"),
        (["--dtype", "half"], "expected one of"),
        (["--heads", "3"], "does not divide 'heads' 3"),
        (["--mesh", "data=3"], "data x fsdp = 3"),
        (["--accumulate", "3"], "--accumulate 3: must divide --batch 4"),
        (["--skip-step", "olmo"], "nearest is 'olmo_core'"),
        (["--schedule", "cos"], "nearest is 'cosine'"),
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


def test_a_recipe_gives_the_defaults_and_options_win(
    call: Call, trained: list[tuple[Run, bool]], make_folder: MakeFolder, tmp_path: Path
) -> None:
    words = [
        *(*_new_run(make_folder(800).path, tmp_path / "run"), "--recipe", "olmo3-7b-stage1"),
        *("--preset", "tiny", "--dtype", "float32", "--seed", 0, "--kv-heads", 4),
    ]
    assert call(*words) == 0
    ((run, _),) = trained
    settings = run.settings
    # Given by an option, also where that is the option's own default.
    assert (settings.steps, settings.batch_instances, settings.sequence_length) == (3, 4, 8)
    assert (settings.preset, settings.dtype, settings.seed) == ("tiny", "float32", 0)
    assert run.model.kv_heads == 4
    # Left to the recipe.
    assert (settings.learning_rate, settings.warmup_steps) == (3e-4, 2000)
    assert (settings.schedule, settings.schedule_steps) == ("two_stages", 1_192_093)
    assert (settings.skip_step, settings.checkpoint_every) == ("olmo_core", 1000)
    stored = open_run(tmp_path / "run").settings
    assert stored == settings
    assert stored.recipe_name == "olmo3-7b-stage1"


def test_a_recipe_is_enough_for_a_run(
    call: Call, trained: list[tuple[Run, bool]], make_folder: MakeFolder, tmp_path: Path
) -> None:
    data = make_folder(8192 * 600 + 1, vocab_size=8).path
    words = ["train", "--recipe", "olmo3-7b-stage1-maxtext", "--preset", "olmo3-1m"]
    assert call(*words, "--data", data, "--out", tmp_path / "run") == 0
    ((run, _),) = trained
    assert run.settings.steps == 1_414_078
    assert run.settings.tokens_per_step == 4_194_304
    assert run.model.dtype == "bfloat16"


def test_the_split_of_the_work_may_change_at_resume(
    call: Call, trained: list[tuple[Run, bool]], make_folder: MakeFolder, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    call(*_new_run(make_folder(800).path, out))
    words = ["train", "--resume", "--out", out, "--accumulate", 2, "--scan-layers"]
    assert call(*words, "--mesh", "data=1", "--remat", "full") == 0
    settings = trained[-1][0].settings
    assert (settings.accumulate, settings.scan_layers) == (2, True)
    assert (settings.mesh, settings.remat) == ("data=1", "full")
    assert call("train", "--resume", "--out", out, "--no-scan-layers") == 0
    assert not trained[-1][0].settings.scan_layers
    before = (out / "run.json").read_bytes()
    words = ["train", "--resume", "--out", out, "--dtype", "bfloat16", "--accumulate", 4]
    assert call(*words) == 2
    assert (out / "run.json").read_bytes() == before


def test_the_command_of_a_new_run_may_be_repeated_and_other_paths_are_refused(
    call: Call,
    trained: list[tuple[Run, bool]],
    make_folder: MakeFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = _new_run(make_folder(800).path, Path("mine"))
    assert call(*words) == 0
    assert call(*words, "--resume") == 0
    assert [resume for _, resume in trained] == [False, True]
    (tmp_path / "other").mkdir()
    for option, path in (("--data", "other"), ("--fresh-data", "other"), ("--init-from", "other")):
        assert call("train", "--resume", "--out", "mine", option, path) == 2
        assert f"{option} other: the run was made with" in capsys.readouterr().err
    assert len(trained) == 2


def test_event_files_go_into_the_run_or_where_they_are_told_to(
    call: Call, trained: list[tuple[Run, bool]], make_folder: MakeFolder, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboardX")
    out = tmp_path / "mine"
    assert call(*_new_run(make_folder(800).path, out), "--tensorboard") == 0
    assert len(list((out / "tensorboard").iterdir())) == 1
    words = ["train", "--resume", "--out", out, "--tensorboard", tmp_path / "events"]
    assert call(*words) == 0
    assert len(list((tmp_path / "events").iterdir())) == 1


def test_a_missing_writer_is_refused_before_anything_is_made(
    call: Call,
    make_folder: MakeFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("trainer.writers.find_spec", lambda _: None)
    out = tmp_path / "mine"
    assert call(*_new_run(make_folder(800).path, out), "--wandb", "project") == 2
    assert "--wandb: needs wandb; install it with: pip install" in capsys.readouterr().err
    assert not out.exists()


def test_recipes_are_one_array(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("recipes", "--json") == 0
    recipes = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["name"] for each in recipes] == [
        "olmo3-7b-stage1",
        "olmo3-7b-stage1-maxtext",
        "olmo3-7b-stage2",
    ]
    assert recipes[2]["steps"] == 47_684
    assert call("recipes") == 0
    assert "olmo3-7b-stage1-maxtext" in capsys.readouterr().out


def test_a_schedule_is_told_at_the_steps_asked_for(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("schedule", "olmo3-7b-stage1", "--steps", "100000,300000", "--json") == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["step"] for row in rows] == [100_000, 300_000]
    assert [row["learning_rate"] for row in rows] == pytest.approx([2.955e-4, 2.603e-4], abs=5e-8)
    assert call("schedule", "olmo3-7b-stage1-maxtext", "--steps", "597046") == 0
    assert capsys.readouterr().out.split() == ["597,046", "1.9800e-04"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["olmo3-7b", "--steps", "1"], "no such recipe; nearest is 'olmo3-7b-stage"),
        (["olmo3-7b-stage1", "--steps", "1,two"], "whole numbers with commas between"),
        (["olmo3-7b-stage1", "--steps", "0"], "steps count from 1"),
    ],
)
def test_a_schedule_that_cannot_be_told_ends_with_2(
    call: Call, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert call("schedule", *words) == 2
    assert says in capsys.readouterr().err


def test_help_lists_the_commands(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    assert {"tokenize", "train", "recipes", "schedule"} <= set(capsys.readouterr().out.split())
