"""Columns of a CSV or Parquet file as arrays, read by pyarrow; every other reader's ground.

What cannot be read is refused with file, line, column, the cell itself and what to do.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evalmon.errors import DataError
from evalmon.logs import cells, table_files
from evalmon.logs.arrays import Column, empty_of, values_of, whole_column
from evalmon.logs.table_files import header, is_parquet, place, unreadable
from evalmon.types import FloatArray, IntArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Column",
    "Kind",
    "header",
    "is_parquet",
    "names_of",
    "numbers_of",
    "place",
    "read",
    "whole_of",
]

_FEW = 64  # names looked for one by one
Kind = Literal["name", "whole", "number"]
"""What a column holds: names (dictionary-encoded), whole numbers, or numbers."""

_BLOCK_BYTES = 1 << 20
_EXACT = 1 << 53
_LARGEST = (1 << 63) - 1


def read(path: Path, kinds: Mapping[str, Kind]) -> dict[str, Column]:
    """Read some columns, each in one pass of all cores.

    Args:
        path: CSV, gzipped CSV or Parquet.
        kinds: column -> what it holds; all of them are in the file's header.

    Returns:
        column -> pyarrow chunked array; empty cells of numbers are null.

    Raises:
        DataError: a column stands there twice, a cell is not what its column holds, a row has too
            few or too many cells, the file holds no row or cannot be read.
    """
    import pyarrow as pa

    found = header(path)
    for name in kinds:
        if found.count(name) > 1:
            raise DataError(f"{path}: line 1: column {name!r} stands there twice; remove one")
    try:
        _choose_memory()
        table = _parquet(path, kinds) if is_parquet(path) else _csv(path, kinds)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise unreadable(path, error) from error
    if table.num_rows == 0:
        where = "" if is_parquet(path) else " below the header"
        raise DataError(f"{path}: no rows{where}; was the run logged yet?")
    return {name: table.column(name) for name in kinds}


def _choose_memory() -> None:
    """Let pyarrow take memory in pieces it keeps: 0.3 s less in page faults for a full history."""
    import pyarrow as pa

    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def names_of(path: Path, name: str, column: Column) -> tuple[tuple[str, ...], IntArray]:
    """Return the names of a column by order of appearance, and each row's index into them.

    Raises:
        DataError: a cell is empty.
    """
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    encoded = column.unify_dictionaries().combine_chunks()
    if encoded.null_count:
        raise _refused(path, int(np.flatnonzero(empty_of(encoded))[0]), name, "", "a name")
    codes = values_of(encoded.indices)
    names = [str(item).strip() for item in encoded.dictionary.to_pylist()]
    if len(set(names)) < len(names):  # some differ by blanks alone
        once = {item: at for at, item in enumerate(dict.fromkeys(names))}
        codes = np.array([once[item] for item in names], codes.dtype)[codes]
        names = list(once)
    if "" in names and len(empty := np.flatnonzero(codes == names.index(""))):
        raise _refused(path, int(empty[0]), name, "", "a name")
    if len(names) <= _FEW:  # as they nearly always are, in order of appearance
        firsts = [int(np.argmax(codes == at)) for at in range(len(names))]
        if firsts == sorted(set(firsts)) and codes[firsts].tolist() == list(range(len(names))):
            return tuple(names), codes
    first = np.full(len(names), -1)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # the last write is the first row
    appearing = [int(i) for i in np.argsort(first) if first[i] >= 0]
    place_of = np.full(len(names), -1, codes.dtype)
    place_of[appearing] = np.arange(len(appearing))
    return tuple(names[i] for i in appearing), place_of[codes]


def whole_of(path: Path, name: str, column: Column, empty: int | None) -> IntArray:
    """Return a column of whole numbers; ``empty`` stands for an empty cell, None refuses it."""
    if column.null_count and empty is None:
        row = int(np.flatnonzero(empty_of(column))[0])
        raise _refused(path, row, name, "", "a whole number")
    return values_of(column, empty)


def numbers_of(column: Column) -> tuple[FloatArray, "np.ndarray[Any, np.dtype[np.bool_]] | None"]:
    """Return a column of numbers, and which cells are empty (NaN among the numbers)."""
    if column.null_count == 0:
        return values_of(column), None
    return values_of(column, float("nan")), empty_of(column)


def _csv(path: Path, kinds: Mapping[str, Kind]) -> "pa.Table":
    """Read columns of a CSV file; where a cell does not fit, say which."""
    import pyarrow as pa

    names = pa.dictionary(pa.int32(), pa.string())
    types = {"name": names, "whole": pa.int64(), "number": pa.float64()}
    try:
        return _parse(path, {name: types[kind] for name, kind in kinds.items()})
    except pa.ArrowInvalid:
        pass  # one cell in a million decides; look closer
    types["whole"] = pa.float64()  # 1000.0, as tables that once had gaps write it

    def text_of(name: str) -> Column:
        return _parse(path, {name: pa.string()}).column(name)

    try:
        table = _parse(path, {name: types[kind] for name, kind in kinds.items()})
    except pa.ArrowInvalid as error:
        text = _parse(path, {name: pa.string() for name in kinds}, find=True)
        for name, kind in kinds.items():
            _find_wrong(path, name, text.column(name), kind)
        raise unreadable(path, error) from error
    columns = {
        name: _whole(path, name, table.column(name), functools.partial(text_of, name))
        if kind == "whole"
        else table.column(name)
        for name, kind in kinds.items()
    }
    return pa.table(columns)


def _parse(path: Path, types: Mapping[str, Any], *, find: bool = False) -> "pa.Table":
    """Let pyarrow parse a CSV file; ``find`` names the line of a row of another length."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    def refuse(row: Any) -> str:
        wrong.append(row)
        return "skip"

    wrong: list[Any] = []
    begins = table_files.beginning(path)
    # The names come from our own reading of the header: an unnamed column gets one too.
    found = header(path)
    options = arrow_csv.ReadOptions(
        block_size=_BLOCK_BYTES,
        skip_rows=table_files.lines_above_header(path),
        use_threads=not find,
        encoding="utf-16" if begins[:2] in table_files.UTF16 else "utf8",
    )
    convert = arrow_csv.ConvertOptions(
        include_columns=[name for name in found if name in types],
        column_types=types,
        null_values=[""],
        strings_can_be_null=False,
    )
    parse = arrow_csv.ParseOptions(invalid_row_handler=refuse if find else None)
    stream = pa.input_stream(
        str(path), compression="gzip" if begins[:2] == table_files.GZIP else None
    )
    with stream:
        table = arrow_csv.read_csv(stream, options, parse, convert)
    if wrong:
        row = wrong[0]
        where = "a row" if row.number is None else f"line {row.number}"
        raise DataError(
            f"{path}: {where}: {row.actual_columns} cells where the header has "
            f"{row.expected_columns}: {str(row.text)[:60]!r}; complete or remove this row"
        )
    return table


