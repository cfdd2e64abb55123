"""How the command line takes a number of tokens: whole and exact, also as 5.93e12."""

from decimal import Decimal, InvalidOperation
from typing import Any

import click

__all__ = ["TokenCount"]

_MOST_TOKENS = 10**18  # steps and tokens are 64-bit integers, up to 9.2e18


class TokenCount(click.ParamType):
    """A whole number of tokens, up to 1e18.

    Args:
        least: the smallest number that is taken.

    Example:
        >>> TokenCount()("5.93e12")
        5930000000000
    """

    name = "tokens"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = Decimal(value)
        except InvalidOperation:
            self.fail(
                f"{value!r} is not a number of tokens; write 5930000000000 or 5.93e12", param, ctx
            )
        if number.is_finite() and number > _MOST_TOKENS:
            self.fail(
                f"{value!r} is more than any training has ({_MOST_TOKENS:.0e}); write 5.93e12",
                param,
                ctx,
            )
        if not number.is_finite() or number != number.to_integral_value() or number < self.least:
            self.fail(
                f"{value!r} must be a whole number of tokens, at least {self.least}", param, ctx
            )
        return int(number)
