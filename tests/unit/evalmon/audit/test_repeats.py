"""Repeats: exact counts, passes, planned repeats, changed data, samples."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalmon import id_logs
from evalmon.audit import repeats
from evalmon.types import (
    ID_LOG_MAGIC,
    ID_LOG_RECORD,
    RepeatSummary,
    RunDescription,
    Seam,
)

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


def summary(run: RunDescription, rate: int = 1, **changes: Any) -> RepeatSummary:
    run = replace(run, **changes)
    log = id_logs.read(run, rate=rate)
    assert log is not None
    return repeats.summarize(log, run)


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


@pytest.mark.parametrize("size", [0, 5, 16])
def test_a_log_that_has_just_been_created_is_empty(tmp_path: Path, size: int):
    (tmp_path / "ids.bin").write_bytes(ID_LOG_MAGIC[:size])
    found = summary(run_at(tmp_path))
    assert (found.draws, found.unique, found.repeated_fraction) == (0, 0, 0.0)


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


def test_a_text_that_changed_under_its_index_is_no_repeat_and_is_counted(tmp_path: Path):
    parts = [records(n, sound((n - 1) % 32 + 1)) for n in range(1, 65)]
    for part in parts[32:]:
        part["text_hash"] += np.uint64(1)
    found = summary(write(tmp_path, *parts))
    assert (found.repeated, found.duplicate_texts, found.changed_texts) == (0, 0, SOURCE)


# Passes and what is planned in them.


def test_a_repeat_before_the_pass_is_complete_is_unplanned(tmp_path: Path):
    """Two passes are planned, but step 20 reads what step 19 has read."""
    parts = [records(n, sound(n)) for n in range(1, 33)]
    parts[19] = records(20, sound(19))
    found = summary(write(tmp_path, *parts), planned_passes=2)
    assert (found.first_repeat_step, found.repeated, found.planned_repeats) == (20, BATCH, 0)
    assert found.first_repeat_instance == sound(19)[0]
    assert (found.first_repeat_host, found.first_repeat_previous_step) == (0, 19)


def test_later_passes_are_planned_repeats(tmp_path: Path):
    twice = [records(n, sound((n - 1) % 32 + 1)) for n in range(1, 65)]
    found = summary(write(tmp_path, *twice), planned_passes=2)
    assert (found.repeated, found.planned_repeats, found.unique) == (0, SOURCE, SOURCE)
    assert found.multiplicity == ((2, SOURCE),)


def test_the_tail_of_a_pass_is_passed_over(tmp_path: Path):
    """With N = 252 a pass has 31 batches; step 32 begins the second and may read step 1's."""
    parts = [records(n, sound(n)) for n in range(1, 32)] + [records(32, sound(1))]
    run = write(tmp_path, *parts)
    assert summary(run, source_instances=252, planned_passes=2).repeated == 0
    assert summary(run, source_instances=256, planned_passes=2).repeated == BATCH


def test_upsampled_instances_are_planned_as_often_as_a_pass_reads_them(tmp_path: Path):
    """Instances 0 to 7 are read three times a pass, the fourth time is one too many."""
    parts = [records(n, sound(n)) for n in range(1, 30)]
    parts += [records(n, sound(1)) for n in (30, 31)]
    run = replace(write(tmp_path, *parts), upsampled=[[0, 8, 3]])
    found = summary(run)
    assert (found.repeated, found.planned_repeats) == (0, 2 * BATCH)
    run = replace(write(tmp_path, *parts, records(32, sound(1))), upsampled=[[0, 8, 3]])
    found = summary(run)
    assert (found.first_repeat_step, found.repeated) == (32, BATCH)
    assert found.multiplicity == ((1, 28 * BATCH), (4, BATCH))
    assert summary(run, upsampled=[[0, 7, 3], [7, 8, 4]]).repeated == BATCH - 1


def test_the_first_repeat_counts_tokens_by_each_steps_batch(tmp_path: Path):
    parts = [records(n, sound(n)) for n in (1, 2)] + [records(3, [16, 17]), records(4, [0, 1])]
    run = replace(write(tmp_path, *parts), batch_instances=2, earlier_batches=[[2, BATCH]])
    found = summary(run)
    assert (found.first_repeat_step, found.first_repeat_draws) == (4, 18)
    assert found.first_repeat_tokens == 20 * 4


def test_each_stretch_between_changes_of_data_is_counted_by_itself(tmp_path: Path):
    parts = [records(n, sound(n)) for n in range(1, 11)]
    parts += [records(n, sound(n - 10)) for n in range(11, 21)]
    run = write(tmp_path, *parts)
    assert summary(run).repeated == 10 * BATCH
    found = summary(run, data_changes=[10])
    assert (found.repeated, found.unique, found.draws) == (0, 20 * BATCH, 20 * BATCH)
    again = [*parts, records(21, sound(3))]
    found = summary(write(tmp_path, *again), data_changes=[10])
    assert (found.first_repeat_step, found.repeated) == (21, BATCH)


