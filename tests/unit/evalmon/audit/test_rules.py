"""The rules of the static check, one construction at a time, on values alone."""

from collections.abc import Callable
from typing import Any

import pytest

from evalmon.audit.config_finding import ConfigFinding
from evalmon.audit.pipelines import (
    INFINITE,
    OPERATIONS,
    Batch,
    Divide,
    Elastic,
    Filter,
    Interleave,
    Limit,
    Map,
    Mix,
    Operation,
    Pipeline,
    Repeat,
    Resume,
    Sampler,
    Shard,
    Shuffle,
    Slice,
    Source,
    Stream,
    Unknown,
    WindowShuffle,
    Workers,
    Wrap,
)
from evalmon.audit.rules import judge
from evalmon.audit.sampler_probe import probe

N = 4096
SOURCE = Source("tokens", N)
Build = Callable[[int, int], tuple[Operation, ...]]


def found(build: Build, hosts: int = 8) -> list[ConfigFinding]:
    looked_at = range(min(hosts, 8))
    return judge([Pipeline(host, hosts, build(host, hosts)) for host in looked_at])[0]


def errors(build: Build, hosts: int = 8) -> list[str]:
    return [finding.id or finding.name for finding in found(build, hosts) if finding.is_error]


def warned(build: Build, hosts: int = 8) -> list[str]:
    return [finding.id or finding.name for finding in found(build, hosts) if not finding.is_error]


def stride(h: int, S: int) -> Slice:
    return Slice(h, None, S)


def keys(*own: int) -> Sampler:
    return Sampler("Own", length=N, custom=True, keys=own)


@pytest.mark.parametrize("hosts", [2, 8, 64])
def test_the_expected_unique_fraction_is_that_of_the_formula(hosts: int) -> None:
    again = found(
        lambda h, S: (SOURCE, stride(h, S), Shuffle(0), Repeat(), Shard(h, S, by="loader")), hosts
    )
    fraction = 1 - (1 - 1 / hosts) ** hosts
    assert again[0].id == "E"
    assert f"unique fraction of a pass {fraction:.3g}" in again[0].message
    fixed = found(lambda h, S: (SOURCE, stride(h, S), Repeat(), Shard(h, S, by="loader")), hosts)
    assert fixed[0].id == "E'"
    assert f"= {1 / hosts:.3g}, each instance {hosts} times" in fixed[0].message
    once = found(lambda h, S: (SOURCE, stride(h, S), stride(h, S)), hosts)
    assert f"{1 - 1 / hosts:.3g} of the instances are never read" in once[0].message
    none = found(lambda h, S: (SOURCE, Shuffle(0)), hosts)
    assert (none[0].id, f"= {1 / hosts:.3g}" in none[0].message) == ("D", True)


