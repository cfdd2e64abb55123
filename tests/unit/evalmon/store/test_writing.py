"""Every effect on the store: once, whole, and never a number that is not finite."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from evalmon.alerts import AlertChanges
from evalmon.errors import CheckpointError, EvaluationError, StoreError
from evalmon.store import Store
from evalmon.types import (
    Alert,
    AlertStatus,
    CheckpointRef,
    Evaluation,
    Failure,
    ProbeResult,
    RunDescription,
    Verdict,
    VerdictName,
)

METRIC = "eval/lm/c4_en-validation/ce_nats"


def alert(identifier: str = "a1", step: int = 10) -> Alert:
    return Alert(
        id=identifier,
        run="tiny",
        cause="memorization",
        status=AlertStatus.OPEN,
        opened_step=step,
        opened_tokens=step * 32,
        quiet=0,
        title="title",
        message="message",
        verdict=VerdictName.MEMORIZATION_SUSPECTED,
        updated_step=step,
    )


def nothing(_episodes: Sequence[Alert]) -> AlertChanges:
    return AlertChanges()


def test_a_run_is_described_as_it_was_registered(store: Store, run: RunDescription) -> None:
    assert store.describe("tiny") == run
    with pytest.raises(StoreError, match=r"no run 'small'; it holds \['tiny'\]"):
        store.describe("small")


def test_a_run_that_moved_or_was_prolonged_is_the_same_run(
    store: Store, run: RunDescription
) -> None:
    moved = replace(run, path=run.path.parent / "moved", planned_steps=200)
    store.register(moved, {"reference": "clean"})
    assert store.describe("tiny") == moved
    store.register(moved)
    assert store.comparison("tiny") == {"reference": "clean"}


def test_another_run_of_the_same_name_is_refused(store: Store, run: RunDescription) -> None:
    with pytest.raises(StoreError, match=r"'tiny' is stored with other settings \(seed 0 -> 1\)"):
        store.register(replace(run, seed=1))
    assert store.describe("tiny").seed == 0


def test_an_evaluation_comes_back_whole(
    store: Store, evaluation: Callable[..., Evaluation]
) -> None:
    probe = ProbeResult(0.03, 0.01, 0.05, 64, "ff")
    stored = evaluation(10, 2.75, probe=probe)
    assert store.append_evaluation(stored)
    assert store.scores("tiny", 10) == stored.scores
    (found,) = store.evaluations("tiny")
    bare = replace(stored.scores[0], item_ids=(), item_values=(), item_weights=())
    assert found == replace(stored, scores=(bare,))
    assert store.scores("tiny", 10, items=False) == (bare,)
    assert store.items("tiny", bare.metric) == {10: stored.scores[0]}
    assert store.items("tiny", "eval/lm/other-validation/ce_nats") == {}
    assert [(point.step, point.result) for point in store.probes("tiny")] == [(10, probe)]


def test_an_evaluator_version_is_stored_once_at_a_checkpoint(
    store: Store, evaluation: Callable[..., Evaluation]
) -> None:
    assert store.append_evaluation(evaluation(10, 2.0))
    assert not store.append_evaluation(evaluation(10, 9.0))
    assert [score.value for score in store.scores("tiny", 10)] == [2.0]
    assert store.stored("tiny", 10) == {("holdout_loss", "v1")}
    assert store.append_evaluation(evaluation(10, 3.0, version="v2"))
    assert [score.value for score in store.scores("tiny", 10)] == [3.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_never_stored(
    store: Store, evaluation: Callable[..., Evaluation], value: float
) -> None:
    bad = evaluation(10, 2.0)
    score = bad.scores[0]
    for broken in (
        replace(score, value=value),
        replace(score, stderr=value),
        replace(score, item_values=(1.0, value, 1.0)),
    ):
        with pytest.raises(EvaluationError, match=r"holdout_loss at step 10: .*expected a finite"):
            store.append_evaluation(replace(bad, scores=(broken,)))
    with pytest.raises(EvaluationError, match="probe's interval is not finite"):
        store.append_evaluation(replace(bad, probe=ProbeResult(value, 0, 0, 1, "")))
    with pytest.raises(EvaluationError, match=r"step 10: the header is not strict JSON"):
        store.append_evaluation(replace(bad, header={"padding_share": value}))
    assert store.evaluations("tiny") == ()


def test_a_header_that_json_does_not_know_is_refused(
    store: Store, evaluation: Callable[..., Evaluation]
) -> None:
    with pytest.raises(EvaluationError, match=r"not strict JSON \(.*not JSON serializable\)"):
        store.append_evaluation(replace(evaluation(10), header={"dtype": object()}))
    assert store.checkpoints("tiny") == ()


def test_an_evaluation_that_cannot_be_stored_whole_is_not_stored_at_all(
    store: Store, evaluation: Callable[..., Evaluation]
) -> None:
    good = evaluation(10)
    twice = replace(good, scores=(*good.scores, *good.scores))
    with pytest.raises(StoreError, match="UNIQUE"):
        store.append_evaluation(twice)
    assert store.evaluations("tiny") == ()
    assert store.stored("tiny", 10) == frozenset()


def test_a_series_rises_by_step_whatever_the_order_of_storing(
    store: Store, evaluation: Callable[..., Evaluation]
) -> None:
    for step in (30, 10, 20):
        store.append_evaluation(evaluation(step, 4 - step / 100))
    series = store.series("tiny", METRIC)
    assert series is not None
    assert series.steps.tolist() == [10, 20, 30]
    assert series.tokens.tolist() == [320, 640, 960]
    assert series.values.tolist() == [3.9, 3.8, 3.7]
    assert store.series("tiny", "eval/lm/none") is None


def test_a_series_holds_one_identity_that_of_the_latest_evaluation(
    store: Store, evaluation: Callable[..., Evaluation]
) -> None:
    first = evaluation(10, 3.0)
    other = replace(first.scores[0].identity, item_limit=5)
    store.append_evaluation(first)
    store.append_evaluation(evaluation(20, 2.0))
    store.append_evaluation(evaluation(20, 1.0, version="v2", identity=other))
    series = store.series("tiny", METRIC)
    assert series is not None
    assert (series.steps.tolist(), series.values.tolist()) == ([20], [1.0])
    assert store.identity("tiny", METRIC) == other


def test_failures_are_counted_and_kept_when_a_later_try_succeeds(
    store: Store, evaluation: Callable[..., Evaluation], clock: Any
) -> None:
    ref = evaluation(10).checkpoint
    for attempt in (1, 2):
        clock.now += 1
        failure = Failure("holdout_loss", ref, "EvaluationError", f"try {attempt}")
        assert store.append_failure(failure, "v1") == attempt
    store.append_failure(Failure("restore", ref, "CheckpointError", "torn"))
    store.append_failure(Failure("downstream_tasks", ref, "EvaluationError", "no data"), "v1")
    assert store.attempts("tiny", 10) == {
        ("holdout_loss", "v1"): 2,
        ("restore", ""): 1,
        ("downstream_tasks", "v1"): 1,
    }
    store.append_evaluation(evaluation(10))
    kept = [(item.failure.message, item.superseded, item.at) for item in store.failures("tiny")]
    assert kept == [
        ("try 1", True, 1001.0),
        ("try 2", True, 1002.0),
        ("torn", True, 1002.0),
        ("no data", False, 1002.0),
    ]
    assert store.attempts("tiny", 10) == {("downstream_tasks", "v1"): 1}


def test_a_checkpoint_of_other_weights_under_the_same_step_is_refused(
    store: Store, evaluation: Callable[..., Evaluation]
) -> None:
    ref = evaluation(10).checkpoint
    store.note_checkpoints([ref])
    store.note_weights(ref, "aa")
    store.note_weights(ref, "aa")
    with pytest.raises(
        CheckpointError, match=r"step 10 .* was scored with weights aa, .* holds bb"
    ):
        store.note_weights(ref, "bb")


def test_checkpoints_are_noted_once_and_follow_a_moved_run(
    store: Store, run: RunDescription
) -> None:
    refs = [CheckpointRef("tiny", step, step * 32, run.path / str(step)) for step in (20, 10)]
    store.note_checkpoints(refs)
    store.note_checkpoints(refs)
    assert store.checkpoints("tiny") == tuple(reversed(refs))
    moved = [replace(ref, path=run.path / "moved") for ref in refs]
    store.note_checkpoints(moved)
    assert store.checkpoints("tiny") == tuple(reversed(moved))


def test_a_verdict_its_alert_and_its_deliveries_are_stored_together(
    store: Store, verdict: Callable[..., Verdict]
) -> None:
    seen: list[Alert] = []

    def open_one(episodes: Sequence[Alert]) -> AlertChanges:
        seen.extend(episodes)
        return AlertChanges(opened=(alert(),))

    store.append_verdict(verdict(10, "memorization_suspected", 0.3), "j", open_one, ["a", "b"])
    assert seen == []
    assert store.latest_verdict("tiny") == verdict(10, "memorization_suspected", 0.3)
    assert store.alerts("tiny") == (alert(),)
    found = [(item.alert_id, item.sink, item.status) for item in store.deliveries("tiny")]
    assert found == [("a1", "a", "pending"), ("a1", "b", "pending")]

    def resolve(episodes: Sequence[Alert]) -> AlertChanges:
        return AlertChanges(resolved=(replace(episodes[0], status=AlertStatus.RESOLVED),))

    store.append_verdict(verdict(20), "j", resolve, ["a", "b"])
    assert [item.status for item in store.alerts()] == [AlertStatus.RESOLVED]
    assert len(store.deliveries()) == 2


def test_a_failure_while_storing_a_verdict_leaves_nothing_of_it(
    store: Store, verdict: Callable[..., Verdict]
) -> None:
    def open_twice(_episodes: Sequence[Alert]) -> AlertChanges:
        return AlertChanges(opened=(alert(), alert()))

    with pytest.raises(StoreError, match="UNIQUE"):
        store.append_verdict(verdict(10), "j", open_twice, ["a"])
    assert (store.verdicts("tiny"), store.alerts(), store.deliveries()) == ((), (), ())


def test_a_verdict_with_a_number_that_is_not_finite_is_refused(
    store: Store, verdict: Callable[..., Verdict]
) -> None:
    with pytest.raises(StoreError, match="verdict of tiny at step 10"):
        store.append_verdict(verdict(10, unmatched=float("nan")), "j", nothing)


def test_a_step_judged_again_shows_its_latest_verdict(
    store: Store, verdict: Callable[..., Verdict]
) -> None:
    store.append_verdict(verdict(10, "not_enough_data"), "short", nothing)
    store.append_verdict(verdict(20, "not_enough_data"), "short", nothing)
    store.append_verdict(verdict(10, "healthy"), "ready", nothing)
    assert [str(item.verdict) for item in store.verdicts("tiny")] == ["healthy", "not_enough_data"]
    assert store.judged("tiny") == {(10, "ready"), (20, "short")}
    store.append_verdict(verdict(10, "train_shift"), "ready", nothing)
    assert str(store.verdicts("tiny")[0].verdict) == "train_shift"
    latest = store.latest_verdict("tiny")
    assert latest is not None
    assert latest.step == 20


def test_a_person_may_acknowledge_or_mute_an_alert(
    store: Store, verdict: Callable[..., Verdict]
) -> None:
    store.append_verdict(verdict(10), "j", lambda _: AlertChanges(opened=(alert(),)))
    store.set_alert_status("a1", AlertStatus.MUTED)
    assert [item.status for item in store.alerts()] == [AlertStatus.MUTED]
    with pytest.raises(StoreError, match="no alert 'a2'"):
        store.set_alert_status("a2", AlertStatus.MUTED)


def test_a_receiver_configured_later_hears_of_open_episodes_only(
    store: Store, verdict: Callable[..., Verdict]
) -> None:
    done = replace(alert("a0", 5), status=AlertStatus.RESOLVED)
    store.append_verdict(verdict(10), "j", lambda _: AlertChanges(opened=(done, alert())))
    store.order_deliveries("tiny", ["late"])
    store.order_deliveries("tiny", ["late"])
    assert [(item.alert_id, item.sink) for item in store.deliveries()] == [("a1", "late")]


def test_every_try_to_deliver_is_stored(
    store: Store, verdict: Callable[..., Verdict], clock: Any
) -> None:
    opened = AlertChanges(opened=(alert(),))
    store.append_verdict(verdict(10), "j", lambda _: opened, ["a", "b"])
    clock.now += 1
    store.append_attempt(["a1"], "a", "pending", "refused", wait=4.0)
    store.append_attempt(["a1"], "b", "delivered")
    first, second = store.deliveries()
    assert (first.status, first.attempts, first.error) == ("pending", 1, "refused")
    assert (first.created_at, first.updated_at, first.due_at) == (1000.0, 1001.0, 1005.0)
    assert (second.status, second.attempts, second.error) == ("delivered", 1, "")


def test_runs_are_listed_in_the_order_registered(run: RunDescription) -> None:
    with Store.open("sqlite://") as store:
        for name in ("b", "a"):
            store.register(replace(run, name=name))
        assert store.runs() == ("b", "a")
