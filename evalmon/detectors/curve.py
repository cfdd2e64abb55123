"""What the curve rule reads and what it returns."""

from dataclasses import dataclass

import numpy as np

from evalmon.types import FloatArray, IntArray, Series

__all__ = [
    "Alarm",
    "CurveInputs",
    "CurveResult",
    "Plan",
    "Points",
]

_THINNED_LEAST = 2  # points a window of a thinned log needs


@dataclass(frozen=True, slots=True)
class CurveInputs:
    """The curves of a run and, where there is one, of its reference.

    Attributes:
        train: per-step train CE of the run, restarts resolved, finite.
        holdout: holdout CE at its checkpoints.
        planned_tokens: tokens of the whole schedule.
        warmup_tokens: tokens of learning-rate warm-up.
        reference_train: per-step train CE of the reference.
        reference_holdout: its holdout CE; both or none.
        same_recipe: same mix, tokenizer, sequence length and loss: levels may be compared.
        thinned: the run's train loss was thinned by a rule: a window needs two points.
        reference_thinned: the reference's was: a window needs a point of it too.
    """

    train: Series
    holdout: Series
    planned_tokens: int
    warmup_tokens: int = 0
    reference_train: Series | None = None
    reference_holdout: Series | None = None
    same_recipe: bool = False
    thinned: bool = False
    reference_thinned: bool = False

    @property
    def mode(self) -> str:
        """``free`` without a reference, ``level`` at equal recipes, else ``reference``."""
        if self.reference_train is None or self.reference_holdout is None:
            return "free"
        return "level" if self.same_recipe else "reference"

    @property
    def joins(self) -> bool:
        """Whether an evaluation may have no window of its own and be judged with the next."""
        return self.thinned or self.reference_thinned

    @property
    def least(self) -> int:
        """Train points that a window needs."""
        return _THINNED_LEAST if self.thinned else 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedule, and how the run is judged.

    Attributes:
        planned_tokens: tokens of the whole schedule.
        warmup_tokens: tokens of warm-up.
        mode: ``level`` (reference of the same recipe), ``reference`` or ``free``.
    """

    planned_tokens: int
    warmup_tokens: int
    mode: str


@dataclass(frozen=True, slots=True)
class Points:
    """One row an evaluation that can be judged.

    Attributes:
        steps: [n] steps of the evaluations.
        tokens: [n] tokens.
        train: [n] T, median train CE since the evaluation before.
        holdout: [n] H, holdout CE.
        train_gap: [n] dT, median difference to the reference's train CE at equal tokens;
            without a reference zeros.
        holdout_gap: [n] dH, the same of the holdout.
        excess: [n] r = dH - dT, in nats; without a reference the median of holdout minus
            train CE at equal tokens, or H itself where the profile is not centered.
        noise: [n] standard error of ``excess`` from the spread inside the windows, 0 where
            they hold one point.
    """

    steps: IntArray
    tokens: IntArray
    train: FloatArray
    holdout: FloatArray
    train_gap: FloatArray
    holdout_gap: FloatArray
    excess: FloatArray
    noise: FloatArray

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Alarm:
    """The first evaluation at which the rule spoke, in one direction.

    Attributes:
        index: position among the evaluations judged.
        step: step of that evaluation.
        tokens: the same in tokens.
        channel: ``fast``, ``slow``, ``level`` or ``shift``.
        magnitude_nats: unmatched drop at the last evaluation (running median).
        onset_tokens: change point of the unmatched drop; with later evaluations it may
            be placed better.
        train_share: part of the change that train loss made, the rest is the holdout's.
        by_train: whether train loss is said to have made the change.
        one_evaluation: whether the holdout's part came between two neighboring evaluations.
        active: whether at least half of it is still there at the last evaluation.
    """

    index: int
    step: int
    tokens: int
    channel: str
    magnitude_nats: float
    onset_tokens: int
    train_share: float
    by_train: bool
    one_evaluation: bool
    active: bool


@dataclass(frozen=True, slots=True)
class CurveResult:
    """What the curve rule found, with one row an evaluation judged.

    Attributes:
        mode: ``level``, ``reference`` or ``free``.
        profile: name of the profile.
        points: the evaluations.
        unmatched: [n] unmatched drop r in nats: raw at equal recipes, else against the
            run's own baseline.
        low: [n] lower end of its 95 % interval.
        high: [n] upper end.
        tolerance: [n] unmatched drop that the profile tolerates, in nats; infinite before
            it can judge.
        held: [n] whether a spike held the evidence back.
        baseline: r that counts as no unmatched drop, in nats; 0 at equal recipes.
        span: positions of the baseline's first evaluation and of the one after its last.
        train_baseline: the run's own earlier train CE where there is no reference, else 0.
        holdout_baseline: the same of the holdout.
        alarm: first alarm of an unmatched drop, None without.
        mirrored: first alarm of the opposite sign.
        enough_data: whether the last evaluation could be judged.
        reason: why not, or "".
    """

    mode: str
    profile: str
    points: Points
    unmatched: FloatArray
    low: FloatArray
    high: FloatArray
    tolerance: FloatArray
    held: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    baseline: float
    span: tuple[int, int]
    train_baseline: float
    holdout_baseline: float
    alarm: Alarm | None
    mirrored: Alarm | None
    enough_data: bool
    reason: str

    @property
    def onset_tokens(self) -> int | None:
        """Onset of the alarm, or of the mirrored one, None without."""
        spoken = self.alarm or self.mirrored
        return None if spoken is None else spoken.onset_tokens

    @property
    def channel(self) -> str:
        """Channel of the alarm, or of the mirrored one, "" without."""
        spoken = self.alarm or self.mirrored
        return "" if spoken is None else spoken.channel
