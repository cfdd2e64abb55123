"""From a plan of reading to batches: one real Grain pipeline a host.

A host's pipeline is random access to whole batches, which Grain reads one after another or
hands out to worker processes, worker w getting batches w, w + W and so on. So neither the
content of a batch nor the order of batches hangs on the number of workers.

The hosts are simulated: each has a pipeline of its own, and the batches they read in the same
step, one after another, are the global batch. Of several processes each drives its share of
the hosts, in order, so that the global batch is the same row for row.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grain
import numpy as np
from absl import flags
from numpy.typing import NDArray

from evalmon.errors import DataError
from trainer.data.order import GlobalOrder
from trainer.data.repetition import RepetitionFilter
from trainer.data.source import InstanceSource

__all__ = [
    "Builder",
    "GlobalBatch",
    "HostBatches",
    "ReadPlan",
    "Sampler",
    "batched_pipeline",
    "global_batches",
    "sampled_loader",
]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What the loaders of a run are to read.

    Attributes:
        source: the instances.
        seed: seed of the order.
        batch_instances: B, instances of a step over all hosts.
        hosts: S, a divisor of B.
        position: where reading begins (``trainer.data.order``).
        batches: batches to read.
        order: a key of ``ORDERS``.
        workers: processes a host reads ahead with, 0 for none.
        instance_filter: tells which instances count, None for all.
        order_dir: where long shuffles are kept as files, None for nowhere.
        process: which of the processes this is, from 0.
        processes: how many share the hosts, a divisor of S.
    """

    source: InstanceSource
    seed: int
    batch_instances: int
    hosts: int
    position: int
    batches: int
    order: str = "olmo_core"
    workers: int = 0
    instance_filter: RepetitionFilter | None = None
    order_dir: Path | None = None
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

    @property
    def global_order(self) -> GlobalOrder:
        """The order that all hosts share."""
        return GlobalOrder(
            self.seed, len(self.source), self.order, self.order_dir, self.source.fingerprint
        )


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One step's instances, of several processes those that this one reads: its rows.

    Attributes:
        tokens: [B / processes, L] token ids.
        instances: [B / processes] global index of each row in the token folder.
        hosts: [B / processes] host that read each row.
        kept: [B / processes] whether the plan's filter lets a row count, None without one.
    """

    tokens: NDArray[np.uint32]
    instances: NDArray[np.int64]
    hosts: NDArray[np.int64] = field(repr=False)
    kept: NDArray[np.bool_] | None = None


class HostBatches:
    """The batches of one host by random access, in the form Grain reads from.

    Args:
        plan: what is read.
        host: h, 0-based.
    """

    def __init__(self, plan: ReadPlan, host: int) -> None:
        self._plan, self._host = plan, host
        self._order = plan.global_order
        # For `evalmon audit config`: what a position of this source stands for is sharded here.
        self.evalmon_sharding = (host, plan.hosts)

    def __len__(self) -> int:
        return self._plan.batches

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """Return batch ``index`` from the plan's position on: tokens [B/S, L], instance [B/S]."""
        plan, size = self._plan, self._plan.batch_instances
        start = self._order.batch_start(plan.position, int(index), size)
        own = self._order.at(start, size)[self._host :: plan.hosts]
        tokens, instances = plan.source.read(own.astype(np.int64))
        return _with_kept({"tokens": tokens, "instance": instances}, plan)

    def __repr__(self) -> str:
        """Name the content, because Grain compares this text when it restores a position."""
        return f"HostBatches({self._plan.source}, {self._order}, host {self._host})"


class Sampler(Protocol):
    """What Grain asks of a sampler: a length, and the record at each index of it.

    Without a length Grain would look for one by a binary search over 2^63 records.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> grain.RecordMetadata: ...


Builder: TypeAlias = Callable[[ReadPlan, int], Iterable[dict[str, NDArray[Any]]]]
"""Builds the batches of one host (0-based)."""


def batched_pipeline(plan: ReadPlan, host: int) -> grain.IterDataset:
    """Return the Grain pipeline over the batches of one host."""
    # Batches are copies of a memory map: reading ahead in threads costs more than it saves.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    read = grain.MapDataset.source(HostBatches(plan, host)).to_iter_dataset(options)
    if not plan.workers:
        return read
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain hands the flags to its workers, parsed or it fails
    return read.mp_prefetch(grain.MultiprocessingOptions(num_workers=plan.workers))


def sampled_loader(plan: ReadPlan, sampler: Sampler, shard: Any) -> grain.DataLoader:
    """Return a Grain loader of one host over ``sampler``, sharded by ``shard``.

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
        read_options=grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
    )


def global_batches(plan: ReadPlan, build: Builder) -> Generator[GlobalBatch]:
    """Yield the global batches that a plan's hosts read, of each the rows of this process."""
    hosts = np.repeat(np.array(plan.own_hosts), plan.per_host)
    with contextlib.ExitStack() as closing:
        iterators = [iter(build(plan, host)) for host in plan.own_hosts]
        for iterator in iterators:
            # Ends reading processes, also when a run stops before its data does.
            closing.callback(getattr(iterator, "close", lambda: None))
        while (batch := _next_batch(plan, iterators, hosts)) is not None:
            yield batch


def _next_batch(
    plan: ReadPlan, iterators: Sequence[Iterator[dict[str, NDArray[Any]]]], hosts: NDArray[np.int64]
) -> GlobalBatch | None:
    """Put the rows of hosts one after another, copied out of what workers share with us."""
    read = [next(iterator, None) for iterator in iterators]
    parts = [_with_kept(part, plan) for part in read if part is not None]
    if not parts:
        return None
    if len(parts) < len(read):
        early = [h for h, part in zip(plan.own_hosts, read, strict=True) if part is None]
        raise DataError(
            f"hosts {early} ended before the others; all must read equally many batches"
        )
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for part in parts:
        part.clear()  # Grain holds on to it: let go of memory shared with a worker now
    return GlobalBatch(joined["tokens"], joined["instance"], hosts, joined.get("kept"))


def _with_kept(part: dict[str, NDArray[Any]], plan: ReadPlan) -> dict[str, NDArray[Any]]:
    """Say of each instance whether it counts, where a filter is to and nobody has yet."""
    if plan.instance_filter is None or "kept" in part:
        return part
    return {**part, "kept": plan.instance_filter.keeps(part["tokens"])}
