from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trainer.weights.casting import DTYPES, Changes, Counts, same_bits
from trainer.weights.names import EMBEDDING, HEAD

NAME = "model.norm.weight"
F32 = np.float32


def test_without_changes_a_tensor_is_the_same_object() -> None:
    array = np.ones((3, 2), F32)
    assert Changes(None, 3).apply(NAME, array) is array
    assert Changes(DTYPES["float32"], 3).apply(NAME, array) is array


def test_rows_are_added_as_zeros_and_cut_at_the_end_in_embedding_and_head_alone() -> None:
    array = np.arange(6, dtype=F32).reshape(3, 2)
    for name in (EMBEDDING, HEAD):
        more = Changes(None, 5).apply(name, array)
        assert more.tolist() == [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]]
        assert Changes(None, 2).apply(name, array).tolist() == [[0, 1], [2, 3]]
    assert Changes(None, 5).apply(NAME, array) is array
    assert Changes(None, 5).shape(HEAD, (3, 2)) == (5, 2)
    assert Changes(None, 5).shape(NAME, (3,)) == (3,)


def test_a_cast_counts_what_does_not_survive() -> None:
    array = np.array([1.001, 7e4, -7e4, 1e-9, 0.0, np.nan, np.inf], F32)
    counts = Counts()
    narrow = Changes(DTYPES["float16"], 1).apply(NAME, array, counts)
    assert narrow.dtype == np.float16
    assert counts.overflowed == {NAME: 2}
    assert counts.vanished == {NAME: 1}
    assert counts.non_finite == {NAME: 2}


def test_bfloat16_rounds_to_nearest_and_keeps_the_range() -> None:
    counts = Counts()
    narrow = Changes(DTYPES["bfloat16"], 1).apply(NAME, np.array([1.001, 3e38], F32), counts)
    assert narrow.dtype == ml_dtypes.bfloat16
    assert narrow[0] == 1.0
    assert (counts.overflowed, counts.non_finite, counts.vanished) == ({}, {}, {})
    Changes(DTYPES["bfloat16"], 1).apply(NAME, np.array([3.4e38], F32), counts)
    assert counts.overflowed == {NAME: 1}


@pytest.mark.parametrize("strides", ["C", "F", "slice"])
def test_counts_do_not_depend_on_how_an_array_lies_in_memory(strides: str) -> None:
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((30, 3, 50)).astype(F32)
    stack[4, 1, 7], stack[5, 1, 7], stack[6, 1, 7] = np.nan, 1e9, 1e-30
    array: Any = {
        "C": np.ascontiguousarray(stack[:, 1]),
        "F": np.asfortranarray(stack[:, 1]),
        "slice": stack[:, 1].T,
    }[strides]
    counts = Counts()
    Changes(DTYPES["float16"], 1).apply(NAME, array, counts)
    assert (counts.non_finite, counts.overflowed, counts.vanished) == (
        {NAME: 1}, {NAME: 1}, {NAME: 1},
    )  # fmt: skip


def test_bits_are_compared_not_values() -> None:
    nan = np.array([[np.nan, 0.0]], F32)
    assert same_bits(nan, nan.copy(order="F"))
    assert not same_bits(nan, np.array([[np.nan, -0.0]], F32))
    assert not same_bits(nan, nan.astype(np.float64))
    assert not same_bits(nan, nan.T)
    one = np.zeros((3_000_000, 2), np.uint8).view(np.uint8)
    other = one.copy()
    other[-1, -1] = 1
    assert not same_bits(one, other)
