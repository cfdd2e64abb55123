import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from evalmon.errors import ConfigError
from trainer.architecture import Olmo3Config
from trainer.sharding import (
    AXES,
    BATCH,
    MeshShape,
    constrain,
    default_mesh_shape,
    make_mesh,
    parse_mesh,
    partition_specs,
    place,
    place_batch,
    require_fits,
)

P = PartitionSpec
CONFIG = Olmo3Config(96, width=24, layers=4, heads=8, kv_heads=4, head_dim=6, ffn=40)
ONE = make_mesh(MeshShape(), jax.devices()[:1])


def _shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def _layer(*lead: int) -> dict[str, Any]:
    return {
        "self_attn": {
            **{name: {"kernel": _shape(*lead, 24, 48)} for name in ("q_proj", "k_proj", "v_proj")},
            "o_proj": {"kernel": _shape(*lead, 48, 24)},
            "q_norm": {"scale": _shape(*lead, 48)},
        },
        "mlp": {
            "gate_proj": {"kernel": _shape(*lead, 24, 40)},
            "up_proj": {"kernel": _shape(*lead, 24, 40)},
            "down_proj": {"kernel": _shape(*lead, 40, 24)},
        },
        "post_attention_layernorm": {"scale": _shape(*lead, 24)},
    }


def _tree(*lead: int) -> dict[str, Any]:
    return {
        "embed_tokens": {"embedding": _shape(96, 24)},
        "layers": {"0": _layer(*lead)},
        "norm": {"scale": _shape(24)},
        "lm_head": {"kernel": _shape(24, 96)},
    }


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("data=64,fsdp=8", MeshShape(64, 8, 1)),
        ("tensor=2, data=4", MeshShape(4, 1, 2)),
        ("fsdp=3", MeshShape(1, 3, 1)),
    ],
)
def test_a_mesh_is_read_in_any_order(text: str, shape: MeshShape) -> None:
    assert parse_mesh(text) == shape
    assert parse_mesh(str(shape)) == shape
    assert shape.devices == math.prod((shape.data, shape.fsdp, shape.tensor))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not AXIS=SIZE"),
        ("8", "'8' is not AXIS=SIZE"),
        ("model=2", "'model=2' is not AXIS=SIZE of data, fsdp, tensor"),
        ("data=2,data=4", "'data=4' names data again"),
        ("data=0", "'data=0' needs a whole number"),
        ("data=-1", "'data=-1' needs a whole number"),
        ("data=²", "needs a whole number"),
        ("data=2,fsdp=", "'fsdp=' needs a whole number"),
        ("data=2=3", "'data=2=3' needs a whole number"),
        ("data=1" + 5000 * "0", "needs a whole number"),
    ],
)
def test_a_mesh_that_cannot_be_read_is_refused_with_its_part(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^--mesh ") as error:
        parse_mesh(text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("devices", "batch", "data"), [(1, 1, 1), (6, 3, 3), (6, 8, 2), (6, 12, 6)]
)
def test_by_default_the_batch_is_split_evenly(devices: int, batch: int, data: int) -> None:
    assert default_mesh_shape(devices, batch) == MeshShape(data=data)


@pytest.mark.parametrize("shape", [MeshShape(2, 4, 4), MeshShape(8), MeshShape(1, 8, 2)])
def test_what_divides_fits(shape: MeshShape) -> None:
    require_fits(shape, CONFIG, 8)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (MeshShape(3, 4), "data x fsdp = 12 does not divide the (micro-)batch of 8; the nearest"),
        (MeshShape(fsdp=16), "fsdp=16 does not divide the model's width 24; the nearest"),
        (MeshShape(tensor=3), "tensor=3 does not divide the model's heads 8; the nearest"),
        (MeshShape(tensor=8), "tensor=8 does not divide the model's kv_heads 4; the nearest"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_nearest(shape: MeshShape, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        require_fits(shape, CONFIG, 16 if shape.fsdp == 16 else 8)
    assert says in str(error.value)


def test_the_nearest_size_fits_everything_that_it_splits() -> None:
    with pytest.raises(ConfigError, match="kv_heads 4; the nearest that fits is 4"):
        require_fits(MeshShape(tensor=8), CONFIG, 8)
    with pytest.raises(ConfigError, match="of 8; the nearest that fits is 8"):
        require_fits(MeshShape(3, 4), CONFIG, 8)


def test_matrices_are_split_by_name_and_norms_are_copied() -> None:
    specs = partition_specs(_tree())
    layer = specs["layers"]["0"]
    for name in ("q_proj", "k_proj", "v_proj"):
        assert layer["self_attn"][name]["kernel"] == P("fsdp", "tensor")
    assert layer["mlp"]["gate_proj"]["kernel"] == P("fsdp", "tensor")
    assert layer["mlp"]["up_proj"]["kernel"] == P("fsdp", "tensor")
    assert layer["self_attn"]["o_proj"]["kernel"] == P("tensor", "fsdp")
    assert layer["mlp"]["down_proj"]["kernel"] == P("tensor", "fsdp")
    assert layer["self_attn"]["q_norm"]["scale"] == P()
    assert layer["post_attention_layernorm"]["scale"] == P()
    assert specs["embed_tokens"]["embedding"] == P("tensor", "fsdp")
    assert specs["lm_head"]["kernel"] == P("fsdp", "tensor")
    assert specs["norm"]["scale"] == P()


def test_the_leading_axis_of_stacked_layers_is_not_split() -> None:
    layer = partition_specs(_tree(2))["layers"]["0"]
    assert layer["self_attn"]["q_proj"]["kernel"] == P(None, "fsdp", "tensor")
    assert layer["mlp"]["down_proj"]["kernel"] == P(None, "tensor", "fsdp")
    assert layer["self_attn"]["q_norm"]["scale"] == P()


def test_moments_are_split_as_their_parameters_and_the_rest_is_copied() -> None:
    optimizer = ({"mu": _tree(), "count": _shape()}, [_shape(128)], _tree(2))
    specs = partition_specs(optimizer)
    assert specs[0]["mu"] == partition_specs(_tree())
    assert specs[0]["count"] == specs[1][0] == P()
    assert specs[2] == partition_specs(_tree(2))


@pytest.mark.parametrize("shape", [MeshShape(2, 2, 2), MeshShape(1, 8, 1), MeshShape(2, 1, 4)])
def test_where_a_model_fits_every_array_of_it_is_split_evenly(shape: MeshShape) -> None:
    require_fits(shape, CONFIG, 16)
    mesh = AbstractMesh((shape.data, shape.fsdp, shape.tensor), AXES)
    for tree in (_tree(), _tree(2)):
        specs = jax.tree.leaves(partition_specs(tree), is_leaf=lambda x: isinstance(x, P))
        for leaf, spec in zip(jax.tree.leaves(tree), specs, strict=True):
            NamedSharding(mesh, spec).shard_shape(leaf.shape)


def test_more_devices_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"data=4096,fsdp=1,tensor=1: needs 4096 devices, but"):
        make_mesh(MeshShape(data=4096))


@dataclass(frozen=True)
class _Device:
    id: int
    process_index: int


def _devices(*counts: int) -> list[_Device]:
    """Return devices of processes that hold so many each."""
    return [_Device(10 * p + i, p) for p, count in enumerate(counts) for i in range(count)]


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        (MeshShape(data=4), [[0], [1], [10], [11]]),
        (MeshShape(data=2), [[0], [10]]),
        (MeshShape(2, 1, 2), [[0, 1], [10, 11]]),
        (MeshShape(1, 2, 3), [[0, 1, 2], [10, 11, 12]]),
    ],
)
def test_each_process_holds_consecutive_rows(shape: MeshShape, rows: list[list[int]]) -> None:
    mesh = make_mesh(shape, _devices(3, 3))
    ids = [[d.id for d in row] for row in mesh.devices.reshape(shape.rows, shape.tensor)]
    assert ids == rows
    assert mesh.axis_names == AXES


