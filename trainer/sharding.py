"""Where arrays live: a mesh of three axes, and one rule for each kind of tensor.

``data`` and ``fsdp`` both split the batch; ``fsdp`` also splits parameters and moments, which
are gathered where they are used; ``tensor`` splits heads, the inner width of the feed-forward
part and the vocabulary.

Source: GSPMD (arXiv:2105.04663); the layout of Megatron-LM (arXiv:1909.08053) along ``tensor``
and of ZeRO stage 3 (arXiv:1910.02054) along ``fsdp``.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from evalmon.errors import ConfigError
from trainer.architecture import Olmo3Config

__all__ = [
    "AXES",
    "BATCH",
    "MeshShape",
    "constrain",
    "default_mesh_shape",
    "make_mesh",
    "parse_mesh",
    "partition_specs",
    "place",
    "place_batch",
    "placed_shapes",
    "require_fits",
]

AXES: Final = ("data", "fsdp", "tensor")

BATCH: Final = ("data", "fsdp")
"""Axes that the rows of a batch are split over."""

_INWARD: Final = PartitionSpec("fsdp", "tensor")
_OUTWARD: Final = PartitionSpec("tensor", "fsdp")

_RULES: Final = {
    ("embed_tokens", "embedding"): _OUTWARD,
    ("q_proj", "kernel"): _INWARD,
    ("k_proj", "kernel"): _INWARD,
    ("v_proj", "kernel"): _INWARD,
    ("o_proj", "kernel"): _OUTWARD,
    ("gate_proj", "kernel"): _INWARD,
    ("up_proj", "kernel"): _INWARD,
    ("down_proj", "kernel"): _OUTWARD,
    ("lm_head", "kernel"): _INWARD,
}
"""How a matrix is split, by the last two parts of its name; everything else is copied."""


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Devices along each axis.

    Attributes:
        data: copies of the parameters, each with rows of its own.
        fsdp: parts of the parameters, each with rows of its own.
        tensor: parts of every layer, all with the same rows.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    @property
    def devices(self) -> int:
        """Devices of the whole mesh."""
        return math.prod(astuple(self))

    @property
    def rows(self) -> int:
        """Parts that a batch is split into."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return ",".join(f"{item.name}={getattr(self, item.name)}" for item in fields(self))


