"""The curves that ship are the published figures, and hold what was measured on them."""

import csv
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from click.testing import CliRunner

from evalmon import curve_faults, reference, reference_cli
from evalmon.types import FloatArray, Sampling

REPOSITORY = Path(__file__).resolve().parents[2]
FIGURES = REPOSITORY.parent / "shared" / "curves"
TABLES = {
    "olmo2_7b_stage1_evals.csv.gz": 925 * 20,
    "olmo2_7b_stage1_train.csv": 356,
    "olmo3_7b_stage1_train_and_evals.csv": 1264,
    "olmo_ladder_pairs.csv.gz": 6636,
}
TRAIN, C4 = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"
BOOLQ = "eval/downstream/boolq_0shot/acc"
Row: TypeAlias = tuple[int, int, float]

needs_figures = pytest.mark.skipif(
    not FIGURES.is_dir(), reason=f"{FIGURES} is not there: the figures to compare with"
)


@pytest.fixture(autouse=True)
def ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what this machine's user has added."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "none"))


def figures(table: str) -> dict[tuple[str, str], list[Row]]:
    """Return the published rows by run and metric."""
    path = FIGURES / table
    with gzip.open(path, "rt") if table.endswith(".gz") else path.open() as file:
        found: dict[tuple[str, str], list[Row]] = {}
        for row in csv.DictReader(file):
            place = found.setdefault((row["run"], row["metric"]), [])
            place.append((int(row["step"]), int(row["tokens"]), float(row["value"])))
    return found


@needs_figures
@pytest.mark.parametrize("table", TABLES)
def test_every_point_is_the_published_one(table: str):
    points = 0
    for (run, metric), rows in figures(table).items():
        series = reference.load(run, [metric]).curves[metric].series
        ours = zip(
            series.steps.tolist(), series.tokens.tolist(), series.values.tolist(), strict=True
        )
        assert list(ours) == sorted(rows), (run, metric)
        points += len(rows)
    assert points == TABLES[table]


@needs_figures
def test_no_curve_is_ours_alone():
    published = {key for table in TABLES for key in figures(table)}
    ours = {
        (alias, metric)
        for entry in reference.entries()
        for alias in entry.aliases
        for metric in entry.curves
    }
    assert ours == published


@needs_figures
def test_decimals_are_those_of_the_source():
    run = "OLMo-2-1124-7B-stage1"
    with gzip.open(FIGURES / "olmo2_7b_stage1_evals.csv.gz", "rt") as file:
        values = [row["value"] for row in csv.DictReader(file) if row["metric"] == "optim/lr"]
    lines = reference.find(run).curves["optim/lr"].file.read_text().splitlines()[1:]
    assert [line.rpartition(",")[2] for line in lines] == values


def test_what_ships_is_sound():
    assert reference.verify(reference.names()) == ()
    for name in reference.names():
        for curve in reference.load(name).curves.values():
            assert curve_faults.faults(curve.series) == ()


def test_hashes_are_of_the_bytes_that_lie_there():
    for entry in reference.entries():
        for item in entry.curves.values():
            content = item.file.read_bytes()
            assert hashlib.sha256(content).hexdigest() == item.sha256
            assert b"\r" not in content
            assert content.endswith(b"\n")


def test_the_index_says_where_everything_is_from():
    for entry in reference.entries():
        assert entry.model
        assert entry.stage
        assert entry.known_faults
        assert entry.planned_tokens_source
        assert entry.tokens_per_step
        for item in entry.curves.values():
            assert item.source.licence
            assert re.search(r" @ [0-9a-f]{12}", item.source.source)
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", item.source.date)
            series = reference.load(entry.name, [item.metric]).curves[item.metric].series
            assert (series.tokens == series.steps * entry.tokens_per_step).all()
            assert series.tokens[-1] <= (entry.planned_tokens or 0)
    assert reference.find("olmo3-7b-stage1").planned_tokens == 5_929_965_715_456
    assert reference.find("olmo3-7b-stage1").warmup_tokens == 2000 * 4_194_304


def test_handles_stand_only_where_sources_are_named():
    """A repository is named as the source of a figure, and nowhere else."""
    index = tomllib.loads((reference.folders()[0] / "index.toml").read_text())
    handles = re.compile(r"\b(allenai|tecunningham)/")
    for body in index["references"].values():
        published = [point.pop("source") for point in body.get("published", [])]
        assert all(published)
    assert handles.search(str(index["sources"]))
    assert not handles.search(str(index["references"]))
    assert not handles.search(str(index["measures"]))


def test_the_table_in_the_document_is_the_commands():
    text = (REPOSITORY / "docs" / "reference-curves.md").read_text()
    (block,) = re.findall(r"Printed by `evalmon reference list`:\n\n```\n(.*?)\n```", text, re.S)
    printed = CliRunner().invoke(reference_cli.reference, ["list"]).stdout.strip()
    assert [line.rstrip() for line in printed.splitlines()] == block.splitlines()


def test_only_train_losses_are_thinned_and_by_a_rule():
    for name in reference.names():
        for metric, curve in reference.load(name).curves.items():
            thinned = metric == TRAIN
            assert curve.sampling is (Sampling.THINNED if thinned else Sampling.FULL)
            assert bool(curve.note) is thinned