def test_parts_multiply() -> None:
    """By nodes, then by ranks of a node: 8 = 4 x 2 parts, no two hosts in the same."""
    assert errors(lambda h, S: (SOURCE, Slice(h // 2, None, 4), Slice(h % 2, None, 2))) == []
    assert errors(lambda h, S: (SOURCE, Slice(h // 2, None, 4), Slice(h // 4, None, 2))) == ["F4"]
    assert errors(lambda h, S: (SOURCE, Slice(h % 4, None, 4), Shard(h % 2, 2))) == ["F4"]


def test_a_head_that_all_pass_over_is_no_part_of_the_split() -> None:
    assert errors(lambda h, S: (SOURCE, Slice(100 + h, None, S))) == []


def test_dividing_by_the_shards_is_taken_back_by_as_many_strides() -> None:
    def sharded(loader: int) -> Build:
        return lambda h, S: (
            SOURCE,
            Sampler("IndexSampler"),
            Shard(h, S, "contiguous", by="sampler"),
            Repeat(),
            Divide(S),
            Shard(h % loader, loader, by="loader"),
        )

    assert errors(sharded(8)) == []
    assert errors(sharded(1)) == ["C2"]
    assert errors(sharded(4)) == ["C2"]
    assert "comes 2 times in a row" in found(sharded(4))[0].message


def test_hosts_shuffle_alike_before_a_split_and_as_they_like_after_it() -> None:
    assert errors(lambda h, S: (SOURCE, Shuffle(h), stride(h, S))) == ["G"]
    assert errors(lambda h, S: (SOURCE, Shuffle(h))) == ["G"]
    assert errors(lambda h, S: (SOURCE, WindowShuffle(8, h), stride(h, S))) == ["G"]
    assert errors(lambda h, S: (SOURCE, stride(h, S), Shuffle(h))) == []
    assert errors(lambda h, S: (SOURCE, Shuffle(h)), hosts=1) == []


def test_a_group_that_shares_a_part_shuffles_it_alike() -> None:
    def build(seed: Callable[[int], int]) -> Build:
        return lambda h, S: (
            SOURCE, Slice(h // 2, None, 4), Shuffle(seed(h)), Slice(h % 2, None, 2)
        )  # fmt: skip

    assert errors(build(lambda h: h // 2)) == []
    assert errors(build(lambda h: h)) == ["G"]


def test_repeats_come_after_shuffles() -> None:
    assert errors(lambda h, S: (SOURCE, Repeat(2), Shuffle(0), stride(h, S))) == ["H"]
    assert errors(lambda h, S: (SOURCE, Repeat(), Shuffle(0), stride(h, S))) == ["H2"]
    assert errors(lambda h, S: (SOURCE, Repeat(1), Shuffle(0), stride(h, S))) == []
    assert errors(lambda h, S: (SOURCE, Shuffle(0), Repeat(), stride(h, S))) == []


def test_a_cut_after_a_shuffle_leaks_when_passes_shuffle_anew() -> None:
    def cut(*then: Operation) -> Build:
        return lambda h, S: (SOURCE, Shuffle(42), Slice(0, 400), *then, stride(h, S))

    assert errors(cut(Repeat(5))) == ["F01"]
    assert errors(cut()) == []
    assert errors(cut(Repeat(5, reseed=False))) == []
    assert errors(cut(Wrap(), Repeat(5))) == []
    assert errors(lambda h, S: (SOURCE, Slice(0, 400), Shuffle(42), Repeat(), stride(h, S))) == []
    # Each host's part of the whole is no cut; each host's part of a cut is.
    assert errors(lambda h, S: (SOURCE, Shuffle(42), stride(h, S), Repeat())) == []
    assert errors(lambda h, S: (SOURCE, Shuffle(42), Slice(h, 400, S), Repeat())) == ["F01"]


def test_blocks_are_judged_by_their_borders() -> None:
    def blocks(width: int, start: int = 0) -> Build:
        return lambda h, S: (SOURCE, Slice(start + h * width, start + (h + 1) * width))

    assert (errors(blocks(512)), warned(blocks(512))) == ([], ["J"])
    assert errors(blocks(500)) == ["unread_slices"]
    assert errors(blocks(511, start=8)) == ["unread_slices"]
    assert errors(lambda h, S: (SOURCE, Slice(h * 512, h * 512 + 513))) == ["overlapping_slices"]
    assert errors(lambda h, S: (Source("tokens", 4099), Slice(h * 512, h * 512 + 512))) == []


def test_a_sampler_that_slices_is_a_split_and_its_keys_tell() -> None:
    def slices(h: int, S: int) -> Sampler:
        return keys(*range(h * N // S, (h + 1) * N // S))

    assert errors(lambda h, S: (SOURCE, slices(h, S), Shard(0, 1))) == []
    assert errors(lambda h, S: (SOURCE, slices(h, S), Shard(h, S, by="loader"))) == ["K"]
    assert errors(lambda h, S: (SOURCE, keys(*range(99)), Shard(h, S, by="loader"))) == []
    assert errors(lambda h, S: (SOURCE, keys(*range(99)), Shard(0, 1))) == ["D"]
    assert errors(lambda h, S: (SOURCE, keys(*range(h, h + 99)), Shard(0, 1))) == ["G"]
    assert errors(lambda h, S: (SOURCE, keys(1, 2, 1), Shard(h, S))) == ["sampler_repeats"]


def test_too_few_keys_conclude_nothing_but_a_second_split_is_wrong_with_either() -> None:
    def few(h: int, shard: Shard) -> Pipeline:
        return Pipeline(h, 2, (SOURCE, keys(10 * h, 10 * h + 1), shard))

    findings, unsure = judge([few(h, Shard(0, 1)) for h in range(2)])
    assert [finding.id for finding in findings] == []
    assert "evalmon_sharding" in unsure[0]
    findings, _ = judge([few(h, Shard(h, 2)) for h in range(2)])
    assert [finding.id for finding in findings] == ["K"]


def test_files_fewer_than_hosts_leave_some_with_nothing() -> None:
    def files(count: int) -> Build:
        return lambda h, S: (
            Source("files", paths=tuple(f"{n}" for n in range(count))[h::S]), Stream()
        )  # fmt: skip

    assert errors(files(3)) == ["U"]
    assert (errors(files(9)), warned(files(9))) == ([], ["U"])
    assert (errors(files(8)), warned(files(8))) == ([], [])
    shared: Build = lambda h, S: (Source("files", paths=("a", f"{h}")), Stream())  # noqa: E731
    assert errors(shared) == ["overlapping_slices"]
    assert errors(lambda h, S: (Source("files", 3), Shard(h, S, of="files"))) == ["U"]


def test_what_each_worker_does_on_its_own_part_is_a_warning() -> None:
    def by_worker(*inside: Operation, count: int = 2) -> list[str]:
        return warned(
            lambda h, S: (SOURCE, Shuffle(0), Repeat(), stride(h, S), Stream(), *inside,
                          Workers(count))
        )  # fmt: skip

    assert by_worker(Batch(8)) == ["M"]
    assert by_worker(Filter()) == ["M"]
    assert by_worker(Limit(8)) == ["M", "limit_per_worker"]
    assert by_worker(Map()) == []
    assert by_worker(Batch(8), count=1) == []
    finite: Build = lambda h, S: (  # noqa: E731
        SOURCE, stride(h, S), Stream(), Batch(8, drop_remainder=True), Workers(2)
    )  # fmt: skip
    assert warned(finite) == ["M", "O"]
    assert warned(lambda h, S: (SOURCE, stride(h, S), Batch(8), Stream(), Workers(2))) == []


def test_tails_are_counted() -> None:
    odd = Source("tokens", 1003)
    dropped = found(lambda h, S: (odd, Shard(h, S, drop_remainder=True)))
    assert [finding.message for finding in dropped] == [
        "3 of 1003 positions fill no whole round: dropped"
    ]
    longer = found(lambda h, S: (odd, stride(h, S)))
    assert longer[0].message.startswith("1003 positions for 8 parts: 3 parts are one longer")
    honored = Shard(0, 8, by="loader", length=1003, taken=126)
    assert warned(lambda h, S: (odd, honored if h == 0 else Shard(h, 8, by="loader"))) == ["P"]
    assert warned(lambda h, S: (odd, Repeat(), Shard(h, S, drop_remainder=True))) == []
    assert warned(lambda h, S: (odd, Elastic(h, S, 8))) == ["P"]
    assert warned(lambda h, S: (Source("tokens", 1000), Elastic(h, S, 8))) == []


def test_windows_and_mixtures_are_warnings() -> None:
    assert warned(lambda h, S: (SOURCE, stride(h, S), WindowShuffle(8, h))) == ["V"]
    assert warned(lambda h, S: (SOURCE, stride(h, S), Interleave(4))) == ["V"]
    assert warned(lambda h, S: (SOURCE, Shuffle(0), stride(h, S), WindowShuffle(8, h))) == []
    mix = Mix(((SOURCE, Repeat()), (SOURCE, Repeat())))
    assert warned(lambda h, S: (mix, stride(h, S))) == ["T"]
    assert warned(lambda h, S: (SOURCE, stride(h, S), Batch(4), Elastic(0, 1, 8)))[-1] == (
        "elastic_over_batches"
    )


def test_restarts() -> None:
    def restarted(resume: Resume) -> list[str]:
        return errors(lambda h, S: (SOURCE, Shuffle(0), Repeat(), stride(h, S), resume))

    assert restarted(Resume()) == []
    assert restarted(Resume("global")) == []
    assert restarted(Resume("start")) == ["Q"]
    assert restarted(Resume("host", batches_early=1)) == ["L", "N"]
    assert errors(lambda h, S: (SOURCE, Resume("host")), hosts=1) == []


def test_a_sampler_without_a_length_is_a_warning() -> None:
    own = Sampler("Own", has_length=False, custom=True, keys=tuple(range(99)))
    assert warned(lambda h, S: (SOURCE, own, Shard(h, S))) == ["sampler_without_length"]


def test_what_is_unknown_may_shard_and_is_said() -> None:
    pipelines = [Pipeline(h, 2, (SOURCE, Unknown("Own"))) for h in range(2)]
    findings, problems = judge(pipelines)
    assert findings == []
    assert problems == ["operation 2 (unknown, Own): what it does to the order is not known"]


def test_every_kind_has_a_name_and_a_record() -> None:
    for name, kind in OPERATIONS.items():
        assert kind().record() == {"kind": name}


class Asked:
    """A sampler of N records that counts how often it is asked."""

    def __init__(self, key: Callable[[int], int], end: int = INFINITE) -> None:
        self.key, self.end, self.asked = key, end, 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        if index >= self.end:
            raise IndexError(index)
        return type("Record", (), {"record_key": self.key(index)})


def test_a_probe_asks_little_and_finds_divisions() -> None:
    plain = Asked(lambda i: i)
    assert probe(plain, 1_000_000, 8).keys == tuple(range(4000))
    assert plain.asked < 4100
    divided = probe(Asked(lambda i: i // 4), 4096, 4)
    assert (divided.divides, divided.keys[:3]) == (4, (0, 1, 2))
    assert probe(Asked(lambda i: i, end=5), 4096, 2).keys == (0, 1, 2, 3, 4)
    assert probe(Asked(lambda i: 1 // 0), 4096, 2).problem.startswith("raised ZeroDivisionError")
    assert probe(Asked(lambda i: i, end=0), 4096, 2).problem == "gave no key"
