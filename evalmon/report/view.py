"""Everything a reader is shown about one run, as one frozen value.

Views (text, Markdown, HTML, dashboard) lay these values out and compute nothing. All
numbers are plain Python; a value that is missing is None, never NaN.
"""

from dataclasses import dataclass

from evalmon.detectors.profiles import profile_named
from evalmon.metrics import Interval
from evalmon.store import Delivery, Heartbeat, ProbePoint, StoredFailure
from evalmon.types import Alert, MetricIdentity, RunDescription, Verdict

__all__ = [
    "AboutReference",
    "Curve",
    "LiteralTrace",
    "Marker",
    "RunView",
    "TaskRow",
    "UnmatchedTrace",
]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a figure.

    Attributes:
        metric: canonical name of the metric.
        run: whose curve it is.
        tokens: [n] tokens trained on, rising.
        values: [n] the numbers; None where an evaluation has none, shown as a gap.
        single_steps: whether each is the loss of one step, as a thinned history holds it, and no
            median of many.
    """

    metric: str
    run: str
    tokens: tuple[int, ...]
    values: tuple[float | None, ...]
    single_steps: bool = False


@dataclass(frozen=True, slots=True)
class UnmatchedTrace:
    """The unmatched drop at each evaluation, beside what the rule tolerated there.

    Attributes:
        tokens: [n] tokens of the evaluations.
        unmatched_nats: [n] unmatched drop r, nats per token.
        low_nats: [n] lower end of its 95 % interval.
        high_nats: [n] upper end.
        tolerance_nats: [n] tolerance of the profile.
        supported_low_nats: [n] lowest train CE that the holdout supports: T + r - tolerance.
        supported_high_nats: [n] highest: T + r + tolerance.
    """

    tokens: tuple[int, ...]
    unmatched_nats: tuple[float | None, ...]
    low_nats: tuple[float | None, ...]
    high_nats: tuple[float | None, ...]
    tolerance_nats: tuple[float | None, ...]
    supported_low_nats: tuple[float | None, ...]
    supported_high_nats: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class LiteralTrace:
    """The literal comparison of each evaluation with the one before: an observation.

    Attributes:
        tokens: [n] tokens at which the windows end.
        train_drop_nats: [n] how far train loss fell in the window.
        holdout_gain_nats: [n] how far holdout loss fell.
        shortfall_nats: [n] what the holdout lacks of the train drop.
        unmatched: [n] whether that exceeds the tolerance.
        tolerance_nats: the tolerance, 0.005.
    """

    tokens: tuple[int, ...]
    train_drop_nats: tuple[float, ...]
    holdout_gain_nats: tuple[float, ...]
    shortfall_nats: tuple[float, ...]
    unmatched: tuple[bool, ...]
    tolerance_nats: float


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line of a figure.

    Attributes:
        kind: ``first repeat``, ``onset`` or ``alarm``.
        tokens: where it stands.
        share: the same as a fraction of the planned tokens.
    """

    kind: str
    tokens: int
    share: float


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task metric at the run's latest evaluation.

    Attributes:
        task: lm-eval's name.
        shots: worked examples in the prompt.
        metric: ``acc`` or ``len_norm``.
        items: questions scored.
        run: the run's accuracy with its 95 % interval.
        stderr: its standard error, None where one item gives none.
        reference: the reference's accuracy at equal tokens under an equal metric
            identity, else None.
        reference_stderr: its standard error, None where it is not known.
        reference_items: questions it rests on.
        reference_tokens: tokens of the checkpoint it comes from; of a published curve, which
            is read between its points, those of the run.
        chance: accuracy of guessing, None where it is not known.
        note: why there is no reference value, or "".
    """

    task: str
    shots: int | None
    metric: str
    items: int
    run: Interval
    stderr: float | None
    reference: Interval | None
    reference_stderr: float | None
    reference_items: int | None
    reference_tokens: int | None
    chance: float | None
    note: str


@dataclass(frozen=True, slots=True)
class AboutReference:
    """What a reader must know of a reference curve before relying on it.

    Attributes:
        name: its name, as on the command line.
        facts: model, stage, tokenizer, source and licence as (label, text).
        differences: in what its numbers are known not to mean the same as the run's.
        one_sided: what it states and the run does not, so that it cannot be compared.
        known_faults: what is wrong or odd in its data, a sentence each.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    differences: tuple[str, ...]
    one_sided: tuple[str, ...]
    known_faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything shown about one run.

    Attributes:
        run: what the run is.
        reference: name of the reference, None when judged alone.
        step: step of the latest evaluation, None before the first.
        tokens: the same in tokens.
        progress: the same as a fraction of the plan.
        verdict: latest verdict, None before the first.
        train: windowed train CE of run and, where it has one, reference.
        holdout: holdout CE of the same.
        holdout_name: metric of the holdout shown, or "".
        unmatched: unmatched drop against tolerance, None before the first verdict.
        markers: first repeat, onset, alarm: those that are known.
        tasks: task accuracies at the latest evaluation.
        probes: probe results by step.
        alerts: alert episodes.
        deliveries: one an alert and receiver.
        stuck: (alert id, sink) of deliveries given up or overdue.
        failures: evaluators that could not score a checkpoint and have not succeeded since.
        identities: metric -> what its number means.
        commands: command lines that reproduce the result.
        heartbeats: what each evaluator process is doing.
        self_check: what the self-check of the latest evaluation says, as (label, text).
        notes: what could not be shown, and why.
        literal: the literal comparison of each window, None without a window.
        published: what the reference is, where it is a published curve and no run of the store.
    """

    run: RunDescription
    reference: str | None
    step: int | None
    tokens: int | None
    progress: float | None
    verdict: Verdict | None
    train: tuple[Curve, ...]
    holdout: tuple[Curve, ...]
    holdout_name: str
    unmatched: UnmatchedTrace | None
    markers: tuple[Marker, ...]
    tasks: tuple[TaskRow, ...]
    probes: tuple[ProbePoint, ...]
    alerts: tuple[Alert, ...]
    deliveries: tuple[Delivery, ...]
    stuck: frozenset[tuple[str, str]]
    failures: tuple[StoredFailure, ...]
    identities: tuple[tuple[str, MetricIdentity], ...]
    commands: tuple[str, ...]
    heartbeats: tuple[Heartbeat, ...] = ()
    self_check: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    literal: LiteralTrace | None = None
    published: AboutReference | None = None

    @property
    def probe_limit_nats(self) -> float:
        """Return the probe's lower bound that confirms memorization in the run's profile."""
        return profile_named(self.verdict.profile if self.verdict else "full").probe_nats
