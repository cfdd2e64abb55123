"""NaN in a W&B history of which no cell is empty."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evalmon.logs import wandb_export
from evalmon.logs.wandb_cells import not_logged
from evalmon.logs.wandb_steps import NO_STEP
from evalmon.types import RunCurves

TRAIN = "train/ce_nats"
C4 = "eval/lm/c4_en-validation/ce_nats"
LOSS = "train/CE loss"
HOLDOUT = "eval/lm/c4_en-validation/CE loss"


def history(steps: int = 1090) -> pd.DataFrame:
    """Train loss every 10 steps, an evaluation every 100; 9 train rows follow the last one."""
    step = np.arange(10, steps + 1, 10)
    return pd.DataFrame(
        {
            "_step": step,
            LOSS: 3.0 - step / 10_000,
            HOLDOUT: np.where(step % 100 == 0, 3.5, np.nan),
        }
    )


def read(folder: Path, frame: pd.DataFrame, na_rep: str) -> RunCurves:
    path = folder / "run.csv"
    frame.to_csv(path, index=False, na_rep=na_rep)
    return wandb_export.read(path, tokens_per_step=1000)


def series(found: RunCurves) -> dict[str, tuple[list[int], list[float]]]:
    return {
        name: (curve.series.steps.tolist(), curve.series.values.tolist())
        for name, curve in found.curves.items()
    }


def test_nan_where_nothing_was_logged_reads_as_an_empty_cell(tmp_path: Path) -> None:
    empty = read(tmp_path, history(), "")
    nan = read(tmp_path, history(), "NaN")
    assert series(nan) == series(empty)
    assert (nan.nonfinite, empty.nonfinite) == ((), ())
    assert empty.notes == ()
    (note,) = nan.notes
    assert note == (
        "no cell is empty: NaN off the steps at which a metric is logged is taken for not logged "
        f"({HOLDOUT} 99 cells), on them for a value; leave cells empty where nothing was logged"
    )


def test_nan_on_the_steps_of_its_metric_is_a_value(tmp_path: Path) -> None:
    frame = history()
    frame.loc[frame["_step"] >= 800, [LOSS, HOLDOUT]] = np.nan
    found = read(tmp_path, frame, "NaN")
    broken = {name: [s for s, n in found.nonfinite if n == name] for name in (TRAIN, C4)}
    assert broken == {TRAIN: list(range(800, 1091, 10)), C4: [800, 900, 1000]}


def test_one_empty_cell_says_that_nan_is_a_value(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f"_step,{LOSS},{HOLDOUT}\n1,3.0,\n2,NaN,3.5\n3,2.8,NaN\n4,2.7,3.4\n")
    found = wandb_export.read(path, tokens_per_step=1)
    assert found.nonfinite == ((2, TRAIN), (3, C4))


def test_evaluations_in_rows_of_their_own(tmp_path: Path) -> None:
    """As Lightning writes them: the train loss has its value of that step in another row."""
    train = history()[["_step", LOSS]]
    own = history()[["_step", HOLDOUT]].dropna()
    rows = pd.DataFrame(pd.concat([train, own])).sort_values(by="_step", kind="stable")
    rows = rows.rename(columns={"_step": "trainer/global_step"}).assign(_step=range(len(rows)))
    found = read(tmp_path, rows, "NaN")
    assert series(found) == series(read(tmp_path, history(), ""))
    assert found.nonfinite == ()


@pytest.mark.parametrize(
    ("steps", "cells", "expected"),
    [  # another metric is logged in every row
        ([1, 2, 3, 4], [1.0, 1.0, np.nan, 1.0], []),  # every step: a value
        ([1, 2, 3, 4, 5], [np.nan] * 4 + [1.0], [1, 2, 3, 4]),  # few: no interval, sparse
        ([1, 2, 4, 8, 16], [1.0, 1.0, np.nan, 1.0, 1.0], []),  # no interval, mostly there
        ([1, 2, 3, 5, 8, 13, 21], [1.0, *[np.nan] * 4, 1.0, 1.0], [2, 3, 5, 8]),
        ([1, 2], [np.nan, np.nan], []),  # never a value: the column is there, so it was logged
        ([2, 2, 4, 4], [1.0, np.nan, np.nan, 1.0], [2, 4]),
        ([1, NO_STEP, 2, 3], [1.0, np.nan, 1.0, 1.0], [NO_STEP]),
        ([10, 20, 30, 40], [1.0, np.inf, 1.0, np.nan], []),  # infinite is a value
    ],
)
def test_the_pattern_of_rows_decides(
    steps: list[int], cells: list[float], expected: list[int]
) -> None:
    at = np.array(steps, np.int64)
    found, note = not_logged(at, {"m": np.array(cells), "other": np.ones(len(at))})
    assert {name: at[mask].tolist() for name, mask in found.items()} == (
        {"m": expected} if expected else {}
    )
    assert bool(note) == bool(expected)


def test_a_run_that_broke_early_is_not_taken_for_one_logged_seldom() -> None:
    """Rows drawn at random show no interval, and after the break no other metric has a value."""
    steps = np.sort(np.random.default_rng(0).choice(10_000, 300, replace=False)) + 1
    loss = np.where(steps < 3000, 3.0, np.nan)
    assert not_logged(steps, {"train": loss, "eval": np.full(300, np.nan)}) == ({}, "")


def test_one_evaluation_at_the_end_of_the_run_is_no_other_interval() -> None:
    steps = np.arange(1, 1235)
    cells = np.where((steps % 100 == 0) | (steps == 1234), 3.0, np.nan)
    cells[steps == 700] = np.nan
    found, _ = not_logged(steps, {"m": cells})
    assert steps[np.isnan(cells) & ~found["m"]].tolist() == [700]
