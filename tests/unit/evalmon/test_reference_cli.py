"""`evalmon reference`: what it prints, what it refuses, and what it leaves behind."""

import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from evalmon import reference, reference_build, reference_cli
from evalmon.config import Settings
from evalmon.errors import ConfigError, DataError
from evalmon.store import Store
from evalmon.types import Curve, RunCurves, RunDescription, Sampling, Series

from .reference_commands import call, record, refused, rows, table

TRAIN, C4 = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder that is looked through, not there yet."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "curves"))
    return tmp_path / "curves"


def test_list_names_every_reference():
    found = record("list")["references"]
    assert [item["name"] for item in found] == list(reference.names())
    (olmo3,) = (item for item in found if item["name"] == "olmo3-7b-stage1")
    assert olmo3["planned_tokens"] == 1_413_814 * 4_194_304
    assert olmo3["points"] == 1264
    text = call("list").stdout
    assert len(text.splitlines()) == 13
    assert "5.93T tokens    4 curves   1,264 points  with train loss" in text


def test_show_says_all_of_a_reference():
    found = record("show", "OLMO-2-1124-7B-STAGE1")
    assert found["name"] == "olmo2-7b-stage1"
    curve = found["curves"][TRAIN]
    assert (curve["sampling"], curve["points"], curve["steps"]) == ("thinned", 356, [1, 928344])
    assert curve["tokens"] == [4194304, 3893756952576]
    assert curve["values"] == [2.202183, 12.267267]
    assert curve["licence"] == "not stated"
    assert found["curves"][C4]["licence"] == "Apache-2.0"
    assert found["curves"]["eval/downstream/arc_challenge_0shot/len_norm"]["facts"] == {
        "shots": 0, "items": 299, "split": "validation", "normalization": "characters",
    }  # fmt: skip
    text = call("show", "olmo3-7b-stage1").stdout
    for said in (
        "published: optim/lr 3.9325e-05 at 5.93T tokens", "known fault: " + C4 + ": isolated bumps",
        "train/ce_nats: 841 points, steps 2 to 1,413,635 (5.93T tokens), 1.78017 to 12.2106 nats",
        "licence not stated", "planned tokens         5,929,965,715,456",
    ):  # fmt: skip
        assert said in text


def test_show_of_a_name_that_is_not_there():
    assert "did you mean" in refused(ConfigError, "show", "olmo3")


def test_verify_is_silent_on_ours_and_ends_with_1_on_a_change(tmp_path: Path, folder: Path):
    folder.mkdir()
    assert record("verify") == {"sound": True, "checked": "all", "faults": []}
    assert "13 references are sound" in call("verify").stdout
    call("add", table(tmp_path, rows()), "--name", "mine")
    file = folder / "mine" / reference_file(C4)
    file.write_text(file.read_text().replace("4.0", "4.1"))
    found = record("verify", code=1)
    assert [item["file"] for item in found["faults"]] == [str(file)]
    assert record("verify", "mine", code=1)["checked"] == ["mine"]
    assert record("verify", "olmo3-7b-stage1")["sound"]


def reference_file(metric: str) -> str:
    return metric.replace("/", ".") + ".csv"


def test_add_reads_a_table_and_says_what_it_is(tmp_path: Path):
    both = table(tmp_path, rows("a") + rows("b", points=20))
    found = record(
        "add", both, "--run", "b", "--name", "mine", "--alias", "B", "--model", "M 1",
        "--stage", "s", "--tokenizer", "dolma2", "--source", "a paper", "--licence", "MIT",
        "--date", "2026-01-02", "--planned-tokens", "20000000000", "--warmup-tokens", "5",
        "--fault", "odd at step 3.",
    )  # fmt: skip
    assert (found["points"], found["warnings"]) == (20, [])
    shown = record("show", "b")
    curve = shown["curves"][C4]
    assert curve["facts"]["tokenizer"] == "dolma2"
    assert (curve["source"], curve["licence"], curve["date"]) == ("a paper", "MIT", "2026-01-02")
    assert (shown["model"], shown["stage"]) == ("M 1", "s")
    assert (shown["planned_tokens"], shown["warmup_tokens"]) == (20_000_000_000, 5)
    assert shown["known_faults"] == ["odd at step 3."]
    assert curve["last_value"] == 3.05


