"""Laws of alert episodes that hold for every sequence of verdicts."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from evalmon.alerts import AlertChanges, AlertPolicy, update
from evalmon.types import Alert, AlertStatus, Finding, Verdict, VerdictName

NAMES = [VerdictName.HEALTHY, VerdictName.MEMORIZATION_SUSPECTED, VerdictName.NOT_ENOUGH_DATA]
KINDS = ["memorization", "leakage", "divergence"]


def judge(step: int, name: VerdictName, kinds: Sequence[str]) -> Verdict:
    """Make a verdict with one finding a kind."""
    findings = tuple(
        Finding("d", kind, "r", step, step, None, "", None, kind, {}) for kind in kinds
    )
    return Verdict(
        "r", name, step, step, None, "short", None, None, "", None, None, None, None, None, None,
        None, None, None, None, (), findings,
    )  # fmt: skip


histories = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sets(st.sampled_from(KINDS))), max_size=40
).map(lambda rows: [judge(10 * n, name, sorted(kinds)) for n, (name, kinds) in enumerate(rows, 1)])
policies = st.integers(1, 5).map(AlertPolicy)


def follow(verdicts: Sequence[Verdict], policy: AlertPolicy) -> tuple[list[Alert], list[str]]:
    """Apply verdicts; return the episodes and the ids told, in order."""
    known: dict[str, Alert] = {}
    told: list[str] = []
    for verdict in verdicts:
        changes = update(list(known.values()), verdict, policy)
        told += [alert.id for alert in changes.opened]
        for alert in (*changes.opened, *changes.updated, *changes.resolved):
            known[alert.id] = alert
    return list(known.values()), told


@given(histories, policies)
def test_an_id_is_told_once(verdicts: list[Verdict], policy: AlertPolicy) -> None:
    _, told = follow(verdicts, policy)
    assert len(told) == len(set(told))


@given(histories, policies)
def test_a_cause_has_one_live_episode_at_most(verdicts: list[Verdict], policy: AlertPolicy) -> None:
    episodes, _ = follow(verdicts, policy)
    live = [alert.cause for alert in episodes if alert.status is not AlertStatus.RESOLVED]
    assert len(live) == len(set(live))


@given(histories, policies)
def test_every_verdict_applied_twice_is_as_applied_once(
    verdicts: list[Verdict], policy: AlertPolicy
) -> None:
    twice = [verdict for verdict in verdicts for _ in range(2)]
    assert follow(twice, policy) == follow(verdicts, policy)


@given(histories, policies, st.data())
def test_a_history_told_again_from_any_point_changes_nothing(
    verdicts: list[Verdict], policy: AlertPolicy, data: st.DataObject
) -> None:
    """What a restarted evaluator does: it judges again what it had judged."""
    start = data.draw(st.integers(0, len(verdicts)))
    again = [*verdicts, *verdicts[start:]]
    assert follow(again, policy) == follow(verdicts, policy)


@given(histories, policies)
def test_no_finding_is_left_without_an_episode(
    verdicts: list[Verdict], policy: AlertPolicy
) -> None:
    episodes, _ = follow(verdicts, policy)
    seen = {finding.kind for verdict in verdicts for finding in verdict.findings}
    assert {alert.cause for alert in episodes} == seen


@given(histories, policies)
def test_changes_hold_changed_episodes_only(verdicts: list[Verdict], policy: AlertPolicy) -> None:
    known: dict[str, Alert] = {}
    for verdict in verdicts:
        changes: AlertChanges = update(list(known.values()), verdict, policy)
        for alert in (*changes.opened, *changes.updated, *changes.resolved):
            assert known.get(alert.id) != alert
            known[alert.id] = alert
