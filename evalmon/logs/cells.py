"""Numbers as they stand in a cell of a table."""

from decimal import Decimal, InvalidOperation

__all__ = ["is_number", "whole"]

_MOST_DIGITS = 400


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
