"""Exports of W&B: the whole history is read, a selection is known for one."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evalmon.errors import DataError
from evalmon.logs import wandb_export
from evalmon.types import FloatArray, RunCurves, Sampling

TRAIN = "train/ce_nats"
C4 = "eval/lm/c4_en-validation/ce_nats"
TOKENS = "throughput/total tokens"


def history(steps: int = 2000, every: int = 100) -> pd.DataFrame:
    """F28: a one-step spike at 1,337 and an evaluation every 100 steps."""
    step = np.arange(1, steps + 1)
    loss = 3.0 - step / 10_000
    loss[step == 1337] = 9.0
    return pd.DataFrame(
        {
            "_step": step,
            "_timestamp": 1e9 + 10.0 * step,
            "train/CE loss": loss,
            "eval/lm/c4_en-validation/CE loss": np.where(step % every == 0, 3.5, np.nan),
            TOKENS: step * 1000.0,
            "throughput/device/TPS": 1.0,
        }
    )


def export(folder: Path, frame: object) -> Path:
    path = folder / "my-run.csv"
    assert isinstance(frame, pd.DataFrame)
    frame.to_csv(path, index=False)
    return path


def refusal(path: Path, run: str | None = None) -> str:
    with pytest.raises(DataError) as error:
        wandb_export.read(path, run)
    return str(error.value).replace(str(path), "FILE")


def values(curves: RunCurves, metric: str = TRAIN) -> dict[int, float]:
    series = curves.curves[metric].series
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_the_whole_history_is_full_and_keeps_its_spike(tmp_path: Path) -> None:
    found = wandb_export.read(export(tmp_path, history()))
    assert (found.name, found.tokens_per_step) == ("my-run", 1000)
    assert len(found.curves[TRAIN].series) == 2000
    assert len(found.curves[C4].series) == 20
    assert values(found)[1337] == 9.0
    assert {curve.sampling for curve in found.curves.values()} == {Sampling.FULL}
    assert found.curves[TRAIN].facts["z_loss"] == "excluded"
    assert (found.notes, found.nonfinite, found.superseded, found.seams) == ((), (), 0, ())


@pytest.mark.parametrize("seed", range(5))
def test_500_random_rows_are_sampled(tmp_path: Path, seed: int) -> None:
    frame = history().sample(500, random_state=seed).sort_values("_step")
    found = wandb_export.read(export(tmp_path, frame))
    curve = found.curves[TRAIN]
    assert len(curve.series) == 500
    assert curve.sampling is Sampling.SAMPLED
    assert "first and last step may be missing" in curve.note
    assert any(note.startswith(f"{TRAIN} is sampled: 500 points") for note in found.notes)


def test_rows_that_hold_both_keys_are_sampled(tmp_path: Path) -> None:
    frame = history().dropna()
    assert len(frame) == 20
    path = export(tmp_path, frame)
    curve = wandb_export.read(path).curves[TRAIN]
    assert curve.sampling is Sampling.SAMPLED
    assert curve.note.startswith("all 20 train points (steps 100 to 2000) lie on evaluations")
    assert wandb_export.read(path, thinned=True).curves[TRAIN].sampling is Sampling.THINNED


def test_keys_logged_in_rows_of_their_own_are_joined_by_step(tmp_path: Path) -> None:
    train = history(20, every=5).drop(columns="eval/lm/c4_en-validation/CE loss")
    evaluated = pd.DataFrame({"_step": [5, 10], "eval/lm/c4_en-validation/CE loss": [3.7, 3.6]})
    frame = pd.concat([train, evaluated]).drop(columns="_timestamp")
    found = wandb_export.read(export(tmp_path, frame))
    assert values(found, C4) == {5: 3.7, 10: 3.6}
    assert found.curves[C4].series.tokens.tolist() == [5000, 10_000]


def test_tokens_come_from_a_column_or_from_the_user(tmp_path: Path) -> None:
    path = export(tmp_path, history().drop(columns=TOKENS))
    found = wandb_export.read(path, tokens_per_step=7)
    assert found.curves[TRAIN].series.tokens[-1] == 14_000
    assert refusal(path) == (
        "FILE: line 2: step 1 of train/CE loss has no tokens, and runs are compared at equal "
        "tokens; add them, or give --tokens-per-step"
    )


def test_parquet_and_infinite_losses(tmp_path: Path) -> None:
    frame = history(10, every=5)
    frame.loc[4, "train/CE loss"] = np.inf
    path = tmp_path / "run.parquet"
    frame.to_parquet(path)
    found = wandb_export.read(path)
    assert found.nonfinite == ((5, TRAIN),)
    assert len(found.curves[TRAIN].series) == 9


def restarted() -> tuple[pd.DataFrame, pd.DataFrame]:
    """F29: the checkpoint is at 200, the crash at 212; 201 to 250 follow with loss +0.01."""
    old = history(212)
    new = history(250).iloc[200:].copy()
    new["train/CE loss"] += 0.01
    new["_timestamp"] += 3600
    return old, new


def right_losses() -> FloatArray:
    step = np.arange(1, 251)
    return 3.0 - step / 10_000 + np.where(step > 200, 0.01, 0.0)


@pytest.mark.parametrize("turned", [False, True])
def test_steps_logged_again_after_a_restart(tmp_path: Path, turned: bool) -> None:
    old, new = restarted()
    frame = pd.concat([new, old] if turned else [old, new])
    found = wandb_export.read(export(tmp_path, frame))
    series = found.curves[TRAIN].series
    assert series.steps.tolist() == list(range(1, 251))
    np.testing.assert_allclose(series.values, right_losses(), atol=1e-12)
    assert (found.superseded, found.seams) == (12, (200,))


@pytest.mark.parametrize("named", ["column", "argument"])
def test_the_abandoned_branch_that_the_service_kept_is_not_used(tmp_path: Path, named: str) -> None:
    old, new = restarted()
    frame = pd.concat([old, new[new["_step"] > 212]])
    if named == "column":
        frame["resumed_from"] = np.where(frame["_step"] > 212, 200, np.nan)
    path = export(tmp_path, frame)
    found = wandb_export.read(path, restarts=None if named == "column" else {212: 200})
    series = found.curves[TRAIN].series
    assert series.steps.tolist() == [*range(1, 201), *range(213, 251)]
    np.testing.assert_allclose(series.values, right_losses()[series.steps - 1], atol=1e-12)
    assert (found.superseded, found.seams) == (12, (200,))
    assert found.curves[TRAIN].sampling is Sampling.FULL
    assert found.notes[0] == (
        "steps 201 to 212 hold an abandoned branch, given up at a restart from 200: "
        "they are not used"
    )


def test_a_pause_that_may_hide_a_restart_is_said(tmp_path: Path) -> None:
    old, new = restarted()
    frame = pd.concat([old, new[new["_step"] > 212]])
    found = wandb_export.read(export(tmp_path, frame))
    assert len(found.curves[TRAIN].series) == 250
    assert found.notes[0].startswith(
        "the clock pauses after step 212 (3610 s): if the run was restarted there from an earlier "
        "checkpoint, the steps since that checkpoint are of an abandoned branch"
    )


def test_maxtext_counts_steps_from_0(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "_step": [0, 1, 2],
            "learning/loss": [4.0, 3.5, 3.25],
            "eval/avg_loss": [np.nan, np.nan, 3.5],
        }
    )
    found = wandb_export.read(export(tmp_path, frame), tokens_per_step=10)
    assert values(found) == {1: 4.0, 2: 3.5, 3: 3.25}
    assert found.curves[TRAIN].series.tokens.tolist() == [10, 20, 30]
    assert values(found, C4) == {3: 3.5}
    assert found.curves[TRAIN].facts["z_loss"] == "included"
    assert found.notes[0] == "maxtext counts steps from 0: each is taken one higher"


def test_levanter_counts_steps_from_0(tmp_path: Path) -> None:
    """Its first row is of one update, and of one batch's tokens."""
    frame = pd.DataFrame(
        {
            "_step": [0, 1, 2],
            "train/loss": [4.0, 3.5, 3.25],
            "eval/c4_en/loss": [4.5, np.nan, 3.5],
            "throughput/total_tokens": [10, 20, 30],
            "global_step": [0, 1, 2],
        }
    )
    found = wandb_export.read(export(tmp_path, frame))
    assert values(found) == {1: 4.0, 2: 3.5, 3: 3.25}
    assert values(found, C4) == {1: 4.5, 3: 3.5}
    assert found.curves[TRAIN].series.tokens.tolist() == [10, 20, 30]
    assert found.tokens_per_step == 10
    assert found.notes[0] == "levanter counts steps from 0: each is taken one higher"


