"""Laws of the data order, over hosts, workers, batches and stops."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.batch_strided import build
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder
from trainer.data.order import ORDERS, GlobalOrder
from trainer.data.pipeline import ReadPlan, global_batches
from trainer.data.selection import Selection
from trainer.data.source import InstanceSource

TOTAL, LENGTH = 240, 2


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> InstanceIndex:
    path: Path = tmp_path_factory.mktemp("data")
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    np.arange(TOTAL * LENGTH, dtype="<u4").tofile(path / "a.npy")
    file = TokenFile.of(path / "a.npy", "a.npy", "a")
    folder = TokenFolder(path, (file,), TOTAL * LENGTH, 0)
    return InstanceIndex.build(folder, LENGTH)


def read(plan: ReadPlan) -> list[list[int]]:
    """Return the instances of each step, over all hosts."""
    return [sorted(batch.instances.tolist()) for batch in global_batches(plan, build)]


@st.composite
def segments(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    """Return N, and of each part of a run its batch, its hosts and its steps."""
    instances = draw(st.integers(24, 80))
    parts: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(1, 4))):
        hosts = draw(st.sampled_from([1, 2, 3, 5, 8]))
        batch = hosts * draw(st.integers(1, 24 // hosts))
        parts.append((batch, hosts, draw(st.integers(0, 9))))
    return instances, parts


@given(case=segments(), seed=st.integers(0, 2**31 - 1), order=st.sampled_from(sorted(ORDERS)))
@settings(max_examples=60, deadline=None)
def test_a_run_in_parts_reads_each_epoch_at_most_once_and_passes_over_only_tails(
    index: InstanceIndex, case: tuple[int, list[tuple[int, int, int]]], seed: int, order: str
) -> None:
    instances, parts = case
    source = InstanceSource(index, Selection.evenly(TOTAL, instances))
    rule = GlobalOrder(seed, instances, order)
    position, drawn = 0, Counter[tuple[int, int]]()
    passed: dict[int, int] = {}
    for batch, hosts, steps in parts:
        plan = ReadPlan(source, seed, batch, hosts, position, steps, order)
        for t, found in enumerate(read(plan)):
            start = rule.batch_start(position, t, batch)
            epoch, offset = divmod(start, instances)
            before = rule.after(position, t, batch)
            if before // instances != epoch and before % instances:
                passed[before // instances] = instances - before % instances
                assert passed[before // instances] < batch
            rows = rule.epoch(epoch + 1)[offset : offset + batch].astype(np.int64)
            assert found == sorted((rows * TOTAL // instances).tolist())
            drawn.update((epoch, instance) for instance in found)
        position = rule.after(position, steps, batch)
    assert not drawn or max(drawn.values()) == 1
    per_epoch = Counter(epoch for epoch, _ in drawn)
    for epoch in range(max(per_epoch, default=0)):
        assert per_epoch[epoch] + passed.get(epoch, 0) == instances


@given(
    stops=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1, 2, 3, 5, 6, 10])), max_size=4),
    instances=st.integers(30, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_stops_and_other_hosts_leave_every_step_of_a_run_the_same(
    index: InstanceIndex, stops: list[tuple[int, int]], instances: int, seed: int
) -> None:
    source = InstanceSource(index, Selection.evenly(TOTAL, instances))
    rule, batch = GlobalOrder(seed, instances), 30
    total = sum(steps for steps, _ in stops)
    unbroken = read(ReadPlan(source, seed, batch, 1, position=0, batches=total))
    found: list[list[int]] = []
    for steps, hosts in stops:
        position = rule.after(0, len(found), batch)
        found += read(ReadPlan(source, seed, batch, hosts, position, steps))
    assert found == unbroken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "batch", "workers"), [(8, 2, 16, 0), (2, 8, 16, 0), (3, 5, 15, 1)]
)
def test_a_run_that_goes_on_with_other_hosts_reads_what_an_unbroken_one_reads(
    index: InstanceIndex, before: int, after: int, batch: int, workers: int
) -> None:
    source = InstanceSource(index, Selection.evenly(TOTAL, 100))
    rule, steps, total = GlobalOrder(7, 100), 4, 11
    unbroken = read(ReadPlan(source, 7, batch, 1, position=0, batches=total))
    position = rule.after(0, steps, batch)
    found = read(ReadPlan(source, 7, batch, before, 0, steps, workers=workers))
    found += read(ReadPlan(source, 7, batch, after, position, total - steps, workers=workers))
    assert found == unbroken
