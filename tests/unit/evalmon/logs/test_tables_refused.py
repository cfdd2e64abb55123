"""Tables that are refused: each message names the file, the place, the value and what to do."""

import gzip
from pathlib import Path

import pandas as pd
import pytest

from evalmon.errors import DataError
from evalmon.logs import tables

HEAD = "run,metric,step,tokens,value\n"
C4 = "eval/lm/c4_en-validation/ce_nats"
TRAIN = "train/ce_nats"


def table(folder: Path, rows: str, head: str = HEAD) -> Path:
    path = folder / "t.csv"
    path.write_text(head + rows, encoding="utf-8")
    return path


def refusal(path: Path, run: str | None = None, tokens_per_step: int | None = None) -> str:
    with pytest.raises(DataError) as error:
        tables.read(path, run, tokens_per_step=tokens_per_step)
    assert str(path) in str(error.value)
    return str(error.value).replace(str(path), "FILE")


REFUSED = {
    f"r,{TRAIN},1,10,abc\n": "FILE: line 2: column 'value': 'abc' is not a number, NaN or Infinity",
    f"r,{TRAIN},1,10,3\n\nr,{TRAIN},2,20,x\n": "FILE: line 4: column 'value': 'x' is not a number",
    f"r,{TRAIN},1.5,10,3\n": "FILE: line 2: column 'step': '1.5' is not a whole number",
    f"r,{TRAIN},1,10.5,3\n": "FILE: line 2: column 'tokens': '10.5' is not a whole number",
    f"r,{TRAIN},,10,3\n": "FILE: line 2: column 'step': empty, expected a whole number",
    f"r,{TRAIN},one,10,3\n": "FILE: line 2: column 'step': 'one' is not a whole number",
    f"r,{TRAIN},-1,10,3\n": f"FILE: line 2: step -1 of {TRAIN}: steps are whole numbers >= 0",
    f"r,{TRAIN},1,-10,3\n": f"FILE: line 2: -10 tokens at step 1 of {TRAIN}: tokens must be >= 0",
    f"r,{TRAIN},1,20,3\nr,{TRAIN},2,10,3\n":
        f"FILE: line 3: 10 tokens at step 2 of {TRAIN}, after 20 at step 1: tokens must be >= 0",
    f"r,{TRAIN},1,,3\n": f"FILE: line 2: step 1 of {TRAIN} has no tokens",
    f"r,{TRAIN},1,10,3\nr,{TRAIN},2,20\n": "FILE: line 3: 4 cells where the header has 5",
    "r,,1,10,3\n": "FILE: line 2: column 'metric': empty, expected a name",
    "r,train/ce_nat,1,10,3\n":
        "FILE: line 2: metric 'train/ce_nat' is not known, nor is any other of run 'r'; nearest "
        "are train/ce_nats",
    f"r,{TRAIN},1,10,3\nr,learning/loss,1,10,3\n":
        f"FILE: 'train/ce_nats' and 'learning/loss' are both {TRAIN}; keep one of them",
    f"r,{TRAIN},1,10,3\nr,{TRAIN},1,11,3\n":
        f"FILE: line 2 and line 3: step 1 of {TRAIN} twice, with value 3 (10 tokens) and value 3 "
        "(11 tokens), and no restart that goes on from there: remove one copy",
    f"r,{TRAIN},1000,10000,3\nr,{C4},1000,10,3\n":
        f"FILE: step 1000 is at 10 tokens for {C4} and at 10000 for {TRAIN}",
    f"r,{TRAIN},1,10,\n": "FILE: run 'r' has no row with a value",
    "": "FILE: no rows below the header",
    f"a,{TRAIN},1,10,3\nb,{TRAIN},1,10,3\n":
        "FILE: 2 runs and none named; give --run with one of a, b",
}  # fmt: skip


@pytest.mark.parametrize("rows", REFUSED)
def test_refusals_name_the_place_and_the_value(tmp_path: Path, rows: str) -> None:
    assert refusal(table(tmp_path, rows)).startswith(REFUSED[rows])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("run,metric,step,tokens,vale\n", "FILE: line 1: column value missing (nearest is 'vale')"),
        ("run;metric;step;tokens;value\n", "FILE: line 1: the separator is ';', use ','"),
        ("run\tmetric\tstep\tvalue\n", "FILE: line 1: the separator is a tab, use ','"),
        (
            "Run,Metric,Step,Tokens,Value\n",
            "FILE: column Run, Metric, Step, Tokens, Value: write the names of columns in lower",
        ),
        ("a;b,c\n", "FILE: line 1: column metric, step, value missing; found 'a;b, c'"),
        ("run,metric,step,step,value\n", "FILE: line 1: column 'step' stands there twice"),
    ],
)
def test_headers_that_do_not_do(tmp_path: Path, head: str, message: str) -> None:
    assert refusal(table(tmp_path, f"r,{TRAIN},1,10,3\n", head)).startswith(message)


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    path = table(tmp_path, f"alpha,{TRAIN},1,10,3\nbeta,{TRAIN},1,10,3\n")
    assert refusal(path, "alpa") == ("FILE: no run 'alpa'; nearest is 'alpha', of alpha, beta")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    missing = tmp_path / "none.csv"
    assert refusal(missing).startswith("FILE: cannot be read (No such file or directory)")
    assert refusal(table(tmp_path, "", "")).startswith("FILE: empty; give a table with a header")
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress((HEAD + f"r,{TRAIN},1,10,3\n" * 999).encode())[:-20])
    assert refusal(torn).startswith("FILE: cannot be read (")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and nothing more")
    assert refusal(broken).startswith("FILE: cannot be read (")
    latin = tmp_path / "latin.csv"
    latin.write_bytes(HEAD.encode() + f"\xe9,{TRAIN},1,10,3\n".encode("latin-1"))
    assert refusal(latin).startswith("FILE: cannot be read (")
    assert refusal(tmp_path).startswith("FILE: cannot be read (")


