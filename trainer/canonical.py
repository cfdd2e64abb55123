"""States as checkpoints hold them: layers one by one, whatever the run does with them.

One process goes through host memory, which spares its devices a second copy of the state.
Of several, each holds a part of most arrays only, so they copy and stack on the devices.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from evalmon.types import weights_fingerprint
from trainer.architecture import Olmo3Config
from trainer.layout import stack_layers, unstack_layers
from trainer.sharding import partition_specs

__all__ = [
    "Stacked",
    "canonical_copy",
    "canonical_shapes",
    "canonical_shardings",
    "fingerprint",
    "in_layout_of",
]

Stacked: TypeAlias = Olmo3Config | None
"""Shapes of the model if the layers of a state are stacked (``trainer.layout``), else None."""


def canonical_copy(state: Any, stacked: Stacked) -> Any:
    """Return the state as it is stored, in memory that no update takes over.

    A background writer may look at the very memory that the next update is given.

    Args:
        state: parameters, moments or both, on the devices of all processes.
        stacked: whether its layers are.
    """
    if jax.process_count() == 1:
        return _each_model(unstack_layers, jax.tree.map(np.array, state), stacked)
    return _copied(state, stacked, jax.tree.leaves(state)[0].sharding.mesh)


def canonical_shapes(state: Any, stacked: Stacked) -> Any:
    """Return the shapes and dtypes of a state as it is stored."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    return _each_model(unstack_layers, shapes, stacked)


def canonical_shardings(shapes: Any, example: Any) -> Any:
    """Return how stored arrays are split on the mesh that the arrays of ``example`` are on."""
    mesh = jax.tree.leaves(example)[0].sharding.mesh
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), partition_specs(shapes))


def in_layout_of(template: Any, values: Any, stacked: Stacked) -> Any:
    """Put stored arrays into the layout of a run, onto its devices.

    Args:
        template: the run's own arrays.
        values: of one process numpy arrays, of several arrays on the template's mesh.
        stacked: whether the template's layers are.
    """
    if jax.process_count() == 1:
        return jax.tree.map(
            lambda whole, leaf: jax.make_array_from_callback(
                whole.shape, leaf.sharding, lambda index: whole[index]
            ),
            _each_model(stack_layers, values, stacked),
            template,
        )
    if stacked is None:
        return values
    stack = jax.jit(
        lambda tree: _each_model(stack_layers, tree, stacked),
        out_shardings=jax.tree.map(lambda leaf: leaf.sharding, template),
    )
    return stack(values)


def fingerprint(params: Mapping[str, Any]) -> str:
    """Return the fingerprint of stored parameters, in host memory or spread over processes.

    All processes of a distributed run must call it; arrays are gathered one at a time.
    """
    return weights_fingerprint(_Gathered(params))


@partial(jax.jit, static_argnums=(1, 2))  # here, so that not every save compiles it
def _copied(state: Any, stacked: Stacked, mesh: Mesh) -> Any:
    """Return a copy of a state as it is stored, on the devices it is on."""
    copy = _each_model(unstack_layers, jax.tree.map(jnp.copy, state), stacked)
    return jax.tree.map(
        lambda leaf, spec: jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec)),
        copy,
        partition_specs(copy),
    )


class _Gathered(Mapping[str, Any]):
    """A tree whose arrays are brought to this process, whole, when they are read."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._tree = tree

    def __getitem__(self, key: str) -> Any:
        value = self._tree[key]
        if isinstance(value, Mapping):
            return _Gathered(value)
        if isinstance(value, np.ndarray):
            return value
        return multihost_utils.process_allgather(value, tiled=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)


def _each_model(
    change: Callable[[dict[str, Any], Olmo3Config], Any], tree: Any, stacked: Stacked
) -> Any:
    """Change the layout of parameters and of all that mirrors them, if layers are stacked."""
    if stacked is None:
        return tree

    def is_model(node: Any) -> bool:
        return isinstance(node, dict) and "layers" in node

    return jax.tree.map(
        lambda node: change(node, stacked) if is_model(node) else node, tree, is_leaf=is_model
    )