@pytest.mark.parametrize(
    ("shape", "counts", "says"),
    [
        (MeshShape(data=3), (2, 2), "3 devices over 2 processes; each needs as many"),
        (MeshShape(tensor=2), (1, 1), "2 devices over 2 processes; each .* a multiple of tensor=2"),
        (MeshShape(2, 1, 3), (2, 2, 2), "6 devices over 3 processes; .* a multiple of tensor=3"),
        (MeshShape(data=4), (3, 1), "needs 2 devices of each process, but process 1 has 1"),
    ],
)
def test_a_mesh_that_processes_cannot_share_is_refused(
    shape: MeshShape, counts: tuple[int, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_mesh(shape, _devices(*counts))


def test_placing_keeps_values_and_dtypes_and_the_host_array_is_not_given_away() -> None:
    tree: dict[str, Any] = {
        "norm": {"scale": np.arange(64, dtype=np.float32)},
        "count": np.int32(3),
    }
    placed = place(tree, ONE)
    assert placed["norm"]["scale"].tolist() == list(range(64))
    assert (placed["count"].tolist(), placed["count"].dtype) == (3, np.int32)
    zero: Callable[[Any], Any] = jax.jit(
        lambda t: jax.tree.map(lambda a: a * 0, t), donate_argnums=0
    )
    assert zero(placed)["norm"]["scale"].tolist() == [0] * 64
    assert tree["norm"]["scale"].tolist() == list(range(64))


def test_a_batch_is_placed_as_int32() -> None:
    rows = np.arange(8, dtype=np.uint32).reshape(4, 2)
    placed = place_batch(rows, ONE)
    assert placed.tolist() == rows.tolist()
    assert str(placed.dtype) == "int32"
    assert placed.sharding == NamedSharding(ONE, P(BATCH))


def test_what_counts_is_placed_beside_its_rows_as_bool() -> None:
    placed = place_batch(np.array([True, False]), ONE)
    assert (placed.tolist(), str(placed.dtype)) == ([True, False], "bool")
    assert placed.sharding == NamedSharding(ONE, P(BATCH))


def test_constrain_needs_a_mesh_to_change_anything() -> None:
    def doubled(x: jax.Array) -> jax.Array:
        return constrain(x, BATCH, "tensor") * 2

    x = jnp.ones((2, 2))
    assert "sharding_constraint" not in str(jax.make_jaxpr(doubled)(x))
    with jax.set_mesh(ONE):
        assert "sharding_constraint" in str(jax.make_jaxpr(doubled)(x))
        assert jax.jit(doubled)(x).tolist() == [[2, 2], [2, 2]]