def test_parquet_refusals(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    frame = pd.DataFrame(
        {"run": "r", "metric": TRAIN, "step": [1.0, 2.5], "tokens": [1, 2], "value": [3.0, 2.0]}
    )
    frame.to_parquet(path)
    assert refusal(path).startswith("FILE: row 2: column 'step': '2.5' is not a whole number")
    frame.assign(step=[1, 2], value=["3", "2"]).to_parquet(path)
    assert "column 'value' holds" in refusal(path)
    frame.assign(step=[1, 2], tokens=[10, None]).to_parquet(path)
    assert refusal(path).startswith(f"FILE: row 2: step 2 of {TRAIN} has no tokens")


def parquet(folder: Path, **given: object) -> Path:
    import pyarrow as pa
    from pyarrow import parquet as files

    rows = {"run": ["r"] * 2, "metric": [TRAIN] * 2, "step": [1, 2], "tokens": [10, 20],
            "value": [3.0, 2.5]}  # fmt: skip
    path = folder / "t.parquet"
    files.write_table(pa.table({**rows, **given}), path)
    return path


def test_parquet_of_nothing_but_empty_cells(tmp_path: Path) -> None:
    path = parquet(tmp_path, tokens=[None, None])
    assert tables.read(path, tokens_per_step=7).curves[TRAIN].series.tokens.tolist() == [7, 14]
    assert refusal(path).startswith(f"FILE: row 1: step 1 of {TRAIN} has no tokens")
    assert refusal(parquet(tmp_path, value=[None, None])).startswith("FILE: run 'r' has no row")
    assert refusal(parquet(tmp_path, metric=[None, None])).startswith(
        "FILE: row 1: column 'metric': empty, expected a name"
    )


def test_parquet_without_rows_or_columns(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    pd.DataFrame({"run": [], "metric": [], "step": [], "value": []}).to_parquet(path)
    assert refusal(path) == "FILE: no rows; was the run logged yet?"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    assert refusal(path) == (
        "FILE: column metric, step, value missing; found 'a': a tidy table has the columns run, "
        "metric, step, tokens, value"
    )


def test_unsigned_numbers_of_parquet(tmp_path: Path) -> None:
    import pyarrow as pa

    large = pa.array([1 << 40, (1 << 63) - 1], pa.uint64())
    found = tables.read(parquet(tmp_path, tokens=large))
    assert found.curves[TRAIN].series.tokens.tolist() == [1 << 40, (1 << 63) - 1]
    path = parquet(tmp_path, tokens=pa.array([1, 1 << 63], pa.uint64()))
    assert refusal(path).startswith(
        "FILE: row 2: column 'tokens': '9223372036854775808' is not a whole number of at most "
        "9,223,372,036,854,775,807; correct or remove this row"
    )


def test_large_whole_numbers_of_csv(tmp_path: Path) -> None:
    rows = f"r,{TRAIN},1.0,,3\nr,{TRAIN},2,100000000000000001,3\n"
    series = tables.read(table(tmp_path, rows), tokens_per_step=10).curves[TRAIN].series
    assert series.tokens.tolist() == [10, 100000000000000001]  # not through a float
    assert refusal(table(tmp_path, f"r,{TRAIN},1,4194304000000000000000,3\n")).startswith(
        "FILE: line 2: column 'tokens': '4194304000000000000000' is not a whole number of at most "
        "9,223,372,036,854,775,807"
    )
    assert refusal(
        table(tmp_path, f"r,{TRAIN},100000000000000000,,3\n"), tokens_per_step=1000
    ).startswith(f"FILE: line 2: step 100000000000000000 of {TRAIN} times 1000 tokens per step")


def test_unknown_names_beside_known_ones_are_named_with_the_nearest(tmp_path: Path) -> None:
    names = ["perf/mfu", "eval/lm/c4_en/ce_nats", "eval/lm/pile-validation/PPL", "train/CE los"]
    rows = "".join(f"r,{name},1,10,3\n" for name in [TRAIN, *names])
    assert tables.read(table(tmp_path, rows)).notes[0] == (
        f"left out, not known: eval/lm/c4_en/ce_nats (nearest is {C4}), "
        "eval/lm/pile-validation/PPL (nearest is eval/lm/pile-validation/ce_nats), perf/mfu, "
        "train/CE los (nearest is train/CE loss)"
    )


def test_a_table_with_another_separator_is_told_from_other_files(tmp_path: Path) -> None:
    assert tables.meant(table(tmp_path, "", "run;metric;step;tokens;value\n"))
    assert tables.meant(table(tmp_path, "", "Metric,Step,Value\n"))
    assert not tables.meant(table(tmp_path, "", HEAD))
    assert not tables.meant(table(tmp_path, "", "some text; of another kind\n"))
