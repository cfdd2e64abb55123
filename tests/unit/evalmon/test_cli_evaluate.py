"""`evalmon evaluate`: options overrule the settings file, and what they name is checked first."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evalmon import monitor
from evalmon.cli import main
from evalmon.config import Settings
from evalmon.types import RunDescription


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

    class Noting(monitor.Monitor):
        def evaluate_step(self, step: int) -> None:
            seen.append(self.settings)

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
    assert record == {"run": "run", "step": 5, "scores": {}, "headers": {}}


@pytest.mark.parametrize("bad", [["--limit", "-1"], ["--batch-size", "x"]])
def test_numbers_out_of_range_are_usage_errors(checkpoint: Path, bad: list[str]):
    result = CliRunner().invoke(main, ["evaluate", str(checkpoint), *bad])
    assert result.exit_code == 2
    assert bad[1] in result.output
