"""Values the store hands out beside those of :mod:`evalmon.types`."""

from dataclasses import dataclass

from evalmon.types import Failure, ProbeResult

__all__ = ["Delivery", "Heartbeat", "ProbePoint", "ScorePoint", "StoredFailure"]


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """One metric at one checkpoint, without its items.

    Attributes:
        step: optimizer updates completed.
        tokens: tokens trained on.
        value: the number, in the unit of the metric's name.
        stderr: its standard error, None where one item gives none.
        items: items it rests on.
    """

    step: int
    tokens: int
    value: float
    stderr: float | None
    items: int


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """The seen-against-fresh probe at one checkpoint.

    Attributes:
        step: optimizer updates completed.
        tokens: tokens trained on.
        result: mean difference with interval.
    """

    step: int
    tokens: int
    result: ProbeResult


@dataclass(frozen=True, slots=True)
class StoredFailure:
    """One failed attempt to score a checkpoint.

    Attributes:
        failure: what failed, and why.
        attempt: 1 for the first try of this evaluator version at this checkpoint.
        superseded: whether a later try succeeded.
        at: when, Unix seconds.
    """

    failure: Failure
    attempt: int
    superseded: bool
    at: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """One alert on its way to one receiver.

    Attributes:
        alert_id: the alert.
        sink: key of the receiver.
        status: ``pending``, ``delivered`` or ``dead`` (given up, the last error says why).
        attempts: tries so far.
        error: what the last try met, or "".
        created_at: when it was ordered, Unix seconds.
        updated_at: when it was last tried, Unix seconds.
        due_at: not to be tried before, Unix seconds.
    """

    alert_id: str
    sink: str
    status: str
    attempts: int
    error: str
    created_at: float
    updated_at: float
    due_at: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What an evaluator process is doing: an old ``since`` is a stall.

    Attributes:
        run: the run it watches.
        holder: the process, as ``host/pid``.
        stage: what it does (``restore step 1200``, ``waiting`` …).
        since: when it began that, Unix seconds.
        alive: False when the process is known to be gone (None = another host, not known).
    """

    run: str
    holder: str
    stage: str
    since: float
    alive: bool | None
