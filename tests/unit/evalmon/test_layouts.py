"""Saved trees of other trainers: parameters found, layers in order of number."""

from typing import Any

import numpy as np
import pytest

from evalmon.errors import CheckpointError
from evalmon.layouts import numbered, root_of_parameters, subtree

LAYERS = {str(i): np.float32(i) for i in range(12)}


@pytest.mark.parametrize(
    ("tree", "root"),
    [
        ({"layers": LAYERS, "norm": 0}, ()),
        ({"params": {"layers": LAYERS}}, ("params",)),
        ({"params": {"layers": LAYERS}, "opt_state": [], "step": 1}, ("params",)),
        ({"model": {"layers": LAYERS}, "optimizer": {}}, ("model",)),
        ({"params": {"params": {"layers": LAYERS}}, "opt_state": {}, "step": 1}, ("params",) * 2),
        ({"params": {"layers": LAYERS}, "opt_state": [], "step": 1, "nnx_aux": {}}, ("params",)),
        ({"model": {"layers": LAYERS}, "lm_head": 0}, ()),
        ([1, 2], ()),
    ],
)
def test_parameters_are_found_in_a_training_state(tree: Any, root: tuple[str, ...]):
    assert root_of_parameters(tree, "place") == root
    assert subtree(tree, root) is (subtree(tree, root[:1])[root[1]] if len(root) > 1 else
                                   tree[root[0]] if root else tree)  # fmt: skip


@pytest.mark.parametrize(
    "tree",
    [
        {"weights": {}, "opt_state": {}},
        {"params": {}, "model": {}, "optimizer": {}},
        {"params": {}, "opt_state": {}, "tables": {}},
    ],
)
def test_a_state_whose_parameters_cannot_be_told_is_refused_by_its_names(tree: dict[str, Any]):
    with pytest.raises(CheckpointError, match="place: holds") as caught:
        root_of_parameters(tree, "place")
    assert all(repr(name) in str(caught.value) for name in tree)


@pytest.mark.parametrize(
    "layers",
    [
        list(LAYERS.values()),
        tuple(LAYERS.values()),
        dict(sorted(LAYERS.items())),  # "10" before "2", as text sorts
        {f"{i:03d}": value for i, value in enumerate(LAYERS.values())},
        {i: value for i, value in enumerate(LAYERS.values())},  # noqa: C416 - numbers as keys
    ],
    ids=["list", "tuple", "text order", "leading zeros", "numbers"],
)
def test_layers_are_in_order_of_number_however_they_were_stored(layers: Any):
    found = numbered({"layers": layers}, "place")["layers"]
    assert list(found) == [str(i) for i in range(12)]
    assert [float(found[str(i)]) for i in range(12)] == list(range(12))


def test_other_names_stay_as_they_are():
    tree = {"b": {"2x": 1}, "a": {"1": {"w": 2}, "x": 3}}
    assert numbered(tree, "place") == tree
    assert list(numbered(tree, "place")) == ["b", "a"]


def test_two_names_of_one_number_are_refused():
    with pytest.raises(CheckpointError, match="place/layers: '1' and '01' both mean number 1"):
        numbered({"layers": {"1": 0, "01": 0}}, "place")
