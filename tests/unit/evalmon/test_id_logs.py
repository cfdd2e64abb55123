"""The id log's reader: last copies, damaged files, a log read again and again, samples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalmon import id_logs
from evalmon.errors import DataError
from evalmon.id_logs import IdLogReader, mixed, sampling_rate
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, RunDescription

BATCH = 8


def run_at(path: Path) -> RunDescription:
    return RunDescription(
        name="a", path=path, adapter="olmo3", model={}, tokenizer="tokenizer.json", vocab_size=8,
        eos_id=0, sequence_length=4, batch_instances=BATCH, planned_steps=32, planned_passes=1,
        source_instances=256, hosts=4, loader="batch_strided", seed=0, warmup_steps=0,
        recipe="r", loss={}, data="data",
    )  # fmt: skip


def drawn(step: int, first: int | None = None, count: int = BATCH) -> NDArray[np.void]:
    """The records of a step that reads instances in a row."""
    records = np.zeros(count, ID_LOG_RECORD)
    first = (step - 1) * count if first is None else first
    records["step"] = step
    records["host"] = np.arange(count) * 4 // count
    records["instance"] = first + np.arange(count)
    records["text_hash"] = records["instance"] * np.uint64(0x9E3779B97F4A7C15)
    return records


def write(path: Path, *parts: NDArray[np.void], tail: bytes = b"") -> RunDescription:
    body = b"".join(part.tobytes() for part in parts)
    (path / "ids.bin").write_bytes(ID_LOG_MAGIC + body + tail)
    return run_at(path)


def grow(path: Path, *parts: NDArray[np.void], tail: bytes = b"") -> None:
    with (path / "ids.bin").open("ab") as file:
        file.write(b"".join(part.tobytes() for part in parts) + tail)


def instances(log: id_logs.IdLog | None) -> list[int]:
    assert log is not None
    return log.records["instance"].tolist()


def test_a_run_without_an_id_log_has_none(tmp_path: Path):
    assert id_logs.read(run_at(tmp_path)) is None


def test_an_abandoned_branch_does_not_count(tmp_path: Path):
    log = id_logs.read(write(tmp_path, *(drawn(n) for n in (1, 2, 3, 4)), drawn(2, 240)))
    assert log is not None
    assert (log.last_step, log.replayed) == (2, 3 * BATCH)
    assert instances(log)[-BATCH:] == list(range(240, 248))


def test_the_last_copy_of_a_step_counts(tmp_path: Path):
    log = id_logs.read(write(tmp_path, drawn(1), drawn(1, 8), drawn(2, 16)))
    assert instances(log) == list(range(8, 24))


def test_a_torn_record_and_an_unfinished_step_are_left_for_later(tmp_path: Path):
    log = id_logs.read(write(tmp_path, drawn(1), drawn(2)[:3], tail=b"\x01" * 23))
    assert log is not None
    assert (len(log.records), log.replayed, log.last_step) == (BATCH, 0, 1)


@pytest.mark.parametrize("size", [0, 5, 16])
def test_a_log_that_has_just_been_created_is_empty(tmp_path: Path, size: int):
    (tmp_path / "ids.bin").write_bytes(ID_LOG_MAGIC[:size])
    log = id_logs.read(run_at(tmp_path))
    assert log is not None
    assert (len(log.records), log.last_step, log.replayed) == (0, 0, 0)


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "ids.bin").write_bytes(b"\x93NUMPY" + bytes(100))
    with pytest.raises(DataError, match=r"ids\.bin: begins with .* is no id log"):
        id_logs.read(run_at(tmp_path))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([drawn(1), drawn(2)[:5], drawn(3)], "step 2 holds 5 draws, expected 8"),
        ([drawn(1), drawn(3)], "step 2 holds 0 draws, expected 8"),
        ([drawn(1), drawn(2), drawn(2)[:5], drawn(1), drawn(2)[1:], drawn(3)], "step 2 holds 7"),
    ],
)
def test_missing_records_are_refused(tmp_path: Path, parts: list[NDArray[np.void]], said: str):
    with pytest.raises(DataError, match=said):
        id_logs.read(write(tmp_path, *parts))


def test_what_was_missing_in_an_abandoned_branch_does_not_matter(tmp_path: Path):
    log = id_logs.read(
        write(tmp_path, drawn(1), drawn(2)[:5], drawn(3), drawn(2), drawn(3), drawn(4))
    )
    assert instances(log) == list(range(4 * BATCH))


def test_a_log_that_begins_late_says_so(tmp_path: Path):
    log = id_logs.read(write(tmp_path, drawn(5), drawn(6)))
    assert log is not None
    assert (log.first_step, log.last_step) == (5, 6)


def test_each_step_holds_the_batch_it_was_trained_with(tmp_path: Path):
    parts = [drawn(1), drawn(2), drawn(3, 16, 4), drawn(4, 20, 4), drawn(4, 20, 4)]
    run = replace(write(tmp_path, *parts), batch_instances=4, earlier_batches=[[2, BATCH]])
    log = id_logs.read(run)
    assert instances(log) == list(range(24))
    assert log is not None
    assert log.replayed == 4
    with pytest.raises(DataError, match="step 1 holds 8 draws, expected 16"):
        id_logs.read(replace(run, earlier_batches=[[1, 16]]))


def test_the_fingerprint_is_of_the_draws_up_to_a_step(tmp_path: Path):
    run = write(tmp_path, *(drawn(n) for n in (1, 2, 3)))
    log = id_logs.read(run)
    replayed = id_logs.read(write(tmp_path, *(drawn(n) for n in (1, 2, 1, 2, 3, 4))))
    assert log is not None
    assert replayed is not None
    early = id_logs.read(run, until_step=2)
    assert early is not None
    assert log.until(2).fingerprint == replayed.until(2).fingerprint == early.fingerprint
    assert log.fingerprint != early.fingerprint


def test_progress_tells_every_byte(tmp_path: Path):
    told: list[int] = []
    id_logs.read(write(tmp_path, *(drawn(n) for n in range(1, 9))), progress=told.append)
    assert sum(told) == 8 * BATCH * 24


# Read again and again.


def test_only_what_is_new_is_read_again(tmp_path: Path):
    run = write(tmp_path, *(drawn(n) for n in range(1, 4)))
    reader, told = IdLogReader(), list[int]()
    first = reader.read(run)
    grow(tmp_path, drawn(4), drawn(5)[:2], tail=b"torn")
    second = reader.read(run, told.append)
    assert sum(told) == (2 * BATCH + 2) * 24  # the last step once more: its copy may follow
    assert instances(first) == list(range(3 * BATCH))
    assert instances(second) == list(range(4 * BATCH))


@pytest.mark.parametrize("anew", [False, True])
def test_a_log_that_shrank_or_was_replaced_is_read_anew(tmp_path: Path, anew: bool):
    run = write(tmp_path, *(drawn(n) for n in range(1, 6)))
    reader = IdLogReader()
    reader.read(run)
    if anew:
        (tmp_path / "ids.bin").replace(tmp_path / "old")
    write(tmp_path, *(drawn(n, 8 * n + 100) for n in range(1, 7 if anew else 4)))
    again = reader.read(run)
    assert instances(again) == instances(id_logs.read(run))
    (tmp_path / "ids.bin").unlink()
    assert reader.read(run) is None
    write(tmp_path, drawn(1))
    assert instances(reader.read(run)) == list(range(BATCH))


def test_a_run_that_was_given_another_batch_is_read_anew(tmp_path: Path):
    run = write(tmp_path, drawn(1), drawn(2), drawn(3))
    reader = IdLogReader()
    reader.read(run)
    grow(tmp_path, drawn(3, 16, 4), drawn(4, 20, 4))
    changed = replace(run, batch_instances=4, earlier_batches=[[2, BATCH]])
    assert instances(reader.read(changed)) == list(range(24))


def test_a_log_that_was_refused_is_read_once_it_is_whole(tmp_path: Path):
    run = write(tmp_path, drawn(1), drawn(2)[:5], drawn(3))
    reader = IdLogReader()
    with pytest.raises(DataError, match="step 2"):
        reader.read(run)
    grow(tmp_path, drawn(2), drawn(3))
    assert instances(reader.read(run)) == list(range(3 * BATCH))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.lists(st.integers(0, 20), min_size=1, max_size=12),
    st.sampled_from([1, 2]),
)
def test_reading_piece_by_piece_is_reading_at_once_and_earlier_draws_stay(
    tmp_path_factory: pytest.TempPathFactory, restarts: list[int], cuts: list[int], rate: int
):
    """Restarts at any step; the file cut anywhere between two reads."""
    path, rng, parts, reached = tmp_path_factory.mktemp("log"), np.random.default_rng(1), [], 0
    for target in restarts:
        reached = min(reached, target - 1) + 1
        parts += [drawn(step, int(rng.integers(1000))) for step in range(reached, reached + 3)]
        reached += 2
    content = ID_LOG_MAGIC + b"".join(part.tobytes() for part in parts)
    run, reader, place = run_at(path), IdLogReader(rate), 0
    held: list[tuple[id_logs.IdLog, list[int]]] = []
    for cut in [*cuts, len(content)]:
        place = min(place + cut * 31, len(content)) if cut < len(content) else cut
        (path / "ids.bin").write_bytes(content[:place])
        found, whole = reader.read(run), id_logs.read(run, rate=rate)
        assert found is not None
        assert whole is not None
        np.testing.assert_array_equal(found.records, whole.records)
        assert (found.replayed, found.span) == (whole.replayed, whole.span)
        held.append((found, instances(found)))
    for log, before in held:
        assert instances(log) == before


# Samples.


def test_a_sample_keeps_all_draws_of_a_text_or_none(tmp_path: Path):
    run = write(tmp_path, *(drawn(n, 8 * ((n - 1) % 16)) for n in range(1, 33)))
    log, whole = id_logs.read(run, rate=4), id_logs.read(run)
    assert log is not None
    assert whole is not None
    kept = set(instances(log))
    assert 0 < len(kept) < 128
    assert sorted(instances(log)) == sorted(i for i in instances(whole) if i in kept)
    assert (log.rate, log.last_step, log.until(3).last_step) == (4, 32, 3)


def test_one_text_in_a_thousand_is_kept():
    hashes = np.arange(1 << 20, dtype=np.uint64)
    kept = int(np.count_nonzero(mixed(hashes) % np.uint64(id_logs.SAMPLED_RATE) == 0))
    assert abs(kept - 1024) < 4 * 32  # four standard deviations


def test_a_replay_is_counted_whole_of_a_sample(tmp_path: Path):
    log = id_logs.read(write(tmp_path, *(drawn(n) for n in (1, 2, 3, 2, 3, 4))), rate=4)
    assert log is not None
    assert log.replayed == 2 * BATCH


def test_a_schedule_of_more_draws_than_can_be_kept_is_sampled(tmp_path: Path):
    run = run_at(tmp_path)
    last = id_logs.EXACT_DRAWS // BATCH
    assert sampling_rate(replace(run, planned_steps=last)) == 1
    assert sampling_rate(replace(run, planned_steps=last + 1)) == id_logs.SAMPLED_RATE == 1024
