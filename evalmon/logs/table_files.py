"""Files of tables before their rows: header, packing, places, and why one cannot be read."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from evalmon.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "GZIP",
    "UTF16",
    "beginning",
    "header",
    "is_parquet",
    "lines_above_header",
    "parquet_schema",
    "place",
    "unreadable",
]

PARQUET, GZIP = b"PAR1", b"\x1f\x8b"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
_LONGEST = 1 << 20
"""Characters within which the header ends; a table has a handful of columns, or some thousands."""
_DAMAGED = ("zlib", "compressed stream", "CRC", "gzip")


def header(path: Path) -> tuple[str, ...]:
    """Return the names of a file's columns as they stand there.

    Args:
        path: CSV, gzipped CSV or Parquet; told apart by content, not by name.

    Raises:
        DataError: the file is missing, empty, or cannot be read.
    """
    if is_parquet(path):
        return tuple(parquet_schema(path).names)
    return _header(path)[0]


def lines_above_header(path: Path) -> int:
    """Return the number of blank lines that a CSV file begins with.

    Raises:
        DataError: as for ``header``.
    """
    return _header(path)[1]


def _header(path: Path) -> tuple[tuple[str, ...], int]:
    """Return the names of a CSV file's columns, and the number of lines above them."""
    above = 0
    try:
        with _text(path) as lines:
            reader = csv.reader(_first_lines(path, lines))
            for row in reader:
                if len(row) > 1 or "".join(row).strip():
                    return tuple(row), above
                above = reader.line_num
    except (OSError, EOFError, UnicodeError, csv.Error, zlib.error) as error:
        raise unreadable(path, error) from error
    raise DataError(f"{path}: empty; give a table with a header and at least one row")


def _first_lines(path: Path, lines: IO[str]) -> Iterator[str]:
    """Return the lines within which a header ends; refuse more."""
    left = _LONGEST
    while line := lines.readline(left):
        left -= len(line)
        if left <= 0:
            raise DataError(
                f"{path}: line 1: no header ends within {_LONGEST:,} characters; is it a table, "
                "with a line for each row?"
            )
        yield line


def is_parquet(path: Path) -> bool:
    """Return whether a file begins as Parquet does."""
    return beginning(path) == PARQUET


def beginning(path: Path) -> bytes:
    """Return a file's first four bytes."""
    try:
        with path.open("rb") as file:
            return file.read(4)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; give the path of a table") from None
    except OSError as error:
        raise unreadable(path, error) from error


def place(path: Path, row: int) -> str:
    """Return where a row stands, counted from 0: ``line 3``, or ``row 2`` of a Parquet file."""
    if is_parquet(path):
        return f"row {row + 1}"
    above = lines_above_header(path)
    with _text(path) as lines:
        filled = (n for n, line in enumerate(lines, start=1) if n > above and line.strip("\r\n"))
        for below, number in enumerate(filled, start=-1):
            if below == row:
                return f"line {number}"
    return f"row {row + 1}"


def _text(path: Path) -> IO[str]:
    """Open a CSV file as text."""
    begins = beginning(path)
    if begins[:2] == GZIP:
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    encoding = "utf-16" if begins[:2] in UTF16 else "utf-8-sig"
    return path.open(encoding=encoding, newline="")


def parquet_schema(path: Path) -> "pa.Schema":
    """Return a Parquet file's schema.

    Raises:
        DataError: it cannot be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the refusal of a file that no reader can make sense of, with what to do."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    why = " ".join(why.split())[:200]
    return DataError(f"{path}: cannot be read ({why}); {_remedy(path, error, why)}")


def _remedy(path: Path, error: Exception, why: str) -> str:
    """Return what to do about a file that cannot be read."""
    if isinstance(error, PermissionError):
        return "allow reading it (chmod u+r), or read it as a user who may"
    if isinstance(error, UnicodeError) or "UTF8" in why:
        return "it is in another encoding: save it as UTF-8"
    try:
        with path.open("rb") as file:
            begins = file.read(4)
            file.seek(-4, io.SEEK_END)
            ends = file.read()
    except OSError:  # a folder, or gone by now
        begins = ends = b""
    if begins == PARQUET and ends != PARQUET:
        return "it is a Parquet file that was cut, its end is missing: copy or write it again"
    if begins == PARQUET:
        return "it is a damaged Parquet file: copy or write it again"
    damaged = isinstance(error, EOFError | zlib.error) or any(word in why for word in _DAMAGED)
    if begins[:2] == GZIP and damaged:
        return "it is a gzip file that is cut or damaged: copy it again"
    return "is it a CSV (UTF-8), .csv.gz or Parquet table?"
