"""Files that cannot be read say what to do; blank lines and blanks around names do no harm."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from evalmon.errors import DataError
from evalmon.logs import arrays, tables
from evalmon.logs.table_files import header, unreadable

HEAD = "run,metric,step,tokens,value\n"
C4 = "eval/lm/c4_en-validation/ce_nats"
TRAIN = "train/ce_nats"
ROWS = f"r,{TRAIN},1,10,3\nr,{TRAIN},2,20,2.5\n"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as error:
        tables.read(path)
    return str(error.value).replace(str(path), "FILE")


def test_what_to_do_about_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    packed = gzip.compress((HEAD + ROWS * 99).encode())
    whole = tmp_path / "whole.parquet"
    parquet.write_table(pa.table({"metric": [TRAIN], "step": [1], "value": [3.0]}), whole)
    data = whole.read_bytes()
    remedies = {
        "latin.csv": ((HEAD + "\xe9" + ROWS).encode("latin-1"), "save it as UTF-8"),
        "cut.csv.gz": (packed[:-20], "a gzip file that is cut or damaged: copy it again"),
        "sum.csv.gz": (packed[:-8] + bytes(8), "a gzip file that is cut or damaged: copy it again"),
        "bad.csv.gz": (packed[:12] + b"\xff" * 9 + packed[21:], "cut or damaged: copy it again"),
        "cut.parquet": (data[: len(data) // 2], "a Parquet file that was cut, its end is missing"),
        "bad.parquet": (data[:4] + bytes(len(data) - 12) + data[-8:], "a damaged Parquet file"),
    }  # fmt: skip
    for name, (content, remedy) in remedies.items():
        message = refusal(write(tmp_path / name, content))
        assert message.startswith("FILE: cannot be read (")
        assert remedy in message, name
    denied = unreadable(tmp_path / "t.csv", PermissionError(13, "Permission denied"))
    assert str(denied).endswith(
        "t.csv: cannot be read (Permission denied); allow reading it (chmod u+r), or read it as a "
        "user who may"
    )


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", b"a," * (1 << 20))
    assert refusal(path) == (
        "FILE: line 1: no header ends within 1,048,576 characters; is it a table, with a line for "
        "each row?"
    )
    assert "no header ends within" in refusal(write(path, b"\n" * (2 << 20)))
    wide = ",".join(f"c{n}" for n in range(10_000))
    assert len(header(write(path, f"{wide}\n".encode()))) == 10_000


@pytest.mark.parametrize("above", ["\n", "\r\n\r\n", "  \n\n", "\ufeff\n"])
def test_blank_lines_above_the_header(tmp_path: Path, above: str) -> None:
    path = write(tmp_path / "t.csv", (above + HEAD + ROWS).encode())
    assert tables.read(path).curves[TRAIN].series.steps.tolist() == [1, 2]
    line = above.count("\n") + 3
    wrong = write(path, (above + HEAD + ROWS.replace("2.5", "x")).encode())
    assert refusal(wrong).startswith(f"FILE: line {line}: column 'value': 'x' is not a number")
    short = write(path, (above + HEAD + ROWS.replace(",2.5", "")).encode())
    assert refusal(short).startswith(f"FILE: line {line}: 4 cells where the header has 5")


def test_blanks_after_the_commas(tmp_path: Path) -> None:
    text = (HEAD + ROWS).replace(",", ", ") + f"r,{TRAIN} ,3,30,2.25\n"
    found = tables.read(write(tmp_path / "t.csv", text.encode()))
    assert found.curves[TRAIN].series.values.tolist() == [3.0, 2.5, 2.25]
    blank = write(tmp_path / "t.csv", (HEAD + "r, ,1,10,3\n").encode())
    assert refusal(blank) == (
        "FILE: line 2: column 'metric': empty, expected a name; correct or remove this row"
    )


def test_columns_with_empty_cells_become_arrays_without_pandas(tmp_path: Path) -> None:
    gaps = write(tmp_path / "gaps.csv", (HEAD + ROWS + f"r,{TRAIN},3,,\nr,{C4},2.0,,3\n").encode())
    binary = tmp_path / "gaps.parquet"
    columns = {
        "metric": [TRAIN, TRAIN, C4], "step": pa.array([1, 2, 2], pa.uint64()),
        "tokens": [10, None, None], "value": [3.0, None, 3.5],
    }  # fmt: skip
    parquet.write_table(pa.table(columns), binary)
    code = (
        "import sys; from pathlib import Path; from evalmon.logs import tables\n"
        "for path in sys.argv[1:]:\n"
        "    try: tables.read(Path(path), tokens_per_step=10)\n"
        "    except Exception as error: sys.exit(str(error))\n"
        "sys.exit('pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(gaps), str(binary)], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("pieces", [1, 3])
def test_cells_of_a_column_cut_out_of_another(pieces: int) -> None:
    held = pa.array([7.0, None, 1.5, None, 2.5, 9.0] * 3).slice(1, 16)
    column = pa.chunked_array([held] * pieces)
    expected = np.array([np.nan if cell is None else cell for cell in column.to_pylist()])
    np.testing.assert_array_equal(arrays.values_of(column, np.nan), expected)
    np.testing.assert_array_equal(arrays.empty_of(column), np.isnan(expected))
    assert not arrays.values_of(column, np.nan).flags.writeable
    flags = np.arange(11) % 3 == 0
    made = arrays.whole_column(np.arange(11), flags).to_pylist()
    assert made == [None if n % 3 == 0 else n for n in range(11)]