def test_add_takes_tokens_a_step_and_a_rule(tmp_path: Path):
    train = "".join(f"train/ce_nats,{n * 7 + n % 3},{5 - n / 100}\n" for n in range(1, 60))
    path = table(tmp_path, train, "metric,step,value")
    assert "tokens" in refused(DataError, "add", path, "--name", "mine")
    rule = ("--thinned", "one of seven")
    call("add", path, "--name", "mine", "--tokens-per-step", "64", *rule)
    found = reference.load("mine").curves[TRAIN]
    assert found.series.tokens.tolist() == (found.series.steps * 64).tolist()
    assert (found.sampling, found.note) == (Sampling.THINNED, "one of seven")
    assert "say the rule" in refused(ConfigError, "add", path, "--name", "x", "--thinned", " ")


def test_a_curve_sampled_without_a_rule_is_stored_as_that_and_said(tmp_path: Path):
    steps = [3, 4, 9, 11, 12, 30, 31, 40, 77, 80, 81, 99]
    path = table(tmp_path, "".join(f"a,{TRAIN},{n},{n * 64},{5 - n / 100}\n" for n in steps))
    result = call("add", path, "--name", "mine")
    assert result.exit_code == 0
    assert f"warning: {TRAIN}: sampled at random or by an unknown rule" in result.stderr
    assert reference.load("mine").curves[TRAIN].sampling is Sampling.SAMPLED


def test_a_broken_column_is_added_with_a_loud_warning(tmp_path: Path):
    broken = "".join(f"a,{C4},{n},{n * 10**9},{10 - n / 50}\n" for n in range(1, 50))
    result = call("add", table(tmp_path, broken), "--name", "mine")
    assert result.exit_code == 0
    assert f"warning: {C4}: the median of its last half is 9.2" in result.stderr
    assert any("likely broken" in fault for fault in record("show", "mine")["known_faults"])