def parse_mesh(text: str) -> MeshShape:
    """Read the shape of a mesh.

    Args:
        text: axes with their sizes, in any order; an axis left out has size 1.

    Raises:
        ConfigError: an unknown or repeated axis, or a size below 1; the part is named.

    Example:
        >>> parse_mesh("fsdp=8,data=64")
        MeshShape(data=64, fsdp=8, tensor=1)
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, equals, size = (word.strip() for word in part.partition("="))
        if axis not in AXES or not equals:
            raise ConfigError(f"--mesh {text!r}: {part!r} is not AXIS=SIZE of {', '.join(AXES)}")
        if axis in sizes:
            raise ConfigError(f"--mesh {text!r}: {part!r} names {axis} again; give it once")
        if not (size.isascii() and size.isdigit() and len(size) < 10 and int(size) > 0):
            raise ConfigError(f"--mesh {text!r}: {part!r} needs a whole number of at least 1")
        sizes[axis] = int(size)
    return MeshShape(**sizes)


def default_mesh_shape(devices: int, batch_instances: int) -> MeshShape:
    """Return the mesh with as many devices on ``data`` as split the batch evenly."""
    return MeshShape(data=math.gcd(devices, batch_instances))


def require_fits(shape: MeshShape, config: Olmo3Config, batch_instances: int) -> None:
    """Refuse a mesh that would split something unevenly.

    Args:
        shape: the mesh.
        config: shapes of the model.
        batch_instances: rows of a global batch, or of one of its micro-batches.

    Raises:
        ConfigError: an axis does not divide what it splits; the nearest size that does is given.
    """
    batch = {"the (micro-)batch of": batch_instances}
    _require_divides(f"data x fsdp = {shape.rows}", shape.rows, batch)
    _require_divides(f"fsdp={shape.fsdp}", shape.fsdp, {"the model's width": config.width})
    split = {
        "the model's heads": config.heads,
        "the model's kv_heads": config.kv_heads,
        "the model's ffn": config.ffn,
        "the model's vocab_size": config.vocab_size,
    }
    _require_divides(f"tensor={shape.tensor}", shape.tensor, split)


def make_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
    """Return a mesh over the first devices, of several processes over the first of each.

    Devices stand in order of their processes, ``tensor`` running fastest, so that each
    process of a distributed run holds consecutive rows of a batch.

    Args:
        shape: devices along each axis.
        devices: by default all there are.

    Raises:
        ConfigError: more devices are asked for than there are, or the processes of a
            distributed run cannot share the mesh evenly.
    """
    available = jax.devices() if devices is None else list(devices)
    owners = sorted({device.process_index for device in available})
    if shape.devices > len(available):
        raise ConfigError(
            f"--mesh {shape}: needs {shape.devices} devices, but there are {len(available)}; "
            "give a smaller mesh"
        )
    share, rest = divmod(shape.devices, len(owners))
    if rest or share % shape.tensor:
        raise ConfigError(
            f"--mesh {shape}: {shape.devices} devices over {len(owners)} processes; each needs as "
            f"many, a multiple of tensor={shape.tensor}"
        )
    chosen: list[Any] = []
    for owner in owners:
        own = [device for device in available if device.process_index == owner]
        if len(own) < share:
            raise ConfigError(
                f"--mesh {shape}: needs {share} devices of each process, but process {owner} has "
                f"{len(own)}; give a smaller mesh"
            )
        chosen += own[:share]
    return Mesh(np.array(chosen).reshape(astuple(shape)), AXES)


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """Say how an activation is split; without a mesh (``jax.set_mesh``) it is left as it is.

    Args:
        x: any array under ``jax.jit``.
        axes: for each dimension the mesh axis or axes that split it, None for none.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def partition_specs(tree: Any) -> Any:
    """Return how each array of a tree is split, as a tree of ``PartitionSpec``.

    Args:
        tree: parameters, moments that mirror them, or both in one tree; arrays or shapes.
            Stacked layers have one more, leading dimension, which is not split.
    """
    return jax.tree_util.tree_map_with_path(_spec, tree)


def place(tree: Any, mesh: Mesh) -> Any:
    """Put host arrays on a mesh; every process of a distributed run passes the same.

    Args:
        tree: parameters, moments or both, as ``partition_specs`` takes them.
        mesh: where to.
    """

    def put(leaf: Any, spec: PartitionSpec) -> jax.Array:
        values = np.asarray(leaf)
        return jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, spec), lambda index: values[index]
        )

    return jax.tree.map(put, tree, partition_specs(tree))


def placed_shapes(shapes: Any, mesh: Mesh) -> Any:
    """Return shapes that say where ``place`` would put their arrays.

    Args:
        shapes: parameters, moments or both as ``jax.ShapeDtypeStruct``.
        mesh: where to.
    """
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)
        ),
        shapes,
        partition_specs(shapes),
    )


def place_batch(local_rows: NDArray[np.uint32] | NDArray[np.bool_], mesh: Mesh) -> jax.Array:
    """Return the global batch, each device holding its rows.

    Args:
        local_rows: the rows of this process: [B / processes, L] ids below 2^31, which become
            int32, or [B / processes] whether each counts, which stays bool.
        mesh: where to.
    """
    sharding = NamedSharding(mesh, PartitionSpec(BATCH))
    rows = local_rows if local_rows.dtype == np.bool_ else local_rows.astype(np.int32)
    return jax.make_array_from_process_local_data(sharding, rows)


def _spec(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
    """Return how the array of this name is split."""
    names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    rule = _RULES.get(tuple(names[-2:]), PartitionSpec())
    return PartitionSpec(*(None,) * (leaf.ndim - len(rule)), *rule) if rule else rule


def _require_divides(what: str, size: int, split: dict[str, int]) -> None:
    """Raise where ``size`` does not divide something, with the nearest size that divides all."""
    for name, value in split.items():
        if value % size:
            common = math.gcd(*split.values())
            fitting = [n for n in range(1, common + 1) if common % n == 0]
            near = min(fitting, key=lambda n: (abs(n - size), n))
            raise ConfigError(
                f"--mesh: {what} does not divide {name} {value}; the nearest that fits is {near}"
            )
