"""Faults met by others when runs are compared, each from a log to a verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from evalmon import bands, metrics, reference, reference_cli
from evalmon.comparing import CompareOptions, Comparison, compare
from evalmon.logs import maxtext
from evalmon.store import Store
from evalmon.types import FloatArray, MetricIdentity, Score, Series
from tests import synthetic_store
from tests.synthetic_store import identity
from tests.unit.evalmon.drawn_runs import rows, write
from tests.unit.evalmon.logs.maxtext_log import Shape, write_log

TRAIN, C4, RATE = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats", "optim/lr"
STEP_TOKENS = 1_000


@pytest.fixture(autouse=True)
def ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what this machine's user has added."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "added"))


def series(metric: str, steps: Any, values: FloatArray) -> Series:
    steps = np.asarray(steps, np.int64)
    return Series(metric, steps, steps * STEP_TOKENS, np.asarray(values, np.float64))


def judged(run: object, **options: Any) -> Comparison:
    return compare(CompareOptions(str(run), **options))


# F26: runs with different tokenizers.


def test_f26_one_text_in_other_tokens_differs_by_nothing() -> None:
    """100 bytes as 20 tokens at 2.5 nats and as 25 at 2.0."""

    def scored(metric: str, nats: float, divisor: int, tokenizer: str) -> Score:
        value = metrics.bits_per_byte(nats, divisor) if metric == "bpb" else nats / divisor
        what: MetricIdentity = replace(
            identity("text", metric), tokenizer=tokenizer,
            normalization="UTF-8 bytes" if metric == "bpb" else "tokens",
        )  # fmt: skip
        return Score(metric, value, None, 1, what)

    first, second = scored("bpb", 20 * 2.5, 100, "a"), scored("bpb", 25 * 2.0, 100, "b")
    assert first.value == second.value == pytest.approx(0.7213, abs=5e-5)
    assert metrics.score_difference(first, second) == 0
    with pytest.raises(ValueError, match=r"tokenizer.*compare bits per byte"):
        metrics.score_difference(scored("ce", 50, 20, "a"), scored("ce", 50, 25, "b"))


def cut_in_other_tokens(
    tmp_path: Path, *, bits: bool, worse_nats: float = 0.0, memorized_nats: float = 0.0
) -> tuple[str, str]:
    """Add two curves of one text, 5 bytes a token in one and 4 in the other; return their names."""
    step = np.arange(1, 401)
    loss = 2.4 + 3 / (1 + (step / 30) ** 0.7)
    at = step % 10 == 0
    for name, size, more in (("fives", 5.0, worse_nats), ("fours", 4.0, 0.0)):
        train = loss - memorized_nats * (step > 200) * (name == "fives")
        held = loss[at] + 0.3 + more
        parts = [series(TRAIN, step, train * size / 5), series(C4, step[at], held * size / 5)]
        if bits:
            bpb = C4.replace("ce_nats", "bpb")
            parts.append(series(bpb, step[at], held / 5 / np.log(2)))
        path = write(tmp_path / f"{name}.csv", rows({name: parts}))
        done = CliRunner().invoke(
            reference_cli.reference, ["add", str(path), "--name", name, "--tokenizer", name]
        )
        assert done.exit_code == 0, done.output
    return "fives", "fours"


def test_f26_nats_a_token_of_two_tokenizers_are_refused_with_the_remedy(tmp_path: Path) -> None:
    run, against = cut_in_other_tokens(tmp_path, bits=False)
    found = judged(run, reference=against).verdict
    assert (found.verdict, found.reference) == ("recipe_differs", None)
    said = " ".join(found.reasons)
    assert "'tokenizer': 'fives' against 'fours'" in said
    assert f"compare bits per byte, {C4.replace('ce_nats', 'bpb')}" in said


@pytest.mark.parametrize(
    ("worse", "name"), [(0.0, "healthy"), (0.1, "behind_reference"), (-0.1, "ahead_of_reference")]
)
def test_f26_with_bits_per_byte_of_both_the_holdouts_are_compared(
    tmp_path: Path, worse: float, name: str
) -> None:
    run, against = cut_in_other_tokens(tmp_path, bits=True, worse_nats=worse)
    found = judged(run, reference=against)
    assert (found.verdict.verdict, found.verdict.basis) == (name, "holdout only")
    # Nats a token stand 0.6 apart; in bytes, the gap is what it is in the run's own tokens.
    assert found.verdict.holdout_gap_nats == pytest.approx(worse, abs=1e-6)
    assert found.verdict.reasons[0] == (
        "tokenizers differ ('fives' against 'fours'): holdout losses are compared by bits per "
        "byte, shown in nats per token of the run's tokenizer; train losses cannot be compared"
    )
    assert found.record["evidence"]["compared_by"] == C4.replace("ce_nats", "bpb")


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
    mean = maxtext.weighted_mean(train.values[:2], counted.values[:2])
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


# F32: schedule length and run length differ.

LENGTH, EVERY = 1_000, 10


def scheduled(*, annealed: bool, rated: bool = True) -> tuple[Series, ...]:
    """Return a run whose rate ends at 6.15e-5 of 3e-4, or at 0 with what annealing gains."""
    step = np.arange(1, LENGTH + 1)
    loss = 2.2 + 3 / (1 + (step / 20) ** 0.6)
    rate = np.interp(step, [0, 20, LENGTH], [0, 3e-4, 6.15e-5])
    last = step > 0.9 * LENGTH
    held = loss + 0.25
    if annealed:
        rate = np.where(last, np.interp(step, [0.9 * LENGTH, LENGTH], [8.7e-5, 0.0]), rate)
        loss, held = loss - 0.05 * last, held - 0.048 * last
    at = step % EVERY == 0
    parts = [series(TRAIN, step, loss), series(C4, step[at], held[at])]
    return (*parts, series(RATE, step, rate)) if rated else tuple(parts)


@pytest.mark.parametrize("profile", ["", "full", "sparse", "short"])
@pytest.mark.parametrize("same_recipe", [False, True])
def test_f32_what_annealing_gains_is_neither_gain_nor_memorization(
    tmp_path: Path, profile: str, same_recipe: bool
) -> None:
    path = write(
        tmp_path / "t.csv",
        rows({"ours": scheduled(annealed=True), "reference": scheduled(annealed=False)}),
    )
    found = judged(
        path, run_name="ours", reference="reference", profile=profile, same_recipe=same_recipe
    )
    verdict = found.verdict
    assert (verdict.verdict, verdict.alarm_tokens) == ("healthy", None)
    assert verdict.unmatched_nats == pytest.approx(0.002, abs=1e-6)
    assert verdict.train_gap_nats == pytest.approx(-0.05)
    assert verdict.holdout_gap_nats == pytest.approx(-0.048)
    (said,) = [reason for reason in verdict.reasons if "LR differs from" in reason]
    assert said.startswith("LR differs from 9")  # within the last tenth of a million
    assert said.endswith("the gap is not counted as a gain")
    assert found.record["evidence"]["learning_rates_differ_from_tokens"] > 900_000
    turned = judged(
        path, run_name="reference", reference="ours", profile=profile, same_recipe=same_recipe
    )
    assert not turned.verdict.verdict.startswith("memorization")


@pytest.mark.parametrize("profile", ["full", "sparse", "short"])
def test_f32_a_reference_of_two_points_is_no_reference_between_them(
    tmp_path: Path, profile: str
) -> None:
    run = scheduled(annealed=False, rated=False)
    ends = [117, 330]
    held = np.interp(ends, run[1].steps, run[1].values)
    thin = (run[0], series(C4, ends, held))
    path = write(tmp_path / "t.csv", rows({"ours": [part.until(320) for part in run], "two": thin}))
    found = judged(path, run_name="ours", reference="two", profile=profile,
                   planned_tokens=LENGTH * STEP_TOKENS)  # fmt: skip
    assert (found.verdict.verdict, found.verdict.tokens) == ("not_enough_data", 320_000)
    assert (found.record["evidence"]["evaluations"], found.verdict.alarm_tokens) == (0, None)
    assert f"no reference here: its {C4} has no point between 117,000 and 330,000 tokens" in (
        found.verdict.reasons
    )


def test_f32_a_hole_in_a_reference_is_not_bridged_and_the_message_says_where(
    tmp_path: Path,
) -> None:
    run = scheduled(annealed=False, rated=False)
    holed = tuple(
        series(part.metric, part.steps[kept], part.values[kept])
        for part in run
        for kept in [(part.steps <= 400) | (part.steps > 700)]
    )
    whole = dict(zip(run[0].steps.tolist(), run[0].values.tolist(), strict=True))
    lower = series(TRAIN, run[0].steps, np.array([
        whole[step] - (0.2 if 420 < step <= 690 else 0.0) for step in run[0].steps.tolist()
    ]))  # fmt: skip
    table = {"within": [lower.until(600), run[1].until(600)], "beyond": [lower, run[1]]}
    path = write(tmp_path / "t.csv", rows({**table, "holed": holed}))
    plan = LENGTH * STEP_TOKENS
    within = judged(path, run_name="within", reference="holed", planned_tokens=plan)
    assert within.verdict.verdict == "not_enough_data"
    assert within.verdict.reasons[0] == (
        f"no reference here: its {C4} has no point between 400,000 and 710,000 tokens"
    )
    beyond = judged(path, run_name="beyond", reference="holed", planned_tokens=plan)
    assert (beyond.verdict.verdict, beyond.verdict.alarm_tokens) == ("healthy", None)
    assert beyond.record["evidence"]["evaluations"] < 75  # none of the 30 within the hole


@pytest.mark.parametrize(("lacking", "until"), [(TRAIN, "701,000"), (C4, "710,000")])
def test_f32_each_loss_of_a_reference_may_have_the_hole(
    tmp_path: Path, lacking: str, until: str
) -> None:
    """Of train loss alone, and of the holdout where it is all there is."""
    run = scheduled(annealed=False, rated=False)
    held = {part.metric: part for part in run}
    part = held[lacking]
    kept = (part.steps <= 400) | (part.steps > 700)
    holed = series(lacking, part.steps[kept], part.values[kept])
    theirs = [holed, held[C4]] if lacking == TRAIN else [holed]
    ours = [part.until(600) for part in run]
    path = write(tmp_path / "t.csv", rows({"ours": ours, "holed": theirs}))
    found = judged(path, run_name="ours", reference="holed", planned_tokens=LENGTH * STEP_TOKENS)
    assert found.verdict.verdict == "not_enough_data"
    assert (
        f"no reference here: its {lacking} has no point between 400,000 and {until} tokens"
        in found.verdict.reasons
    )


# F33: train loss falls because data comes again.


def again(length: int, seed: int = 0) -> tuple[Series, Series]:
    """Return F33's curves: train loss lower from step 100 on, an evaluation at every step."""
    step = np.arange(1, length + 1)
    held = 2.7 + np.random.default_rng(seed).uniform(-0.001, 0.001, length)
    return series(TRAIN, step, np.where(step < 100, 2.5, 2.42)), series(C4, step, held)