def _find_wrong(path: Path, name: str, column: Column, kind: Kind) -> None:
    """Refuse the first cell of a column that is no number."""
    if kind == "name":
        return
    expected = "a whole number" if kind == "whole" else "a number, NaN or Infinity"
    for row, cell in enumerate(column.to_pylist()):
        if cell and not cells.is_number(cell):
            raise _refused(path, row, name, cell, expected)


def _whole(path: Path, name: str, column: Column, text_of: Callable[[], Column]) -> Column:
    """Turn floating-point numbers into whole ones; refuse the first that is not whole.

    Those too large to be exact are read from their cells, by ``text_of``.
    """
    values, empty = numbers_of(column)
    there = np.ones(len(values), np.bool_) if empty is None else ~empty
    unclear = np.flatnonzero(there & ~((np.abs(values) < _EXACT) & (values == np.rint(values))))
    whole = np.where(there, values, 0.0)
    whole[unclear] = 0.0
    exact = whole.astype(np.int64)
    text = text_of().to_pylist() if len(unclear) else []
    for row in unclear.tolist():
        cell = str(text[row])
        number = cells.whole(cell)
        if number is None:
            raise _refused(path, row, name, cell, "a whole number")
        if abs(number) > _LARGEST:
            raise _refused(path, row, name, cell, f"a whole number of at most {_LARGEST:,}")
        exact[row] = number
    return whole_column(exact, empty)


def _parquet(path: Path, kinds: Mapping[str, Kind]) -> "pa.Table":
    """Read columns of a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    names = [name for name, kind in kinds.items() if kind == "name"]
    schema = table_files.parquet_schema(path)
    text = [name for name in names if not pa.types.is_dictionary(schema.field(name).type)]
    # Not read_table, which imports pandas and the dataset reader.
    with parquet.ParquetFile(path, memory_map=True, read_dictionary=text) as file:
        table = file.read(columns=list(kinds))
    if table.num_rows == 0:  # of a type that pandas guesses
        return table
    return pa.table({name: _typed(path, name, table.column(name), kinds[name]) for name in kinds})


def _typed(path: Path, name: str, column: Column, kind: Kind) -> Column:
    """Bring a Parquet column to the type its kind needs."""
    import pyarrow as pa

    kind_of = column.type
    if pa.types.is_null(kind_of):  # nothing but empty cells
        empty = {"name": pa.string(), "whole": pa.int64(), "number": pa.float64()}
        return column.cast(empty[kind])
    if kind == "name":
        value = kind_of.value_type if pa.types.is_dictionary(kind_of) else kind_of
        if pa.types.is_string(value) or pa.types.is_large_string(value):
            return column
    elif (
        pa.types.is_integer(kind_of)
        or pa.types.is_floating(kind_of)
        or pa.types.is_decimal(kind_of)
    ):
        if kind_of == (pa.float64() if kind == "number" else pa.int64()):
            return column  # a cast, even to the same type, imports pyarrow.compute
        if kind == "number":
            return column.cast(pa.float64())
        if pa.types.is_uint64(kind_of):
            over = np.flatnonzero(values_of(column, 0) > np.uint64(_LARGEST))
            for row in over[:1].tolist():
                cell = str(column[row].as_py())
                raise _refused(path, row, name, cell, f"a whole number of at most {_LARGEST:,}")
        if pa.types.is_integer(kind_of):
            return column.cast(pa.int64())
        return _whole(path, name, column.cast(pa.float64()), lambda: column)
    raise DataError(
        f"{path}: column {name!r} holds {kind_of}, expected "
        f"{'text' if kind == 'name' else 'numbers'}; write it with that type"
    )


def _refused(path: Path, row: int, name: str, cell: str, expected: str) -> DataError:
    """Return the refusal of one cell."""
    found = f"{cell[:60]!r} is not {expected}" if cell else f"empty, expected {expected}"
    remedy = cells.remedy(name.strip(), cell, is_whole="whole" in expected)
    return DataError(f"{path}: {place(path, row)}: column {name!r}: {found}; {remedy}")
