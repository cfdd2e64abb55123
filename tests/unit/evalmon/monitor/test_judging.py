"""Verdicts depend on data up to their step, never on when they are reached."""

from io import StringIO
from typing import Any

import pytest
from tqdm import tqdm

from evalmon.errors import StoreError
from evalmon.judging import rejudge
from evalmon.types import ID_LOG_MAGIC, ProbeResult, VerdictName

GRID = range(0, 201, 10)


def verdicts(world: Any, name: str = "tiny") -> dict[int, str]:
    """Return the latest verdict of each step."""
    return {item.step: str(item.verdict) for item in world.store.verdicts(name)}


def dropping(step: int) -> float:
    """A train loss that leaves the holdout behind from step 100 on."""
    from_here = max(0, step - 100)
    return 4.0 + 2.0 * 0.98**step - 0.01 * from_here


def test_late_and_live_evaluators_reach_the_same_verdicts_and_alert(world: Any) -> None:
    live = world.add("tiny")
    monitor = world.monitor()
    for step in GRID:
        live.log(step + 3, train=dropping)
        live.steps.append(step)
        monitor.one_pass()
    live.log(200, train=dropping, end="completed")
    monitor.one_pass()
    with world.another("late.sqlite") as late:
        world.monitor(store=late).one_pass()
        assert late.verdicts("tiny") == world.store.verdicts("tiny")
        assert late.alerts("tiny") == world.store.alerts("tiny")
        assert late.judged("tiny") == world.store.judged("tiny")
    (alert,) = world.store.alerts("tiny")
    assert alert.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert 100 < alert.opened_step <= 180


