"""The main job: the incident re-enacted by real processes, and judged right."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.data.loaders import find_loader
from trainer.data.pipeline import ReadPlan, global_batches
from trainer.rundir import open_run

pytestmark = [pytest.mark.slow, pytest.mark.package]

EVALUATION_TOKENS = 10 * 16 * 128
PLANNED_TOKENS = 200 * 16 * 128
FIELDS = {
    "run", "verdict", "first_repeat_tokens", "onset_tokens", "alarm_tokens", "train_gap_nats",
    "holdout_gap_nats", "repeated_fraction", "probe", "alerts",
}  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, package_root: Path) -> Path:
    """Run the demo to its end; return its folder."""
    assert package_root.is_dir()
    out = tmp_path_factory.mktemp("demo") / "out"
    done = _evalmon("demo", "--out", str(out))
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def test_only_the_faulty_run_ends_in_an_alert(demo: Path) -> None:
    records = _strict(demo / "verdicts.json")
    clean, faulty = records
    assert all(set(record) >= FIELDS for record in records)
    assert (clean["run"], clean["verdict"]) == ("clean", "healthy")
    assert (faulty["run"], faulty["verdict"]) == ("double-sharded", "memorization_confirmed")
    assert clean["first_repeat_tokens"] is None
    assert clean["repeated_fraction"] == 0
    assert [len(record["alerts"]) for record in records] == [0, 1]
    assert faulty["probe"]["low_nats"] > 0.25 > clean["probe"]["high_nats"]


def test_the_first_repeat_is_the_one_the_loader_makes(demo: Path) -> None:
    run = open_run(demo / "double-sharded")
    settings = run.settings
    plan = ReadPlan(
        source=run.source,
        seed=settings.seed,
        batch_instances=settings.batch_instances,
        hosts=settings.hosts,
        position=0,
        batches=settings.steps,
    )
    seen: set[int] = set()
    first = 0
    for step, batch in enumerate(global_batches(plan, find_loader("double_shard").build), start=1):
        drawn = batch.instances.tolist()
        if seen.intersection(drawn) or len(set(drawn)) < len(drawn):
            first = step
            break
        seen.update(drawn)
    faulty = _strict(demo / "verdicts.json")[1]
    assert faulty["first_repeat_tokens"] == first * settings.tokens_per_step


def test_the_curve_alone_finds_the_onset_early_and_in_place(demo: Path) -> None:
    faulty = _strict(demo / "verdicts.json")[1]
    late = faulty["onset_tokens"] - faulty["first_repeat_tokens"]
    assert -EVALUATION_TOKENS <= late <= 5 * EVALUATION_TOKENS
    assert faulty["alarm_tokens"] <= PLANNED_TOKENS / 2


def test_the_report_is_one_file_without_outside_requests(demo: Path) -> None:
    page = (demo / "report.html").read_text()
    assert "memorizing" in page
    assert 'src="http' not in page
    assert 'rel="stylesheet"' not in page


def test_without_its_id_log_the_run_stays_suspect(demo: Path) -> None:
    log = demo / "double-sharded" / "ids.bin"
    kept = log.with_suffix(".kept")
    log.rename(kept)
    try:
        done = _evalmon("report", str(demo / "double-sharded"), "--json")
    finally:
        kept.rename(log)
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert (verdict["verdict"], done.returncode) == ("memorization_suspected", 1)
    assert verdict["first_repeat_tokens"] is None
    assert verdict["probe"] is None


def test_a_finished_run_is_neither_scored_nor_told_again(demo: Path) -> None:
    settings = demo / "double-sharded.toml"
    done = _evalmon("watch", str(demo / "double-sharded"), "--config", str(settings), "--json")
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert (verdict["verdict"], done.returncode) == ("memorization_confirmed", 1)
    assert [alert["status"] for alert in verdict["alerts"]] == ["open"]
    assert "ALERT" not in done.stderr


def _evalmon(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of evalmon as a process."""
    return subprocess.run(
        [sys.executable, "-m", "evalmon", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def _strict(path: Path) -> list[dict[str, Any]]:
    """Read JSON that holds no NaN or Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)
