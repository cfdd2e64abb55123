"""From a plan of reading to batches: one real Grain loader a host.

The hosts are simulated: each has a loader of its own, and the batches they read in the same
step, one after another, are the global batch. Of several processes each drives its share of
the hosts, in order, so that the global batch is the same row for row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import grain
import numpy as np
from numpy.typing import NDArray

from trainer.data.source import InstanceSource

__all__ = ["Builder", "GlobalBatch", "ReadPlan", "Sampler", "global_batches", "host_loader"]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What the loaders of a run are to read.

    Attributes:
        source: the instances.
        seed: seed of the order.
        batch_instances: B, instances of a step over all hosts.
        hosts: S, a divisor of B.
        consumed: instances that all hosts together read before, a multiple of B.
        planned: instances of the whole run, ``consumed`` included.
        process: which of the processes this is, from 0.
        processes: how many share the hosts, a divisor of S.
    """

    source: InstanceSource
    seed: int
    batch_instances: int
    hosts: int
    consumed: int
    planned: int
    process: int = 0
    processes: int = 1

    @property
    def per_host(self) -> int:
        """Instances a host reads in a step."""
        return self.batch_instances // self.hosts

    @property
    def own_hosts(self) -> range:
        """Hosts that this process drives."""
        share = self.hosts // self.processes
        return range(self.process * share, (self.process + 1) * share)


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One step's instances, of several processes those that this one reads: its rows.

    Attributes:
        tokens: [B / processes, L] token ids.
        instances: [B / processes] global index of each row in the token folder.
        hosts: [B / processes] host that read each row.
    """

    tokens: NDArray[np.uint32]
    instances: NDArray[np.int64]
    hosts: NDArray[np.int64] = field(repr=False)


class Sampler(Protocol):
    """What Grain asks of a sampler: a length, and the record at each index of it.

    Without a length Grain would look for one by a binary search over 2^63 records.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> grain.RecordMetadata: ...


Builder: TypeAlias = Callable[[ReadPlan, int], grain.DataLoader]
"""Builds the loader of one host (0-based)."""


def host_loader(plan: ReadPlan, sampler: Sampler, shard: Any) -> grain.DataLoader:
    """Return the Grain loader of one host over ``sampler``, sharded by ``shard``.

    Args:
        plan: what is read.
        sampler: records in order.
        shard: ``grain.sharding.ShardOptions`` that Grain applies to the sampler's indices.
    """
    return grain.DataLoader(
        data_source=plan.source,
        sampler=sampler,
        operations=[grain.transforms.Batch(batch_size=plan.per_host, drop_remainder=True)],
        worker_count=0,
        shard_options=shard,
        # Records are slices of a memory map: reading ahead in threads costs more than it saves.
        read_options=grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
    )


def global_batches(plan: ReadPlan, build: Builder) -> Iterator[GlobalBatch]:
    """Yield the global batches that a plan's hosts read, of each the rows of this process."""
    iterators = [iter(build(plan, host)) for host in plan.own_hosts]
    hosts = np.repeat(np.array(plan.own_hosts), plan.per_host)
    for parts in zip(*iterators, strict=True):
        yield GlobalBatch(
            tokens=np.concatenate([part["tokens"] for part in parts]),
            instances=np.concatenate([part["instance"] for part in parts]),
            hosts=hosts,
        )
