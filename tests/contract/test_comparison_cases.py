"""Faults met by others when runs are compared, each from a log to a verdict."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from evalmon import reference, reference_cli
from evalmon.store import Store
from evalmon.types import Curve, Score
from tests import synthetic_store
from tests.synthetic_store import identity
from tests.unit.evalmon.drawn_runs import C4, TRAIN, judged, rows, series, write
from tests.unit.evalmon.logs.maxtext_log import Shape, write_log


@pytest.fixture(autouse=True)
def ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what this machine's user has added."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "added"))


# F26: runs with different tokenizers.

BITS = C4.replace("ce_nats", "bpb")


def cut_in_other_tokens(
    tmp_path: Path, *, bits: bool, worse_nats: float = 0.0, memorized_nats: float = 0.0
) -> tuple[str, str]:
    """Add two curves of one text, 5 bytes a token in one and 4 in the other; return their names.

    At the end 100 bytes have 50 nats, in 20 tokens or in 25.
    """
    step = np.arange(1, 401)
    loss = 2.4 + 3 / (1 + (step / 30) ** 0.7)
    at = step % 10 == 0
    above = 2.5 - loss[-1]
    for name, size, more in (("fives", 5.0, worse_nats), ("fours", 4.0, 0.0)):
        train = loss - memorized_nats * (step > 200) * (name == "fives")
        held = loss[at] + above + more
        parts = [series(TRAIN, step, train * size / 5), series(C4, step[at], held * size / 5)]
        if bits:
            parts.append(series(BITS, step[at], held / 5 / np.log(2)))
        path = write(tmp_path / f"{name}.csv", rows({name: parts}))
        done = CliRunner().invoke(
            reference_cli.reference, ["add", str(path), "--name", name, "--tokenizer", name]
        )
        assert done.exit_code == 0, done.output
    return "fives", "fours"


def end(curves: Mapping[str, Curve], metric: str) -> float:
    return float(curves[metric].series.values[-1])


def test_f26_nats_a_token_of_two_tokenizers_are_refused_with_the_remedy(tmp_path: Path) -> None:
    run, against = cut_in_other_tokens(tmp_path, bits=False)
    found = judged(run, reference=against).verdict
    assert (found.verdict, found.reference) == ("recipe_differs", None)
    said = " ".join(found.reasons)
    assert "'tokenizer': 'fives' against 'fours'" in said
    assert f"compare bits per byte, {BITS}" in said


@pytest.mark.parametrize(
    ("worse", "name"), [(0.0, "healthy"), (0.1, "behind_reference"), (-0.1, "ahead_of_reference")]
)
def test_f26_with_bits_per_byte_of_both_the_holdouts_are_compared(
    tmp_path: Path, worse: float, name: str
) -> None:
    run, against = cut_in_other_tokens(tmp_path, bits=True, worse_nats=worse)
    found = judged(run, reference=against)
    assert (found.verdict.verdict, found.verdict.basis) == (name, "holdout only")
    assert found.reference is not None
    ours, theirs = found.run.curves.curves, found.reference.curves.curves
    # Nats a token stand 0.5 apart; in bytes, the gap is what it is in the run's own tokens.
    assert [end(ours, C4), end(theirs, C4)] == pytest.approx([2.5 + worse, 2.0])
    assert end(theirs, BITS) == pytest.approx(0.7213, abs=5e-5)
    assert end(ours, BITS) - end(theirs, BITS) == pytest.approx(worse / 5 / np.log(2))
    assert found.verdict.holdout_gap_nats == pytest.approx(worse, abs=1e-6)
    assert found.verdict.reasons[0] == (
        "tokenizers differ ('fives' against 'fours'): holdout losses are compared by bits per "
        "byte, shown in nats per token of the run's tokenizer; train losses cannot be compared"
    )
    assert found.record["evidence"]["compared_by"] == BITS


@pytest.mark.parametrize(
    ("bytes_of", "name"),
    [
        ("UTF-8 bytes", "healthy"),
        ("UTF-8 bytes of the tokens scored", "recipe_differs"),  # which are other texts
    ],
)
def test_f26_runs_of_a_store_are_compared_by_the_bytes_of_whole_texts(
    tmp_path: Path, bytes_of: str, name: str
) -> None:
    nats = "eval/lm/synthetic-validation/ce_nats"
    with Store.open(tmp_path / "evalmon.sqlite", clock=lambda: 0.0) as store:
        for run_name, size in (("clean", 5.0), ("double-sharded", 4.0)):
            run = synthetic_store.describe(tmp_path, run_name)
            synthetic_store.write_log(run)
            run.save()
            store.register(run, {"holdout": "synthetic"})
            for step in range(10, 201, 10):
                (base, *_) = synthetic_store.evaluations(run, step)
                ce = replace(identity("synthetic", "ce_nats"), tokenizer=run_name)
                bpb = replace(ce, metric="bpb", normalization=bytes_of)
                loss = synthetic_store.holdout_nats(step)
                scores = (
                    Score(nats, loss * size / 5, 0.01, 100, ce),
                    Score(nats.replace("ce_nats", "bpb"), loss / 5 / np.log(2), 0.01, 100, bpb),
                )
                store.append_evaluation(replace(base, scores=scores))
    found = judged(tmp_path / "clean", reference="double-sharded", profile="short")
    assert found.verdict.verdict == name
    if name == "healthy":
        assert found.verdict.basis == "holdout only"
        assert found.verdict.holdout_gap_nats == pytest.approx(0.0, abs=1e-9)
        assert found.verdict.reasons[0].startswith("tokenizers differ (clean against double-sha")
    else:
        assert any("compare bits per byte" in reason for reason in found.verdict.reasons)


def test_f26_the_runs_own_train_loss_still_speaks(tmp_path: Path) -> None:
    run, against = cut_in_other_tokens(tmp_path, bits=True, memorized_nats=0.2)
    found = judged(run, reference=against).verdict
    assert found.verdict == "memorization_suspected"
    assert found.basis == "train and holdout"


# F28: a sampled export taken for the full one.


def history(steps: int = 2000, every: int = 100) -> pd.DataFrame:
    """Return a W&B history with a spike of one step at 1,337."""
    step = np.arange(1, steps + 1)
    draws = np.random.default_rng(0)
    loss = 2.4 + 3 / (1 + (step / 30) ** 0.7)
    held = loss + 0.3 + draws.normal(0, 0.001, steps)
    loss = loss + draws.normal(0, 0.01, steps)
    loss[step == 1337] += 6
    return pd.DataFrame({
        "_step": step,
        "train/CE loss": loss,
        "eval/lm/c4_en-validation/CE loss": np.where(step % every == 0, held, np.nan),
        "throughput/total tokens": step * 1000.0,
    })  # fmt: skip


def export(folder: Path, frame: pd.DataFrame) -> Path:
    path = folder / "my-run.csv"
    frame.to_csv(path, index=False)
    return path


def test_f28_the_whole_history_gets_a_verdict_and_keeps_its_spike(tmp_path: Path) -> None:
    found = judged(export(tmp_path, history()))
    train = found.run.curves.curves[TRAIN].series
    assert (len(train), len(found.run.curves.curves[C4].series)) == (2000, 20)
    assert train.steps[train.values.argmax()] == 1337
    assert (found.verdict.verdict, found.verdict.alarm_tokens) == ("healthy", None)
    assert found.verdict.step == 2000


@pytest.mark.parametrize("seed", range(3))
def test_f28_500_random_rows_get_none(tmp_path: Path, seed: int) -> None:
    frame = history()
    held = frame["eval/lm/c4_en-validation/CE loss"].notna()
    drawn = pd.concat([frame[held], frame[~held].sample(480, random_state=seed)])
    verdict = judged(export(tmp_path, pd.DataFrame(drawn).sort_values(by="_step"))).verdict
    assert (verdict.verdict, verdict.alarm_tokens) == ("not_enough_data", None)
    assert "train loss is sampled, not whole" in verdict.reasons[0]
    assert "first and last step may be missing" in verdict.reasons[0]


def test_f28_rows_that_hold_both_keys_get_none(tmp_path: Path) -> None:
    frame = history().dropna()
    assert len(frame) == 20
    verdict = judged(export(tmp_path, frame)).verdict
    assert (verdict.verdict, verdict.alarm_tokens) == ("not_enough_data", None)
    assert "train loss is sampled, not whole" in verdict.reasons[0]
    assert "rows that lack one of the keys were left out" in verdict.reasons[0]


# F29: steps logged again after a restart.


def restarted() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows 1 to 212, and 201 to 250 an hour later and 0.01 higher."""
    frame = history(250, every=10)
    frame.loc[:, "_timestamp"] = 1e9 + 10.0 * frame["_step"]
    new = frame.iloc[200:].copy()
    new["train/CE loss"] += 0.01
    new["_timestamp"] += 3600
    return frame.iloc[:212], new