def test_of_two_labels_of_a_task_the_one_that_tells_more_counts(tmp_path: Path) -> None:
    """OLMo-core writes both: accuracies as one number, the others by two divisors."""
    piqa = "eval/downstream/piqa"
    frame = history(20, every=10)
    for label, plain, v2 in (
        ("length-normalized accuracy", 0.5, 0.5), ("accuracy", 0.625, 0.625), ("BPB", 1.5, 1.25),
    ):  # fmt: skip
        frame[f"{piqa} ({label})"] = plain
        frame[f"{piqa} ({label} v2)"] = v2
    either = export(tmp_path, frame)
    found = wandb_export.read(either)
    got = {name: curve for name, curve in found.curves.items() if name.startswith(piqa)}
    assert {name.rpartition("/")[2]: curve.series.values[-1] for name, curve in got.items()} == {
        "len_norm": 0.5, "acc": 0.625, "bpb": 1.25,
    }  # fmt: skip
    assert got[f"{piqa}_0shot/len_norm"].facts["normalization"] == "characters_with_space"
    assert got[f"{piqa}_0shot/bpb"].facts["divisor"] == "bytes_with_space"
    assert "3 names left out beside others of the same metrics" in found.notes
    plain = frame[[name for name in frame if not name.endswith("v2)")]]
    alone = wandb_export.read(export(tmp_path, plain)).curves
    assert alone[f"{piqa}_0shot/len_norm"].facts["normalization"] == "characters"
    assert alone[f"{piqa}_0shot/bpb"].series.values[-1] == 1.5


