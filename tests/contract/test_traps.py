"""What published runs teach: each trap of reading curves, on the real ones.

Those that need only what ships are judged on the bundled reference curves; the tables that do
not are looked for beside this checkout.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from click.testing import CliRunner

from evalmon import reference, reference_cli
from evalmon.comparing import CompareOptions, Comparison, compare
from evalmon.config import ComparisonSettings
from evalmon.evidence import build_case
from evalmon.run_evidence import RunEvidence
from evalmon.types import CheckpointRef, ProbeResult, RunCurves, VerdictName
from evalmon.verdict import judge
from tests.unit.evalmon.drawn_runs import write

FIGURES = Path(__file__).resolve().parents[3] / "shared" / "curves"
needs_figures = pytest.mark.skipif(
    not FIGURES.is_dir(), reason=f"{FIGURES} is not there: the published tables"
)
TRAIN, C4 = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"
BOOLQ = "eval/downstream/boolq_0shot/acc"
OLMO2, OLMO3 = "olmo2-7b-stage1", "olmo3-7b-stage1"
SILENT = ("healthy", "ahead_of_reference")
STEP_TOKENS = 4_194_304
PLAN = 5_930_000_000_000
Row: TypeAlias = tuple[str, str, int, int, float]


@pytest.fixture(autouse=True)
def ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what this machine's user has added."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "added"))


@cache
def curves(name: str) -> RunCurves:
    """Return a bundled reference."""
    return reference.load(name)


def rows_of(name: str, *metrics: str) -> list[Row]:
    """Return a bundled reference as the rows of a table."""
    parts = [curves(name).curves[metric].series for metric in metrics]
    return [
        (name, part.metric, step, tokens, value)
        for part in parts
        for step, tokens, value in zip(
            part.steps.tolist(), part.tokens.tolist(), part.values.tolist(), strict=True
        )
    ]


def judged(run: object, **options: Any) -> Comparison:
    return compare(CompareOptions(str(run), **options))


def changed(path: Path, change: Callable[[Row], float | None], *more: Row) -> Path:
    """Write Olmo 3's table with other values; rows whose value is None are left out."""
    kept = [(row, change(row)) for row in rows_of(OLMO3, TRAIN, C4)]
    return write(path, [*((*row[:4], value) for row, value in kept if value is not None), *more])


# 1. A healthy run's gap widens.


