"""Which column of a W&B export counts the trainer's steps."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evalmon.errors import DataError
from evalmon.logs import wandb_export
from evalmon.types import RunCurves

TRAIN = "train/ce_nats"
C4 = "eval/lm/c4_en-validation/ce_nats"
LOSS = "train/CE loss"
HOLDOUT = "eval/lm/c4_en-validation/CE loss"


def history(name: str = "trainer/global_step", every: int = 100) -> pd.DataFrame:
    """20 train rows, after every fifth one a row of its own for the evaluation."""
    rows: list[dict[str, float]] = []
    for n in range(1, 21):
        rows.append({name: n * every, LOSS: 3.0 - n / 100})
        if n % 5 == 0:
            rows.append({name: n * every, HOLDOUT: 3.5})
    return pd.DataFrame(rows).assign(_step=np.arange(len(rows)))


def export(folder: Path, frame: pd.DataFrame, na_rep: str = "") -> Path:
    path = folder / "run.csv"
    frame.to_csv(path, index=False, na_rep=na_rep)
    return path


def read(folder: Path, frame: pd.DataFrame, na_rep: str = "") -> RunCurves:
    return wandb_export.read(export(folder, frame, na_rep), tokens_per_step=1000)


def refusal(folder: Path, frame: pd.DataFrame) -> str:
    path = export(folder, frame)
    with pytest.raises(DataError) as caught:
        wandb_export.read(path, tokens_per_step=1000)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize("na_rep", ["", "NaN"])
@pytest.mark.parametrize(
    "name", ["trainer/global_step", "train/global_step", "global_step", "iteration_step", "step"]
)
def test_the_trainers_own_step_counts(tmp_path: Path, name: str, na_rep: str) -> None:
    found = read(tmp_path, history(name), na_rep)
    assert found.curves[TRAIN].series.steps.tolist() == list(range(100, 2001, 100))
    assert found.curves[TRAIN].series.tokens[-1] == 2_000_000
    assert found.curves[C4].series.steps.tolist() == [500, 1000, 1500, 2000]
    assert found.notes[0] == (
        f"steps are those of {name} (100 to 2,000), the trainer's own; _step counts otherwise "
        "(0 to 23) and is not used"
    )


def test_where_both_count_alike_nothing_is_said(tmp_path: Path) -> None:
    """Also where the trainer's step is not in every row: Levanter's, as it stands there."""
    frame = history().drop_duplicates("trainer/global_step", keep="first")
    frame["_step"] = frame["trainer/global_step"]
    frame.loc[frame.index[3], "trainer/global_step"] = np.nan
    found = read(tmp_path, frame)
    assert found.curves[TRAIN].series.steps.tolist() == list(range(100, 2001, 100))
    assert found.notes == ()


def test_a_constant_distance_tells_the_rows_between_too(tmp_path: Path) -> None:
    frame = pd.DataFrame({"_step": range(20), "iteration_step": range(1, 21), LOSS: 3.0})
    frame["iteration_step"] = frame["iteration_step"].astype(float).where(frame.index % 3 > 0)
    found = read(tmp_path, frame)
    assert found.curves[TRAIN].series.steps.tolist() == list(range(1, 21))
    assert "_step counts otherwise (0 to 19)" in found.notes[0]


def test_a_value_in_a_row_without_the_trainers_step_is_refused(tmp_path: Path) -> None:
    frame = history()
    frame.loc[frame[HOLDOUT].notna(), "trainer/global_step"] = np.nan
    assert refusal(tmp_path, frame) == (
        f"FILE: line 7: {HOLDOUT} has a value and trainer/global_step none (the first of 4 such "
        "rows): at which step was it logged? fill in trainer/global_step, or log both in one call"
    )


def test_rows_without_the_trainers_step_and_without_a_value_are_not_looked_at(
    tmp_path: Path,
) -> None:
    frame = history()
    system = pd.DataFrame({"_step": [50, 51], "system/gpu": 1.0, "_timestamp": np.nan})
    found = read(tmp_path, pd.concat([frame, system]))
    assert found.curves[TRAIN].series.steps.tolist() == list(range(100, 2001, 100))
    assert found.superseded == 0


def test_two_steps_of_a_trainer_that_differ_are_refused(tmp_path: Path) -> None:
    frame = history().assign(step=lambda of: of["trainer/global_step"] * 4)
    assert refusal(tmp_path, frame) == (
        "FILE: line 2: trainer/global_step is 100 and step 400: both may be the trainer's step; "
        "keep the one that counts updates of the weights and remove the other column"
    )
    from_zero = history().assign(step=lambda of: of["trainer/global_step"] - 1)
    found = read(tmp_path, from_zero)
    assert found.curves[TRAIN].series.steps[0] == 100


def test_a_count_within_an_epoch_is_no_step(tmp_path: Path) -> None:
    tokens = np.arange(1, 25) * 1000
    frame = history("step").assign(**{"throughput/total tokens": tokens})
    frame["step"] = frame["step"] % 1100
    assert refusal(tmp_path, frame) == (
        "FILE: line 14: step falls from 1000 to 0 where tokens rise from 12000 to 13000: it does "
        "not count the run's updates; remove the column, or correct it"
    )


def test_a_restart_shows_in_the_trainers_step(tmp_path: Path) -> None:
    old = history()
    again = history()[lambda of: of["trainer/global_step"] > 1500]
    frame = pd.concat([old, again.assign(**{LOSS: again[LOSS] + 0.5})])
    found = read(tmp_path, frame.assign(_step=np.arange(len(frame))))
    assert found.curves[TRAIN].series.values.tolist() == [
        3.0 - n / 100 + (0.5 if n > 15 else 0) for n in range(1, 21)
    ]
    assert found.seams == (1500,)


def test_what_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    frame = history()
    frame["trainer/global_step"] = frame["trainer/global_step"] + 0.5
    assert refusal(tmp_path, frame) == (
        "FILE: line 2: column 'trainer/global_step': 100.5 is not a whole number of at most "
        "9,007,199,254,740,992; correct it, or remove the column"
    )
    nothing = history().drop(columns="_step").assign(**{"trainer/global_step": np.nan})
    assert refusal(tmp_path, nothing).startswith("FILE: no step in trainer/global_step")


def test_tokens_not_logged_may_be_nan(tmp_path: Path) -> None:
    frame = history().assign(**{"throughput/total tokens": np.arange(1, 25) * 1000.0})
    frame.loc[frame[HOLDOUT].notna(), "throughput/total tokens"] = np.nan
    for na_rep in ("", "NaN"):
        found = wandb_export.read(export(tmp_path, frame, na_rep))
        assert found.curves[C4].series.tokens.tolist() == [5000, 11_000, 17_000, 23_000]