def test_a_fresh_start_is_no_restart(tmp_path: Path) -> None:
    found = wandb_export.read(export(tmp_path, history(5).assign(resumed_from=0)))
    assert (len(found.curves[TRAIN].series), found.seams, found.superseded) == (5, (), 0)


def chart(low: float = 0.0) -> pd.DataFrame:
    step = np.arange(10, 110, 10)
    frame = pd.DataFrame({"Step": step})
    for number, run in enumerate(["run - a", "b"]):
        loss = 3.0 - step / 1000 + number
        frame[f"{run} - train/loss"] = loss
        frame[f"{run} - train/loss__MIN"] = loss - low
        frame[f"{run} - train/loss__MAX"] = loss
    return frame


def test_a_chart_of_several_runs(tmp_path: Path) -> None:
    path = export(tmp_path, chart())
    found = wandb_export.read(path, "run - a", tokens_per_step=5)
    assert found.name == "run - a"
    assert values(found)[10] == 2.99
    assert found.curves[TRAIN].sampling is Sampling.FULL
    assert values(wandb_export.read(path, "b", tokens_per_step=5))[10] == 3.99
    assert refusal(path) == "FILE: 2 runs and none named; give --run with one of run - a, b"
    assert refusal(path, "c") == "FILE: no run 'c'; there are run - a, b"


def test_a_chart_of_buckets_is_sampled_whatever_the_user_says(tmp_path: Path) -> None:
    path = export(tmp_path, chart(low=0.01))
    found = wandb_export.read(path, "b", tokens_per_step=5, thinned=True)
    assert found.curves[TRAIN].sampling is Sampling.SAMPLED
    assert found.curves[TRAIN].note == (
        "the chart shows buckets of steps: b - train/loss__MIN differs from the value, first at "
        "step 10; export the run's whole history"
    )