@pytest.mark.parametrize("turned", [False, True])
def test_f29_the_later_segment_counts_in_any_order_of_the_file(
    tmp_path: Path, turned: bool
) -> None:
    old, new = restarted()
    found = judged(export(tmp_path, pd.concat([new, old] if turned else [old, new])))
    train = found.run.curves.curves[TRAIN].series
    assert train.steps.tolist() == list(range(1, 251))
    assert train.values[200:] == pytest.approx(new["train/CE loss"].to_numpy())
    assert train.values[:200] == pytest.approx(old["train/CE loss"].to_numpy()[:200])
    assert (found.run.curves.superseded, found.run.curves.seams) == (13, (200,))
    assert (found.verdict.verdict, found.verdict.alarm_tokens) == ("healthy", None)


def test_f29_an_abandoned_branch_that_the_service_kept_enters_no_verdict(tmp_path: Path) -> None:
    old, new = restarted()
    kept = pd.concat([old, new[new["_step"] > 212]])
    kept.loc[(kept["_step"] > 200) & (kept["_step"] <= 212), "train/CE loss"] -= 1.0
    marked = kept.assign(resumed_from=np.where(kept["_step"] > 212, 200, np.nan))
    found = judged(export(tmp_path, marked))
    assert found.run.curves.curves[TRAIN].series.steps.tolist() == [
        *range(1, 201),
        *range(213, 251),
    ]
    assert any("abandoned branch" in note for note in found.record["notes"])
    assert (found.verdict.verdict, found.verdict.alarm_tokens) == ("healthy", None)


