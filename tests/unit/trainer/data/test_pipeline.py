import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from trainer.data.loaders import LOADERS, find_loader
from trainer.data.pipeline import GlobalBatch, HostBatches, ReadPlan, global_batches
from trainer.data.repetition import RepetitionFilter
from trainer.data.source import InstanceSource


def _joined(parts: tuple[GlobalBatch, ...]) -> tuple[list[int], list[int], list[list[int]]]:
    rows = np.concatenate([part.tokens for part in parts])
    return (
        [int(i) for part in parts for i in part.instances],
        [int(h) for part in parts for h in part.hosts],
        rows.tolist(),
    )


@pytest.mark.parametrize("loader", sorted(LOADERS))
@pytest.mark.parametrize("processes", [2, 4])
def test_the_rows_of_all_processes_in_order_are_the_batch_of_one(
    make_source: Callable[[int], InstanceSource], loader: str, processes: int
) -> None:
    plan = ReadPlan(make_source(64), 5, batch_instances=8, hosts=4, position=0, batches=6)
    build = find_loader(loader).build
    whole = list(global_batches(plan, build))
    shares = [
        global_batches(replace(plan, process=process, processes=processes), build)
        for process in range(processes)
    ]
    parts = list(zip(*shares, strict=True))
    assert len(parts) == len(whole) == 6
    for batch, part in zip(whole, parts, strict=True):
        assert _joined(part) == _joined((batch,))
        assert [len(share.instances) for share in part] == [8 // processes] * processes


def test_a_filter_says_of_every_row_whether_it_counts(
    make_source: Callable[[int], InstanceSource],
) -> None:
    rule = RepetitionFilter(max_period=1, max_count=3)
    source = make_source(64)
    for loader in LOADERS:
        plan = ReadPlan(source, 5, 8, 4, 0, 2, instance_filter=rule)
        for batch in global_batches(plan, find_loader(loader).build):
            assert batch.kept is not None
            assert batch.kept.tolist() == rule.keeps(batch.tokens).tolist()


def test_without_a_filter_nothing_is_said(make_source: Callable[[int], InstanceSource]) -> None:
    plan = ReadPlan(make_source(16), 5, 8, 4, 0, 2)
    assert all(
        batch.kept is None for batch in global_batches(plan, find_loader("batch_strided").build)
    )


def test_what_workers_are_given_is_small(make_source: Callable[[int], InstanceSource]) -> None:
    plan = ReadPlan(make_source(64), 5, 8, 4, 0, 2)
    batches = HostBatches(plan, 1)
    first = batches[0]["tokens"].tolist()
    sent = pickle.dumps(batches)
    assert len(sent) < 4096
    assert pickle.loads(sent)[0]["tokens"].tolist() == first