@pytest.mark.parametrize(
    ("name", "gaps"),
    [
        (OLMO2, {10_000: 0.242, 200_000: 0.262, 920_000: 0.285}),
        (OLMO3, {400_000: 0.605, 1_390_000: 0.625}),
    ],
)
def test_trap_1_a_gap_that_widens_is_healthy(name: str, gaps: dict[int, float]) -> None:
    train, holdout = (curves(name).curves[metric].series for metric in (TRAIN, C4))
    for step, gap in gaps.items():
        near = (abs(train.steps - step) <= max(5_000, step // 10)).nonzero()
        far = (abs(holdout.steps - step) <= max(5_000, step // 10)).nonzero()
        between = np.median(holdout.values[far]) - np.median(train.values[near])
        assert between == pytest.approx(gap, abs=0.015)
    verdict = judged(name).verdict
    assert (verdict.verdict, verdict.alarm_tokens) == ("healthy", None)


# 2. One bad evaluation is no finding.


@pytest.mark.parametrize("step", [880_000, 1_080_000, 1_210_000])
@pytest.mark.parametrize("against", [None, OLMO2])
def test_trap_2_a_bump_of_one_evaluation_is_no_finding(
    tmp_path: Path, step: int, against: str | None
) -> None:
    holdout = curves(OLMO3).curves[C4].series
    at = int(np.searchsorted(holdout.steps, step))
    assert holdout.values[at] - np.median(holdout.values[[at - 1, at + 1]]) > 0.008
    for end in (step, step + 10_000):  # while it is the last that is known, and after
        path = changed(tmp_path / f"{end}.csv", lambda r, end=end: r[4] if r[2] <= end else None)
        options: dict[str, Any] = {"thinned": True, "planned_tokens": PLAN, "reference": against}
        found = judged(path, **options).verdict
        assert found.verdict in SILENT
        assert (found.alarm_tokens, found.findings) == (None, ())


# 3. Another learning rate.


@pytest.mark.parametrize("size", ["190m", "370m"])
def test_trap_3_a_constant_learning_rate_is_behind_and_no_memorization(size: str) -> None:
    found = judged(f"ladder-{size}-10xc-constant-lr", reference=f"ladder-{size}-10xc")
    verdict = found.verdict
    assert (verdict.verdict, verdict.basis) == ("behind_reference", "holdout only")
    assert verdict.findings == ()
    assert any("LR differs from" in reason for reason in verdict.reasons)
    if size == "190m":
        assert verdict.holdout_gap_nats == pytest.approx(0.110, abs=0.005)
    turned = judged(f"ladder-{size}-10xc", reference=f"ladder-{size}-10xc-constant-lr").verdict
    assert not turned.verdict.startswith("memorization")


# 4. Another mix.


def midtraining(end: int) -> list[Row]:
    """Return stage 2 after stage 1's end: train loss 1.43, the holdout as it was."""
    draws = np.random.default_rng(0)
    last = curves(OLMO3).curves[C4].series.values[-1]
    train = [(OLMO3, TRAIN, end + 500 * k, (end + 500 * k) * STEP_TOKENS,
              1.43 + draws.normal(0, 0.02)) for k in range(1, 401)]  # fmt: skip
    held = [(OLMO3, C4, end + 10_000 * k, (end + 10_000 * k) * STEP_TOKENS,
             float(last) + draws.normal(0, 0.002)) for k in range(1, 21)]  # fmt: skip
    return [*train, *held]


def test_trap_4_another_mix_gets_no_verdict_once_it_is_declared(tmp_path: Path) -> None:
    end = int(curves(OLMO3).curves[C4].series.steps[-1])
    ends = np.median(curves(OLMO3).curves[TRAIN].series.values[-30:])
    assert ends == pytest.approx(1.85, abs=0.02)
    stages = [row for row in rows_of(OLMO3, TRAIN, C4) if row[2] <= end] + midtraining(end)
    marks = [(OLMO3, "data/mix", step, step * STEP_TOKENS, number)
             for number, step in ((1, 1), (2, end + 1))]  # fmt: skip
    options: dict[str, Any] = {"thinned": True, "planned_tokens": (end + 200_000) * STEP_TOKENS}
    bare = judged(write(tmp_path / "bare.csv", stages), **options)
    assert bare.verdict.verdict == "memorization_suspected"  # curves alone cannot tell
    said = judged(write(tmp_path / "said.csv", [*stages, *marks]), **options)
    assert (said.verdict.verdict, said.verdict.alarm_tokens) == ("not_enough_data", None)
    assert said.verdict.reasons[0].startswith(f"data changed at step {end:,}: ")
    assert said.record["data_changes"] == [end]
    before = [row for row in [*stages, *marks] if row[2] <= end]
    early = judged(write(tmp_path / "before.csv", before), **options)
    assert early.verdict.verdict == "healthy"


def test_trap_4_a_probe_that_finds_no_memory_makes_it_a_shift(tmp_path: Path) -> None:
    end = int(curves(OLMO3).curves[C4].series.steps[-1])
    stages = [row for row in rows_of(OLMO3, TRAIN, C4) if row[2] <= end] + midtraining(end)
    found = judged(write(tmp_path / "bare.csv", stages), thinned=True).run.curves
    holdout = found.curves[C4].series
    case = build_case(RunEvidence(found, holdout), ComparisonSettings(holdout="c4_en"))
    probe = ProbeResult(0.004, -0.004, 0.012, 500, "ids")
    at = CheckpointRef(OLMO3, case.step, case.tokens, tmp_path)
    probed = replace(case, probe=probe, probe_checkpoint=at, ids_fingerprint="ids")
    assert judge(case).verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert judge(probed).verdict is VerdictName.TRAIN_SHIFT
    seen = replace(probed, probe=replace(probe, mean_nats=0.04, low_nats=0.03, high_nats=0.05))
    assert judge(seen).verdict is VerdictName.MEMORIZATION_CONFIRMED


# 5. A broken column.


def test_trap_5_a_broken_holdout_is_added_with_a_warning_and_judges_nothing(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)

    def broken(row: Row) -> float:
        return row[4] if row[1] == TRAIN else 9.5 + draws.normal(0, 0.2)

    path = changed(tmp_path / "broken.csv", broken)
    added = CliRunner().invoke(
        reference_cli.reference, ["add", str(path), "--name", "broken", "--thinned", "one of many"]
    )
    assert added.exit_code == 0, added.output
    assert f"warning: {C4}: the median of its last half is 9.5" in added.stderr
    assert any("likely broken" in fault for fault in reference.find("broken").known_faults)
    whole = changed(tmp_path / "whole.csv", lambda row: row[4])
    for run, against, whose in (
        (path, None, "the run's"),
        (path, OLMO2, "the run's"),
        (whole, "broken", "the reference's"),
    ):
        verdict = judged(run, reference=against, thinned=True, planned_tokens=PLAN).verdict
        assert (verdict.verdict, verdict.alarm_tokens) == ("not_enough_data", None)
        assert verdict.reasons[0].startswith(f"{whose} {C4}: the median of its last half is 9.")
        assert "likely broken" in verdict.reasons[0]


# 6. Restarts.


def test_trap_6_steps_logged_again_count_once_and_the_jump_is_no_finding(tmp_path: Path) -> None:
    """A restart from 500,000 after 520,000: the branch left behind is 0.3 higher.

    After the restart train loss stands 0.2 higher for two points, many times the tens of steps
    that a real one takes.
    """
    back, crash, rows = 500_000, 520_000, rows_of(OLMO3, TRAIN, C4)
    train = [row for row in rows if row[1] == TRAIN]
    left = [(*row[:4], row[4] + 0.3) for row in train if back < row[2] <= crash]
    again = [row for row in train if row[2] > back]
    jump = {row[2] for row in again[:2]}
    again = [(*row[:4], row[4] + (0.2 if row[2] in jump else 0.0)) for row in again]
    logged = [row for row in train if row[2] <= back] + left + again
    path = write(tmp_path / "t.csv", [*logged, *(row for row in rows if row[1] == C4)])
    found = judged(path, thinned=True, planned_tokens=PLAN)
    series = found.run.curves.curves[TRAIN].series
    assert series.steps.tolist() == [row[2] for row in train]
    kept = {row[2]: row[4] for row in again}
    assert all(value == kept[step] for step, value in zip(series.steps.tolist(), series.values,
                                                          strict=True) if step > back)  # fmt: skip
    assert found.run.curves.superseded == len(left) > 5
    assert len(found.run.curves.seams) == 1
    assert (found.verdict.verdict, found.verdict.alarm_tokens) == ("healthy", None)
    against = judged(path, thinned=True, planned_tokens=PLAN, reference=OLMO2).verdict
    assert against.verdict in SILENT
    assert against.alarm_tokens is None


# 7. BoolQ.


@pytest.mark.parametrize("step", [160_000, 599_000, 891_000])
def test_trap_7_a_dip_of_boolq_alone_moves_no_verdict(tmp_path: Path, step: int) -> None:
    series = curves(OLMO2).curves[BOOLQ].series
    at = int(np.searchsorted(series.steps, step))
    usual = float(np.median(series.values[at - 10 : at + 11]))
    assert series.values[at] - usual < -0.04
    tasks = sorted(name for name in curves(OLMO2).curves if "/downstream/" in name)
    rows = rows_of(OLMO2, TRAIN, C4, *tasks)
    even = [(*row[:4], usual if row[1] == BOOLQ and row[2] == step else row[4]) for row in rows]
    table = [(f"{name}-{row[0]}", *row[1:]) for name, part in (("dip", rows), ("even", even))
             for row in part if name == "even" or row[2] <= step]  # fmt: skip
    path = write(tmp_path / "t.csv", table)
    found = judged(path, run_name=f"dip-{OLMO2}", reference=f"even-{OLMO2}", thinned=True,
                   planned_tokens=3_900_000_000_000)  # fmt: skip
    by_name = {task.task: task for task in found.verdict.tasks}
    assert found.verdict.step == step
    assert by_name["mean_without_boolq"].difference_acc == pytest.approx(0.0, abs=1e-12)
    assert by_name[BOOLQ].outcome != "gain"
    assert found.verdict.verdict == "healthy"


# 8. The limit of sight.


@pytest.mark.parametrize(
    ("drop", "named"), [(0.005, SILENT), (0.007, SILENT), (0.11, ("memorization_suspected",))]
)
def test_trap_8_two_passes_stay_out_of_sight_and_fourteen_do_not(
    tmp_path: Path, drop: float, named: tuple[str, ...]
) -> None:
    """Train-loss gaps of runs of 2 and 14 passes, put into Olmo 3 from a third on."""

    def repeated(row: Row) -> float:
        return row[4] - (drop if row[1] == TRAIN and row[2] > 470_000 else 0.0)

    path = changed(tmp_path / "t.csv", repeated)
    for against in (None, OLMO2):
        found = judged(path, thinned=True, planned_tokens=PLAN, reference=against).verdict
        assert found.verdict in named
        assert (found.alarm_tokens is None) == (named == SILENT)


@needs_figures
def test_trap_8_no_run_of_repeats_is_suspected_before_its_third_epoch() -> None:
    path = FIGURES / "repeated_epochs_train_vs_holdout.csv"
    with path.open() as file:
        names = list(dict.fromkeys(row["run"] for row in csv.DictReader(file)))
    alarms = [judged(f"{path}:{name}", profile="short").verdict.alarm_tokens for name in names]
    assert len(alarms) == 27
    assert all(alarm is None or alarm > 200_000_000 for alarm in alarms)
    assert sum(alarm is not None for alarm in alarms) >= 26


@needs_figures
@pytest.mark.parametrize(
    ("table", "name"),
    [("olmo3_7b_stage1_train_and_evals.csv", OLMO3), ("olmo_ladder_pairs.csv.gz", "")],
)
def test_the_published_tables_are_judged_as_what_ships_is(table: str, name: str) -> None:
    path, ladder = FIGURES / table, ("const-lr/190M-10xC", "moreeval/190M-10xC")
    if name:
        own = judged(path, thinned=True, planned_tokens=PLAN, reference=OLMO2).verdict
        theirs = judged(name, planned_tokens=PLAN, reference=OLMO2).verdict
    else:
        own = judged(f"{path}:{ladder[0]}", reference=ladder[1]).verdict
        theirs = judged("ladder-190m-10xc-constant-lr", reference="ladder-190m-10xc").verdict
    assert own.verdict == theirs.verdict
    assert own.holdout_gap_nats == pytest.approx(theirs.holdout_gap_nats, abs=1e-9)
