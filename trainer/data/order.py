"""The order in which instances are read: a pure function of seed and position.

A **position** counts, over the whole run and all hosts, the instances that were read or
passed over. Epoch e holds positions (e - 1) N to e N - 1, one shuffle of all N instances.
A batch of B takes the next B positions; where fewer are left of the epoch these are passed
over and the batch begins the next one. Of a batch host h of S reads every S-th instance
from its h-th on. So batch t is the same set of instances for any number of hosts, and a run
can go on from a position with other hosts, workers, and another B.

Source: OLMo-core ``data/data_loader.py`` (NumpyFSLDataLoader), whose order this is for a
constant B; MaxText ``input_pipeline/olmo_data_grain.py`` for the other shuffle.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainer.data.order_file import stored
from trainer.names import require_known

__all__ = ["FILED", "ORDERS", "GlobalOrder", "epoch_order", "find_order"]

FILED: Final = 1 << 20
"""Instances from which on a shuffle is built once into a file that all processes map."""


def _olmo_core(seed: int, epoch: int) -> np.random.Generator:
    """Return OLMo-core's generator: PCG64 of seed + epoch, epochs from 1."""
    return np.random.Generator(np.random.PCG64(seed + epoch))


def _maxtext(seed: int, epoch: int) -> np.random.Generator:
    """Return MaxText's generator: seeded by a hash of seed and epoch, epochs from 0."""
    digest = hashlib.sha256(f"olmo-shuffle:{seed}:{epoch - 1}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


ORDERS: MappingProxyType[str, Callable[[int, int], np.random.Generator]] = MappingProxyType(
    {"olmo_core": _olmo_core, "maxtext": _maxtext}
)
"""Generator of an epoch's shuffle by name, from seed and 1-based epoch."""


def find_order(name: str) -> Callable[[int, int], np.random.Generator]:
    """Return the generator of the order called ``name``.

    Raises:
        ConfigError: no such order; the nearest name is suggested.
    """
    require_known("--order", "order", name, ORDERS)
    return ORDERS[name]


def _shuffled(seed: int, epoch: int, instances: int, order: str) -> NDArray[np.uint32]:
    """Shuffle 0 … N-1; 4 bytes an instance."""
    indices = np.arange(instances, dtype=np.uint32)
    find_order(order)(seed, epoch).shuffle(indices)
    return indices


@lru_cache(maxsize=2)
def epoch_order(
    seed: int, epoch: int, instances: int, order: str = "olmo_core"
) -> NDArray[np.uint32]:
    """Return the shuffle of one epoch.

    Args:
        seed: seed of the run's data order.
        epoch: 1-based.
        instances: N, below 2^32.
        order: a key of ``ORDERS``.

    Returns:
        [N] a permutation of 0 … N-1, read-only.

    Example:
        >>> epoch_order(34521, 1, 6).tolist()
        [4, 0, 5, 1, 2, 3]
    """
    indices = _shuffled(seed, epoch, instances, order)
    indices.setflags(write=False)
    return indices


@lru_cache(maxsize=2)
def _filed_order(
    seed: int, epoch: int, instances: int, order: str, place: tuple[Path, str]
) -> NDArray[np.uint32]:
    """Return the shuffle of one epoch from its file, which is built if it is not there."""
    directory, fingerprint = place
    path = directory / f"{order}-{fingerprint}-seed{seed}-epoch{epoch}.u4"
    return stored(path, instances, lambda: _shuffled(seed, epoch, instances, order))


@dataclass(frozen=True, slots=True)
class GlobalOrder:
    """Which instance stands at each position of a run.

    Attributes:
        seed: seed of the shuffles.
        instances: N.
        order: a key of ``ORDERS``.
        directory: where shuffles of ``FILED`` instances or more are kept as files, None to
            keep every one in memory.
        fingerprint: of what is read; a file of another fingerprint is never used.
    """

    seed: int
    instances: int
    order: str = "olmo_core"
    directory: Path | None = None
    fingerprint: str = ""

    def epoch(self, number: int) -> NDArray[np.uint32]:
        """Return the [N] instances of an epoch (1-based) in order."""
        if self.directory is None or self.instances < FILED:
            return epoch_order(self.seed, number, self.instances, self.order)
        place = (self.directory, self.fingerprint)
        return _filed_order(self.seed, number, self.instances, self.order, place)

    def batch_start(self, position: int, batches: int, size: int) -> int:
        """Return the position at which a later batch begins.

        Args:
            position: where reading begins or goes on.
            batches: batches read between the two.
            size: B, at most N.

        Example:
            >>> order = GlobalOrder(0, instances=10)
            >>> [order.batch_start(0, t, 4) for t in range(4)]
            [0, 4, 10, 14]
        """
        epoch, offset = divmod(position, self.instances)
        left = (self.instances - offset) // size
        if batches < left:
            return position + batches * size
        epochs, inside = divmod(batches - left, self.instances // size)
        return (epoch + 1 + epochs) * self.instances + inside * size

    def after(self, position: int, batches: int, size: int) -> int:
        """Return the position reached by reading so many batches of ``size`` from another."""
        return self.batch_start(position, batches - 1, size) + size if batches else position

    def at(self, position: int, count: int) -> NDArray[np.uint32]:
        """Return the [count] instances from a position on, all of one epoch."""
        epoch, offset = divmod(position, self.instances)
        assert offset + count <= self.instances
        return self.epoch(epoch + 1)[offset : offset + count]

    def batch(self, step: int, size: int) -> NDArray[np.uint32]:
        """Return the [size] instances of a step (1-based) of a run of constant batch."""
        return self.at(self.batch_start(0, step - 1, size), size)
