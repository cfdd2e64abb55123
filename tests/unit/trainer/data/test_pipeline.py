from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from trainer.data.loaders import LOADERS, find_loader
from trainer.data.pipeline import GlobalBatch, ReadPlan, global_batches
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
    plan = ReadPlan(make_source(64), 5, batch_instances=8, hosts=4, consumed=0, planned=48)
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
