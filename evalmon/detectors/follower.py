"""The curve rule for a run that goes on: a new evaluation costs its own window alone.

The result is that of :func:`~evalmon.detectors.unmatched_drop.detect` on the whole run.
"""

from dataclasses import replace

import numpy as np

from evalmon import series
from evalmon.detectors import measuring, unmatched_drop
from evalmon.detectors.curve import CurveInputs, CurveResult
from evalmon.detectors.measuring import Measured
from evalmon.detectors.profiles import Profile
from evalmon.types import FloatArray, Series

__all__ = ["Follower"]


class Follower:
    """Judges a run evaluation by evaluation.

    Args:
        inputs: its curves so far, and those of its reference, whole.
        profile: constants of the rule.

    Attributes:
        result: what the rule says now; None before the first evaluation.
    """

    def __init__(self, inputs: CurveInputs, profile: Profile) -> None:
        self.result: CurveResult | None = None
        self._profile, self._inputs = profile, inputs
        self._parts: list[Measured] = []
        self._noise: FloatArray | None = None
        self._last_steps = _last(inputs.train), _last(inputs.holdout)
        self._usual: tuple[float, float] | None = None
        self._reference: Follower | None = None
        train, holdout = inputs.reference_train, inputs.reference_holdout
        if train is not None and holdout is not None:
            self._usual = series.usual_spacing(train), series.usual_spacing(holdout)
            own = unmatched_drop.reference_until(inputs, inputs.holdout)
            self._reference = Follower(own, profile)
        if len(inputs.holdout):
            self._judge()

    def extend(self, train: Series, holdout: Series) -> CurveResult:
        """Judge with further points.

        Args:
            train: train points after those known.
            holdout: one or more evaluations after those known, with the train points up to them
                given by now.

        Returns:
            The result at the last evaluation.

        Raises:
            ValueError: no evaluation, or points that do not follow those known.
        """
        firsts = [item.steps[0] if len(item) else np.inf for item in (train, holdout)]
        if not len(holdout) or firsts[0] <= self._last_steps[0] or firsts[1] <= self._last_steps[1]:
            raise ValueError(
                f"evaluations and train points must follow steps {self._last_steps[1]} and "
                f"{self._last_steps[0]}, got {len(holdout)} evaluations from {firsts[1]} and train "
                f"points from {firsts[0]}"
            )
        self._last_steps = max(self._last_steps[0], _last(train)), _last(holdout)
        self._inputs = replace(
            self._inputs,
            train=_joined(self._inputs.train, train),
            holdout=_joined(self._inputs.holdout, holdout),
        )
        return self._judge()

    def _judge(self) -> CurveResult:
        """Measure the evaluations that are new, and judge them all."""
        inputs = self._inputs
        part = measuring.measure_part(inputs, self._profile, self._usual)
        self._parts.append(part)
        points, reason = measuring.join(self._parts, self._noise), part.reason
        self._noise = points.noise
        waits = reason in (measuring.UNREACHED, measuring.UNMARKED)
        if inputs.joins and len(points) and waits:
            reason = ""
        uncovered = np.concatenate([item.uncovered for item in self._parts])
        reason = reason or unmatched_drop.baseline_missing(
            points, np.unique(uncovered), inputs, self._profile
        )
        self.result = unmatched_drop.decide(inputs, self._profile, points, reason, self._vet())
        # What comes next needs train points that no window has used, and evaluations around them.
        train, begin = inputs.train.pick(slice(part.used, None)), len(inputs.holdout) - 1
        if len(train):
            before = int(np.searchsorted(inputs.holdout.tokens, train.tokens[0], side="right")) - 1
            begin = min(begin, max(before, 0))
        self._inputs = replace(inputs, train=train, holdout=inputs.holdout.pick(slice(begin, None)))
        return self.result

    def _vet(self) -> CurveResult | None:
        """Return what the rule says of the reference alone, as far as the run has come."""
        if self._reference is None:
            return None
        now = unmatched_drop.reference_until(self._inputs, self._inputs.holdout)
        train, holdout = self._reference._last_steps  # another of its own kind
        fresh = int(np.searchsorted(now.holdout.steps, holdout, side="right"))
        if fresh < len(now.holdout):
            begin = int(np.searchsorted(now.train.steps, train, side="right"))
            self._reference.extend(
                now.train.pick(slice(begin, None)), now.holdout.pick(slice(fresh, None))
            )
        return self._reference.result


def _last(points: Series) -> int:
    """Return the last step of a series, -1 of an empty one."""
    return int(points.steps[-1]) if len(points) else -1


def _joined(first: Series, second: Series) -> Series:
    """Return two series, one after the other."""
    return Series(
        first.metric,
        np.concatenate([first.steps, second.steps]),
        np.concatenate([first.tokens, second.tokens]),
        np.concatenate([first.values, second.values]),
    )
