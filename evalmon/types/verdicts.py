"""What detectors see, what is judged from it, and whom it is told."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from evalmon.types.scores import ProbeResult

__all__ = [
    "Alert",
    "AlertStatus",
    "Finding",
    "Json",
    "TaskDifference",
    "Verdict",
    "VerdictName",
]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one detector saw in one run.

    Attributes:
        detector: ``unmatched_drop``, ``repeated_instances``, ``memorization_probe``,
            ``nonfinite_loss``, ``evaluator_suspect`` …
        kind: what it is a sign of: ``memorization``, ``leakage``, ``evaluator``,
            ``checkpoint``, ``divergence``, ``data``.
        run: the run's name.
        alarm_step: step of the evaluation at which the detector first spoke.
        alarm_tokens: the same in tokens.
        onset_tokens: tokens at which the change began, None if it cannot be said.
        channel: which rule fired (``fast``, ``slow``, ``level`` …), or "".
        magnitude_nats: size of the effect, None where it has none.
        message: one sentence for a person.
        evidence: numbers behind it, JSON values.
    """

    detector: str
    kind: str
    run: str
    alarm_step: int
    alarm_tokens: int
    onset_tokens: int | None
    channel: str
    magnitude_nats: float | None
    message: str
    evidence: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class TaskDifference:
    """How a run's accuracy stands against its reference's at equal tokens.

    Attributes:
        task: canonical metric, or ``mean_without_boolq`` for the mean of the tasks but BoolQ.
        outcome: ``gain``, ``loss``, ``equivalent`` (within 0.005) or ``inconclusive``.
        difference_acc: run minus reference, a fraction.
        low_acc: lower end of its 95 % interval.
        high_acc: upper end.
        detectable_acc: least true difference that would have been found with power 0.8, at the
            level left after Holm's correction.
        items: items both were scored on, None where it is not known.
        paired: whether answers were compared item by item.
        p_value: of no difference, adjusted by Holm over the tasks.
        method: how it was tested, in words.
    """

    task: str
    outcome: str
    difference_acc: float
    low_acc: float
    high_acc: float
    detectable_acc: float
    items: int | None
    paired: bool
    p_value: float
    method: str

    @property
    def half_width_acc(self) -> float:
        """Half of the interval's width."""
        return (self.high_acc - self.low_acc) / 2