def test_f33_the_literal_comparison_flags_the_first_full_window_after_it() -> None:
    step = np.array([50, 99, 149])
    train, holdout = (
        series(TRAIN, step, np.array([2.5, 2.5, 2.42])),
        series(C4, step, np.array([2.7, 2.7, 2.7])),
    )
    assert not bands.unmatched(bands.compare_window(train, holdout, 0, 1))
    window = bands.compare_window(train, holdout, 1, 2)
    assert window.train_drop_nats == pytest.approx(0.08)
    assert window.shortfall_nats == pytest.approx(0.08)
    assert bands.unmatched(window)
    for drop, flagged in ((0.005, False), (0.0051, True)):
        assert bands.unmatched(bands.WindowComparison(2.5 - (2.5 - drop), 0.0)) is flagged


@pytest.mark.parametrize("length", [120, 150, 200])
@pytest.mark.parametrize(
    ("profile", "planned"),
    [
        *((name, planned) for name in ("", "full", "sparse", "loose") for planned in (0, 1_000)),
        ("short", 0),  # which takes as its standard what comes after the first tenth of the plan
        ("short", 200),
    ],
)
def test_f33_rows_of_one_window_end_suspected_within_8_evaluations(
    tmp_path: Path, length: int, profile: str, planned: int
) -> None:
    step = np.arange(1, length + 1)
    counter = series("data/epoch", step, np.where(step < 100, 1.0, 2.0))
    path = write(tmp_path / "t.csv", rows({"r": (*again(length), counter)}))
    found = judged(path, profile=profile, planned_tokens=planned * STEP_TOKENS).verdict
    assert found.verdict == "memorization_suspected"
    assert found.alarm_tokens is not None
    assert 100_000 <= found.alarm_tokens <= 108_000
    assert "second epoch begins at step 100" in found.reasons


def test_f33_a_resume_that_goes_back_to_the_first_instance_is_the_cause(tmp_path: Path) -> None:
    step = np.arange(1, 121)
    position = series("data/position", step, np.where(step < 100, 8.0 * step, 8.0 * (step - 100)))
    path = write(tmp_path / "t.csv", rows({"r": (*again(120), position)}))
    found = judged(path).verdict
    assert found.verdict == "memorization_suspected"
    assert found.reasons[1] == "data position went back to 0 at step 100"


def test_f33_a_new_epoch_without_an_alarm_is_no_reason(tmp_path: Path) -> None:
    step = np.arange(1, 151)
    flat = series(TRAIN, step, np.full(150, 2.5))
    counter = series("data/epoch", step, np.where(step < 100, 1.0, 2.0))
    path = write(tmp_path / "t.csv", rows({"r": (flat, again(150)[1], counter)}))
    found = judged(path).verdict
    assert found.verdict == "healthy"
    assert not any("epoch" in reason for reason in found.reasons)
