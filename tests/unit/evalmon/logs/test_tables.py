"""Tidy tables: what is read, what is set aside, and what is refused."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalmon.errors import ConfigError, DataError
from evalmon.logs import tables
from evalmon.types import RunCurves, Sampling

CURVES = Path(__file__).parents[5] / "shared" / "curves"
HEAD = "run,metric,step,tokens,value\n"
C4 = "eval/lm/c4_en-validation/ce_nats"
TRAIN = "train/ce_nats"


def table(folder: Path, rows: str, head: str = HEAD, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(head + rows, encoding="utf-8")
    return path


def steps_table(folder: Path, steps: list[int], values: list[float] | None = None) -> Path:
    values = values or [3.0 - 0.001 * step for step in steps]
    rows = zip(steps, values, strict=True)
    return table(folder, "".join(f"r,{TRAIN},{step},{step * 10},{value}\n" for step, value in rows))


def points(curves: RunCurves, metric: str = TRAIN) -> list[tuple[int, int, float]]:
    series = curves.curves[metric].series
    return list(
        zip(series.steps.tolist(), series.tokens.tolist(), series.values.tolist(), strict=True)
    )


def refusal(path: Path, run: str | None = None, tokens_per_step: int | None = None) -> str:
    with pytest.raises(DataError) as error:
        tables.read(path, run, tokens_per_step=tokens_per_step)
    assert str(path) in str(error.value)
    return str(error.value).replace(str(path), "FILE")


def test_a_table_becomes_curves(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        f"a,{TRAIN},1,10,3.5\na,{TRAIN},2,20,3.25\nb,{TRAIN},1,10,9\na,{C4},2,20,3.75\n",
    )
    assert tables.runs(path) == ("a", "b")
    found = tables.read(path, "a")
    assert (found.name, found.source, found.tokens_per_step) == ("a", str(path), 10)
    assert points(found) == [(1, 10, 3.5), (2, 20, 3.25)]
    assert points(found, C4) == [(2, 20, 3.75)]
    assert (found.seams, found.nonfinite, found.superseded, found.notes) == ((), (), 0, ())
    assert set(tables.read_all(path)) == {"a", "b"}
    assert points(tables.read_all(path, ["b"])["b"]) == [(1, 10, 9.0)]


@pytest.mark.parametrize("form", ["csv", "gz", "parquet", "bom", "crlf", "utf-16", "quoted"])
def test_every_form_reads_alike(tmp_path: Path, form: str) -> None:
    text = HEAD + f"é,{TRAIN},1,10,3.5\né,{TRAIN},2,20,NaN\né,{TRAIN},3,30,3.25\n"
    path = tmp_path / ("t.parquet" if form == "parquet" else "t.csv")
    if form == "parquet":
        frame = pd.DataFrame(
            {"run": "é", "metric": TRAIN, "step": [1, 2, 3], "tokens": [10, 20, 30]}
        )
        import pyarrow as pa
        from pyarrow import parquet

        whole = pa.Table.from_pandas(frame).append_column("value", pa.array([3.5, np.nan, 3.25]))
        parquet.write_table(whole, path)
    elif form == "gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif form == "quoted":
        path.write_text(text.replace("é", '"é"').replace(TRAIN, f'"{TRAIN}"'), encoding="utf-8")
    else:
        text = text.replace("\n", "\r\n") if form == "crlf" else text
        encoding = {"bom": "utf-8-sig", "utf-16": "utf-16"}.get(form, "utf-8")
        path.write_bytes(text.encode(encoding))
    found = tables.read(path, "é")
    assert points(found) == [(1, 10, 3.5), (3, 30, 3.25)]
    assert found.nonfinite == ((2, TRAIN),)


def test_one_run_needs_no_name_and_no_column(tmp_path: Path) -> None:
    path = table(tmp_path, f"{TRAIN},1,10,3.5\n", "metric,step,tokens,value\n", "mine.csv")
    assert tables.runs(path) == ("mine",)
    assert tables.read(path).name == "mine"


def test_names_of_other_trainers(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "r,learning/loss,1,10,3.5\nr,eval/avg_loss,1,10,3\nr,perf/step_time_seconds,1,10,2\n",
    )
    found = tables.read(path)
    assert set(found.curves) == {TRAIN, C4}
    assert found.curves[TRAIN].facts["z_loss"] == "included"
    assert found.notes == (
        "eval/avg_loss names no text: taken as C4's validation set",
        "left out, not known: perf/step_time_seconds",
    )


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_200_000_rows_agree_with_pandas(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(6)
    count = 200_000
    step = np.arange(count) // 4 + 1
    frame = pd.DataFrame(
        {
            "run": np.where(np.arange(count) % 2 == 0, "a", "b"),
            "metric": np.where(np.arange(count) % 4 < 2, TRAIN, C4),
            "step": step,
            "tokens": step * 4_194_304,
            "value": rng.normal(3, 1, count),
        }
    )
    path = tmp_path / f"t.{form}"
    if form == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    for run, curves in tables.read_all(path).items():
        for metric, curve in curves.curves.items():
            expected = frame[(frame.run == run) & (frame.metric == metric)]
            assert len(expected) == 50_000
            assert np.array_equal(curve.series.steps, expected.step)
            assert np.array_equal(curve.series.tokens, expected.tokens)
            assert np.array_equal(curve.series.values, expected.value)
            assert curve.sampling is Sampling.FULL
        assert curves.tokens_per_step == 4_194_304


def test_of_one_trainers_two_names_the_first_counts_and_alone_the_other(tmp_path: Path) -> None:
    loss = "r,learning/loss,1,10,2.75\nr,learning/loss,2,20,2.5\n"
    model = "r,learning/lm_loss,1,10,2.25\nr,learning/lm_loss,2,20,2.0\n"
    both = tables.read(table(tmp_path, model + loss))
    assert points(both) == [(1, 10, 2.75), (2, 20, 2.5)]
    assert "1 name left out beside others of the same metrics" in both.notes
    alone = tables.read(table(tmp_path, model))
    assert points(alone) == [(1, 10, 2.25), (2, 20, 2.0)]


@given(st.permutations(list(range(1, 16))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_the_order_of_rows_does_not_matter(tmp_path: Path, order: list[int]) -> None:
    shuffled = tables.read(steps_table(tmp_path, order))
    whole = tables.read(steps_table(tmp_path, sorted(order)))
    assert points(shuffled) == points(whole)
    assert (shuffled.seams, shuffled.superseded) == ((), 0)


@given(st.permutations(range(12)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_metrics_in_blocks_or_in_turns_read_alike(tmp_path: Path, order: list[int]) -> None:
    rows = [
        f"a,{metric},{step},{step * 10},{step / 7}\n" for metric in (TRAIN, C4) for step in range(6)
    ]
    blocks = tables.read(table(tmp_path, "".join(rows)))
    turns = tables.read(table(tmp_path, "".join(rows[n] for n in order)))
    for metric in (TRAIN, C4):
        assert (
            points(turns, metric)
            == points(blocks, metric)
            == [(step, step * 10, step / 7) for step in range(6)]
        )


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = steps_table(tmp_path, [1, 2])
    assert len(points(tables.read(path))) == 2
    steps_table(tmp_path, [1, 2, 3])
    assert len(points(tables.read(path))) == 3


def test_reversed_rows_are_sorted_and_said(tmp_path: Path) -> None:
    found = tables.read(steps_table(tmp_path, [5, 4, 3, 2, 1]))
    assert [step for step, _, _ in points(found)] == [1, 2, 3, 4, 5]
    assert found.notes == (f"{TRAIN}: rows are in reversed order of step, and were sorted",)


# F29: the checkpoint is at 200, the crash at 212; 201 to 250 come later with loss +0.01.
OLD = [(step, 3.0, 1000.0 + step) for step in range(1, 213)]
NEW = [(step, 3.01, 5000.0 + step) for step in range(201, 251)]


def logged(folder: Path, rows: list[tuple[int, float, float]], *, clock: bool) -> Path:
    head = HEAD if not clock else HEAD.replace("\n", ",wall_time\n")
    lines = "".join(
        f"r,{TRAIN},{s},{s * 10},{v}" + (f",{t}\n" if clock else "\n") for s, v, t in rows
    )
    return table(folder, lines, head)


@pytest.mark.parametrize(
    ("rows", "clock"), [(OLD + NEW, False), (OLD + NEW, True), (NEW + OLD, True)]
)
def test_steps_logged_again_after_a_restart(
    tmp_path: Path, rows: list[tuple[int, float, float]], clock: bool
) -> None:
    found = tables.read(logged(tmp_path, rows, clock=clock))
    expected = [(s, s * 10, 3.0 if s <= 200 else 3.01) for s in range(1, 251)]
    assert points(found) == expected
    assert (found.seams, found.superseded) == ((200,), 12)
    assert "at 12 steps logged twice the later value is +0.01" in found.notes[0]


def test_segments_in_reversed_order_without_a_clock_are_refused(tmp_path: Path) -> None:
    message = refusal(logged(tmp_path, NEW + OLD, clock=False))
    assert message == (
        "FILE: line 2 and line 252: step 201 of train/ce_nats twice (the first of 12 such steps), "
        "with value 3.01 (2010 tokens) and value 3 (2010 tokens), and no restart that goes on from "
        "there: remove one copy; if a restart logged it again, add a column 'wall_time' in seconds "
        "since the epoch (in an export of W&B '_timestamp')"
    )


def test_evaluations_of_the_abandoned_branch_do_not_count(tmp_path: Path) -> None:
    def rows(*parts: tuple[str, list[int], float]) -> str:
        return "".join(
            f"r,{metric},{step},{step * 10},{value}\n"
            for metric, steps, value in parts
            for step in steps
        )

    text = rows(
        (TRAIN, list(range(1, 13)), 3.0), (C4, [4, 8, 12], 4.0),  # crash at 12, checkpoint 6
        (TRAIN, list(range(7, 11)), 3.1), (C4, [8], 4.1),
    )  # fmt: skip
    found = tables.read(table(tmp_path, text))
    assert points(found, C4) == [(4, 40, 4.0), (8, 80, 4.1)]
    assert [step for step, _, _ in points(found)] == list(range(1, 11))
    assert (found.seams, found.superseded) == ((6,), 6 + 2)
    # The same, each metric's rows together: 12 is beyond what the run has come to again.
    grouped = rows(
        (TRAIN, [*range(1, 13), *range(7, 11)], 3.0), (C4, [4, 8, 12], 4.0), (C4, [8], 4.1)
    )
    found = tables.read(table(tmp_path, grouped))
    assert points(found, C4) == [(4, 40, 4.0), (8, 80, 4.1)]


def test_an_evaluation_of_the_abandoned_branch_that_was_not_made_again(tmp_path: Path) -> None:
    steps = [(TRAIN, n) for n in range(1, 13)] + [(C4, 4), (C4, 8)]  # checkpoint 6, crash at 12
    steps += [(TRAIN, n) for n in range(7, 15)] + [(C4, 12)]
    rows = "".join(
        f"r,{metric},{n},{n * 10},3\n" for metric, n in sorted(steps[:14], key=lambda x: x[1])
    )
    rows += "".join(f"r,{metric},{n},{n * 10},3\n" for metric, n in steps[14:])
    found = tables.read(table(tmp_path, rows))
    assert [step for step, _, _ in points(found, C4)] == [4, 12]
    assert (found.seams, found.superseded) == ((6,), 6 + 1)


def test_late_evaluations_are_accepted(tmp_path: Path) -> None:
    rows = "".join(f"r,{TRAIN},{n},{n * 10},3,{n}\n" for n in range(1, 11))
    rows += f"r,{C4},4,40,4,6\nr,{C4},8,80,4,8\nr,{C4},6,60,4,20\n"
    found = tables.read(table(tmp_path, rows, HEAD.replace("\n", ",wall_time\n")))
    assert [step for step, _, _ in points(found, C4)] == [4, 6, 8]
    assert (found.seams, found.superseded) == ((), 0)


def test_rows_that_repeat_another_are_dropped(tmp_path: Path) -> None:
    found = tables.read(steps_table(tmp_path, [1, 2, 2, 3], [3.0, 2.5, 2.5, 2.25]))
    assert points(found) == [(1, 10, 3.0), (2, 20, 2.5), (3, 30, 2.25)]
    assert found.notes == (f"{TRAIN}: 1 rows that repeat another were left out",)


@pytest.mark.parametrize(
    ("steps", "places"),
    [([1, 2, 2, 3], "line 3 and line 4"), ([3, 1, 4, 2, 3], "line 2 and line 6")],
)
def test_a_step_twice_with_another_value_is_refused(
    tmp_path: Path, steps: list[int], places: str
) -> None:
    values = [3.0 - 0.1 * n for n in range(len(steps))]
    message = refusal(steps_table(tmp_path, steps, values))
    assert f"{places}: step {max(set(steps), key=steps.count)} of {TRAIN} twice" in message


def test_what_is_no_number_is_set_aside(tmp_path: Path) -> None:
    rows = "".join(
        f"r,{TRAIN},{n},{n * 10},{value}\n"
        for n, value in enumerate(["2.5", "NaN", "-Infinity", "1e999", "inf", "2.25"], start=1)
    )
    rows += f"r,{C4},1,10,nan\nr,{C4},2,20,nan\nr,optim/lr,2,20,0.0001\n"
    found = tables.read(table(tmp_path, rows))
    assert points(found) == [(1, 10, 2.5), (6, 60, 2.25)]
    assert points(found, "optim/lr") == [(2, 20, 0.0001)]
    assert found.nonfinite == (
        (1, C4), (2, C4), (2, TRAIN), (3, TRAIN), (4, TRAIN), (5, TRAIN)
    )  # fmt: skip
    assert C4 not in found.curves
    assert found.notes[0] == (
        f"{TRAIN}: 4 values are NaN or infinite, from step 2 to 5; they are left out"
    )
    assert found.notes[1] == (
        f"{C4}: all 2 values are NaN or infinite, from step 1 to 2: it has no curve"
    )


def test_a_restart_takes_a_nan_of_the_old_branch_with_it(tmp_path: Path) -> None:
    found = tables.read(
        steps_table(tmp_path, [1, 2, 3, 2, 3, 4], [3.0, float("nan"), 9.0, 2.9, 2.8, 2.7])
    )
    assert found.nonfinite == ()
    assert [value for _, _, value in points(found)] == [3.0, 2.9, 2.8, 2.7]


def test_empty_values_are_left_out_and_said(tmp_path: Path) -> None:
    found = tables.read(table(tmp_path, f"r,{TRAIN},1,10,\nr,{TRAIN},2,20,3\n"))
    assert points(found) == [(2, 20, 3.0)]
    (note,) = found.notes
    assert note == (
        "1 rows without a value were left out, the first in line 2; write NaN for a value that is "
        "no number"
    )
    assert found.nonfinite == ()


def test_tokens_from_steps(tmp_path: Path) -> None:
    without = table(tmp_path, f"r,{TRAIN},1,3\nr,{TRAIN},2,3\n", "run,metric,step,value\n")
    assert points(tables.read(without, tokens_per_step=7)) == [(1, 7, 3.0), (2, 14, 3.0)]
    holes = table(tmp_path, f"r,{TRAIN},1,7,3\nr,{TRAIN},2,,3\n", name="h.csv")
    assert points(tables.read(holes, tokens_per_step=7)) == [(1, 7, 3.0), (2, 14, 3.0)]
    own = steps_table(tmp_path, [1, 2])
    found = tables.read(own, tokens_per_step=7)
    assert points(found)[1][1] == 20
    assert found.notes == ("tokens are the file's own, not 7 a step as given",)
    with pytest.raises(ConfigError, match="above 0, got 0"):
        tables.read(own, tokens_per_step=0)


def test_a_changing_batch_has_no_tokens_per_step(tmp_path: Path) -> None:
    found = tables.read(table(tmp_path, f"r,{TRAIN},1,10,3\nr,{TRAIN},2,20,3\nr,{TRAIN},3,40,3\n"))
    assert found.tokens_per_step is None


def test_whole_numbers_written_as_floats(tmp_path: Path) -> None:
    found = tables.read(
        table(tmp_path, f"r,{TRAIN},1.0,1e1,3\nr,{TRAIN},2.0,,3\n"), tokens_per_step=10
    )
    assert points(found) == [(1, 10, 3.0), (2, 20, 3.0)]


def test_step_0_and_0_tokens_are_kept(tmp_path: Path) -> None:
    assert points(tables.read(steps_table(tmp_path, [0, 1], [11.0, 10.0])))[0] == (0, 0, 11.0)


def test_thinned_is_the_users_word(tmp_path: Path) -> None:
    steps = [1, 2, 5, 9, 30, 31, 33, 60]
    path = steps_table(tmp_path, steps)
    found = tables.read(path)
    assert found.curves[TRAIN].sampling is Sampling.SAMPLED
    assert found.notes[0].startswith(f"{TRAIN} is sampled: 8 points of steps 1 to 60")
    assert tables.read(path, thinned=True).curves[TRAIN].sampling is Sampling.THINNED


REAL = {
    "olmo2_7b_stage1_evals.csv.gz": (1, 20, 18500),
    "olmo2_7b_stage1_train.csv": (1, 1, 356),
    "olmo3_7b_stage1_train_and_evals.csv": (1, 4, 1264),
    "olmo_ladder_pairs.csv.gz": (11, 10, 6636),
    "repeated_epochs_train_vs_holdout.csv": (27, 2, 844),
    "gpt2_124m_one_pass_pair.csv.gz": (2, 3, 2195),
}


@pytest.mark.parametrize("name", REAL)
def test_the_published_curves_are_read_whole(name: str) -> None:
    path = CURVES / name
    if not path.exists():
        pytest.skip("the published curves are not beside this checkout")
    found = tables.read_all(path)
    curves = [curve for run in found.values() for curve in run.curves.values()]
    count = sum(len(curve.series) for curve in curves)
    assert (len(found), len({c.series.metric for c in curves}), count) == REAL[name]
    assert not any(run.seams or run.nonfinite or run.superseded for run in found.values())
    irregular = {c.series.metric for c in curves if c.sampling is Sampling.SAMPLED}
    thinned_by_others = name.startswith(("olmo2_7b_stage1_train", "olmo3"))
    assert irregular == ({TRAIN} if thinned_by_others else set())


def test_runs_come_by_order_of_appearance_whatever_the_dictionary(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    names = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2, 0]), ["a", "unused", "b"])
    columns = {
        "run": names, "metric": [TRAIN] * 4, "step": [1, 1, 2, 2], "tokens": [1, 1, 2, 2],
        "value": [3.0, 4.0, 2.0, 3.5],
    }  # fmt: skip
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table(columns), path)
    assert tables.runs(path) == ("b", "a")
    assert points(tables.read(path, "a")) == [(1, 1, 4.0), (2, 2, 3.5)]
