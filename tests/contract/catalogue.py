"""Sound loaders and faulty ones, of real Grain objects, each as callable(host, hosts).

Each is of the form that `evalmon audit replay tests.contract.catalogue:NAME` drives. Faults
are written as they are found in the field; never train with them.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import grain
import numpy as np
from numpy.typing import NDArray

Record = dict[str, Any]
NOW = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
N, BATCH = 4096, 8


class Texts:
    """Record i: four tokens of its own, and its id."""

    def __init__(self, n: int, *, ids: bool = True, equal: int = 0) -> None:
        self.n, self.ids, self.equal = n, ids, equal

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Record:
        i = int(index)
        text = 0 if i < self.equal else i
        record: Record = {"tokens": np.array([text % 251, text, 7, text // 3], np.int32)}
        return {**record, "instance": i} if self.ids else record

    def __repr__(self) -> str:
        return f"Texts({self.n})"


class Global:
    """One order over all positions of a run, from ``start`` on."""

    def __init__(self, n: int, start: int, end: int) -> None:
        self.n, self.start, self.end = n, start, end

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        epoch, inside = divmod(self.start + index, self.n)
        return grain.RecordMetadata(index=index, record_key=int(shuffled(self.n, epoch)[inside]))

    def __repr__(self) -> str:
        return f"Global({self.n})"


class Sliced:
    """FAULT when the loader shards too: one host's contiguous slice of each pass."""

    def __init__(self, n: int, host: int, hosts: int, offset: int, end: int) -> None:
        self.n, self.host, self.part, self.offset, self.end = n, host, n // hosts, offset, end

    def __len__(self) -> int:
        return self.end

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        epoch, inside = divmod(index + self.offset, self.part)
        key = int(shuffled(self.n, epoch)[self.host * self.part + inside])
        return grain.RecordMetadata(index=index, record_key=key)

    def __repr__(self) -> str:
        return f"Sliced({self.n}, {self.host})"


@lru_cache(maxsize=256)
def shuffled(n: int, epoch: int, seed: int = 11) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(n)


def loader(source: Any, sampler: Any, shard: Any, batch: int, workers: int = 0) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[grain.transforms.Batch(batch_size=batch, drop_remainder=True)],
        worker_count=workers,
        shard_options=shard,
        read_options=NOW,
    )


def shard(host: int, hosts: int, *, drop: bool = True) -> grain.sharding.ShardOptions:
    return grain.sharding.ShardOptions(host, hosts, drop_remainder=drop)


def index_sampler(n: int, options: Any, epochs: int | None, seed: int = 3) -> Any:
    return grain.samplers.IndexSampler(n, options, shuffle=True, num_epochs=epochs, seed=seed)


def batches(dataset: Any, batch: int) -> Any:
    return dataset.batch(batch, drop_remainder=True).to_iter_dataset(NOW)


def texts(n: int) -> Any:
    return grain.MapDataset.source(Texts(n))


# Sound.


def sampler_sharded(  # A
    host: int, hosts: int, n: int = N, batch: int = BATCH, epochs: int | None = None
) -> Any:
    return loader(Texts(n), index_sampler(n, shard(host, hosts), epochs), None, batch)


def sampler_sharded_keeping_rest(
    host: int, hosts: int, n: int = N, batch: int = BATCH, epochs: int | None = None
) -> Any:
    sampler = index_sampler(n, shard(host, hosts, drop=False), epochs)
    return loader(Texts(n), sampler, None, batch)


def loader_sharded(  # B
    host: int, hosts: int, n: int = N, batch: int = BATCH, epochs: int | None = None
) -> Any:
    sampler = index_sampler(n, grain.sharding.NoSharding(), epochs)
    return loader(Texts(n), sampler, shard(host, hosts), batch)


def both_sharded(  # C
    host: int, hosts: int, n: int = N, batch: int = BATCH, epochs: int | None = None
) -> Any:
    own = shard(host, hosts)
    return loader(Texts(n), index_sampler(n, own, epochs), own, batch)


def shuffle_repeat_slice(  # F
    host: int, hosts: int, n: int = N, batch: int = BATCH, epochs: int | None = None
) -> Any:
    return batches(texts(n).shuffle(seed=5).repeat(epochs)[host::hosts], batch)


