"""The order in which instances are read: a pure function of seed and position.

Position p counts instances over the whole run and all hosts. Every epoch is one
shuffle of all instances, cut to whole batches; batch t of it holds positions tB to
tB + B - 1, and of these host h reads the ones that leave h modulo S. So batch t is
the same set of instances for any number of hosts.

Source: OLMo-core ``data/data_loader.py`` (NumpyDataLoaderBase).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["GlobalOrder", "epoch_order"]


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, instances: int) -> NDArray[np.uint32]:
    """Return the shuffle of one epoch.

    Args:
        seed: seed of the run's data order.
        epoch: 1-based.
        instances: N.

    Returns:
        [N] a permutation of 0 … N-1, read-only.

    Source: OLMo-core: ``Generator(PCG64(seed + epoch)).shuffle(arange(N, uint32))``.

    Example:
        >>> epoch_order(34521, 1, 6).tolist()
        [4, 0, 5, 1, 2, 3]
    """
    order = np.arange(instances, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(order)
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class GlobalOrder:
    """Which instance stands at each position of a run.

    Attributes:
        seed: seed of the shuffles.
        instances: N, at least B.
        batch_instances: B, instances of a batch over all hosts.
    """

    seed: int
    instances: int
    batch_instances: int

    @property
    def per_epoch(self) -> int:
        """Positions of one epoch: N cut to whole batches."""
        return self.instances // self.batch_instances * self.batch_instances

    def instance_at(self, position: int) -> int:
        """Return the instance at a position (0-based, over all epochs)."""
        epoch, offset = divmod(position, self.per_epoch)
        return int(epoch_order(self.seed, epoch + 1, self.instances)[offset])

    def batch(self, step: int) -> NDArray[np.uint32]:
        """Return the [B] instances of a step (1-based), in order of position."""
        epoch, offset = divmod((step - 1) * self.batch_instances, self.per_epoch)
        order = epoch_order(self.seed, epoch + 1, self.instances)
        return order[offset : offset + self.batch_instances]
