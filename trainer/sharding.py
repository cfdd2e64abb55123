"""Where arrays live: one data axis over the devices; parameters on each of them."""

from math import gcd
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

__all__ = ["data_mesh", "place_batch", "place_copies"]


def data_mesh(batch_instances: int) -> Mesh:
    """Return a mesh of as many devices as split the batch evenly.

    Args:
        batch_instances: B, rows of a global batch.
    """
    devices = jax.devices()
    return Mesh(np.array(devices[: gcd(len(devices), batch_instances)]), ("data",))


def place_copies(tree: Any, mesh: Mesh) -> Any:
    """Put a copy of every array on each device."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def place_batch(tokens: NDArray[np.uint32], mesh: Mesh) -> jax.Array:
    """Put each device's rows of a global batch on it, as int32.

    Args:
        tokens: [B, L] ids below 2^31.
        mesh: mesh of a divisor of B devices.
    """
    return jax.device_put(tokens.astype(np.int32), NamedSharding(mesh, PartitionSpec("data")))