class VerdictName(StrEnum):
    """The verdict identifiers of code, JSON and exit codes."""

    NOT_ENOUGH_DATA = "not_enough_data"
    HEALTHY = "healthy"
    AHEAD_OF_REFERENCE = "ahead_of_reference"
    BEHIND_REFERENCE = "behind_reference"
    MEMORIZATION_SUSPECTED = "memorization_suspected"
    MEMORIZATION_CONFIRMED = "memorization_confirmed"
    TRAIN_SHIFT = "train_shift"
    LEAKAGE_SUSPECTED = "leakage_suspected"
    HOLDOUT_REGRESSION = "holdout_regression"
    EVALUATOR_FAULT = "evaluator_fault"
    TRAIN_RISE = "train_rise"
    RECIPE_DIFFERS = "recipe_differs"

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 findings, 3 not enough data or inconclusive.

        Example:
            >>> VerdictName("memorization_confirmed").exit_code
            1
        """
        if self in _FINDINGS:
            return 1
        return 3 if self in _INCONCLUSIVE else 0


_FINDINGS = frozenset(
    {
        VerdictName.MEMORIZATION_SUSPECTED,
        VerdictName.MEMORIZATION_CONFIRMED,
        VerdictName.LEAKAGE_SUSPECTED,
        VerdictName.HOLDOUT_REGRESSION,
        VerdictName.EVALUATOR_FAULT,
    }
)
_INCONCLUSIVE = frozenset({VerdictName.NOT_ENOUGH_DATA, VerdictName.RECIPE_DIFFERS})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one run at one evaluation, with its evidence.

    Attributes:
        run: the run's name.
        verdict: the identifier.
        step: evaluation it was reached at.
        tokens: the same in tokens.
        reference: name of the reference run or curve, None when reference-free.
        profile: profile of the rule (``full``, ``short`` …).
        onset_tokens: change point of the curve rule alone.
        alarm_tokens: first curve alarm.
        channel: channel of that alarm, or "".
        train_gap_nats: run minus reference train CE (reference-free: minus the baseline).
        holdout_gap_nats: the same of holdout CE.
        unmatched_nats: the unmatched drop r.
        unmatched_low_nats: lower end of its 95 % interval.
        unmatched_high_nats: upper end.
        matched_fraction: share of the train drop that the holdout followed, 1 - r / train drop;
            against a reference of another recipe of the drop since the baseline. None where train
            loss did not drop by 0.005.
        tolerance_nats: the tolerance the profile used at this evaluation.
        first_repeat_tokens: first unplanned repeat, from fingerprints.
        repeated_fraction: draws that repeat an instance beyond plan, of all draws.
        probe: the seen-against-fresh probe at this checkpoint.
        reasons: sentences for a person, most important first.
        findings: the detectors' findings.
        basis: what it rests on: ``train and holdout``, or ``holdout only``.
        slope: d(holdout) / d(train) of the run over the evaluations judged, None where train loss
            did not move. A symptom, never a trigger.
        tasks: how task accuracies stand against the reference's.
        literal: the literal comparison of the last window (train drop, holdout gain, shortfall,
            whether it exceeds 0.005): an observation on which nothing rests.
        evidence: further numbers behind the verdict, JSON values.
    """

    run: str
    verdict: VerdictName
    step: int
    tokens: int
    reference: str | None
    profile: str
    onset_tokens: int | None
    alarm_tokens: int | None
    channel: str
    train_gap_nats: float | None
    holdout_gap_nats: float | None
    unmatched_nats: float | None
    unmatched_low_nats: float | None
    unmatched_high_nats: float | None
    matched_fraction: float | None
    tolerance_nats: float | None
    first_repeat_tokens: int | None
    repeated_fraction: float | None
    probe: ProbeResult | None
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    basis: str = "train and holdout"
    slope: float | None = None
    tasks: tuple[TaskDifference, ...] = ()
    literal: Mapping[str, Json] | None = None
    evidence: Mapping[str, Json] = field(default_factory=dict[str, Json])

    def record(self, alerts: "Sequence[Alert]" = ()) -> dict[str, Any]:
        """Return the verdict as one strict JSON object, with the run's alert episodes."""
        record = asdict(self)
        record["verdict"] = str(self.verdict)
        record["reasons"] = list(self.reasons)
        record["tasks"] = [asdict(task) for task in self.tasks]
        record["literal"] = None if self.literal is None else dict(self.literal)
        record["evidence"] = dict(self.evidence)
        record["findings"] = [
            {**asdict(finding), "evidence": dict(finding.evidence)} for finding in self.findings
        ]
        record["alerts"] = [
            {**asdict(alert), "status": str(alert.status), "verdict": str(alert.verdict)}
            for alert in alerts
        ]
        return record


class AlertStatus(StrEnum):
    """States of an alert episode."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    MUTED = "muted"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """One episode of one cause in one run: told once, followed until resolved.

    Attributes:
        id: stable id from run, cause and opening step, the receiver's deduplication key.
        run: the run's name.
        cause: kind of the findings that opened it.
        status: where the episode stands.
        opened_step: evaluation at which it opened.
        opened_tokens: the same in tokens.
        quiet: consecutive evaluations without a finding of its cause.
        title: one line.
        message: a few lines: run, step, metric, value and next action first.
        verdict: identifier of the verdict when last updated.
        updated_step: evaluation it was last updated at; an earlier one changes nothing any more.
    """

    id: str
    run: str
    cause: str
    status: AlertStatus
    opened_step: int
    opened_tokens: int
    quiet: int
    title: str
    message: str
    verdict: VerdictName
    updated_step: int = -1
