"""Alert episodes: told once for each cause, resolved by quiet, never changed by a repetition."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from evalmon.alerts import AlertChanges, AlertPolicy, update
from evalmon.types import Alert, AlertStatus, Finding, Verdict, VerdictName

POLICY = AlertPolicy(resolve_after=10)


def finding(kind: str, step: int, value: float | None) -> Finding:
    return Finding(
        detector="nonfinite_loss" if kind == "divergence" else "unmatched_drop",
        kind=kind,
        run="tiny",
        alarm_step=step,
        alarm_tokens=step * 32,
        onset_tokens=None if value is None else 640,
        channel="fast",
        magnitude_nats=value,
        message=f"{kind} seen",
    )


def judge(step: int, name: str, kinds: Sequence[str] = (), value: float | None = 0.3) -> Verdict:
    return Verdict(
        run="tiny",
        verdict=VerdictName(name),
        step=step,
        tokens=step * 32,
        reference=None,
        profile="short",
        onset_tokens=640,
        alarm_tokens=step * 32,
        channel="fast",
        train_gap_nats=None,
        holdout_gap_nats=None,
        unmatched_nats=value,
        unmatched_low_nats=None,
        unmatched_high_nats=None,
        matched_fraction=None,
        tolerance_nats=None,
        first_repeat_tokens=None,
        repeated_fraction=None,
        probe=None,
        reasons=(),
        findings=tuple(finding(kind, step, value) for kind in kinds),
    )


SUSPECTED, HEALTHY = "memorization_suspected", "healthy"


def apply(episodes: Sequence[Alert], changes: AlertChanges) -> list[Alert]:
    """Put changes into the list of episodes."""
    changed = {alert.id: alert for alert in (*changes.updated, *changes.resolved)}
    return [*(changed.get(alert.id, alert) for alert in episodes), *changes.opened]


def follow(verdicts: Sequence[Verdict], episodes: Sequence[Alert] = ()) -> tuple[list[Alert], int]:
    """Apply verdicts in order; return the episodes and how many were told."""
    known, told = list(episodes), 0
    for verdict in verdicts:
        changes = update(known, verdict, POLICY)
        told += len(changes.opened)
        known = apply(known, changes)
    return known, told


def test_flapping_is_told_once_and_again_only_after_it_resolved() -> None:
    shortfalls = [0.006, 0.004, 0.006, 0.004, 0.006, *[0.001] * 10, 0.020]
    verdicts = [
        judge(10 * n, SUSPECTED, ["memorization"], value)
        if value > 0.005
        else judge(10 * n, HEALTHY)
        for n, value in enumerate(shortfalls, start=1)
    ]
    first, told = follow(verdicts[:5])
    assert (told, [alert.status for alert in first]) == (1, [AlertStatus.OPEN])
    nearly, told = follow(verdicts[5:14], first)
    assert (told, nearly[0].status, nearly[0].quiet) == (0, AlertStatus.OPEN, 9)
    quiet, told = follow(verdicts[14:15], nearly)
    assert (told, quiet[0].status) == (0, AlertStatus.RESOLVED)
    last, told = follow(verdicts[15:], quiet)
    assert told == 1
    assert [(alert.opened_step, alert.status) for alert in last] == [
        (10, AlertStatus.RESOLVED),
        (160, AlertStatus.OPEN),
    ]
    assert last[0].id != last[1].id


def test_the_same_verdict_twice_changes_nothing() -> None:
    known: list[Alert] = []
    for verdict in [judge(10, SUSPECTED, ["memorization"]), judge(20, HEALTHY)]:
        known = apply(known, update(known, verdict, POLICY))
        assert update(known, verdict, POLICY) == AlertChanges()


def test_an_earlier_verdict_changes_nothing_any_more() -> None:
    known, _ = follow([judge(10, SUSPECTED, ["memorization"]), judge(20, HEALTHY)])
    assert update(known, judge(10, HEALTHY), POLICY) == AlertChanges()
    resolved = [replace(known[0], status=AlertStatus.RESOLVED)]
    assert update(resolved, judge(20, SUSPECTED, ["memorization"]), POLICY) == AlertChanges()


def test_confirmation_updates_the_episode_and_is_not_told_again() -> None:
    known, _ = follow([judge(10, SUSPECTED, ["memorization"])])
    changes = update(known, judge(20, "memorization_confirmed", ["memorization"]), POLICY)
    assert changes.opened == changes.resolved == ()
    assert changes.updated[0].id == known[0].id
    assert changes.updated[0].verdict is VerdictName.MEMORIZATION_CONFIRMED
    assert (changes.updated[0].opened_step, changes.updated[0].updated_step) == (10, 20)


def test_evidence_found_later_at_the_same_step_updates_the_episode() -> None:
    known, _ = follow([judge(10, "memorization_confirmed", ["memorization"])])
    changes = update(known, judge(10, SUSPECTED, ["memorization"]), POLICY)
    assert [alert.verdict for alert in changes.updated] == [VerdictName.MEMORIZATION_SUSPECTED]
    assert changes.opened == ()


def test_each_cause_has_its_own_episode() -> None:
    known, told = follow([judge(10, SUSPECTED, ["memorization", "divergence", "memorization"])])
    assert told == 2
    assert {alert.cause for alert in known} == {"memorization", "divergence"}


def test_a_finding_opens_an_episode_whatever_the_verdict() -> None:
    known, told = follow([judge(20, "not_enough_data", ["divergence"], None)])
    assert (told, known[0].cause) == (1, "divergence")


def test_a_drop_the_probe_refutes_is_not_memorization() -> None:
    _, told = follow([judge(10, "train_shift", ["memorization"])])
    assert told == 0


@pytest.mark.parametrize("name", ["not_enough_data", "recipe_differs"])
def test_a_verdict_without_decision_is_no_evidence_of_quiet(name: str) -> None:
    known, _ = follow([judge(10, SUSPECTED, ["memorization"])])
    after, _ = follow([judge(10 * n, name) for n in range(2, 40)], known)
    assert after == known


def test_an_acknowledged_episode_stays_so_and_resolves() -> None:
    known, _ = follow([judge(10, SUSPECTED, ["memorization"])])
    held = [replace(known[0], status=AlertStatus.ACKNOWLEDGED)]
    held, told = follow([judge(20, SUSPECTED, ["memorization"])], held)
    assert (told, held[0].status) == (0, AlertStatus.ACKNOWLEDGED)
    held, _ = follow([judge(10 * n, HEALTHY) for n in range(3, 13)], held)
    assert held[0].status is AlertStatus.RESOLVED


def test_a_muted_episode_keeps_its_cause_quiet() -> None:
    known, _ = follow([judge(10, SUSPECTED, ["memorization"])])
    muted = [replace(known[0], status=AlertStatus.MUTED)]
    muted, _ = follow([judge(10 * n, HEALTHY) for n in range(2, 40)], muted)
    assert muted[0].status is AlertStatus.MUTED
    _, told = follow([judge(1000, SUSPECTED, ["memorization"])], muted)
    assert told == 0


def test_episodes_of_other_runs_are_left_alone() -> None:
    known, _ = follow([judge(10, SUSPECTED, ["memorization"])])
    other = [replace(known[0], run="small")]
    assert update(other, judge(20, HEALTHY), POLICY) == AlertChanges()
    assert len(update(other, judge(20, SUSPECTED, ["memorization"]), POLICY).opened) == 1


def test_the_id_is_that_of_run_cause_and_opening_step() -> None:
    (first,) = update([], judge(10, SUSPECTED, ["memorization"], 0.3), POLICY).opened
    (again,) = update([], judge(10, SUSPECTED, ["memorization"], 0.4), POLICY).opened
    (later,) = update([], judge(20, SUSPECTED, ["memorization"], 0.3), POLICY).opened
    assert first.id == again.id != later.id
    assert len(first.id) == 16


def test_the_message_begins_with_the_facts_and_the_next_action() -> None:
    (alert,) = update([], judge(70, SUSPECTED, ["memorization"], 0.3124), POLICY).opened
    assert alert.title == (
        "tiny: train loss falls and holdout loss does not follow (step 70, 2,240 tokens)"
    )
    facts, position, action, *_ = alert.message.splitlines()
    assert facts == "run tiny | step 70 | unmatched drop +0.3124 nats"
    assert position == "onset 640 tokens | alarm 2,240 tokens | verdict memorization_suspected"
    assert action.startswith("next: stop the run")
    assert action.endswith("evidence: evalmon report tiny")


def test_a_finding_without_size_or_onset_says_so() -> None:
    (alert,) = update([], judge(2, "not_enough_data", ["divergence"], None), POLICY).opened
    facts, position, *_ = alert.message.splitlines()
    assert facts == "run tiny | step 2 | nonfinite loss"
    assert position.startswith("onset not known | alarm 64 tokens")


def test_repeats_alone_are_told_by_their_share_and_keep_their_title_once_the_curve_speaks() -> None:
    repeats = replace(
        finding("memorization", 20, None), detector="repeated_instances", message="repeats"
    )
    early = replace(judge(20, SUSPECTED), findings=(repeats,), repeated_fraction=0.25)
    (alert,) = update([], early, POLICY).opened
    assert alert.title == "tiny: training text is read again beyond plan (step 20, 640 tokens)"
    assert alert.message.startswith("run tiny | step 20 | repeated draws 25.0%\n")
    late = judge(70, "memorization_confirmed", ["memorization"])
    (later,) = update([alert], late, POLICY).updated
    assert later.title == alert.title
    assert later.message.startswith("run tiny | step 70 | unmatched drop +0.3000 nats\n")
