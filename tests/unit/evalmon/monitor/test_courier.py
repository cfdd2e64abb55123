"""Deliveries: nothing is marked as sent before it was, nothing is lost, nothing is held up."""

from typing import Any

import pytest

from evalmon.errors import DeliveryError


def states(world: Any) -> list[tuple[str, str, int]]:
    """Return sink, status and attempts of each delivery."""
    return [(d.sink, d.status, d.attempts) for d in world.store.deliveries("tiny")]


@pytest.fixture
def faulty(world: Any) -> Any:
    """A run that repeats its data."""
    run = world.add("tiny", [0, 10, 20])
    run.log(20)
    run.ids(20, repeat_from=15)
    return world


def test_an_alert_is_told_once_however_many_evaluations_follow(faulty: Any) -> None:
    monitor = faulty.monitor()
    for step in (30, 40):
        monitor.one_pass()
        faulty.runs["tiny"].log(step)
        faulty.runs["tiny"].ids(step, repeat_from=15)
        faulty.runs["tiny"].steps.append(step)
    monitor.one_pass()
    (alert,) = faulty.store.alerts("tiny")
    assert (alert.cause, alert.opened_step) == ("memorization", 20)
    assert faulty.sink.sent == [alert.id]
    assert states(faulty) == [("sink", "delivered", 1)]


def test_each_receiver_has_its_own_state(faulty: Any) -> None:
    down = [DeliveryError("500") for _ in range(3)]
    other = faulty.new_sink("other", *down)
    monitor = faulty.monitor(sinks=[faulty.sink, other])
    for _ in range(6):
        monitor.one_pass()
        faulty.clock.now += 10
    assert len(faulty.sink.sent) == len(other.sent) == 1
    assert states(faulty) == [("sink", "delivered", 1), ("other", "delivered", 4)]


def test_a_receiver_that_is_down_is_left_alone_twice_as_long_each_time(faulty: Any) -> None:
    sink = faulty.new_sink("sink", *[DeliveryError("down") for _ in range(20)])
    monitor = faulty.monitor(sinks=[sink])
    monitor.one_pass()
    waits = [faulty.store.deliveries("tiny")[0].due_at - faulty.clock.now]
    for _ in range(11):
        monitor.one_pass()  # too early: not tried
        faulty.clock.now = faulty.store.deliveries("tiny")[0].due_at
        monitor.one_pass()
        waits.append(faulty.store.deliveries("tiny")[0].due_at - faulty.clock.now)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert states(faulty) == [("sink", "pending", 12)]
    assert faulty.store.deliveries("tiny")[0].error == "down"


def test_a_receiver_that_is_down_holds_up_no_scoring(faulty: Any) -> None:
    sink = faulty.new_sink("sink", *[DeliveryError("down") for _ in range(20)])
    monitor = faulty.monitor(sinks=[sink])
    assert monitor.one_pass().pending == 1
    faulty.runs["tiny"].log(30)
    faulty.runs["tiny"].steps.append(30)
    assert monitor.one_pass().evaluated == 1


def test_a_receiver_may_ask_for_a_longer_wait(faulty: Any) -> None:
    sink = faulty.new_sink("sink", DeliveryError("429", wait_seconds=600))
    faulty.monitor(sinks=[sink]).one_pass()
    assert faulty.store.deliveries("tiny")[0].due_at == faulty.clock.now + 600


def test_a_refusal_becomes_a_dead_letter_and_is_not_tried_again(faulty: Any) -> None:
    sink = faulty.new_sink("sink", DeliveryError("400", retryable=False))
    monitor = faulty.monitor(sinks=[sink])
    monitor.one_pass()
    faulty.clock.now += 1000
    assert monitor.one_pass().pending == 0
    assert (states(faulty), sink.sent) == ([("sink", "dead", 1)], [])


def test_a_broken_sink_stops_neither_another_sink_nor_scoring(faulty: Any) -> None:
    broken = faulty.new_sink("broken", ZeroDivisionError("oops"))
    monitor = faulty.monitor(sinks=[broken, faulty.sink])
    monitor.one_pass()
    assert states(faulty) == [("broken", "pending", 1), ("sink", "delivered", 1)]
    assert faulty.store.deliveries("tiny")[0].error.startswith("oops (")


def test_an_evaluator_killed_while_it_sends_sends_again_with_the_same_id(faulty: Any) -> None:
    killed = faulty.new_sink("sink", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        faulty.monitor(sinks=[killed]).one_pass()
    assert states(faulty) == [("sink", "pending", 0)]
    faulty.monitor().one_pass()
    assert faulty.sink.sent == [faulty.store.alerts("tiny")[0].id]
    assert states(faulty) == [("sink", "delivered", 1)]


def test_two_evaluators_do_not_both_send(faulty: Any) -> None:
    with faulty.another(elsewhere=True) as theirs:
        theirs.register(faulty.runs["tiny"].description)
        assert theirs.lease("tiny/deliveries/sink", 60)
        faulty.monitor().one_pass()
        assert (states(faulty), faulty.sink.sent) == ([("sink", "pending", 0)], [])
        theirs.release("tiny/deliveries/sink")
    faulty.monitor().one_pass()
    assert len(faulty.sink.sent) == 1


def test_a_receiver_configured_after_the_alert_is_told(faulty: Any) -> None:
    faulty.monitor(sinks=[]).one_pass()
    assert states(faulty) == []
    faulty.monitor().one_pass()
    assert states(faulty) == [("sink", "delivered", 1)]
