"""What a table or an export says of the order of its data: epochs, position, mix."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evalmon import tags
from evalmon.logs import tables, wandb_export
from evalmon.types import Sampling

C4 = "eval/lm/c4_en-validation/ce_nats"
TRAIN = "train/ce_nats"


def table(folder: Path, metric: str, points: dict[int, float]) -> Path:
    """Write a run of 40 steps with an evaluation every tenth, and one more metric."""
    values = {TRAIN: {n: 3 - n / 100 for n in range(1, 41)}, metric: points,
              C4: {n: 3.3 - n / 100 for n in range(10, 41, 10)}}  # fmt: skip
    path = folder / "t.csv"
    path.write_text("run,metric,step,tokens,value\n" + "".join(
        f"r,{name},{step},{step * 10},{value}\n"
        for name, part in values.items() for step, value in part.items()
    ))  # fmt: skip
    return path


@pytest.mark.parametrize("metric", ["data/epoch", "data/position", "train/current_epoch"])
def test_counters_are_read_and_leave_the_other_curves_as_they_are(
    tmp_path: Path, metric: str
) -> None:
    steps = {n: float(n // 20) for n in range(1, 41)}
    found = tables.read(table(tmp_path, metric, steps))
    name = "data/epoch" if metric.startswith("train/") else metric
    assert found.curves[name].series.values.tolist() == list(steps.values())
    assert {curve.sampling for curve in found.curves.values()} == {Sampling.FULL}
    assert (found.notes, found.data_changes) == ((), ())


def test_a_counter_that_is_logged_at_its_changes_alone_is_no_sample(tmp_path: Path) -> None:
    found = tables.read(table(tmp_path, "data/epoch", {1: 0, 2: 0, 17: 1, 18: 1, 33: 2}))
    assert {curve.sampling for curve in found.curves.values()} == {Sampling.FULL}
    assert found.notes == ()


def test_another_mix_is_a_change_of_the_data(tmp_path: Path) -> None:
    found = tables.read(table(tmp_path, "data/mix", {1: 1, 21: 2, 31: 2, 40: 1}))
    assert found.data_changes == (20, 39)  # steps after which other data came
    assert tables.read(table(tmp_path, "data/mix", {1: 1, 40: 1})).data_changes == ()


def test_an_export_tells_epochs_too(tmp_path: Path) -> None:
    step = np.arange(1, 41)
    frame = pd.DataFrame({"_step": step, "train/loss": 3 - step / 100,
                          "train/current_epoch": step / 20, "eval/c4_en/loss": 3.3})  # fmt: skip
    path = tmp_path / "run.csv"
    frame.to_csv(path, index=False)
    found = wandb_export.read(path, tokens_per_step=10)
    assert found.curves["data/epoch"].series.values[-1] == 2.0


def test_the_names_are_levanters_and_our_own() -> None:
    assert tags.sources_of("train/current_epoch") == {"levanter"}
    for name in ("data/epoch", "data/position", "data/mix"):
        found = tags.look_up(name)
        assert found is not None
        assert (found.metric, dict(found.facts)) == (name, {})