def test_a_checkpoint_is_judged_when_the_log_tells_all_that_led_to_it(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(9)
    monitor = world.monitor()
    monitor.one_pass()
    assert list(verdicts(world)) == [0]
    run.log(10)
    monitor.one_pass()
    assert list(verdicts(world)) == [0, 10]


def test_a_reference_that_is_not_there_is_waited_for_by_name(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    world.monitor(reference="clean").one_pass()
    assert set(verdicts(world).values()) == {"not_enough_data"}
    reasons = world.store.verdicts("tiny")[-1].reasons
    said = (
        "the reference 'clean' is not a run of the store yet, nor a reference curve: watch it too"
    )
    assert any(reason.startswith(said) for reason in reasons)


def test_a_step_is_judged_again_once_the_reference_reaches_it(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    clean = world.add("clean", range(0, 101, 10))
    clean.log(105)
    reference = world.monitor("clean", sinks=[])
    reference.one_pass()
    monitor = world.monitor(reference="clean")
    monitor.one_pass()
    found = verdicts(world)
    assert {found[step] for step in GRID if step > 100} == {"not_enough_data"}
    assert found[100] == "healthy"
    clean.steps[:] = GRID
    clean.log(200, end="completed")
    reference.one_pass()
    assert monitor.one_pass().judged == sum(step > 100 for step in GRID)
    assert monitor.one_pass().judged == 0
    assert {verdicts(world)[step] for step in GRID if step >= 100} == {"healthy"}


def test_what_the_reference_did_later_changes_no_verdict(world: Any) -> None:
    world.add("tiny", range(0, 101, 10)).log(100, end="completed")
    clean = world.add("clean", range(0, 101, 10))
    clean.log(100)
    world.monitor("clean", sinks=[]).one_pass()
    world.monitor(reference="clean").one_pass()
    clean.steps[:] = GRID
    clean.log(200, end="completed")
    world.monitor("clean", sinks=[]).one_pass()
    with world.another("late.sqlite") as late:
        world.monitor("clean", store=late, sinks=[]).one_pass()
        world.monitor(reference="clean", store=late).one_pass()
        assert late.verdicts("tiny") == world.store.verdicts("tiny")


def test_following_waits_for_a_reference_that_goes_on(world: Any) -> None:
    world.add("tiny", GRID).log(200, end="completed")
    clean = world.add("clean", [0])
    clean.log(5)
    reference = world.monitor("clean", sinks=[])
    reference.one_pass()
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 5:
            clean.steps[:] = GRID
            clean.log(200, end="completed")
            reference.one_pass()

    world.monitor(reference="clean").follow(sleep, tqdm(file=StringIO()))
    assert len(naps) >= 5
    assert verdicts(world)[200] == "healthy"


def test_repeats_without_their_id_log_are_suspected_no_more(world: Any) -> None:
    run = world.add("tiny", [0, 10, 20])
    run.log(20, end="completed")
    run.ids(20, repeat_from=15)
    world.monitor().one_pass()
    before = rejudge(run.description, world.store)
    assert before is not None
    assert before.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert before.first_repeat_tokens == 15 * 32
    (run.description.path / "ids.bin").unlink()
    after = rejudge(run.description, world.store)
    assert after is not None
    assert (after.verdict, after.first_repeat_tokens) == (VerdictName.NOT_ENOUGH_DATA, None)
    assert world.store.latest_verdict("tiny") == after
    assert len(world.store.alerts("tiny")) == 1


def test_a_confirmed_drop_without_its_id_log_is_suspected(world: Any) -> None:
    run = world.add("tiny", GRID)
    run.log(200, train=dropping, end="completed")
    run.ids(200, repeat_from=100)
    probe = world.new_evaluator("probe", "probe/gap_nats")
    probe.probe = ProbeResult(0.5, 0.4, 0.6, 64, "not the log's")
    world.monitor(evaluators=[world.evaluator, probe]).one_pass()
    confirmed = world.store.latest_verdict("tiny")
    assert confirmed.verdict is VerdictName.MEMORIZATION_CONFIRMED
    (run.description.path / "ids.bin").unlink()
    suspected = rejudge(run.description, world.store)
    assert suspected is not None
    assert suspected.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert suspected.probe is None
    (alert,) = world.store.alerts("tiny")
    assert alert.verdict is VerdictName.MEMORIZATION_SUSPECTED


def test_the_evaluator_judges_again_when_the_id_log_is_back(world: Any) -> None:
    run = world.add("tiny", [0, 10, 20])
    run.log(20, end="completed")
    run.ids(20, repeat_from=15)
    world.monitor().one_pass()
    log = run.description.path / "ids.bin"
    content = log.read_bytes()
    log.unlink()
    rejudge(run.description, world.store)
    log.write_bytes(content)
    assert world.monitor().one_pass().judged == 1
    latest = world.store.latest_verdict("tiny")
    assert latest.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert len(world.store.alerts("tiny")) == 1
    assert world.monitor().one_pass().judged == 0


def test_an_id_log_that_is_damaged_is_named_and_judging_goes_on(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(10)
    (run.description.path / "ids.bin").write_bytes(b"something else entirely")
    world.monitor().one_pass()
    assert list(verdicts(world)) == [0, 10]
    assert world.store.verdicts("tiny")[-1].reasons[0].startswith("the id log cannot be used: ")


def test_a_broken_run_log_stops_judging_and_not_scoring(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(10)
    log = run.description.path / "log.jsonl"
    log.write_text(log.read_text().replace('{"event": "step"', "nonsense", 1))
    monitor = world.monitor()
    assert monitor.one_pass().evaluated == 2
    kept = world.store.failures("tiny")
    assert {item.failure.evaluator for item in kept} == {"judge"}
    assert "log.jsonl:2: not JSON" in kept[0].failure.message
    assert verdicts(world) == {}


def test_a_loss_that_is_not_finite_opens_an_alert(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(12, nonfinite=[7])
    world.monitor().one_pass()
    (alert,) = world.store.alerts("tiny")
    assert (alert.cause, alert.opened_step) == ("divergence", 10)
    assert "non-finite train loss at step 7" in alert.message
    assert world.sink.sent == [alert.id]


@pytest.mark.parametrize("live", [True, False])
def test_a_run_that_ends_in_a_loss_that_is_not_finite_opens_an_alert(
    world: Any, live: bool
) -> None:
    run = world.add("tiny", [0, 10])
    run.log(15)
    monitor = world.monitor()
    if live:
        monitor.one_pass()
        assert world.store.alerts("tiny") == ()
    run.log(17, nonfinite=[17], end="failed")
    monitor.follow(lambda _: None, tqdm(file=StringIO()))
    (alert,) = world.store.alerts("tiny")
    assert (alert.cause, alert.opened_step) == ("divergence", 10)
    assert "non-finite train loss at step 17" in alert.message


def test_a_lost_last_checkpoint_does_not_hide_a_loss_that_is_not_finite(world: Any) -> None:
    run = world.add("tiny", [0, 10, 20])
    run.log(25, nonfinite=[25], end="failed")
    run.broken[20] = "torn"
    world.monitor().follow(lambda _: None, tqdm(file=StringIO()))
    (alert,) = world.store.alerts("tiny")
    assert (alert.cause, alert.opened_step) == ("divergence", 10)


def test_an_id_log_that_ends_early_is_said_so(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(10)
    (run.description.path / "ids.bin").write_bytes(ID_LOG_MAGIC)
    world.monitor().one_pass()
    assert (
        "ids.bin ends at step 0, the run log at 10" in world.store.latest_verdict("tiny").reasons[0]
    )


def test_judging_again_before_any_score_gives_nothing(world: Any) -> None:
    run = world.add("tiny", [0])
    run.log(5)
    with pytest.raises(StoreError, match="no run 'tiny'"):
        rejudge(run.description, world.store)
    world.monitor()
    assert rejudge(run.description, world.store) is None


def test_judging_again_does_not_stand_in_for_the_evaluators_verdict(world: Any) -> None:
    run = world.add("tiny", [0, 10])
    run.log(10)
    monitor = world.monitor()
    monitor.evaluate_step(0)
    monitor.evaluate_step(10)
    early = rejudge(run.description, world.store)
    assert early is not None
    assert early.step == 10
    assert monitor.one_pass().judged == 2
