"""Values as MaxText's lines print them: pairs of key and value, numbers, and what none can be."""

import math
import re

__all__ = [
    "MOST_STEPS",
    "MOST_TOKENS_A_STEP",
    "drop_torn",
    "known",
    "number",
    "pairs_of",
    "plain",
    "whole",
]

MOST_STEPS = 10**9
"""Steps; no run has more, so a line with more is damaged."""
MOST_TOKENS_A_STEP = 1 << 32
"""Tokens; no batch holds more. With ``MOST_STEPS`` all tokens fit into 64 bits."""

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ARRAY = re.compile(r"Array\(\s*([^,)\s]+)")
_MOST_DIGITS = 30


def plain(text: str) -> str:
    r"""Return text without a terminal's colors and line clearing.

    Example:
        >>> plain("\x1b[32mcompleted\x1b[K step\x1b[0m")
        'completed step'
    """
    return _ESCAPE.sub("", text)


def pairs_of(text: str) -> dict[str, str]:
    """Return the pairs ``key: value`` and ``key=value`` between commas.

    Example:
        >>> pairs_of(", seconds: 1.5, loss=2.5")
        {'seconds': '1.5', 'loss': '2.5'}
    """
    try:  # the common form, at a quarter of the time
        return dict([part.split(": ") for part in text.split(", ") if part])
    except ValueError:
        pass
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, mark, value = part.partition(":")
        if not mark:
            key, mark, value = part.partition("=")
        if mark:
            pairs[key.strip()] = value.strip()
    return pairs


def drop_torn(pairs: dict[str, str], before: dict[str, str]) -> None:
    """Drop the last pair of a line without end unless it has all the decimals.

    Args:
        pairs: of that line; changed.
        before: those of the last whole line of its kind, empty without one.
    """
    if pairs:
        key, value = next(reversed(pairs.items()))
        decimals = len(before.get(key, "0.000").partition(".")[2])
        if value not in {"nan", "inf", "-inf"} and len(value.partition(".")[2]) != decimals:
            del pairs[key]
    if "lm_loss" in before and "lm_loss" not in pairs:  # not the same quantity as the lines before
        pairs.pop("loss", None)


def known(text: str | None) -> float:
    """Return a number, NaN where there is none."""
    if text is None:
        return math.nan
    found = number(text)
    return math.nan if found is None else found


def number(text: str | None) -> float | None:
    """Return the number a value begins with, None where it is none.

    Example:
        >>> number("2.5"), number("Array(2.5, dtype=float32)"), number("8,302")
        (2.5, 2.5, None)
    """
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    array = _ARRAY.match(text)  # older builds print arrays as Python shows them
    try:
        return float(array[1] if array else text.split()[0])
    except ValueError:
        return None


def whole(digits: str) -> int | None:
    """Return the whole number some digits are, None where they are none; at most 10**30.

    Longer rows of digits, which Python itself may refuse to read, count as that.

    Example:
        >>> whole("512"), whole(""), whole("9" * 5000) == 10**30
        (512, None, True)
    """
    if not digits.isdecimal():
        return None
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
