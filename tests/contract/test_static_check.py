"""The static check on real Grain objects: every faulty construction named, no sound one."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import grain
import numpy as np
import pytest

from evalmon.audit.static_check import StaticReport, check_config, check_objects
from trainer.data.loaders import LOADERS
from trainer.data.pipeline import ReadPlan

N = 4096
HOSTS = [2, 8, 64]
Build = Callable[[int, int], Any]


def shards(host: int, hosts: int) -> Any:
    return grain.sharding.ShardOptions(host, hosts, drop_remainder=True)


def records() -> grain.MapDataset[Any]:
    return grain.MapDataset.source(range(N))  # pyright: ignore[reportArgumentType]


def loader(sampler: Any, shard: Any, *, source: Any = None, workers: int = 0) -> Any:
    return grain.DataLoader(
        data_source=range(N) if source is None else source,  # pyright: ignore[reportArgumentType]
        sampler=sampler,
        operations=[grain.transforms.Batch(batch_size=4, drop_remainder=True)],
        worker_count=workers,
        shard_options=shard,
    )


def index_sampler(shard: Any = None, *, total: int = N, shuffle: bool = True) -> Any:
    return grain.samplers.IndexSampler(
        total,
        shard_options=grain.sharding.NoSharding() if shard is None else shard,
        shuffle=shuffle,
        seed=0,
    )


class OwnSampler:
    """Records of a permutation, of one host's slice of it where there are hosts."""

    def __init__(self, host: int = 0, hosts: int = 1, seed: int = 0, total: int = N) -> None:
        self.size, self.host, self.seed, self.total = total // hosts, host, seed, total
        self.asked = 0

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        self.asked += 1
        epoch, inside = divmod(index, self.size)
        order = np.random.default_rng([self.seed, min(epoch, 3)]).permutation(self.total)
        key = int(order[self.host * self.size + inside])
        return grain.RecordMetadata(index=index, record_key=key)


class KnownLength(OwnSampler):
    def __len__(self) -> int:
        return 4 * self.total