def test_items_fit_the_grid_of_the_values():
    checked = 0
    for entry in reference.entries():
        for metric, item in entry.curves.items():
            items = item.measure.facts.get("items")
            if items is not None:
                assert isinstance(items, int)
                values = reference.load(entry.name, [metric]).curves[metric].series.values
                assert np.abs(np.round(values * items) / items - values).max() < 5.3e-7
                checked += 1
    assert checked == 8 + 11 * 7


def values_at(name: str, metric: str) -> dict[int, float]:
    series = reference.load(name, [metric]).curves[metric].series
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def around(name: str, metric: str, step: int, width: int) -> float:
    """Median of a curve about a step, in a window of ``width`` steps each side."""
    at = values_at(name, metric)
    return float(np.median([value for s, value in at.items() if abs(s - step) <= width]))


def test_trap_1_a_sound_gap_widens():
    gap = {
        step: around("olmo2-7b-stage1", C4, step, width)
        - around("olmo2-7b-stage1", TRAIN, step, width)
        for step, width in ((10_000, 8_000), (200_000, 30_000), (920_000, 30_000))
    }
    assert gap[10_000] < gap[200_000] < gap[920_000]
    assert gap[920_000] == pytest.approx(0.285, abs=0.01)


def test_trap_2_isolated_bumps():
    at = values_at("olmo3-7b-stage1", C4)
    for step in (880_000, 1_080_000, 1_210_000):
        about = np.median([at[step + n * 10_000] for n in (-2, -1, 1, 2)])
        assert at[step] - about == pytest.approx(0.010, abs=0.003)
        assert abs(at[step + 10_000] - about) < 0.004
    assert any("880,000, 1,080,000 and 1,210,000" in s
               for s in reference.find("olmo3-7b-stage1").known_faults)  # fmt: skip


def test_trap_3_a_constant_learning_rate_ends_worse():
    constant = values_at("ladder-190m-10xc-constant-lr", C4)[72_625]
    assert constant - values_at("ladder-190m-10xc", C4)[72_625] == pytest.approx(0.110, abs=0.001)


def test_trap_4_stage_2_is_another_number_and_not_of_this_curve():
    entry = reference.find("olmo3-7b-stage1")
    (other,) = (point for point in entry.published if "stage 2" in point.note)
    assert (other.value, other.tokens) == (1.43, None)
    assert around(entry.name, TRAIN, 1_400_000, 20_000) == pytest.approx(1.85, abs=0.02)
    assert min(values_at(entry.name, TRAIN).values()) > 1.75


def test_trap_5_the_broken_column_is_left_out():
    for name in reference.names():
        if name.startswith("ladder-"):
            values = reference.load(name, [C4]).curves[C4].series.values
            assert float(values[-1]) < 4
            assert any("is broken, and is left out" in s for s in reference.find(name).known_faults)


def test_trap_6_one_row_a_step_is_kept():
    at = reference.load("olmo3-7b-stage1", [TRAIN]).curves[TRAIN].series
    assert len(np.unique(at.steps)) == len(at.steps) == 841


def test_trap_7_boolq_dips():
    at = values_at("olmo2-7b-stage1", BOOLQ)
    for step in (160_000, 599_000, 891_000):
        about = np.median([at[step + n * 1000] for n in range(-5, 6) if n])
        assert about - at[step] == pytest.approx(0.05, abs=0.02)


def test_what_is_absent_is_said():
    steps = values_at("olmo2-7b-stage1", C4)
    assert [s for s in range(1000, 928_001, 1000) if s not in steps] == [663_000, 710_000, 711_000]
    train = sorted(values_at("olmo2-7b-stage1", TRAIN))
    assert train[train.index(949) + 1] == 3833
    faults = " ".join(reference.find("olmo2-7b-stage1").known_faults)
    assert "663,000, 710,000 and 711,000" in faults
    assert "949 and 3,833" in faults
    train = reference.load("olmo3-7b-stage1", [TRAIN]).curves[TRAIN].series.steps
    gaps = sorted((int(n), int(train[at])) for at, n in enumerate(np.diff(train)))[-2:]
    assert gaps == [(13_129, 1_264_687), (15_403, 832_463)]
    faults = " ".join(reference.find("olmo3-7b-stage1").known_faults)
    assert "832,463 to 847,866" in faults
    assert "1,264,687 to 1,277,816" in faults


def rates(name: str) -> FloatArray:
    return reference.load(name, ["optim/lr"]).curves["optim/lr"].series.values


def test_learning_rates_are_what_their_names_say():
    assert np.ptp(rates("ladder-190m-10xc-constant-lr")) == 0
    assert rates("ladder-190m-10xc")[-1] == pytest.approx(
        rates("ladder-190m-10xc")[0] / 10, rel=1e-3
    )
    decay = rates("ladder-190m-10xc-constant-then-decay")
    assert (np.diff(decay) < 0).all()


@pytest.mark.slow
def test_they_are_found_in_a_wheel(tmp_path: Path):
    """Build the wheel from a copy, unpack it elsewhere, and read every curve there."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    for name in ("evalmon", "trainer", "dashboards", "reference_curves"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "-w", str(tmp_path), str(source)], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    shutil.rmtree(source)
    program = (
        "from evalmon import reference as r; print(r.folders()[0]); "
        "print(len([r.load(n) for n in r.names()]), r.verify(r.names()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-c", program],
        check=True, capture_output=True, text=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert found.stdout.splitlines() == [str(installed / "reference_curves"), "13 ()"]
