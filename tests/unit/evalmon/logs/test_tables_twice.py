"""Steps that stand in a table twice: a restart that went on, or rows pasted behind the others."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evalmon.errors import DataError
from evalmon.logs import tables, wandb_export
from evalmon.types import RunCurves

HEAD = "run,metric,step,tokens,value\n"
C4 = "eval/lm/c4_en-validation/ce_nats"
TRAIN = "train/ce_nats"
Row = tuple[str, int, float]

HEALTHY: list[Row] = [
    row
    for n in range(1, 101)
    for row in [(TRAIN, n, 3.0 - n / 1000), *([(C4, n, 3.5 - n / 1000)] if n % 10 == 0 else [])]
]


def write(folder: Path, rows: list[Row], times: list[float] | None = None) -> Path:
    path = folder / "t.csv"
    head = HEAD if times is None else HEAD.replace("\n", ",wall_time\n")
    clock = [""] * len(rows) if times is None else [f",{time}" for time in times]
    lines = [f"r,{m},{n},{n * 10},{v}{t}\n" for (m, n, v), t in zip(rows, clock, strict=True)]
    path.write_text(head + "".join(lines), encoding="utf-8")
    return path


def points(curves: RunCurves, metric: str = TRAIN) -> dict[int, float]:
    series = curves.curves[metric].series
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def again(first: int, last: int, off: float) -> list[Row]:
    return [(m, n, v + off) for m, n, v in HEALTHY if first <= n <= last]


PASTED = {
    "one step of both at the end": (HEALTHY + again(50, 50, 0.3), 50, "line 55 and line 112"),
    "a stretch at the end": (HEALTHY + again(50, 60, 0.3), 50, "line 55 and line 112"),
    "a stretch in the middle":
        (HEALTHY[:88] + again(40, 45, 0.3) + HEALTHY[88:], 40, "line 44 and line 90"),
    "the whole table": (HEALTHY + again(1, 100, 0.3), 1, "line 2 and line 112"),
}  # fmt: skip


@pytest.mark.parametrize("case", PASTED)
def test_rows_pasted_behind_others_are_no_restart(tmp_path: Path, case: str) -> None:
    rows, step, places = PASTED[case]
    path = write(tmp_path, rows)
    with pytest.raises(DataError) as error:
        tables.read(path)
    message = str(error.value)
    assert message.startswith(f"{path}: {places}: step {step} of {TRAIN} twice")
    assert "remove one copy; if a restart logged it again, add a column 'wall_time'" in message
    first = 3.0 - step / 1000
    assert f"value {first:g} ({step * 10} tokens) and value {first + 0.3:g} (" in message


@pytest.mark.parametrize(("first", "last"), [(1, 46), (50, 50), (1, 100)])
def test_copies_with_the_same_values_are_dropped_and_said(
    tmp_path: Path, first: int, last: int
) -> None:
    found = tables.read(write(tmp_path, HEALTHY + again(first, last, 0.0)))
    whole = tables.read(write(tmp_path, HEALTHY))
    assert points(found) == points(whole)
    assert points(found, C4) == points(whole, C4)
    assert (found.seams, found.superseded) == ((), 0)
    count = last - first + 1
    assert f"{TRAIN}: {count} rows that repeat another were left out" in found.notes
    if held := len(again(first, last, 0.0)) - count:
        assert f"{C4}: {held} rows that repeat another were left out" in found.notes


def test_a_holdout_with_two_values_that_no_restart_explains_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [*HEALTHY, (C4, 50, 3.9)])
    with pytest.raises(DataError, match=f"line 56 and line 112: step 50 of {C4} twice"):
        tables.read(path)
    found = tables.read(write(tmp_path, [*HEALTHY, (C4, 50, 3.9)], list(range(111))))
    assert points(found, C4)[50] == 3.9  # evaluated again later, as the clock says
    assert f"{C4}: 1 steps were logged again; the last copy counts" in found.notes


def test_a_crash_soon_after_a_resume_needs_a_clock(tmp_path: Path) -> None:
    rows = HEALTHY + again(51, 55, 0.01)  # 5 steps of the 50 it throws away
    with pytest.raises(DataError, match=f"step 51 of {TRAIN} twice"):
        tables.read(write(tmp_path, rows))
    found = tables.read(write(tmp_path, rows, list(range(len(rows)))))
    assert list(points(found)) == list(range(1, 56))
    assert (found.seams, points(found)[55]) == ((50,), pytest.approx(2.955))
    assert list(points(found, C4)) == [10, 20, 30, 40, 50]
    assert f"{C4}: 5 points of a branch that a restart gave up were left behind" in found.notes


@pytest.mark.parametrize("last", [75, 100])
def test_a_restart_that_holds_a_good_part_needs_no_clock(tmp_path: Path, last: int) -> None:
    found = tables.read(write(tmp_path, HEALTHY + again(51, last, 0.01)))
    assert list(points(found)) == list(range(1, last + 1))
    assert (found.seams, points(found)[60]) == ((50,), pytest.approx(2.95))
    assert points(found, C4)[60] == pytest.approx(3.45)


def test_a_restart_that_logs_more_seldom_and_runs_on(tmp_path: Path) -> None:
    rows = HEALTHY + [(TRAIN, n, 2.9) for n in range(55, 201, 5)]
    found = tables.read(write(tmp_path, rows))
    assert list(points(found)) == [*range(1, 55), *range(55, 201, 5)]
    assert found.seams == (54,)


def test_three_attempts_at_one_stretch(tmp_path: Path) -> None:
    rows = HEALTHY + again(51, 55, 0.01) + again(51, 100, 0.02) + [(TRAIN, 101, 2.9)]
    found = tables.read(write(tmp_path, rows))
    assert list(points(found)) == list(range(1, 102))
    assert points(found)[51] == pytest.approx(2.969)
    assert found.seams == (50,)


def test_values_that_are_not_finite_are_told_of_every_metric(tmp_path: Path) -> None:
    rows = [(m, n, np.nan if m == C4 and n > 50 else v) for m, n, v in HEALTHY]
    rows += [("optim/lr", n, np.inf) for n in (1, 2)] + [("train/z_nats", 7, np.nan)]
    found = tables.read(write(tmp_path, rows))
    assert [item for item in found.nonfinite if item[1] == C4] == [
        (n, C4) for n in range(60, 101, 10)
    ]
    assert list(points(found, C4)) == [10, 20, 30, 40, 50]
    assert found.notes == (
        f"{C4}: 5 values are NaN or infinite, from step 60 to 100; they are left out",
        "optim/lr: all 2 values are NaN or infinite, from step 1 to 2: it has no curve",
        "train/z_nats: its one value is NaN or infinite, at step 7: it has no curve",
    )


def test_values_of_an_export_that_are_not_finite_are_told_too(tmp_path: Path) -> None:
    step = np.arange(1000, 11_000, 1000)
    frame = pd.DataFrame({"Step": step, "train/CE loss": 3.0, C4: 3.5})
    frame = frame.astype({C4: "object"})
    frame.loc[4, C4] = "NaN"
    path = tmp_path / "run.csv"
    frame.to_csv(path, index=False)
    found = wandb_export.read(path, tokens_per_step=10)
    assert found.nonfinite == ((5000, C4),)
    assert found.notes == (f"{C4}: 1 value is NaN or infinite, at step 5,000; it is left out",)


def test_a_resumed_run_may_be_evaluated_again_where_it_resumes(tmp_path: Path) -> None:
    rows = [*HEALTHY, (C4, 50, 3.46), *again(51, 100, 0.01), (TRAIN, 101, 2.9)]
    found = tables.read(write(tmp_path, rows))
    assert (found.seams, points(found, C4)[50]) == ((50,), 3.46)
    # 50, and 100, which may have been evaluated after the trainer's last line before the crash.
    assert f"{C4}: 2 steps were logged again; the last copy counts" in found.notes
    with pytest.raises(DataError, match=f"step 40 of {C4} twice"):
        tables.read(write(tmp_path, [*rows, (C4, 40, 3.9)]))


def test_one_step_logged_again_by_a_clock(tmp_path: Path) -> None:
    rows: list[Row] = [(TRAIN, 1, 3.0), (TRAIN, 2, 2.9), (TRAIN, 2, 2.8), (TRAIN, 3, 2.7)]
    found = tables.read(write(tmp_path, rows, [1, 2, 9, 10]))
    assert points(found) == {1: 3.0, 2: 2.8, 3: 2.7}
    assert (found.seams, found.superseded) == ((1,), 1)
    with pytest.raises(DataError, match=f"line 3 and line 4: step 2 of {TRAIN} twice"):
        tables.read(write(tmp_path, rows, [1, 2, 2, 10]))
