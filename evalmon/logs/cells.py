"""Numbers as they stand in a cell of a table, and what to write where one is none."""

import re
from decimal import Decimal, InvalidOperation

__all__ = ["is_number", "remedy", "whole"]

_MOST_DIGITS = 400
_WITH_UNIT = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([kKmMgGbBtT])(?:illions?|okens?)?")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:([,._' \u00a0\u202f])\d{3})(?:\1\d{3})*")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
_MISSING = frozenset({"na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "--", "?"})
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]|$)")


def is_number(cell: str) -> bool:
    """Return whether a cell is a number; 1_000 is one for Python alone.

    Example:
        >>> is_number("1e3"), is_number("nan"), is_number("1_000"), is_number("one")
        (True, True, False, False)
    """
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def whole(cell: str) -> int | None:
    """Return the whole number a cell holds, exact however large; None where it holds none.

    Example:
        >>> whole("100000000000000001"), whole("1e3"), whole("1.5"), whole("inf")
        (100000000000000001, 1000, None, None)
    """
    try:
        number = Decimal(cell.strip())
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > _MOST_DIGITS or number != int(number):
        return None
    return int(number)


def remedy(column: str, cell: str, *, is_whole: bool) -> str:
    """Return what to write instead of a cell that is not the number it should be.

    Args:
        column: name of the column.
        cell: what stands there.
        is_whole: the column holds whole numbers.

    Example:
        >>> remedy("tokens", "0.1B", is_whole=True)
        'write the number out, here 100000000'
        >>> remedy("value", "8,302515", is_whole=False)
        'write a decimal point, here 8.302515'
    """
    cell = cell.strip()
    found = _missing(column, cell, is_whole=is_whole) or _number(cell, is_whole=is_whole)
    if not found and _DATE.match(cell):
        found = "give seconds since the epoch (1970-01-01 UTC), such as 1767225600.0"
    if not found and column == "tokens" and is_number(cell) and whole(cell) is None:
        found = "count single tokens, not thousands, millions or billions of them"
    return found or "correct or remove this row"


def _missing(column: str, cell: str, *, is_whole: bool) -> str:
    """Return what to write where nothing is known, "" where a cell says something."""
    if cell.lower() not in _MISSING:
        return ""
    if column == "step":
        return "give the step, or remove this row"
    return "leave the cell empty" + ("" if is_whole else ", or write NaN for a value that is none")


def _number(cell: str, *, is_whole: bool) -> str:
    """Return how to write a number with a unit, separators or a decimal comma, else ""."""
    if (found := _WITH_UNIT.fullmatch(cell)) and is_number(found[1]):
        number = Decimal(found[1]) * _UNITS[found[2].lower()]
        return f"write the number out, here {number.normalize():f}"
    if not is_whole and _DECIMAL_COMMA.fullmatch(cell):
        return f"write a decimal point, here {cell.replace(',', '.')}"
    if (found := _GROUPED.fullmatch(cell)) and not is_number(cell):
        return f"write it without separators, here {cell.replace(found[1], '')}"
    return ""
