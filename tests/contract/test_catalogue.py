"""The replay audit against real Grain loaders: every faulty construction found, no sound one."""

import json
from functools import partial
from itertools import pairwise
from typing import Any

import grain
import numpy as np
import pytest
from click.testing import CliRunner

from evalmon.audit.drive import DrivePlan
from evalmon.audit.replay import ReplayResult, replay
from evalmon.audit.replay_report import record
from evalmon.audit.resume import parse_resume
from evalmon.audit.targets import Target
from evalmon.cli import main
from evalmon.errors import DataError
from tests.contract import catalogue

SIZES = {2: 512, 8: 1024, 64: 4096}
"""Source for a number of hosts: at least S^2 instances."""


def audit(
    loader: Any, hosts: int, n: int = catalogue.N, epochs: int = 1, stop: str | None = None,
    resume: str | None = None, **options: Any,
) -> ReplayResult:  # fmt: skip
    instances, steps = options.pop("instances", n), options.pop("steps", None)
    workers = options.pop("workers", None)
    plan = DrivePlan(
        Target(loader.__name__, loader),
        hosts,
        {"n": n, **options},
        workers=workers,
        instances=instances,
        steps=steps,
        resume=parse_resume(stop, resume),
    )
    return replay(plan, epochs=epochs)


def fraction(result: ReplayResult) -> float:
    return result.counts.unique / result.counts.draws


def code(result: ReplayResult) -> str | None:
    return None if result.construction is None else result.construction.code


SOUND = [
    catalogue.sampler_sharded,
    catalogue.sampler_sharded_keeping_rest,
    catalogue.loader_sharded,
    catalogue.both_sharded,
    catalogue.shuffle_repeat_slice,
]


@pytest.mark.slow
@pytest.mark.parametrize("loader", SOUND)
@pytest.mark.parametrize(
    ("hosts", "extra", "epochs", "finite", "stop", "resume"),
    [
        (hosts, *case)
        for hosts in (2, 8, 64)
        for case in (
            (0, 1, False, None, None),
            (3, 1, True, "2,5", "state"),
            (3, 2, False, "3", "skip"),
            (5, 2, True, None, None),
        )[: 2 if hosts == 64 else 4]  # 64 hosts take long
    ],
)
def test_sound_loaders_are_sound(  # noqa: PLR0917
    loader: Any, hosts: int, extra: int, epochs: int, finite: bool, stop: str, resume: str
) -> None:
    # Sound streams need no S^2 instances.
    n = min(SIZES[hosts], 1024) + extra
    passes: dict[str, Any] = {"num": epochs} if finite else {}
    bound = partial(loader, epochs=passes.get("num"))
    bound.__name__ = loader.__name__  # pyright: ignore[reportAttributeAccessIssue]
    result = audit(bound, hosts, n, epochs, stop, resume, batch=2 if hosts == 64 else 8)
    assert not result.findings
    assert result.exit_code == 0
    # Of a pass, at most what fills no batch is left out.
    assert result.counts.size - result.counts.unique < 8 * hosts if extra else not result.findings


@pytest.mark.parametrize("hosts", [2, 8, 64])
@pytest.mark.parametrize(
    ("stop", "resume"),
    [(None, None), ("3", "2"), ("3", "8"), ("2,5", "8,2"), ("1,2,3", "64,1,4")],
)
def test_elastic_loaders_are_sound_for_any_change_of_hosts(
    hosts: int, stop: str | None, resume: str | None
) -> None:
    n = 1024
    strided = audit(catalogue.batch_strided, hosts, n, 1, stop, resume)
    assert (strided.exit_code, strided.counts.unique) == (0, n)
    state = f"{resume},state" if resume else None
    result = audit(catalogue.elastic, hosts, n, 1, stop, state)
    assert (result.exit_code, result.counts.unique) == (0, n)
    assert result.multiplicity().tolist() == [0, 0, n]


def test_local_shuffles_after_the_slice_are_sound() -> None:  # V
    result = audit(catalogue.window_shuffle, 8, 512)
    assert (result.exit_code, fraction(result)) == (0, 1.0)


