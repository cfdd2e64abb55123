"""`evalmon evaluate`: options overrule the settings file, and what they name is checked first."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evalmon import monitor
from evalmon.cli import main
from evalmon.config import Settings
from evalmon.types import CheckpointRef, Failure, RunDescription


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    run = RunDescription(
        name="run", path=tmp_path / "run", adapter="olmo3", model={}, tokenizer="t.json",
        vocab_size=10, eos_id=0, sequence_length=16, batch_instances=1, planned_steps=10,
        planned_passes=1, source_instances=10, hosts=1, loader="batch_strided", seed=0,
        warmup_steps=0, recipe="", loss={}, data="",
    )  # fmt: skip
    run.path.mkdir()
    run.save()
    return run.path / "checkpoints" / "5"


def test_options_overrule_the_settings(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[Settings] = []
    failures: tuple[Failure, ...] = ()

    class Noting(monitor.Monitor):
        def evaluate_step(self, step: int) -> monitor.StepResult:
            seen.append(self.settings)
            return monitor.StepResult(frozenset(), failures)

    monkeypatch.setattr(monitor, "Monitor", Noting)
    config = checkpoint.parent.parent / "evalmon.toml"
    config.write_text(
        "[evaluation]\nitem_limit = 5\nshots = 2\n[[evaluation.holdouts]]\nname = 'x'\n"
    )
    given = ["--tasks", "olmes-core8-5shot, arc_easy", "--limit", "7", "--batch-size", "3"]
    arguments = ["evaluate", str(checkpoint), "--config", str(config), "--json", *given]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    (settings,) = seen
    found = settings.evaluation
    assert found.tasks == ("olmes-core8-5shot", "arc_easy")
    assert (found.item_limit, found.batch_size, found.shots) == (7, 3, 2)
    record: dict[str, Any] = json.loads(result.output.strip().splitlines()[-1])
    empty: dict[str, Any] = {name: {} for name in ("scores", "headers", "failures")}
    assert record == {"run": "run", "step": 5, **empty}
    ref = CheckpointRef("run", 5, 80, checkpoint)
    failures = (Failure("piqa", ref, "DataError", "file.arrow: cut off"),)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Error: piqa: file.arrow: cut off" in result.stderr
    assert json.loads(result.stdout)["failures"] == {"piqa": "file.arrow: cut off"}


def test_an_empty_list_of_tasks_is_refused(checkpoint: Path):
    for tasks in ("", ", ,", "piqa,"):
        result = CliRunner().invoke(main, ["evaluate", str(checkpoint), "--tasks", tasks])
        assert (result.exit_code, "a name is empty" in result.stderr) == (2, True)


@pytest.mark.parametrize("bad", [["--limit", "-1"], ["--batch-size", "x"]])
def test_numbers_out_of_range_are_usage_errors(checkpoint: Path, bad: list[str]):
    result = CliRunner().invoke(main, ["evaluate", str(checkpoint), *bad])
    assert result.exit_code == 2
    assert bad[1] in result.output
