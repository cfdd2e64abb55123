from itertools import groupby

import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon.errors import ConfigError
from trainer.data.repetition import INSTANCE_FILTERS, RepetitionFilter, find_filter

RULE = RepetitionFilter()


def _by_rows(tokens: list[int], periods: range) -> int:
    """Count repeats as the definition does: rows of p, of which equal ones follow each other.

    Past the end stands at least one token that equals none. Row 0 is compared with the last
    row. A group of rows that equal their predecessors begins with the first predecessor and
    goes on with what the rows around it have in common with theirs at their near ends.
    """
    most = 0
    for p in periods:
        if p > len(tokens) // 3:
            break
        padded = [*tokens, *[None] * (p - len(tokens) % p)]
        rows = [padded[i : i + p] for i in range(0, len(padded), p)]
        same = [
            [a == b and a is not None for a, b in zip(row, rows[i - 1], strict=True)]
            for i, row in enumerate(rows)
        ]
        for whole, group in groupby(range(len(rows)), lambda i, same=same: all(same[i])):
            if whole:
                found = list(group)
                before = [*reversed(same[found[0] - 1]), False].index(False)
                after = [*same[found[-1] + 1], False].index(False)
                times = (p * (len(found) + 1) + before + after) // p
                most = max(most, times if times > 2 else 0)
    return most


def _among_others(piece: NDArray[np.uint32], length: int, at: int) -> NDArray[np.uint32]:
    """Put a piece at a place among tokens that are all different."""
    others = np.arange(1000, 1000 + length, dtype=np.uint32)
    others[at : at + len(piece)] = piece
    return others


def _require_agreement(rule: RepetitionFilter, rows: NDArray[np.uint32]) -> None:
    periods = range(rule.min_period, rule.max_period + 1)
    counts = [_by_rows(row.tolist(), periods) for row in rows]
    assert [rule.times(row) for row in rows] == counts
    assert rule.keeps(rows).tolist() == [count < rule.max_count for count in counts]


@pytest.mark.slow
def test_ten_thousand_random_instances_are_judged_as_defined() -> None:
    rng = np.random.default_rng(0)
    masked = 0
    for length in range(100):
        rule = RepetitionFilter(int(rng.integers(2, 14)), 1 + length % 2, 3 + length % 8)
        rows = rng.integers(0, 1 + length % 3, (100, length)).astype(np.uint32)
        masked += int((~rule.keeps(rows)).sum())
        _require_agreement(rule, rows)
    assert 2000 < masked < 8000


@pytest.mark.slow
def test_two_hundred_stretches_among_others_are_judged_as_defined() -> None:
    rng = np.random.default_rng(1)
    judged: list[bool] = []
    for case in range(200):
        period = 1 + case % 14
        size = int(rng.integers(30 * period, 34 * period + 1))
        piece = np.resize(rng.integers(0, 3, period).astype(np.uint32), size)
        row = _among_others(piece, 500, int(rng.integers(0, 500 - size + 1)))
        _require_agreement(RULE, row[None])
        judged.append(bool(RULE.keeps(row[None])[0]))
    assert 50 < sum(judged) < 150


@pytest.mark.parametrize("period", range(1, 15))
@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_thirty_two_repeats_of_thirteen_tokens_at_most_are_masked(period: int, place: str) -> None:
    piece, length = np.arange(period, dtype=np.uint32), 8192
    kept: list[bool] = []
    for size in (31 * period, 32 * period - 1, 32 * period, 40 * period):
        at = {"start": 0, "middle": 4001, "end": length - size}[place]
        row = _among_others(np.resize(piece, size), length, at)
        kept += RULE.keeps(row[None]).tolist()
    assert kept == ([True, True, False, False] if period < 14 else [True] * 4)
    assert RULE.times(_among_others(np.resize(piece, 31 * period), length, 0)) == (
        31 if period < 14 else 0
    )


def test_a_stretch_counts_its_partial_ends() -> None:
    # 5 and 2 tokens of a period of 7 before and after whole repeats are one repeat more.
    piece = np.arange(7, dtype=np.uint32)
    row = _among_others(np.concatenate([piece[2:], np.tile(piece, 31), piece[:2]]), 300, 30)
    assert RULE.times(row) == 32
    assert RULE.times(np.delete(row, 30)) == 31
    assert RULE.keeps(row[None]).tolist() == [False]


@pytest.mark.parametrize("period", range(1, 14))
def test_the_end_of_an_instance_does_not_go_on_at_its_start(period: int) -> None:
    piece = np.arange(period, dtype=np.uint32)
    for length in (64 * period, 64 * period + 1):
        row = np.arange(1000, 1000 + length, dtype=np.uint32)
        row[: 31 * period] = np.tile(piece, 31)
        row[-period:] = piece
        assert (RULE.times(row), RULE.keeps(row[None]).tolist()) == (31, [True])
        row[31 * period : 32 * period] = piece
        assert (RULE.times(row), RULE.keeps(row[None]).tolist()) == (32, [False])


@pytest.mark.parametrize("length", range(39))
def test_short_instances_repeat_what_fits_three_times(length: int) -> None:
    assert RULE.times(np.zeros(length, np.uint32)) == (length if length > 2 else 0)
    assert RULE.keeps(np.zeros((2, length), np.uint32)).tolist() == [length < 32] * 2
    pairs = np.resize(np.array([1, 2], np.uint32), length)
    assert RULE.times(pairs) == (length // 2 if length > 5 else 0)


def test_each_row_is_judged_by_itself() -> None:
    rng = np.random.default_rng(2)
    rows = rng.integers(0, 100_278, (50, 1024), dtype=np.uint32)
    rows[7, 100:132] = 5
    rows[31, -416:] = np.resize(np.arange(13), 416)
    rows[32, -415:] = np.resize(np.arange(13), 415)
    assert np.flatnonzero(~RULE.keeps(rows)).tolist() == [7, 31]
    assert RULE.keeps(rows[:0]).tolist() == []


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int64])
def test_every_id_of_every_integer_type_can_repeat(dtype: type[np.integer]) -> None:
    highest = np.iinfo(dtype).max
    rows = np.full((2, 40), highest, dtype)
    rows[1, 20] = 0
    assert RULE.keeps(rows).tolist() == [False, True]
    assert [RULE.times(row) for row in rows] == [40, 20]


def test_a_filter_is_found_by_name() -> None:
    assert find_filter("none") is None
    assert find_filter("repetition") == RULE == INSTANCE_FILTERS["repetition"]
    with pytest.raises(ConfigError, match=r"--instance-filter 'repeat': .*nearest is 'repetition'"):
        find_filter("repeat")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((13, 0, 32), "periods 0 to 13: expected at least 1"),
        ((2, 3, 32), "periods 3 to 2: expected"),
        ((13, 1, 2), "max_count 2: fewer than 3 repeats are never counted"),
    ],
)
def test_a_filter_that_cannot_filter_is_refused(values: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RepetitionFilter(*values)