FAULTY = [
    ("C2", catalogue.sampler_alone),
    ("D", catalogue.same_seed),
    ("E", catalogue.sliced_source_sharded),
    ("E'", catalogue.sliced_source_in_order),
    ("F2", catalogue.slice_shuffle_slice),
    ("F3", catalogue.shuffle_slice_slice),
    ("F4", catalogue.slice_repeat_slice),
    ("G", catalogue.seed_of_host),
    ("H", catalogue.repeat_shuffle),
    ("I2", catalogue.elastic_of_slice),
    ("K", catalogue.double_sharding),
]
DOUBLE = {"E", "E'", "F2", "F3", "F4", "I2", "K"}


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [2, 8, 64])
@pytest.mark.parametrize("stop", [None, "4"])
@pytest.mark.parametrize(("member", "loader"), FAULTY)
def test_faulty_loaders_are_found_and_named(
    member: str, loader: Any, hosts: int, stop: str | None
) -> None:
    # One nominal pass of 64 hosts shows as much as two, but for hosts that then move on.
    steps: dict[str, Any] = {}
    if hosts == 64 and member != "C2":
        steps = {"steps": SIZES[64] // 512}
    result = audit(loader, hosts, SIZES[hosts], stop=stop, **steps)
    assert result.exit_code == 1
    assert result.construction is not None
    fits = result.construction.record()
    assert member in (fits["id"], *fits["fits"])
    assert (fits["name"] == "double_sharding") == (member in DOUBLE)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [2, 8, 64])
@pytest.mark.parametrize("stop", ["8", "2", "3", "2,4", "7,11"])
def test_the_resume_fault_is_told_from_double_sharding_alone(hosts: int, stop: str) -> None:
    # Also where S does not divide r b, so that nothing is replayed: 64 hosts, most stops.
    fault = audit(catalogue.double_sharding_resume, hosts, SIZES[hosts], stop=stop)
    assert fault.construction is not None
    assert fault.construction.name == "double_sharding_with_resume_fault"
    sound = audit(catalogue.double_sharding_sound_resume, hosts, SIZES[hosts], stop=stop)
    assert sound.construction is not None
    assert sound.construction.name == "double_sharding"


