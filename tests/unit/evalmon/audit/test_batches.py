"""Batches of every form that loaders yield, and what is refused."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon.audit.batches import BatchReader
from evalmon.errors import DataError

TOKENS = np.arange(8).reshape(2, 4)


@dataclass
class Fields:
    inputs: NDArray[Any]
    instance: NDArray[Any]


class Named(NamedTuple):
    input_ids: NDArray[Any]
    instance_id: list[int]


@pytest.mark.parametrize(
    ("batch", "ids"),
    [
        ({"tokens": TOKENS, "inputs": TOKENS + 1, "instance": np.array([5, 6])}, [5, 6]),
        ({"inputs": TOKENS, "x": 1}, None),
        ({"input_ids": TOKENS.tolist(), "instance": [[5], [6]]}, [5, 6]),
        ({"tokens": TOKENS, "instance": np.array([5.0, 6.0])}, [5, 6]),
        (Fields(TOKENS, np.array([5, 6])), [5, 6]),
        (Named(TOKENS, [5, 6]), [5, 6]),
        (TOKENS.astype(np.uint16), None),
        (TOKENS.tolist(), None),
    ],
)
def test_tokens_and_ids_are_taken_from_any_form(batch: Any, ids: list[int] | None):
    tokens, found = BatchReader().read(batch, "here")
    assert tokens.tolist() == TOKENS.tolist()
    assert (None if found is None else found.tolist()) == ids


def test_one_instance_needs_no_batch_axis():
    tokens, ids = BatchReader().read({"tokens": TOKENS[0], "instance": 7}, "here")
    assert (tokens.tolist(), ids is not None and ids.tolist()) == ([[0, 1, 2, 3]], [7])


def test_named_fields_win():
    batch = {"tokens": TOKENS, "text": TOKENS + 1, "instance": [1, 2], "key": [8, 9]}
    tokens, ids = BatchReader("text", "key").read(batch, "here")
    assert (tokens[0, 0], ids is not None and ids.tolist()) == (1, [8, 9])
    assert BatchReader(id_field="none").read(batch, "here")[1] is None


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": TOKENS, "x": 1}, "host 3: batch without tokens: .*it has labels, x; .*--token"),
        ({"instance": [1, 2]}, "without tokens: .*it has instance; name .*--token-field"),
        ({}, "it has no fields"),
        ({"tokens": TOKENS / 2}, "tokens is an array of float64, expected an array of integers"),
        ({"tokens": TOKENS > 2}, "array of bool"),
        ({"tokens": [[1, 2], [3]]}, "tokens is list, expected .* rows of one length"),
        ({"tokens": np.array([[1, 2], [3]], object)}, "expected an array of integers"),
        ({"tokens": "text"}, "tokens is str"),
        ({"tokens": TOKENS[None]}, r"shape \[1, 2, 4\], expected \[batch, length\]"),
        (7, "the batch is int"),
        (None, "the batch is NoneType"),
        ((TOKENS, TOKENS), "the batch is tuple"),
        ({"tokens": TOKENS, "instance": np.array(["a", "b"])}, "ids of <U1, such as .*'a'"),
        ({"tokens": TOKENS, "instance": np.array([0.5, 1])}, "ids of float64, such as .*0.5"),
        ({"tokens": TOKENS, "instance": [True, False]}, "ids of bool"),
        ({"tokens": TOKENS, "instance": [1, 2, 3]}, r"shape \[3\] for 2 instances"),
    ],
)
def test_what_cannot_be_judged_is_refused(batch: Any, message: str):
    with pytest.raises(DataError, match=message):
        BatchReader().read(batch, "host 3")


def test_a_missing_id_field_is_refused_by_name():
    with pytest.raises(DataError, match="no field 'key' with ids; it has tokens"):
        BatchReader(id_field="key").read({"tokens": TOKENS}, "host 3")