def test_of_a_stretch_that_is_over_no_pass_is_known(tmp_path: Path):
    """Two passes of 80 before the change: only a third would be said to be unplanned."""
    parts = [records(n, sound((n - 1) % 10 + 1)) for n in range(1, 21)]
    parts += [records(n, sound(n)) for n in range(21, 31)]
    run = replace(write(tmp_path, *parts), data_changes=[20], planned_passes=2)
    assert summary(run).repeated == 0
    parts[5] = records(6, [40] * BATCH)
    run = replace(write(tmp_path, *parts), data_changes=[20], planned_passes=2)
    assert summary(run).first_repeat_step == 6


def test_new_data_is_counted_in_passes_from_its_beginning(tmp_path: Path):
    """Whatever was read before: two passes of 5 steps are planned, none within one pass."""
    parts = [records(n, sound((n - 1) % 10 + 1)) for n in range(1, 19)]
    parts += [records(n, sound((n - 19) % 5 + 1)) for n in range(19, 29)]
    run = replace(write(tmp_path, *parts), data_changes=[18], planned_passes=2)
    assert summary(run, source_instances=5 * BATCH).repeated == 0
    found = summary(run, source_instances=10 * BATCH)
    assert (found.first_repeat_step, found.repeated) == (24, 5 * BATCH)


def test_of_a_stretch_that_is_over_what_a_pass_read_several_times_is_not_guessed(tmp_path: Path):
    parts = [records(n, [40] * 2 + sound(n)[2:]) for n in (1, 2)] + [records(3, sound(3))]
    run = replace(write(tmp_path, *parts), data_changes=[2])
    assert summary(run, upsampled=[[0, 8, 4]]).repeated == 0
    assert summary(run, upsampled=[[0, 8, 3]]).repeated == 1


# The construction's marks.


def test_a_resume_that_goes_back_shows_as_a_seam(tmp_path: Path):
    """After step 20 of 4 hosts the loader goes on as after step 5."""
    parts = [records(n, sound(n)) for n in range(1, 21)]
    parts += [records(n, sound(n - 15)) for n in range(21, 26)]
    run = write(tmp_path, *parts)
    log = id_logs.read(run)
    assert log is not None
    assert repeats.summarize(log, run, resumes=(10, 20)).seams == (Seam(20, BATCH, 6),)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 40), min_size=4, max_size=120),
    st.integers(1, 3),
    st.integers(4, 50),
    st.integers(1, 3),
)
def test_counts_are_those_of_an_independent_loop(
    monkeypatch_at_once: None, instances: list[int], planned: int, source: int, times: int
):
    instances = instances[: len(instances) // 4 * 4]
    drawn = np.zeros(len(instances), ID_LOG_RECORD)
    drawn["step"] = np.arange(len(instances)) // 4 + 1
    drawn["instance"] = drawn["text_hash"] = instances
    drawn["host"] = np.arange(len(instances)) % 2
    run = replace(
        run_at(Path()), batch_instances=4, source_instances=source, planned_passes=planned,
        upsampled=[[5, 9, times]] if times > 1 else [],
    )  # fmt: skip
    found = repeats.summarize(id_logs.IdLog(Path("ids.bin"), drawn, 0), run)
    # A position for each batch, never over the end of a pass of N.
    total: Counter[int] = Counter()
    within: Counter[int] = Counter()
    unplanned: list[int] = []
    allowed, position, current = dict.fromkeys(range(5, 9), times), 0, 0
    for start in range(0, len(instances), 4):
        if position % source + 4 > source:
            position += source - position % source
        if position // source != current:
            current = position // source
            within.clear()
        for place in range(start, start + 4):
            instance = instances[place]
            total[instance] += 1
            within[instance] += 1
            often = allowed.get(instance, 1)
            if total[instance] > planned * often or within[instance] > often:
                unplanned.append(place)
        position += 4
    assert found.repeated == len(unplanned)
    assert found.first_repeat_step == (unplanned[0] // 4 + 1 if unplanned else None)
    assert found.unique == len(total)
    assert found.planned_repeats == len(instances) - len(total) - len(unplanned)
    assert found.multiplicity == tuple(sorted(Counter(total.values()).items()))
    crossing = 0
    for place in unplanned:
        before = max(p for p in range(place) if instances[p] == instances[place])
        crossing += before % 2 != place % 2
    assert found.cross_host == crossing


@pytest.fixture(scope="module")
def monkeypatch_at_once():
    """So few draws at once that every path over several pieces is taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_AT_ONCE", 16)
        yield
