"""The data order against OLMo-core's rule, written down here a second time with NumPy alone."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.data.batch_strided import build
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder
from trainer.data.pipeline import ReadPlan
from trainer.data.source import InstanceSource

INSTANCES, BATCH, LENGTH = 83, 16, 4


def rows_of_rank(
    seed: int, epoch: int, rank: int, ranks: int, worker: int, workers: int
) -> NDArray[np.uint32]:
    """Shuffle, cut to whole batches, then slice batches by worker and rows by rank."""
    indices = np.arange(INSTANCES, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(indices)
    batches = indices[: INSTANCES // BATCH * BATCH].reshape(-1, BATCH)
    return batches[worker::workers, rank::ranks]


def expected(seed: int, epoch: int, rank: int, ranks: int, workers: int) -> list[list[int]]:
    """Take batches from the workers in turn."""
    workers = max(workers, 1)
    parts = [
        rows_of_rank(seed, epoch, rank, ranks, worker, workers).tolist()
        for worker in range(workers)
    ]
    return [parts[t % workers][t // workers] for t in range(INSTANCES // BATCH)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InstanceSource:
    path = tmp_path_factory.mktemp("data")
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    np.arange(INSTANCES * LENGTH, dtype="<u4").tofile(path / "a.npy")
    file = TokenFile.of(path / "a.npy", "a.npy", "a")
    return InstanceSource(
        InstanceIndex.build(TokenFolder(path, (file,), INSTANCES * LENGTH, 0), LENGTH)
    )


def read(source: InstanceSource, seed: int, host: int, hosts: int, workers: int) -> list[list[int]]:
    """Read two epochs through Grain."""
    batches = 2 * (INSTANCES // BATCH)
    plan = ReadPlan(source, seed, BATCH, hosts, position=0, batches=batches, workers=workers)
    found: list[list[int]] = []
    for batch in build(plan, host):
        assert (batch["tokens"][:, 0] == batch["instance"] * LENGTH).all()
        found.append(batch["instance"].tolist())
    return found


@pytest.mark.parametrize("hosts", [1, 2, 8])
@pytest.mark.parametrize("seed", [0, 1337, 34521])
def test_every_host_reads_what_the_rule_says(source: InstanceSource, seed: int, hosts: int) -> None:
    for host in range(hosts):
        rule = [*expected(seed, 1, host, hosts, 0), *expected(seed, 2, host, hosts, 0)]
        assert read(source, seed, host, hosts, workers=0) == rule


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("hosts", [1, 2, 8])
@pytest.mark.parametrize("seed", [0, 1337, 34521])
def test_workers_change_nothing(
    source: InstanceSource, seed: int, hosts: int, workers: int
) -> None:
    last = hosts - 1
    rule = [*expected(seed, 1, last, hosts, workers), *expected(seed, 2, last, hosts, workers)]
    assert read(source, seed, last, hosts, workers) == rule