def test_other_files_are_not_taken_for_an_export(tmp_path: Path) -> None:
    assert wandb_export.recognizes(export(tmp_path, history(5)))
    assert wandb_export.recognizes(export(tmp_path, chart()))
    tidy = tmp_path / "tidy.csv"
    tidy.write_text(f"run,metric,step,tokens,value\nr,{TRAIN},1,10,3\n")
    assert not wandb_export.recognizes(tidy)
    log = tmp_path / "log.txt"
    log.write_text("completed step: 1, seconds: 2.0, loss: 3.0\n")
    assert not wandb_export.recognizes(log)


def test_refusals(tmp_path: Path) -> None:
    frame = history(5)
    assert refusal(export(tmp_path, frame), "other") == (
        "FILE: no run 'other'; a W&B history holds one run, here 'my-run'"
    )
    strange = frame[["_step"]].assign(**{"train/CE los": 3.0})
    assert refusal(export(tmp_path, strange)).startswith(
        "FILE: line 1: no known metric among 'train/CE los'; nearest to the first are train/CE loss"
    )
    assert refusal(export(tmp_path, frame.drop(columns="_step"))).startswith(
        "FILE: line 1: no column of steps"
    )
    both = frame.assign(**{"train/ce_nats": 3.0})
    assert "are both train/ce_nats" in refusal(export(tmp_path, both))
    text = frame.astype({"train/CE loss": "object"})
    text.loc[2, "train/CE loss"] = "oops"
    assert refusal(export(tmp_path, text)).startswith(
        "FILE: line 4: column 'train/CE loss': 'oops' is not a number"
    )
    twice = export(tmp_path, frame)
    twice.write_text(twice.read_text().replace("throughput/device/TPS", "train/CE loss"))
    assert refusal(twice) == ("FILE: line 1: column 'train/CE loss' stands there twice; remove one")
    empty = frame.assign(**{"train/CE loss": np.nan})[["_step", "train/CE loss"]]
    assert refusal(export(tmp_path, empty)).startswith("FILE: no value in train/CE loss")


def test_a_chart_over_wall_time_is_known_and_refused(tmp_path: Path) -> None:
    path = export(tmp_path, chart().rename(columns={"Step": "Relative Time (Wall)"}))
    assert wandb_export.recognizes(path)
    message = refusal(path)
    assert message.startswith("FILE: line 1: no column of steps (")
    assert message.endswith("; export with Step as x axis")


def test_a_holdout_of_an_unknown_name_is_told(tmp_path: Path) -> None:
    frame = history(10).rename(columns={"eval/lm/c4_en-validation/CE loss": "eval/lm/c4_en/ce"})
    found = wandb_export.read(export(tmp_path, frame))
    assert C4 not in found.curves
    assert found.notes == (f"left out, not known: eval/lm/c4_en/ce (nearest is {C4})",)


@pytest.mark.parametrize(("separator", "shown"), [(";", "';'"), ("\t", "a tab"), ("|", "'|'")])
@pytest.mark.parametrize("charted", [False, True])
def test_another_separator_is_named(
    tmp_path: Path, separator: str, shown: str, charted: bool
) -> None:
    path = tmp_path / "run.csv"
    frame = chart() if charted else history(5)
    frame.to_csv(path, index=False, sep=separator, quoting=csv.QUOTE_ALL if charted else 0)
    assert wandb_export.recognizes(path)
    assert refusal(path) == f"FILE: line 1: the separator is {shown}, use ','"


def test_without_a_holdout_what_may_be_one_is_named(tmp_path: Path) -> None:
    frame = history(10).rename(columns={"eval/lm/c4_en-validation/CE loss": "eval/loss"})
    found = wandb_export.read(export(tmp_path, frame.assign(val_ppl=2.0, lr=0.1)))
    assert found.notes == ("left out, not known: eval/loss, val_ppl",)
    known = history(200).assign(**{"eval/loss": 3.0})
    assert wandb_export.read(export(tmp_path, known)).notes == ()


def test_a_chart_without_evaluations_says_so(tmp_path: Path) -> None:
    found = wandb_export.read(export(tmp_path, chart()), "b", tokens_per_step=5)
    (note,) = found.notes
    assert note == (
        "the chart draws train/loss alone, so that evaluations are not known: export them in the "
        "same chart, or the run's whole history"
    )