@pytest.mark.parametrize(
    ("loader", "expected", "exact"),
    [
        (catalogue.loader_sharded, 1.0, True),
        (catalogue.sampler_alone, 1 / 8, True),
        (catalogue.same_seed, 1 / 8, True),
        (catalogue.sliced_source_sharded, 0.654, False),
        (catalogue.sliced_source_in_order, 1 / 8, True),
        (catalogue.slice_repeat_slice, 1 / 8, True),
        (catalogue.shuffle_repeat_slice, 1.0, True),
        (catalogue.slice_shuffle_slice, 0.648, False),
        (catalogue.shuffle_slice_slice, 0.660, False),
        (catalogue.seed_of_host, 0.648, False),
        (catalogue.repeat_shuffle, 0.761, False),
        (catalogue.repeat_forever_shuffle, 0.875, True),
        (catalogue.elastic_of_slice, 0.648, False),
        (catalogue.double_sharding, 0.655, False),
    ],
)
def test_unique_fraction_of_one_nominal_pass(loader: Any, expected: float, exact: bool) -> None:
    """S = 8, N = 4096, N draws over all hosts."""
    result = audit(loader, 8, steps=catalogue.N // 64)
    assert result.counts.draws == catalogue.N
    assert fraction(result) == pytest.approx(expected, abs=0 if exact else 0.02)
    assert (expected < 1) == bool(result.findings)


def test_double_sharding_first_repeats_after_its_share() -> None:
    result = audit(catalogue.double_sharding, 8, steps=64)
    first = result.findings[0].first_step
    assert first == catalogue.N // 8 // 64 + 1
    assert record(result)["same_step_duplicates"] == 0


@pytest.mark.parametrize(("stop", "expected"), [("4", 0.5625), ("2,4,6", 0.34375)])
def test_resumes_with_the_offset_fault_replay_almost_from_the_start(
    stop: str, expected: float
) -> None:  # L: of N/S draws, in which double sharding alone repeats nothing
    result = audit(catalogue.double_sharding_resume, 8, steps=8, stop=stop)
    assert fraction(result) == expected
    assert code(result) == "L"
    seam = result.seams[-1]
    assert seam.shift == seam.step * catalogue.BATCH // 8


@pytest.mark.parametrize(
    ("before", "after", "share"), [(8, 4, 0.125), (4, 8, 0.125), (8, 2, 0.1875)]
)
def test_contiguous_slices_repeat_and_skip_when_hosts_change(
    before: int, after: int, share: float
) -> None:  # J, at a quarter of the pass
    result = audit(catalogue.contiguous, before, stop="16", resume=str(after))
    assert result.multiplicity().tolist()[2:] == [share * catalogue.N]
    assert record(result)["never_read"] == share * catalogue.N
    assert code(result) == "J"


@pytest.mark.parametrize(("read_by", "stop", "again"), [(2, 5, 2), (4, 5, 3), (8, 5, 6), (2, 4, 0)])
def test_offsets_that_forget_workers_reread_and_skip(read_by: int, stop: int, again: int) -> None:
    # M: exact only after a multiple of W batches; N - 4 stop fills whole batches of W workers.
    n = 4 * stop + 4 * read_by * 100
    result = audit(catalogue.interleaved, 1, n, stop=str(stop), read_by=read_by)
    assert result.seams[0].replayed == result.counts.draws - result.counts.unique == again
    assert record(result)["never_read"] == result.seams[0].skipped == again
    assert code(result) == ("M" if again else None)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Worker processes import the catalogue by its name."""
    monkeypatch.syspath_prepend(request.config.rootpath)


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
def test_worker_processes_are_compared_with_none() -> None:
    loader = catalogue.with_workers
    # O: 72 records are 18 batches of 4; two workers have 36 each, 9 batches: stop after 5.
    resumed = audit(loader, 1, 72, workers=2, stop="5")
    assert (resumed.seams[0].replayed, code(resumed)) == (2, "M")
    assert resumed.workers is not None
    assert not resumed.workers.same_multiset
    tails = audit(loader, 1, 70, workers=2)
    assert tails.workers is not None
    assert (record(tails)["never_read"], tails.workers.missing) == (6, 4)
    assert (tails.exit_code, code(tails)) == (0, "O")


@pytest.mark.parametrize("hosts", [1, 8])
def test_an_offset_of_one_step_too_few_rereads_one_batch(hosts: int) -> None:  # N
    result = audit(catalogue.off_by_one, hosts, stop="16")
    assert result.counts.draws - result.counts.unique == 64
    assert (result.seams[0].replayed, result.seams[0].replays_step) == (64, 16)
    assert code(result) == "N"


def test_what_does_not_divide_is_dropped_and_said() -> None:  # P
    finite = partial(catalogue.loader_sharded, epochs=1)
    finite.__name__ = "finite"  # pyright: ignore[reportAttributeAccessIssue]
    result = audit(finite, 8, 4100)
    assert (result.exit_code, record(result)["never_read"], code(result)) == (0, 4, "P")


@pytest.mark.parametrize("hosts", [2, 8])
def test_a_restart_without_state_replays_the_prefix(hosts: int) -> None:  # Q
    result = audit(catalogue.from_the_start, hosts, stop="5")
    assert result.counts.draws - result.counts.unique == 5 * 8 * hosts
    assert (result.seams[0].replays_step, code(result)) == (1, "Q")


def test_a_holdout_of_training_files_is_found() -> None:  # R
    plan = DrivePlan(Target("t", catalogue.loader_sharded), 2, {"n": 512}, instances=512, steps=32)
    leak = replay(plan, holdout=Target("h", partial(catalogue.holdout, n=512)))
    assert (leak.exit_code, code(leak)) == (1, "R")
    assert [(item.kind, item.count) for item in leak.findings] == [("leakage", 64)]
    assert replay(plan, holdout=Target("h", catalogue.clean_holdout)).exit_code == 0


# Texts and ids.


@pytest.mark.parametrize("loader", [catalogue.unnamed, catalogue.unnamed_hidden])
def test_two_instances_of_equal_tokens_in_one_pass_are_silent(loader: Any) -> None:
    result = audit(loader, 8, equal=2)
    assert (result.exit_code, result.counts.identity) == (0, "text_hash")


def test_equal_tokens_do_not_hide_double_sharding() -> None:
    result = audit(catalogue.unnamed_double_sharding, 8, equal=2)
    assert (result.exit_code, code(result)) == (1, "K")


def test_a_source_that_can_be_read_tells_how_often_it_holds_a_text() -> None:
    many = audit(catalogue.unnamed, 8, 1024, equal=100)
    assert (many.exit_code, many.counts.copies_known, many.counts.unique) == (0, True, 1024)
    hidden = audit(catalogue.unnamed_hidden, 8, 1024, equal=100)
    assert (hidden.exit_code, hidden.repeat_or_equal_text) == (1, 99)


def test_ids_that_each_host_counts_for_itself_are_not_trusted() -> None:
    result = audit(catalogue.local_ids, 8, 1024)
    assert (result.exit_code, result.counts.identity) == (0, "text_hash")
    assert result.counts.id_conflicts == 128


# Faults of the field.


def leaking_slice(host: int, hosts: int, n: int) -> Any:
    whole = catalogue.texts(n).shuffle(seed=42).slice(slice(0, 4)).repeat(5)
    return catalogue.batches(whole[host::hosts], 1)


def safe_slice(host: int, hosts: int, n: int) -> Any:
    kept = catalogue.texts(n).slice(slice(0, 4)).shuffle(seed=42).repeat(5)
    return catalogue.batches(kept[host::hosts], 1)


def test_a_slice_after_the_shuffle_leaks_the_rest_in_later_passes() -> None:
    # 4 of 10 records are kept, 5 times. With the installed Grain later passes draw others.
    leak = audit(leaking_slice, 1, 10, epochs=5, instances=None)
    assert leak.counts.unique > 4
    assert leak.exit_code == 1
    safe = audit(safe_slice, 1, 10, epochs=5, instances=4, steps=100)
    assert (safe.exit_code, safe.multiplicity().tolist()) == (0, [0, 0, 0, 0, 0, 4])


def windowed(host: int, hosts: int, n: int) -> Any:
    part = catalogue.texts(n)[host::hosts].to_iter_dataset(catalogue.NOW)
    return grain.experimental.WindowShuffleIterDataset(part, window_size=5, seed=42)


@pytest.mark.parametrize("stop", [1, 3, 5, 7])
def test_a_window_shuffle_restores_where_it_stopped(stop: int) -> None:
    whole = audit(windowed, 1, 10).stream.draws.instance
    result = audit(windowed, 1, 10, stop=str(stop), resume="state")
    assert result.exit_code == 0
    assert result.stream.draws.instance.tolist() == whole.tolist()


def test_a_state_is_the_same_when_it_is_restored_and_saved_again() -> None:
    iterator = iter(windowed(0, 1, 10))
    for _ in range(5):
        next(iterator)
    other = iter(windowed(0, 1, 10))
    other.set_state(iterator.get_state())
    assert other.get_state() == iterator.get_state()


@pytest.mark.parametrize(("hosts", "saved"), [(2, 4), (8, 4)])
def test_states_of_another_number_of_hosts_are_refused_or_exact(hosts: int, saved: int) -> None:
    one = partial(catalogue.loader_sharded, epochs=1, batch=1)
    one.__name__ = "one"  # pyright: ignore[reportAttributeAccessIssue]
    if hosts > saved:
        with pytest.raises(DataError, match="4 loader states were saved, none for host 4"):
            audit(one, saved, 24, stop="2", resume=f"{hosts},state")
    else:  # Grain takes the states of fewer hosts without a word: the audit counts what it does.
        assert audit(one, saved, 24, stop="2", resume=f"{hosts},state").exit_code == 1
    own = audit(catalogue.batch_strided, saved, 24, batch=8, stop="2", resume=str(hosts))
    assert (own.exit_code, own.multiplicity().tolist()) == (0, [0, 24])


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 5])
def test_any_number_of_workers_reads_each_record_once(workers: int) -> None:
    result = audit(catalogue.with_workers, 1, 12, workers=workers, batch=1)
    assert (result.exit_code, result.multiplicity().tolist()) == (0, [0, 12])


# The command.


def test_the_command_names_the_construction_and_prints_one_json_object() -> None:
    arguments = ["audit", "replay", "tests.contract.catalogue:double_sharding", "--hosts", "8"]
    result = CliRunner().invoke(main, [*arguments, "--instances", "4096", "--json"])
    assert result.exit_code == 1
    printed = json.loads(result.stdout.splitlines()[-1])
    assert printed["construction"]["name"] == "double_sharding"
    assert (printed["sound"], printed["window"]["reason"]) == (False, "twice_the_source")
    assert "not sound" in result.stderr


def test_shuffled_orders_differ_between_passes() -> None:
    orders = [catalogue.shuffled(64, epoch) for epoch in range(3)]
    assert all(not np.array_equal(a, b) for a, b in pairwise(orders))
