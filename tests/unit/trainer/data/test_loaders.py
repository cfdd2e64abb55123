from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from evalmon.errors import ConfigError, DataError
from trainer.data.faulty import first_repeat_step
from trainer.data.loaders import LOADERS, find_loader
from trainer.data.order import GlobalOrder, epoch_order
from trainer.data.pipeline import GlobalBatch, ReadPlan, global_batches
from trainer.data.source import InstanceSource

MakeSource = Callable[[int], InstanceSource]


def _read(
    source: InstanceSource, loader: str, hosts: int, steps: int, *, batch: int = 8, done: int = 0
) -> list[GlobalBatch]:
    """Read steps done + 1 to steps with real loaders."""
    position = GlobalOrder(5, len(source)).after(0, done, batch)
    plan = ReadPlan(source, 5, batch, hosts, position, steps - done)
    return list(global_batches(plan, find_loader(loader).build))


def _drawn(batches: list[GlobalBatch]) -> Counter[int]:
    return Counter(int(i) for batch in batches for i in batch.instances)


@pytest.mark.parametrize("hosts", [1, 2, 4, 8])
def test_all_hosts_together_read_each_instance_once_an_epoch(
    make_source: MakeSource, hosts: int
) -> None:
    drawn = _drawn(_read(make_source(64), "batch_strided", hosts, steps=16))
    assert drawn == Counter(dict.fromkeys(range(64), 2))


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_host_h_reads_the_positions_that_leave_h(make_source: MakeSource, hosts: int) -> None:
    source = make_source(40)
    order = GlobalOrder(5, 40)
    for step, batch in enumerate(_read(source, "batch_strided", hosts, steps=12), start=1):
        for host in range(hosts):
            mine = batch.instances[batch.hosts == host].tolist()
            assert mine == order.batch(step, 8)[host::hosts].tolist()


@pytest.mark.parametrize(("before", "after"), [(8, 2), (2, 8), (4, 1)])
def test_a_resume_with_other_hosts_neither_repeats_nor_skips(
    make_source: MakeSource, before: int, after: int
) -> None:
    source = make_source(64)
    first = _read(source, "batch_strided", before, steps=3)
    rest = _read(source, "batch_strided", after, steps=8, done=3)
    assert _drawn(first + rest) == Counter(dict.fromkeys(range(64), 1))
    whole = _read(source, "batch_strided", 1, steps=8)
    for resumed, unbroken in zip(first + rest, whole, strict=True):
        assert sorted(resumed.instances) == sorted(unbroken.instances)


def test_tokens_and_instance_of_a_row_belong_together(make_source: MakeSource) -> None:
    source = make_source(24)
    for batch in _read(source, "batch_strided", 4, steps=3):
        for tokens, instance in zip(batch.tokens, batch.instances, strict=True):
            assert tokens.tolist() == source[int(instance)]["tokens"].tolist()


@pytest.mark.parametrize(("instances", "hosts"), [(256, 4), (250, 4), (128, 2), (512, 8)])
def test_the_double_shard_repeats_first_where_its_formula_says(
    make_source: MakeSource, instances: int, hosts: int
) -> None:
    seen: set[int] = set()
    first = 0
    for step, batch in enumerate(
        _read(make_source(instances), "double_shard", hosts, steps=instances // 8), start=1
    ):
        if seen & set(batch.instances.tolist()):
            first = step
            break
        seen |= set(batch.instances.tolist())
    assert first == first_repeat_step(instances, 8, hosts)
    if instances % (8 * hosts) == 0:
        assert first == instances // (hosts * 8) + 1


def test_the_double_shard_reads_the_same_part_over_and_over(make_source: MakeSource) -> None:
    batches = _read(make_source(256), "double_shard", 4, steps=32)
    assert sorted(_drawn(batches).values()) == [4] * 64
    for host in range(4):
        own = epoch_order(5, 1, 256)[host::4][host::4].tolist()
        read = [int(i) for b in batches for i in b.instances[b.hosts == host]]
        assert read == own * 4


def test_the_double_shard_goes_on_where_it_was_after_a_resume(make_source: MakeSource) -> None:
    source = make_source(256)
    whole = _read(source, "double_shard", 4, steps=12)
    resumed = _read(source, "double_shard", 4, steps=12, done=5)
    assert [b.instances.tolist() for b in resumed] == [b.instances.tolist() for b in whole[5:]]


def test_maxtexts_double_shard_reads_two_thirds_of_an_epoch(make_source: MakeSource) -> None:
    # 1 - (1 - 1/8)^8 = 0.656 of N are read at least once; 0.655 was measured on 4,096.
    drawn = _drawn(_read(make_source(4096), "double_shard_resume", 8, steps=512))
    assert len(drawn) / 4096 == pytest.approx(0.656, abs=0.01)
    assert max(drawn.values()) >= 4


def test_maxtexts_double_shard_does_not_repeat_in_its_first_part(make_source: MakeSource) -> None:
    drawn = _drawn(_read(make_source(512), "double_shard_resume", 8, steps=8))
    assert set(drawn.values()) == {1}


def test_maxtexts_resume_goes_back_to_about_a_share_of_the_step(make_source: MakeSource) -> None:
    # After r = 9 updates of b = 2 instances a host, the offset is (r - 1) b = 16 sampler
    # records, which is loader index 16 / S = 4, the batch of step 4 / b + 1 = 3.
    source = make_source(1024)
    whole = _read(source, "double_shard_resume", 4, steps=20)
    resumed = _read(source, "double_shard_resume", 4, steps=20, done=9)
    replayed = [b.instances.tolist() for b in whole[2 : 2 + len(resumed)]]
    assert [b.instances.tolist() for b in resumed] == replayed


def test_maxtexts_resume_reads_one_batch_twice_even_on_one_host(make_source: MakeSource) -> None:
    source = make_source(64)
    whole = _read(source, "double_shard_resume", 1, steps=8)
    resumed = _read(source, "double_shard_resume", 1, steps=8, done=4)
    assert resumed[0].instances.tolist() == whole[3].instances.tolist()


@pytest.mark.parametrize("loader", ["double_shard", "double_shard_resume"])
def test_too_few_instances_for_a_faulty_loader_are_refused(
    make_source: MakeSource, loader: str
) -> None:
    with pytest.raises(DataError, match="fewer than"):
        _read(make_source(10), loader, 8, steps=1, batch=16)


def test_only_the_sound_loader_bears_no_fault() -> None:
    assert [name for name, loader in LOADERS.items() if not loader.fault] == ["batch_strided"]


def test_an_unknown_loader_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="nearest is 'batch_strided'"):
        find_loader("batch_stride")


def test_batches_have_the_shapes_of_the_plan(make_source: MakeSource) -> None:
    (batch,) = _read(make_source(16), "batch_strided", 2, steps=1)
    assert batch.tokens.shape == (8, 4)
    assert batch.tokens.dtype == np.uint32
    assert batch.hosts.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
