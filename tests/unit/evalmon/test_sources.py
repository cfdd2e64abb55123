"""Whatever RUN can be is recognized by its content and opened as one thing."""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from evalmon import reference, sources
from evalmon.errors import ConfigError, DataError, StoreError
from evalmon.sources import Kind, Reading, Source, open_pair
from evalmon.types import Curve, RunCurves
from tests import synthetic_store

from .drawn_runs import C4, COLUMNS, TRAIN, drawn, rows, write


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "runs.csv", rows({"a/one": drawn(1), "b:two": drawn(2)}))


def open_run(name: str, reading: Reading) -> Source:
    """Open a run that is judged alone."""
    source, other = open_pair(name, "", reading)
    assert other is None
    return source


def test_a_table_is_known_by_its_columns_whatever_its_name_and_packing(
    table: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(table.read_bytes()))
    binary = tmp_path / "binary"
    names, metrics, steps, tokens, values = zip(*rows({"a/one": drawn(1)}), strict=True)
    columns = (names, metrics, steps, tokens, values)
    pyarrow.parquet.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), binary)
    opened = [open_run(str(path), Reading("a/one")) for path in (table, packed, binary)]
    for source in opened:
        assert (source.kind, source.name) == (Kind.TABLE, "a/one")
        for metric in (TRAIN, C4):
            ours, first = (item.curves.curves[metric].series for item in (source, opened[0]))
            np.testing.assert_array_equal(ours.values, first.values)
            np.testing.assert_array_equal(ours.tokens, first.tokens)


def test_a_run_is_picked_by_option_or_after_a_colon_also_where_names_hold_one(table: Path) -> None:
    assert open_run(str(table), Reading("b:two")).name == "b:two"
    assert open_run(f"{table}:b:two", Reading()).name == "b:two"
    with pytest.raises(ConfigError, match="two runs are named"):
        open_run(f"{table}:b:two", Reading("a/one"))
    for unknown in (f"{table}:three", str(table)):
        with pytest.raises((ConfigError, DataError), match=r"a/one.*b:two"):
            open_run(unknown, Reading())


