from typing import Any

import numpy as np
import pytest

from evalmon.errors import CheckpointError
from trainer.architecture import Olmo3Config
from trainer.weights.maxtext import Layout, infer_config, is_scanned
from trainer.weights.names import published_axes, published_shapes

SEVEN = Olmo3Config(100_278, 4096, 32, 32, 32, 128, 11_008)
GROUPED = Olmo3Config(12, 8, 8, 4, 2, 6, 10)


@pytest.mark.parametrize(
    ("part", "apart", "stacked"),
    [
        ("attention/query/kernel", (4096, 32, 128), (4096, 8, 32, 128)),
        ("attention/key/kernel", (4096, 32, 128), (4096, 8, 32, 128)),
        ("attention/value/kernel", (4096, 32, 128), (4096, 8, 32, 128)),
        ("attention/out/kernel", (32, 128, 4096), (32, 8, 128, 4096)),
        ("attention/query_norm/scale", (4096,), (4096, 8)),
        ("attention/key_norm/scale", (4096,), (4096, 8)),
        ("mlp/wi_0/kernel", (4096, 11_008), (4096, 8, 11_008)),
        ("mlp/wi_1/kernel", (4096, 11_008), (4096, 8, 11_008)),
        ("mlp/wo/kernel", (11_008, 4096), (11_008, 8, 4096)),
        ("post_self_attention_layer_norm/scale", (4096,), (4096, 8)),
        ("post_mlp_layer_norm/scale", (4096,), (4096, 8)),
    ],
)
def test_shapes_of_the_7b_are_maxtexts(
    part: str, apart: tuple[int, ...], stacked: tuple[int, ...]
) -> None:
    for scanned, prefix, expected in (
        (False, "decoder/layers_31/", apart),
        (True, "decoder/layers/layers_3/", stacked),
    ):
        layout = Layout(SEVEN, scanned)
        leaves = {"/".join(key): layout.shape(names[0]) for key, names in layout.leaves().items()}
        assert leaves[prefix + part] == expected
        assert leaves["token_embedder/embedding"] == (100_278, 4096)
        assert leaves["decoder/logits_dense/kernel"] == (4096, 100_278)
        assert leaves["decoder/decoder_norm/scale"] == (4096,)
        assert len(leaves) == 3 + 11 * (4 if scanned else 32)


def test_slice_j_of_group_c_is_layer_4j_plus_c() -> None:
    leaves = Layout(SEVEN, scanned=True).leaves()
    names = leaves["decoder", "layers", "layers_2", "mlp", "wo", "kernel"]
    assert [int(name.split(".")[2]) for name in names] == [2, 6, 10, 14, 18, 22, 26, 30]


@pytest.mark.parametrize("scanned", [True, False])
def test_there_and_back_every_bit_is_the_same(scanned: bool) -> None:
    rng = np.random.default_rng(0)
    tensors = {n: rng.standard_normal(s) for n, s in published_shapes(GROUPED).items()}
    layout = Layout(GROUPED, scanned)
    for names in layout.leaves().values():
        leaf = layout.from_published(names, tensors.__getitem__)
        assert leaf.shape == layout.shape(names[0])
        for name in names:
            np.testing.assert_array_equal(layout.to_published(name, leaf), tensors[name])


def test_heads_are_split_as_maxtext_computes_with_them() -> None:
    """x @ kernel reshaped per head is what q_proj, k_proj and o_proj put out."""
    rng = np.random.default_rng(1)
    tensors = {n: rng.standard_normal(s) for n, s in published_shapes(GROUPED).items()}
    layout = Layout(GROUPED, scanned=True)
    leaves = {
        "/".join(key[-3:]): (names, layout.from_published(names, tensors.__getitem__))
        for key, names in layout.leaves().items()
        if key[:3] == ("decoder", "layers", "layers_1")
    }
    x, heads = rng.standard_normal(8), rng.standard_normal((4, 6))
    names, query = leaves["attention/query/kernel"]
    assert names[1] == "model.layers.5.self_attn.q_proj.weight"
    np.testing.assert_allclose(
        np.einsum("d,dnh->nh", x, query[:, 1]), (tensors[names[1]] @ x).reshape(4, 6)
    )
    names, out = leaves["attention/out/kernel"]
    np.testing.assert_allclose(
        np.einsum("nh,nhd->d", heads, out[:, 1]), tensors[names[1]] @ heads.reshape(-1)
    )


@pytest.mark.parametrize("scanned", [True, False])
def test_shapes_are_told_from_tensors(scanned: bool) -> None:
    layout = Layout(GROUPED, scanned)
    shapes = {key: layout.shape(names[0]) for key, names in layout.leaves().items()}
    assert is_scanned(shapes) is scanned
    assert infer_config(shapes, "SRC") == GROUPED


def test_twelve_layers_apart_are_twelve() -> None:
    config = Olmo3Config(12, 8, 12, 4, 2, 6, 10)
    layout = Layout(config, scanned=False)
    shapes: dict[Any, Any] = {
        key: layout.shape(names[0]) for key, names in sorted(layout.leaves().items())
    }
    assert infer_config(shapes, "SRC").layers == 12
    assert layout.place("model.layers.10.mlp.up_proj.weight").key[1] == "layers_10"


def test_a_missing_tensor_that_tells_a_shape_is_named() -> None:
    layout = Layout(GROUPED, scanned=True)
    shapes = {key: layout.shape(names[0]) for key, names in layout.leaves().items()}
    query = ("decoder", "layers", "layers_0", "attention", "query", "kernel")
    with pytest.raises(CheckpointError, match="layers_0/attention/query/kernel is missing"):
        infer_config({k: v for k, v in shapes.items() if k != query}, "SRC")
    with pytest.raises(CheckpointError, match=r"kernel is \[8, 24\], expected 4 axes"):
        infer_config({**shapes, query: (8, 24)}, "SRC")


def test_every_published_tensor_has_its_place() -> None:
    for scanned in (True, False):
        placed = [n for names in Layout(GROUPED, scanned).leaves().values() for n in names]
        assert sorted(placed) == sorted(published_axes(8))
