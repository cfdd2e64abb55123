"""The id log: exact repeats, replays after restarts, damaged files."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon.audit import id_log
from evalmon.errors import DataError
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, RepeatSummary, RunDescription

HOSTS, BATCH, SOURCE = 4, 8, 256


def run_at(path: Path) -> RunDescription:
    return RunDescription(
        name="a", path=path, adapter="olmo3", model={}, tokenizer="tokenizer.json", vocab_size=8,
        eos_id=0, sequence_length=4, batch_instances=BATCH, planned_steps=32, planned_passes=1,
        source_instances=SOURCE, hosts=HOSTS, loader="batch_strided", seed=0, warmup_steps=0,
        recipe="r", loss={}, data="data",
    )  # fmt: skip


def records(step: int, instances: list[int]) -> NDArray[np.void]:
    drawn = np.zeros(len(instances), ID_LOG_RECORD)
    drawn["step"] = step
    drawn["host"] = np.arange(len(instances)) * HOSTS // BATCH
    drawn["instance"] = instances
    drawn["text_hash"] = np.array(instances, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return drawn


def sound(step: int) -> list[int]:
    return [(step - 1) * BATCH + n for n in range(BATCH)]


def double_sharded(step: int) -> list[int]:
    """Host h re-reads every 16th instance: its own slice, sliced again."""
    own = np.arange(SOURCE).reshape(-1, HOSTS, HOSTS)
    each = BATCH // HOSTS
    draws: list[int] = []
    for host in range(HOSTS):
        mine = own[:, host, host]
        draws += [int(mine[((step - 1) * each + n) % len(mine)]) for n in range(each)]
    return draws


def write(path: Path, *parts: NDArray[np.void], tail: bytes = b"") -> RunDescription:
    body = b"".join(part.tobytes() for part in parts)
    (path / "ids.bin").write_bytes(ID_LOG_MAGIC + body + tail)
    return run_at(path)


def summary(run: RunDescription, planned_passes: int = 1) -> RepeatSummary:
    log = id_log.read(run)
    assert log is not None
    return id_log.summarize(
        log, planned_passes=planned_passes, tokens_per_step=32, source_instances=SOURCE
    )


def test_a_run_without_an_id_log_has_none(tmp_path: Path):
    assert id_log.read(run_at(tmp_path)) is None


def test_a_single_pass_has_no_repeats(tmp_path: Path):
    found = summary(write(tmp_path, *(records(n, sound(n)) for n in range(1, 33))))
    assert (found.first_repeat_step, found.first_repeat_tokens) == (None, None)
    assert (found.draws, found.unique, found.repeated, found.repeated_fraction) == (256, 256, 0, 0)
    assert found.period_draws is None


def test_double_sharding_repeats_from_the_step_after_its_share_is_read(tmp_path: Path):
    found = summary(write(tmp_path, *(records(n, double_sharded(n)) for n in range(1, 33))))
    each = SOURCE // HOSTS**2 // (BATCH // HOSTS)  # steps that one share lasts
    assert found.first_repeat_step == each + 1 == 9
    assert found.first_repeat_tokens == 9 * 32
    assert (found.draws, found.unique, found.repeated) == (256, 64, 192)
    assert found.repeated_fraction == 0.75
    assert found.period_draws == SOURCE // HOSTS**2
    assert (found.same_step_duplicates, found.cross_host) == (0, 0)


def test_planned_passes_are_no_repeats(tmp_path: Path):
    twice = [records(n, sound((n - 1) % 32 + 1)) for n in range(1, 65)]
    found = summary(write(tmp_path, *twice), planned_passes=2)
    assert (found.first_repeat_step, found.repeated) == (None, 0)
    thrice = [*twice, records(65, sound(1))]
    found = summary(write(tmp_path, *thrice), planned_passes=2)
    assert (found.first_repeat_step, found.repeated) == (65, BATCH)


def test_hosts_that_draw_alike_repeat_in_the_first_step(tmp_path: Path):
    same = [[2 * (n - 1), 2 * n - 1] * HOSTS for n in range(1, 5)]
    found = summary(write(tmp_path, *(records(n + 1, part) for n, part in enumerate(same))))
    assert found.first_repeat_step == 1
    assert found.same_step_duplicates == found.repeated == 4 * (BATCH - 2)
    assert found.cross_host == found.repeated


def test_a_replay_after_a_restart_is_no_repeat(tmp_path: Path):
    parts = [records(n, sound(n)) for n in (1, 2, 3, 4, 3, 4, 5)]
    found = summary(write(tmp_path, *parts))
    assert (found.repeated, found.replayed_draws, found.draws) == (0, 2 * BATCH, 5 * BATCH)


def test_a_step_written_but_not_run_before_a_kill_is_no_repeat(tmp_path: Path):
    found = summary(write(tmp_path, *(records(n, sound(n)) for n in (1, 2, 2, 3))))
    assert (found.repeated, found.replayed_draws, found.draws) == (0, BATCH, 3 * BATCH)


def test_a_step_half_written_before_a_kill_is_no_repeat(tmp_path: Path):
    half = records(2, sound(2))[:3]
    found = summary(
        write(tmp_path, records(1, sound(1)), half, records(2, sound(2)), records(3, sound(3)))
    )
    assert (found.repeated, found.replayed_draws, found.draws) == (0, 3, 3 * BATCH)


def test_an_abandoned_branch_does_not_count(tmp_path: Path):
    parts = [records(n, sound(n)) for n in (1, 2, 3, 4)]
    other = records(2, sound(30))
    log = id_log.read(write(tmp_path, *parts, other))
    assert log is not None
    assert log.last_step == 2
    assert log.records["instance"][-BATCH:].tolist() == sound(30)


def test_the_last_copy_of_a_step_counts(tmp_path: Path):
    log = id_log.read(
        write(tmp_path, records(1, sound(1)), records(1, sound(2)), records(2, sound(3)))
    )
    assert log is not None
    assert log.records["instance"].tolist() == [*sound(2), *sound(3)]


def test_a_torn_record_and_an_unfinished_step_are_left_for_later(tmp_path: Path):
    half = records(2, sound(2))[:3]
    log = id_log.read(write(tmp_path, records(1, sound(1)), half, tail=b"\x01" * 23))
    assert log is not None
    assert (len(log.records), log.replayed) == (BATCH, 0)


@pytest.mark.parametrize("size", [0, 5, 16])
def test_a_log_that_has_just_been_created_is_empty(tmp_path: Path, size: int):
    (tmp_path / "ids.bin").write_bytes(ID_LOG_MAGIC[:size])
    found = summary(run_at(tmp_path))
    assert (found.draws, found.unique, found.repeated_fraction) == (0, 0, 0.0)


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "ids.bin").write_bytes(b"\x93NUMPY" + bytes(100))
    with pytest.raises(DataError, match=r"ids\.bin: begins with .* is no id log"):
        id_log.read(run_at(tmp_path))


def test_missing_records_are_refused(tmp_path: Path):
    run = write(tmp_path, records(1, sound(1)), records(2, sound(2))[:5], records(3, sound(3)))
    with pytest.raises(DataError, match="step 2 holds 5 draws, expected 8"):
        id_log.read(run)


def test_a_text_the_source_holds_twice_is_not_blamed_on_the_loader(tmp_path: Path):
    parts = [records(n, sound(n)) for n in range(1, 33)]
    parts[20]["text_hash"][0] = parts[3]["text_hash"][5]
    found = summary(write(tmp_path, *parts))
    assert (found.repeated, found.duplicate_texts) == (0, 1)


def test_an_index_that_cannot_be_trusted_leaves_the_text_to_decide(tmp_path: Path):
    parts = [records(n, double_sharded(n)) for n in range(1, 33)]
    for number, part in enumerate(parts):
        part["instance"] = np.arange(BATCH) + BATCH * number  # a running count, not an index
    found = summary(write(tmp_path, *parts))
    assert (found.first_repeat_step, found.repeated) == (9, 192)


def test_the_fingerprint_is_of_the_draws_up_to_a_step(tmp_path: Path):
    run = write(tmp_path, *(records(n, sound(n)) for n in (1, 2, 3)))
    log = id_log.read(run)
    replayed = id_log.read(write(tmp_path, *(records(n, sound(n)) for n in (1, 2, 1, 2, 3, 4))))
    assert log is not None
    assert replayed is not None
    early = id_log.read(run, until_step=2)
    assert early is not None
    assert log.until(2).fingerprint == replayed.until(2).fingerprint == early.fingerprint
    assert log.fingerprint != early.fingerprint
