"""Grounds read piece by piece, from a sample, and after other data came."""

from dataclasses import replace
from typing import Any

import pytest

from evalmon import id_logs
from evalmon.config import ComparisonSettings
from evalmon.grounds import GroundsReader
from evalmon.types import ID_LOG_MAGIC, VerdictName

SETTINGS = ComparisonSettings(profile="short", holdout="text")


def test_the_id_log_is_read_where_it_grew(world: Any) -> None:
    run = world.add("tiny", [0, 10, 20])
    run.log(20)
    run.ids(10, repeat_from=200)
    world.monitor().one_pass()
    reader = GroundsReader(run.description, world.store, SETTINGS)
    early = reader.read()
    assert early is not None
    assert early.ids is not None
    assert early.ids.last_step == 10
    run.ids(20, repeat_from=15)
    later = reader.read()
    assert later is not None
    assert later.ids is not None
    assert (early.ids.last_step, later.ids.last_step) == (10, 20)
    (run.description.path / "ids.bin").write_bytes(ID_LOG_MAGIC)
    shrunk = reader.read()
    assert shrunk is not None
    assert shrunk.ids is not None
    assert shrunk.ids.last_step == 0
    assert any("ends at step 0" in note for note in shrunk.notes)


def test_a_sample_is_kept_where_a_test_asks_for_one(world: Any) -> None:
    run = world.add("tiny", [0, 200])
    run.log(200)
    run.ids(200, repeat_from=150)
    world.monitor().one_pass()
    grounds = GroundsReader(run.description, world.store, SETTINGS, rate=4).read()
    assert grounds is not None
    assert grounds.ids is not None
    assert (grounds.ids.rate, grounds.ids.last_step) == (4, 200)
    assert 0 < len(grounds.ids.records) < 800


@pytest.mark.parametrize("sampled", [False, True])
def test_repeats_speak_of_a_sample_as_of_all(
    world: Any, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_logs, "SAMPLED_RATE", 2)
    monkeypatch.setattr(id_logs, "EXACT_DRAWS", 100 if sampled else 800)
    run = world.add("tiny", [0, 10, 20])
    run.log(20, end="completed")
    run.ids(20, repeat_from=15)
    world.monitor().one_pass()
    verdict = world.store.latest_verdict("tiny")
    assert verdict.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert verdict.first_repeat_tokens == 15 * 32
    assert ("a sample of one text in 2" in verdict.reasons[0]) is sampled
    assert verdict.findings[0].evidence["sampling_rate"] == 1 + sampled


def test_across_a_change_of_data_there_is_no_verdict_of_the_curves(world: Any) -> None:
    """A run that is otherwise suspected; its description says so only after a restart."""
    run = world.add("tiny", range(0, 201, 10))
    run.description.save()
    run.log(100)
    monitor = world.monitor()
    monitor.one_pass()
    assert {str(item.verdict) for item in world.store.verdicts("tiny")} <= {
        "healthy",
        "not_enough_data",
    }
    replace(run.description, data_changes=[100]).save()
    run.log(200, train=lambda step: 4.0 + 2.0 * 0.98**step - 0.01 * max(0, step - 100))
    monitor.one_pass()
    found = {item.step: item for item in world.store.verdicts("tiny")}
    assert found[100].verdict is VerdictName.HEALTHY
    for step in range(110, 201, 10):
        assert found[step].verdict is VerdictName.NOT_ENOUGH_DATA
        assert found[step].reasons[0].startswith("data changed at step 100: ")
        assert "no verdict is given across it" in found[step].reasons[0]
        assert found[step].findings == ()


def test_repeats_within_one_stretch_of_data_still_speak(world: Any) -> None:
    run = world.add("tiny", [0, 10, 20], data_changes=[12])
    run.log(20)
    run.ids(20, repeat_from=15)
    world.monitor().one_pass()
    found = {item.step: item for item in world.store.verdicts("tiny")}
    assert found[10].findings == ()
    assert found[20].verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert any("data changed at step 12" in reason for reason in found[20].reasons)
    # Step 15 reads what step 1 read, which was of other data; step 16 reads it again.
    assert found[20].first_repeat_tokens == 16 * 32


def test_a_reference_that_changed_its_data_is_no_standard(world: Any) -> None:
    world.add("tiny", range(0, 201, 10)).log(200, end="completed")
    world.add("clean", range(0, 201, 10), data_changes=[50]).log(200, end="completed")
    world.monitor("clean", sinks=[]).one_pass()
    world.monitor(reference="clean").one_pass()
    found = {item.step: item for item in world.store.verdicts("tiny")}
    assert found[200].verdict is VerdictName.NOT_ENOUGH_DATA
    assert "data of the reference clean changed at step 50" in found[200].reasons[0]
    assert "changed at step" not in " ".join(found[50].reasons)
