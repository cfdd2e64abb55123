"""Layers one by one, as checkpoints hold them, or stacked, as a loop over blocks reads them.

Stacked, ``layers`` has the four keys of one block (three sliding layers, one full), each
array with a leading axis over the blocks: layer 4j + c is row j of key c.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalmon.errors import ConfigError
from trainer.architecture import BLOCK, Olmo3Config

__all__ = ["require_scannable", "stack_layers", "unstack_layers"]


def require_scannable(config: Olmo3Config) -> None:
    """Refuse to loop over layers that are not whole blocks.

    Raises:
        ConfigError: the number of layers is not divisible by four.
    """
    if config.layers % BLOCK:
        raise ConfigError(
            f"layers {config.layers}: not divisible by {BLOCK}, so they cannot be scanned in "
            f"blocks of {BLOCK}; run them one by one (no --scan-layers)"
        )


def stack_layers(tree: Mapping[str, Any], config: Olmo3Config) -> dict[str, Any]:
    """Return the tree with its layers stacked.

    Args:
        tree: canonical tree of arrays (numpy or JAX) or of ``jax.ShapeDtypeStruct``.
        config: shapes.

    Raises:
        ConfigError: the number of layers is not divisible by four.
    """
    require_scannable(config)
    layers = tree["layers"]
    stacked = {
        str(c): jax.tree.map(
            lambda *leaves: _stack(leaves),
            *(layers[str(i)] for i in range(c, config.layers, BLOCK)),
        )
        for c in range(BLOCK)
    }
    return {**tree, "layers": stacked}


def unstack_layers(tree: Mapping[str, Any], config: Olmo3Config) -> dict[str, Any]:
    """Return the tree with its layers one by one; undoes ``stack_layers``.

    Args:
        tree: stacked tree of arrays or of ``jax.ShapeDtypeStruct``.
        config: shapes.
    """
    layers = tree["layers"]
    single = {
        str(i): jax.tree.map(lambda leaf, j=i // BLOCK: _row(leaf, j), layers[str(i % BLOCK)])
        for i in range(config.layers)
    }
    return {**tree, "layers": single}


def _stack(leaves: tuple[Any, ...]) -> Any:
    """Stack leaves of one kind on a new first axis."""
    first = leaves[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((len(leaves), *first.shape), first.dtype)
    return np.stack(leaves) if isinstance(first, np.ndarray) else jnp.stack(leaves)


def _row(leaf: Any, row: int) -> Any:
    """Return one row of a stacked leaf."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    return leaf[row]