class CachedSampler(KnownLength):
    """As its base, with the permutation kept."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.order = np.random.default_rng(self.seed).permutation(self.total)

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        key = int(self.order[self.host * self.size + index % self.size])
        return grain.RecordMetadata(index=index, record_key=key)


class Rows:
    """Random access to batches that are cut by host already, and that says so."""

    def __init__(self, host: int, hosts: int, *, says: bool = True) -> None:
        self.host = host
        if says:
            self.evalmon_sharding = (host, hosts)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the static check reads no record")


def checked(build: Build, hosts: int = 8) -> StaticReport:
    return check_objects("pipeline", hosts, lambda host: build(host, hosts))


def errors(report: StaticReport) -> list[tuple[str, str]]:
    return [(found.id, found.name) for found in report.findings if found.is_error]


def warnings(report: StaticReport) -> set[str]:
    return {found.id for found in report.findings if not found.is_error}


def elastic(ds: Any, host: int, hosts: int) -> Any:
    return grain.experimental.ElasticIterator(ds, 64, shards(host, hosts))


SOUND: dict[str, Build] = {
    "A": lambda h, S: loader(index_sampler(shards(h, S)), None),
    "B": lambda h, S: loader(index_sampler(), shards(h, S)),
    "B sequential": lambda h, S: loader(grain.samplers.SequentialSampler(N), shards(h, S)),
    "C": lambda h, S: loader(index_sampler(shards(h, S)), shards(h, S)),
    "F": lambda h, S: records().shuffle(seed=1).repeat()[h::S].batch(4),
    "batch-strided": lambda h, S: records().shuffle(seed=1)[h::S].batch(4).to_iter_dataset(),
    "slice first": lambda h, S: records()[h::S].shuffle(seed=h).repeat().batch(4),
    "elastic": lambda h, S: elastic(records().shuffle(seed=1).repeat(), h, S),
    "own global sampler": lambda h, S: loader(CachedSampler(), shards(h, S)),
    "own sliced sampler": lambda h, S: loader(CachedSampler(h, S), grain.sharding.NoSharding()),
    "own source": lambda h, S: grain.MapDataset.source(Rows(h, S)).to_iter_dataset(),
    "list": lambda h, S: grain.MapDataset.source(list(range(N))[h::S]).shuffle(seed=h),
    "cut, then shuffled": lambda h, S: records()[: N // 2].shuffle(seed=1).repeat()[h::S],
    "nodes, then ranks": lambda h, S: records()[h // 2 :: S // 2].shuffle(seed=h // 2)[h % 2 :: 2],
    "mixture": lambda h, S: grain.MapDataset.mix(
        [records().shuffle(seed=1).repeat(), records().shuffle(seed=2).repeat()], [0.3, 0.7]
    )[h::S],
}

FAULTY: dict[str, tuple[Build, str, str]] = {
    "C2": (
        lambda h, S: loader(index_sampler(shards(h, S)), grain.sharding.NoSharding()),
        *("C2", "sampler_sharded_loader_not"),
    ),
    "D": (lambda h, S: records().shuffle(seed=1).batch(4), "D", "unsharded_same_seed"),
    "D loader": (
        lambda h, S: loader(index_sampler(), grain.sharding.NoSharding()),
        *("D", "unsharded_same_seed"),
    ),
    "D one part": (lambda h, S: loader(index_sampler(), shards(0, S)), "D", "unsharded_same_seed"),
    "E": (
        lambda h, S: loader(index_sampler(total=N // S), shards(h, S), source=records()[h::S]),
        *("E", "double_sharding"),
    ),
    "E list": (
        lambda h, S: loader(index_sampler(total=N // S), shards(h, S), source=list(range(N))[h::S]),
        *("E", "double_sharding"),
    ),
    "E'": (
        lambda h, S: loader(
            index_sampler(total=N // S, shuffle=False), shards(h, S), source=records()[h::S]
        ),
        *("E'", "double_sharding"),
    ),
    "F2": (lambda h, S: records().shuffle(seed=1)[h::S].repeat()[h::S], "F2", "double_sharding"),
    "F3": (lambda h, S: records()[h::S].shuffle(seed=1).repeat()[h::S], "F2", "double_sharding"),
    "F4": (lambda h, S: records()[h::S].repeat()[h::S], "F4", "double_sharding"),
    "G": (lambda h, S: records().shuffle(seed=h).batch(4), "G", "unsharded_per_host_seed"),
    "G sliced": (
        lambda h, S: records().shuffle(seed=h).repeat()[h::S],
        *("G", "unsharded_per_host_seed"),
    ),
    "G sampler": (
        lambda h, S: loader(CachedSampler(seed=h), grain.sharding.NoSharding()),
        *("G", "unsharded_per_host_seed"),
    ),
    "H": (lambda h, S: records().repeat(2).shuffle(seed=1)[h::S], "H", "repeat_before_shuffle"),
    "H2": (lambda h, S: records().repeat().shuffle(seed=1)[h::S], "H2", "repeat_before_shuffle"),
    "I2": (
        lambda h, S: elastic(records().shuffle(seed=1)[h::S].repeat(), h, S),
        *("I2", "double_sharding"),
    ),
    "K": (lambda h, S: loader(CachedSampler(h, S), shards(h, S)), "K", "double_sharding"),
    "own source": (
        lambda h, S: grain.MapDataset.source(Rows(h, S))[h::S],
        *("F4", "double_sharding"),
    ),
    "F01": (
        lambda h, S: records().shuffle(seed=42)[: N // 2].repeat(5)[h::S],
        *("F01", "slice_after_shuffle"),
    ),
    "too few parts": (lambda h, S: records()[h % (S // 2) :: S // 2], "", "overlapping_slices"),
    "too many parts": (lambda h, S: records()[h :: 2 * S], "", "unread_slices"),
    "blocks overlap": (
        lambda h, S: records()[h * (N // S) : (h + 1) * (N // S) + 1],
        *("", "overlapping_slices"),
    ),
    "blocks with a gap": (
        lambda h, S: records()[h * (N // S) : (h + 1) * (N // S) - 9],
        *("", "unread_slices"),
    ),
    "U": (lambda h, S: grain.MapDataset.range(1)[h::S], "U", "file_sharding"),
}


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_construction_has_no_error(name: str, hosts: int) -> None:
    report = checked(SOUND[name], hosts)
    assert errors(report) == []
    assert report.not_understood == ()
    assert report.exit_code == 0


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_construction_is_named(name: str, hosts: int) -> None:
    build, letter, title = FAULTY[name]
    if name == "too few parts" and hosts == 2:
        letter, title = "D", "unsharded_same_seed"  # one part is no split at all
    report = checked(build, hosts)
    assert errors(report) == [(letter, title)]
    assert report.exit_code == 1


@pytest.mark.parametrize("name", [name for name in SOUND if "nodes" not in name])
def test_one_host_has_nothing_to_share(name: str) -> None:
    assert errors(checked(SOUND[name], hosts=1)) == []


def test_a_sampler_without_a_length_is_named_and_not_asked_for_its_end() -> None:
    samplers: list[OwnSampler] = []

    def build(host: int, hosts: int) -> Any:
        samplers.append(OwnSampler(host, hosts, total=64))
        return loader(samplers[-1], shards(host, hosts), source=range(64))

    report = checked(build, 2)
    assert errors(report) == [("K", "double_sharding")]
    assert "sampler_without_length" in {found.name for found in report.findings}
    assert samplers[0].asked < 63 + 64 + 2


def test_contiguous_slices_are_a_warning() -> None:
    blocks = checked(lambda h, S: records().shuffle(seed=1)[h * N // S : (h + 1) * N // S])
    assert errors(blocks) == []
    assert warnings(blocks) == {"J"}
    assert warnings(checked(SOUND["A"])) == {"J"}
    assert warnings(checked(SOUND["F"])) == set()


def test_a_loader_batches_inside_its_workers_and_a_random_access_batch_does_not() -> None:
    inside = checked(lambda h, S: loader(index_sampler(), shards(h, S), workers=2))
    assert warnings(inside) == {"M"}
    finite = grain.samplers.IndexSampler(N, shuffle=True, seed=0, num_epochs=1)
    tails = checked(lambda h, S: loader(finite, shards(h, S), workers=3))
    assert warnings(tails) == {"M", "O"}
    before = checked(
        lambda h, S: (
            records()
            .shuffle(seed=1)[h::S]
            .batch(4)
            .to_iter_dataset()
            .mp_prefetch(grain.MultiprocessingOptions(num_workers=3))
        )
    )
    assert warnings(before) == set()
    assert {"kind": "workers", "count": 3} in before.record()["pipelines"][0]


def test_tails_are_warnings_with_their_counts() -> None:
    sampler = grain.samplers.SequentialSampler(11)
    report = checked(
        lambda h, S: loader(sampler, grain.sharding.ShardOptions(h, S), source=range(11)), 4
    )
    tails = [found for found in report.findings if found.name == "dropped_tails"]
    assert errors(report) == []
    assert tails[0].message.startswith("3 of 11 positions")
    assert "not honored" in tails[0].message
    batches = checked(lambda h, S: records()[h::S].batch(100, drop_remainder=True))
    assert [found.message for found in batches.findings] == [
        "each pass of 512 positions ends with 12 that fill no batch of 100: dropped"
    ]


def test_mixtures_windows_and_files_are_warnings() -> None:
    def component(seed: int, h: int, S: int) -> Any:
        return records()[h::S].shuffle(seed=seed).repeat().to_iter_dataset()

    mixed = checked(
        lambda h, S: grain.IterDataset.mix([component(1, h, S), component(2, h, S)], [0.9, 0.1])
    )
    assert (errors(mixed), warnings(mixed)) == ([], {"T"})

    window = grain.experimental.WindowShuffleIterDataset
    local = checked(lambda h, S: window(records()[h::S].to_iter_dataset(), window_size=8, seed=h))
    assert (errors(local), warnings(local)) == ([], {"V"})

    def files(h: int, S: int, count: int) -> Any:
        paths = [f"{n}.tfrecord" for n in range(count)]
        read = [grain.experimental.TFRecordIterDataset(path) for path in paths[h::S]]
        return grain.experimental.InterleaveIterDataset(read, cycle_length=2)

    assert errors(checked(lambda h, S: files(h, S, 3), 4)) == [("U", "file_sharding")]
    even = checked(lambda h, S: files(h, S, 8), 4)
    assert (errors(even), warnings(even)) == ([], {"V"})
    assert errors(checked(lambda h, S: files(0, S, 8), 4)) == [("D", "unsharded_same_seed")]


def test_what_is_not_known_is_said_and_never_sound() -> None:
    class Own(grain.MapDataset[Any]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: Any) -> Any:
            return self._parent[index]

    for build in (
        lambda h, S: Own(records()),
        lambda h, S: grain.MapDataset.source(Rows(h, S, says=False)),
        lambda h, S: iter([1, 2]),
        lambda h, S: iter(records().to_iter_dataset()),
    ):
        report = checked(build)
        assert report.sound is None
        assert report.exit_code == 3
        assert report.not_understood
    twice = checked(lambda h, S: Own(records()[h::S])[h::S])
    assert twice.exit_code == 1
    other = checked(lambda h, S: records()[h::S] if h else records().shuffle(seed=0)[h::S])
    assert other.exit_code == 3
    assert "differs between hosts" in other.not_understood[0]


def test_a_source_that_differs_between_hosts_and_is_sharded_says_what_it_does() -> None:
    def sharded(says: bool) -> StaticReport:
        return checked(
            lambda h, S: loader(index_sampler(), shards(h, S), source=Rows(h, S, says=says))
        )

    assert errors(sharded(says=True)) == [("E", "double_sharding")]
    unsure = sharded(says=False)
    assert unsure.exit_code == 3
    assert "sharded twice" in unsure.not_understood[0]

    def whole(h: int, S: int) -> Any:
        source = Rows(h, S)
        source.evalmon_sharding = (0, 1)
        return loader(index_sampler(), shards(h, S), source=source)

    assert checked(whole).exit_code == 0


def test_lists_that_differ_between_hosts_are_parts() -> None:
    def mixed(h: int, S: int) -> Any:
        return np.random.default_rng(0).permutation(N)[h::S].tolist()

    assert checked(lambda h, S: grain.MapDataset.source(mixed(h, S))).exit_code == 3
    twice = checked(lambda h, S: grain.MapDataset.source(mixed(h, S))[h::S])
    assert errors(twice) == [("F4", "double_sharding")]


def test_a_wrapped_dataset_is_looked_into() -> None:
    report = checked(lambda h, S: grain.MapDataset.source(records()[h::S])[h::S])  # pyright: ignore
    assert [name for _, name in errors(report)] == ["double_sharding"]
    # Read as a source, the inner shuffle is always that of the first pass: nothing leaks.
    whole = checked(
        lambda h, S: grain.MapDataset.source(records().shuffle(seed=1)[:9]).repeat()[h::S]  # pyright: ignore
    )
    assert "slice_after_shuffle" not in {found.name for found in whole.findings}


def test_a_callable_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "audited_static_pipeline.py"
    build = "grain.MapDataset.range(total).shuffle(seed=0)[host::hosts]"
    file.write_text(f"import grain\ndef build(host, hosts, total=64):\n    return {build}\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    report = check_config(f"{file}:build", 4, {"total": 32})
    assert (report.sound, report.hosts, len(report.record()["pipelines"])) == (True, 4, 4)


class Unread:
    """Stands for the trainer's instances, none of which may be read."""

    fingerprint = "none"

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the static check reads no record")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("hosts", [2, 8])
def test_the_trainers_own_loaders(hosts: int, workers: int) -> None:
    plan = ReadPlan(
        cast("Any", Unread()), seed=0, batch_instances=64, hosts=hosts, position=0, batches=128,
        workers=workers,
    )  # fmt: skip
    found = {
        name: errors(checked(lambda h, S, own=own: own.build(plan, h), hosts))
        for name, own in LOADERS.items()
    }
    assert found == {
        "batch_strided": [],
        "double_shard": [("K", "double_sharding")],
        "double_shard_resume": [("K", "double_sharding")],
    }