@pytest.mark.parametrize(
    ("text", "header", "said"),
    [
        (rows("a") + rows("b"), None, "2 runs and none named.*--run"),
        (rows(metric="my/metric"), None, "my/metric"),
        ("", None, "table.csv"),
        ("1,2\n", "metric,step", "value"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(
    tmp_path: Path, folder: Path, text: str, header: str | None, said: str
):
    path = table(tmp_path, text, *([header] if header else []))
    result = call("add", path, "--name", "mine")
    assert isinstance(result.exception, DataError)
    assert result.exception.exit_code == 2
    assert re.search(said, str(result.exception))
    assert not folder.exists()


def test_a_name_that_is_taken_is_refused(tmp_path: Path):
    path = table(tmp_path, rows())
    assert "is there already" in refused(ConfigError, "add", path, "--name", "olmo3-7b-stage1")
    assert "--name 'Bad Name'" in refused(ConfigError, "add", path, "--name", "Bad Name")
    assert call("add", path).exit_code == 2


def test_another_folder_is_named_with_how_to_find_it(tmp_path: Path):
    other = tmp_path / "other"
    result = call("add", table(tmp_path, rows()), "--name", "mine", "--folder", other)
    assert result.exit_code == 0
    assert f"{reference.FOLDER_VARIABLE} names {other}" in result.stderr
    assert "mine" not in reference.names()


class Run:
    """A W&B run of 100 steps with a holdout loss every tenth."""

    def scan_history(self, keys: list[str] | None = None) -> list[dict[str, Any]]:
        every = {"train/CE loss": 1, "eval/lm/c4_en-validation/CE loss": 10, "_step": 1}
        _, key = (keys or [])[0], (keys or [])[-1]
        return [{"_step": n, key: 5 - n / 100} for n in range(1, 101) if n % every[key] == 0]


def test_build_wandb_adds_a_run(monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []

    def history(path: str) -> Run:
        opened.append(path)
        return Run()

    monkeypatch.setattr(reference_build, "open_history", history)
    found = record(
        "build", "wandb", "team/project/run1", "--name", "mine", "--tokens-per-step", "1000",
        "--eval-key", "eval/lm/c4_en-validation/CE loss=" + C4,
    )  # fmt: skip
    assert opened == ["team/project/run1"]
    assert found["metrics"] == [TRAIN, C4]
    loaded = reference.load("mine")
    assert loaded.curves[C4].series.tokens.tolist() == [n * 10_000 for n in range(1, 11)]
    assert record("show", "mine")["curves"][TRAIN]["source"] == (
        "W&B run team/project/run1, full history"
    )


def test_build_wandb_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch):
    arguments = ("build", "wandb", "a/b/c", "--name", "mine", "--train-key", "")
    assert "nothing is read" in refused(ConfigError, *arguments)


def test_build_checkpoints_adds_what_was_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = RunDescription(
        name="tiny", path=tmp_path / "tiny", adapter="fake", model={}, tokenizer="t.json",
        vocab_size=10, eos_id=0, sequence_length=16, batch_instances=2, planned_steps=40,
        planned_passes=1, source_instances=99, hosts=1, loader="batch_strided", seed=0,
        warmup_steps=0, recipe="", loss={}, data="",
    )  # fmt: skip
    run.path.mkdir()
    run.save()
    (tmp_path / "evalmon.toml").write_text("[evaluation]\nitem_limit = 5\n")
    seen: list[tuple[str, str, int]] = []

    def scored(run: Any, store: Store, settings: Settings, progress: Any) -> RunCurves:
        seen.append((run.name, store.where, settings.evaluation.item_limit))
        steps = np.arange(1, 5) * 10
        series = Series(C4, steps, steps * 32, np.array([4.0, 3.5, 3.25, 3.0]))
        return RunCurves("tiny", "there", {C4: Curve(series)}, 32, 1280)

    monkeypatch.setattr(reference_build, "from_checkpoints", scored)
    config = ("--config", tmp_path / "evalmon.toml")
    found = record("build", "checkpoints", run.path, "--name", "mine", *config)
    assert seen == [("tiny", str(tmp_path / "evalmon.sqlite"), 5)]
    assert (found["planned_tokens"], found["points"]) == (1280, 4)
    source = record("show", "mine")["curves"][C4]["source"]
    assert source == "checkpoints of tiny, scored by evalmon"


def test_every_command_has_help():
    def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name, item in group.commands.items():
            is_group = isinstance(item, click.Group)
            found += commands(item, (*path, name)) if is_group else [(*path, name)]
        return found

    names = commands(reference_cli.reference)
    assert {" ".join(name) for name in names} == {
        "list", "show", "verify", "add", "build checkpoints", "build wandb",
    }  # fmt: skip
    for name in names:
        assert call(*name, "--help").exit_code == 0


def test_a_variable_that_names_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = table(tmp_path, rows())
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(path))
    for command in (("list",), ("show", "olmo3-7b-stage1"), ("add", path, "--name", "x")):
        said = refused(ConfigError, *command)
        assert said.startswith(f"{reference.FOLDER_VARIABLE}={path}: a file")


def test_add_refuses_what_is_no_day_and_a_plan_that_the_table_goes_beyond(
    tmp_path: Path, folder: Path
):
    path = table(tmp_path, rows())
    for day in ("30.11.2026", "20261130", "2026-13-01"):
        result = call("add", path, "--name", "x", "--date", day)
        assert result.exit_code == 2
        assert "write it as 2026-11-30" in result.stderr
    said = refused(ConfigError, "add", path, "--name", "x", "--planned-tokens", str(11 * 10**9))
    assert f"{C4} of a reaches 12,000,000,000 tokens" in said
    assert not folder.exists()


def test_add_warns_of_few_evaluations_and_of_a_run_that_alarms_alone(tmp_path: Path):
    found = record("add", table(tmp_path, rows(points=5)), "--name", "few")
    assert "5 evaluations, fewer than the 6" in found["warnings"][0]
    assert found["known_faults"] == found["warnings"]
    rng = np.random.default_rng(0)
    lines = [
        f"a,{metric},{step},{step * 10**8},{2.6 + rng.normal(0, 0.002) - drop * (step > 600)}\n"
        for metric, every, drop in ((C4, 10, 0.0), (TRAIN, 1, 0.2))
        for step in range(every, 1_001, every)
    ]
    found = record("add", table(tmp_path, "".join(lines)), "--name", "drop")
    (said,) = found["warnings"]
    assert said.startswith(f"{C4}: judged alone, it and train loss part by 0.")
    assert found["known_faults"] == [said]