def batch_strided(
    host: int, hosts: int, n: int = N, batch: int = 64, epochs: int = 1, consumed: int = 0,
) -> Any:  # fmt: skip
    """``batch`` is of all hosts: any number of hosts goes on from any position."""
    sampler = Global(n, consumed, epochs * n)
    return loader(Texts(n), sampler, shard(host, hosts), batch // hosts)


def elastic(host: int, hosts: int, n: int = N, batch: int = 64, epochs: int | None = None) -> Any:
    return grain.experimental.ElasticIterator(
        texts(n).shuffle(seed=5).repeat(epochs), batch, shard(host, hosts), read_options=NOW
    )


def window_shuffle(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # V
    part = texts(n)[host::hosts].to_iter_dataset(NOW)
    return grain.experimental.WindowShuffleIterDataset(part, window_size=16, seed=1).batch(
        batch, drop_remainder=True
    )


# Faulty.


def sampler_alone(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # C2
    sampler = index_sampler(n, shard(host, hosts), None)
    return loader(Texts(n), sampler, grain.sharding.NoSharding(), batch)


def same_seed(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # D
    none = grain.sharding.NoSharding()
    return loader(Texts(n), index_sampler(n, none, None), none, batch)


def sliced_source_sharded(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # E
    own = texts(n)[host::hosts]
    sampler = index_sampler(len(own), grain.sharding.NoSharding(), None)
    return loader(own, sampler, shard(host, hosts), batch)


def sliced_source_in_order(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # E'
    own = texts(n)[host::hosts]
    sampler = grain.samplers.IndexSampler(len(own), num_epochs=None)
    return loader(own, sampler, shard(host, hosts), batch)


def slice_shuffle_slice(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # F2
    return batches(texts(n)[host::hosts].shuffle(seed=5).repeat(None)[host::hosts], batch)


def shuffle_slice_slice(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # F3
    return batches(texts(n).shuffle(seed=5)[host::hosts].repeat(None)[host::hosts], batch)


def slice_repeat_slice(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # F4
    return batches(texts(n)[host::hosts].repeat(None)[host::hosts], batch)


def seed_of_host(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # G
    return batches(texts(n).shuffle(seed=100 + host).repeat(None), batch)


def repeat_shuffle(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # H
    return batches(texts(n).repeat(2).shuffle(seed=5)[host::hosts], batch)


def repeat_forever_shuffle(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # H2
    return batches(texts(n).repeat(None).shuffle(seed=1)[host::hosts], batch)


def elastic_of_slice(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # I2
    own = texts(n)[host::hosts].shuffle(seed=5).repeat(None)
    return grain.experimental.ElasticIterator(
        own, batch * hosts, shard(host, hosts), read_options=NOW
    )


def contiguous(  # J
    host: int, hosts: int, n: int = N, batch: int = 64, consumed: int = 0
) -> Any:
    """``batch`` is of all hosts."""
    part = n // hosts
    own = texts(n)[host * part + consumed // hosts : (host + 1) * part]
    return batches(own, batch // hosts)


def double_sharding(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Any:  # K
    sampler = Sliced(n, host, hosts, 0, 4 * n)
    return loader(Texts(n), sampler, shard(host, hosts), batch)


def double_sharding_resume(  # L
    host: int, hosts: int, n: int = N, batch: int = BATCH, step: int = 0
) -> Any:
    sampler = Sliced(n, host, hosts, step * batch, 4 * n)
    return loader(Texts(n), sampler, shard(host, hosts), batch)


def double_sharding_sound_resume(  # K
    host: int, hosts: int, n: int = N, batch: int = BATCH, step: int = 0
) -> Any:
    sampler = Sliced(n, host, hosts, step * batch * hosts, 4 * n)
    return loader(Texts(n), sampler, shard(host, hosts), batch)


def interleaved(  # M
    host: int, hosts: int, n: int = N, batch: int = 4, step: int = 0, read_by: int = 2
) -> Any:
    """What W worker processes yield, in one process; a restart counts them as one reader."""
    own = texts(n)[host::hosts][step * batch :]
    parts = [batches(own[worker::read_by], batch) for worker in range(read_by)]
    return grain.experimental.InterleaveIterDataset(parts, cycle_length=read_by)


def with_workers(  # O
    host: int, hosts: int, n: int = N, batch: int = 4, step: int = 0, workers: int = 0
) -> Any:
    sampler = Global(n, step * batch * hosts, n)
    return loader(Texts(n), sampler, shard(host, hosts), batch, workers)


def off_by_one(host: int, hosts: int, n: int = N, batch: int = 64, step: int = 0) -> Any:  # N
    return batch_strided(host, hosts, n, batch, 1, max(step - 1, 0) * batch)


def from_the_start(  # Q
    host: int, hosts: int, n: int = N, batch: int = BATCH, step: int = 0
) -> Any:
    del step
    return loader_sharded(host, hosts, n, batch, 1)


def holdout(host: int, hosts: int, n: int = N) -> Any:  # R
    del host, hosts
    return batches(texts(n)[n // 2 : n // 2 + 64], BATCH)


def clean_holdout() -> Any:
    return [{"tokens": np.array([[9, 9, 9, 8], [9, 8, 8, 8]])}]


# Loaders without ids.


def unnamed(host: int, hosts: int, n: int = N, batch: int = BATCH, equal: int = 0) -> Any:
    source = grain.MapDataset.source(Texts(n, ids=False, equal=equal))
    return batches(source.shuffle(seed=5)[host::hosts], batch)


def unnamed_hidden(
    host: int, hosts: int, n: int = N, batch: int = BATCH, equal: int = 0
) -> Iterator[Record]:
    yield from unnamed(host, hosts, n, batch, equal)


def unnamed_double_sharding(
    host: int, hosts: int, n: int = N, batch: int = BATCH, equal: int = 0
) -> Iterator[Record]:
    source = Texts(n, ids=False, equal=equal)
    yield from loader(source, Sliced(n, host, hosts, 0, 4 * n), shard(host, hosts), batch)


def local_ids(host: int, hosts: int, n: int = N, batch: int = BATCH) -> Iterator[Record]:
    """Each host numbers what it reads from 0."""
    for number, read in enumerate(loader_sharded(host, hosts, n, batch, 1)):
        yield {**read, "instance": np.arange(number * batch, (number + 1) * batch)}