def test_f29_scores_that_come_late_are_taken(tmp_path: Path) -> None:
    frame = history(250, every=10)
    late = frame["eval/lm/c4_en-validation/CE loss"]
    names = {"train/CE loss": TRAIN, "eval/lm/c4_en-validation/CE loss": C4}
    parts = [frame[["_step", old]].dropna().set_axis(["step", "value"], axis=1).assign(metric=new)
             for old, new in names.items()]  # fmt: skip
    table = pd.concat([parts[0], parts[1].iloc[::-1]])  # evaluations from the last to the first
    path = tmp_path / "t.csv"
    table.assign(run="r", tokens=table["step"] * 1000).to_csv(path, index=False)
    found = judged(path)
    assert len(found.run.curves.curves[C4].series) == late.notna().sum() == 25
    assert (found.verdict.step, found.verdict.verdict) == (250, "healthy")


# F31: MaxText output.


def test_f31_a_log_of_five_steps_keeps_each_and_is_not_enough(tmp_path: Path) -> None:
    """Weights differ, a loss is nan, two hosts interleave, step 3 is resumed at, no newline."""
    weights, losses = [100, 10, 50, 40, 30], ["2.000", "4.000", "nan", "3.000", "2.500"]
    lines = ["unrelated: the loss: of this line is no loss", "loss scale 3.0, restored"]
    for n in (0, 1, 2, 3, 3, 4):
        said = [
            f"completed step: {n}, seconds: 1.0, total_weights: {weights[n]}, loss: {losses[n]}"
        ]
        if n == 4:  # printed before the step's own line, which is flushed late
            said.insert(0, "eval metrics after step: 4, loss=2.700, total_weights=75264.0")
        lines += [f"[pod/workers-{host}-abc/maxtext] {text}" for text in said for host in (0, 1)]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines))
    found = judged(path)
    train = found.run.curves.curves[TRAIN].series
    counted = found.run.curves.curves["data/loss_tokens"].series
    assert counted.steps.tolist() == [1, 2, 3, 4, 5]
    assert train.steps.tolist() == [1, 2, 4, 5]
    mean = np.average(train.values[:2], weights=counted.values[:2])
    assert mean == pytest.approx(2.1818, abs=5e-5)
    assert (found.verdict.verdict, found.verdict.step) == ("not_enough_data", 5)
    assert found.run.curves.nonfinite == ((3, TRAIN),)
    assert any("step 3" in reason for reason in found.verdict.reasons)


def test_f31_two_hosts_a_restart_and_no_newline_get_one_verdict(tmp_path: Path) -> None:
    step = np.arange(1, 401)
    draws = np.random.default_rng(0)
    loss = 2.4 + 3 / (1 + (step / 30) ** 0.7)
    shape = Shape(hosts=2, prefix="pods", restart=(250, 230))
    path = tmp_path / "run.log"
    write_log(path, loss + draws.normal(0, 0.02, 400), loss + 0.3, shape, abandoned_offset=0.3,
              end="")  # fmt: skip
    found = judged(path)
    assert found.run.curves.curves[TRAIN].series.steps.tolist() == list(range(1, 401))
    assert found.run.curves.seams == (230,)
    assert (found.verdict.verdict, found.verdict.step) == ("healthy", 400)
