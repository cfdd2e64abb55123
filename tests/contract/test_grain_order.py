"""What the trainer relies on in the installed Grain."""

from collections.abc import Iterator

import grain
import numpy as np
import pytest


class CountingSampler:
    """Records 0 … N - 1 in order, and how often each was asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        self.asked.append(index)
        return grain.RecordMetadata(index=index, record_key=index)


def _loader(sampler: CountingSampler, host: int, hosts: int, batch: int) -> Iterator[np.ndarray]:
    loader = grain.DataLoader(
        data_source=range(1000),  # pyright: ignore[reportArgumentType]  a range is one
        sampler=sampler,
        operations=[grain.transforms.Batch(batch_size=batch, drop_remainder=True)],
        worker_count=0,
        shard_options=grain.sharding.ShardOptions(host, hosts),
        read_options=grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
    )
    return iter(loader)


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_loader_hands_host_h_every_index_that_leaves_h(hosts: int) -> None:
    for host in range(hosts):
        batches = list(_loader(CountingSampler(12), host, hosts, batch=2))
        assert np.concatenate(batches).tolist() == list(range(host, 12, hosts))


def test_a_sampler_with_a_length_is_not_searched() -> None:
    sampler = CountingSampler(8)
    _loader(sampler, 0, 2, batch=2)
    assert sampler.asked == []


def test_without_reading_ahead_only_the_batch_asked_for_is_read() -> None:
    sampler = CountingSampler(64)
    next(_loader(sampler, 1, 2, batch=2))
    assert sampler.asked == [1, 3]


def test_slicing_after_the_shuffle_lets_later_epochs_draw_from_the_whole_source() -> None:
    """Why text is split before any shuffle."""
    stream = grain.MapDataset.source(range(10)).shuffle(seed=42).slice(slice(0, 4)).repeat(5)
    epochs = [{stream[4 * epoch + i] for i in range(4)} for epoch in range(5)]
    assert set.union(*epochs) > epochs[0]


def test_splitting_before_the_shuffle_keeps_every_epoch_to_the_part() -> None:
    stream = grain.MapDataset.source(range(4)).shuffle(seed=42).repeat(5)
    drawn = [stream[i] for i in range(len(stream))]
    assert [drawn.count(i) for i in range(4)] == [5, 5, 5, 5]
    assert drawn[:4] != drawn[4:8]
