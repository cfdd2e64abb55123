"""A cell that is no number says what to write instead."""

import pytest

from evalmon.logs import cells

REMEDIES = [
    ("tokens", "0.1B", "write the number out, here 100000000"),
    ("tokens", "4.2M", "write the number out, here 4200000"),
    ("tokens", "5 T", "write the number out, here 5000000000000"),
    ("step", "0.1k", "write the number out, here 100"),
    ("tokens", "1.5 million", "write the number out, here 1500000"),
    ("tokens", "100,000,000", "write it without separators, here 100000000"),
    ("tokens", "1 000", "write it without separators, here 1000"),
    ("tokens", "1_000", "write it without separators, here 1000"),
    ("step", "1,000", "write it without separators, here 1000"),
    ("tokens", "0.1", "count single tokens, not thousands, millions or billions of them"),
    ("tokens", "18446744073709551616", "correct or remove this row"),
    ("value", "8,302515", "write a decimal point, here 8.302515"),
    ("value", "NA", "leave the cell empty, or write NaN for a value that is none"),
    ("value", "null", "leave the cell empty, or write NaN for a value that is none"),
    ("tokens", "None", "leave the cell empty"),
    ("step", "n/a", "give the step, or remove this row"),
    (
        "wall_time",
        "2026-01-01T00:00:00",
        "give seconds since the epoch (1970-01-01 UTC), such as 1767225600.0",
    ),
    ("step", "1.5", "correct or remove this row"),
    ("value", "one", "correct or remove this row"),
    ("value", "", "correct or remove this row"),
]


@pytest.mark.parametrize(("column", "cell", "remedy"), REMEDIES)
def test_what_to_write_instead(column: str, cell: str, remedy: str) -> None:
    assert cells.remedy(column, cell, is_whole=column in ("step", "tokens")) == remedy