def test_a_reference_is_looked_for_beside_the_run_first(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, beside = open_pair(str(table), "b:two", Reading("a/one"))
    assert beside is not None
    assert (beside.kind, beside.place, beside.name) == (Kind.TABLE, str(table), "b:two")
    curves = RunCurves("published", "", {C4: Curve(drawn(5)[1])})
    monkeypatch.setattr(reference, "load", lambda name: curves)
    _, found = open_pair(str(table), "published", Reading("a/one"))
    assert found is not None
    assert (found.kind, found.curves) == (Kind.REFERENCE, curves)


def test_a_reference_of_another_file_is_read_beside_the_run(table: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.csv", rows({"r": drawn(7)}))
    run, read = open_pair(f"{table}:a/one", str(other), Reading())
    assert read is not None
    assert (run.name, read.name, read.place) == ("a/one", "r", str(other))
    np.testing.assert_array_equal(read.curves.curves[TRAIN].series.values, drawn(7)[0].values)
    other.write_text("hello\n")
    with pytest.raises(DataError, match=r"other\.csv: looks like text"):
        open_pair(f"{table}:a/one", str(other), Reading())
    with pytest.raises(DataError, match="no run 'c'"):  # the run's own error comes first
        open_pair(f"{table}:c", str(other), Reading())


def test_a_run_is_never_its_own_reference(table: Path) -> None:
    for name in ("a/one", f"{table}:a/one"):
        with pytest.raises(ConfigError, match="is RUN itself"):
            open_pair(f"{table}:a/one", name, Reading())


def test_an_unknown_reference_names_what_is_beside_the_run(table: Path) -> None:
    for name, known in (("nope", "no reference 'nope'"), ("a/two", "no such file or folder")):
        with pytest.raises(ConfigError, match=rf"{known}.*beside RUN are a/one, b:two"):
            open_pair(f"{table}:a/one", name, Reading())


@pytest.mark.parametrize(
    ("content", "look"),
    [
        (b"", "an empty file"),
        (b"\n \n", "an empty file"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "binary data"),
        (b'{"event": "start"}\n', "JSON lines"),
        (b"epoch,loss\n1,2.0\n", "columns 'epoch,loss', where metric, step and value are needed"),
        (b"hello\n", "text that begins with 'hello'"),
    ],
)
def test_a_file_that_is_none_of_the_kinds_is_refused_by_its_look(
    tmp_path: Path, content: bytes, look: str
) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        open_run(str(path), Reading())
    assert look in str(refused.value)
    assert sources.POSSIBLE in str(refused.value)


def test_a_cut_gzip_file_is_refused(table: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(table.read_bytes())[:2000])
    with pytest.raises(DataError, match=r"cut\.csv\.gz"):
        open_run(str(cut), Reading("a/one"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with both synthetic runs, and their run directories beside it."""
    folder = tmp_path_factory.mktemp("runs")
    place = synthetic_store.build(folder)
    for name in ("clean", "double-sharded"):
        synthetic_store.describe(folder, name).save()
    return place


def test_a_stored_run_is_one_thing_however_it_is_named(store: Path) -> None:
    by_folder = open_run(str(store.parent / "clean"), Reading())
    by_name = open_run("clean", Reading(store=str(store)))
    by_file = open_run(str(store), Reading("clean"))
    assert [item.kind for item in (by_folder, by_name, by_file)] == [
        Kind.DIRECTORY, Kind.STORED, Kind.STORED,
    ]  # fmt: skip
    for source in (by_folder, by_name, by_file):
        assert source.name == "clean"
        assert source.curves.planned_tokens == 200 * 2_048
        assert source.curves.recipe == "0123456789abcdef"
        train = source.curves.curves[TRAIN].series
        held = source.curves.curves[synthetic_store.HOLDOUT].series
        assert train.steps.tolist() == list(range(1, 201))
        assert held.steps.tolist() == list(range(0, 201, 10))
        assert held.values[0] == synthetic_store.holdout_nats(0)
        assert sum(name.startswith("eval/downstream/") for name in source.curves.curves) == 8
    _, other = open_pair(str(store.parent / "clean"), "double-sharded", Reading())
    assert other is not None
    assert (other.kind, other.name) == (Kind.STORED, "double-sharded")


def test_a_store_of_several_runs_asks_for_one(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 runs; --run one of \['clean', 'double-sharded'\]"):
        open_run(str(store), Reading())
    with pytest.raises(StoreError, match="no run 'nope'"):
        open_run("nope", Reading(store=str(store)))


def test_a_run_directory_holds_one_run_and_needs_a_store(store: Path, tmp_path: Path) -> None:
    clean = store.parent / "clean"
    with pytest.raises(ConfigError, match="holds the run 'clean', not --run 'other'"):
        open_run(str(clean), Reading("other"))
    moved = Path(shutil.copytree(clean, tmp_path / "clean"))
    with pytest.raises(StoreError, match="no such store"):
        open_run(str(moved), Reading())
    assert open_run(str(moved), Reading(store=str(store))).name == "clean"


def test_a_stored_run_whose_folder_is_gone_keeps_its_scores_and_says_so(tmp_path: Path) -> None:
    place = synthetic_store.build(tmp_path, steps=(0, 100, 200))
    shutil.rmtree(tmp_path / "clean")
    source = open_run("clean", Reading(store=str(place)))
    assert TRAIN not in source.curves.curves
    assert len(source.curves.curves[synthetic_store.HOLDOUT].series) == 3
    assert "is gone: its train loss is not known" in source.curves.notes[0]


def test_a_store_is_refused_with_a_run_that_has_none(table: Path, tmp_path: Path) -> None:
    for name in (f"{table}:b:two", str(write(tmp_path / "one.csv", rows({"r": drawn(1)})))):
        with pytest.raises(ConfigError, match=r"--store 'some.sqlite'.*is a table.*leave out"):
            open_run(name, Reading(store="some.sqlite"))


def chart(path: Path) -> Path:
    """A W&B chart of the runs a and b."""
    names = ["train/CE loss", "eval/lm/c4_en-validation/CE loss", "throughput/total tokens"]
    head = ["Step", *(f"{run} - {name}" for run in "ab" for name in names[:2])]
    lines = [",".join(f'"{name}"' for name in head)]
    lines += [f"{step},{3 - step / 100},3.5,{2.9 - step / 100},3.4" for step in range(1, 21)]
    path.write_text("\n".join(lines) + "\n")
    return path


def log(path: Path) -> Path:
    """What two processes of MaxText printed, one after the other, as the runs a and b."""
    lines: list[str] = []
    for run, loss in (("a", 3.0), ("b", 2.9)):
        lines.append(f"Config param run_name: {run}")
        lines += [f"completed step: {n}, seconds: 1.0, loss: {loss}" for n in range(20)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("make", [chart, log])
def test_a_run_beside_is_found_in_every_kind_of_file_that_holds_several(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / "several")
    for name in ("a", f"{path}:a"):
        run, beside = open_pair(str(path), name, Reading("b", tokens_per_step=10))
        assert beside is not None
        assert (run.name, beside.name, beside.place) == ("b", "a", str(path))
        apart = (item.curves.curves[TRAIN].series.values[0] for item in (beside, run))
        assert round(next(apart) - next(apart), 6) == 0.1
    with pytest.raises(ConfigError, match=r"no reference 'z'.*beside RUN are a, b"):
        open_pair(str(path), "z", Reading("b", tokens_per_step=10))
    with pytest.raises(ConfigError) as refused:
        open_pair(str(path), str(path), Reading("b", tokens_per_step=10))
    assert str(refused.value) == (
        f"--reference {path}: 2 runs and none named; name one as --reference {path}:a; there are "
        "a, b"
    )


def test_a_reference_file_of_several_runs_says_how_one_is_named(table: Path, store: Path) -> None:
    for other, first in ((table, "a/one"), (store, "clean")):
        with pytest.raises(ConfigError, match=rf"as --reference {other}:{first}; there are"):
            open_pair(f"{table}:b:two", str(other), Reading())


def test_a_pipe_is_refused_before_it_is_read(table: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for run, other in ((str(pipe), ""), (f"{table}:b:two", str(pipe)), ("/dev/null", "")):
        with pytest.raises(ConfigError, match=r"not a regular file, .* save what it gives"):
            open_pair(run, other, Reading())


def test_the_empty_name_is_no_folder() -> None:
    with pytest.raises(ConfigError, match="the name of RUN is empty"):
        open_pair("", "", Reading())


def test_blank_lines_above_a_header_hide_no_table(table: Path, tmp_path: Path) -> None:
    blank = tmp_path / "blank.csv"
    blank.write_text("\n \n" + table.read_text())
    assert open_run(str(blank), Reading("a/one")).kind is Kind.TABLE
