"""The learning rate as a pure function of the step.

Steps are 1-based: update n uses the rate of n. A schedule gives it twice: ``at`` computes
in float64 on the host, for logs and tables; a call is traced by JAX. There the step stays
an integer until the steps since (or up to) a bend are counted, so that the rate is exact
to a few roundings at any step below 2^24: float32 rates are within 1e-6 of ``at``,
relative to it.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from trainer.names import require_known

__all__ = [
    "FLOOR",
    "SCHEDULES",
    "CosineWithWarmup",
    "HalfCosineWithWarmup",
    "Linear",
    "MaxTextCosine",
    "Schedule",
    "Stitched",
    "find_schedule",
    "two_stages",
]

FLOOR: Final = 0.1
"""The published cosines end at this fraction of their peak."""


class Schedule(Protocol):
    """A learning rate for each step."""

    def at(self, step: int) -> float:
        """Return the rate of update ``step`` (1-based), computed in float64."""
        ...

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        """Return the rate of update ``step`` in JAX's default float type."""
        ...


class _Curve:
    """Both ways to ask a curve, from one formula over integer steps."""

    __slots__ = ()

    def at(self, step: int) -> float:
        return float(self.rate(np.int64(operator.index(step)), np))

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        return self.rate(jnp.asarray(step, jnp.int32), jnp)

    def rate(self, n: Any, xp: Any) -> Any:
        """Return the rate of integer step ``n``, computed with the functions of ``xp``."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CosineWithWarmup(_Curve):
    """Linear from 0 to the peak, then half a cosine down to a tenth of it.

    With peak P, warm-up w and length T, step n > w uses
    0.1 P + 0.9 P (1 + cos(pi (n - w) / (T - w))) / 2.

    Attributes:
        peak: P, learning rate at the end of warm-up.
        warmup_steps: w, below ``steps``.
        steps: T, steps of the whole schedule; later steps keep the floor.

    Source: OLMo-core ``optim/scheduler.py``, CosWithWarmup.

    Example:
        >>> schedule = CosineWithWarmup(peak=1.0, warmup_steps=10, steps=110)
        >>> [round(schedule.at(n), 3) for n in (1, 10, 60, 110, 500)]
        [0.1, 1.0, 0.55, 0.1, 0.1]
    """

    peak: float
    warmup_steps: int
    steps: int

    def rate(self, n: Any, xp: Any) -> Any:
        falling = _mix(self.peak, _fall(n - self.warmup_steps, self.steps - self.warmup_steps, xp))
        return xp.where(n < self.warmup_steps, _rise(self.peak, n, self.warmup_steps, xp), falling)


@dataclass(frozen=True, slots=True)
class HalfCosineWithWarmup(_Curve):
    """The second half of a cosine, entered by a linear rise to its middle.

    With peak P, warm-up w and length T, step n > w uses
    0.1 P + 0.9 P (1 + cos(pi/2 + pi/2 (n - w) / (T - w))) / 2, so 0.55 P at w.

    Attributes:
        peak: P, peak of the whole cosine, which is never reached.
        warmup_steps: w, step of the middle.
        steps: T, steps of the whole schedule; later steps keep the floor.

    Source: OLMo-core's official script of the second part of OLMo 3 pre-training,
    HalfCosWithWarmup.

    Example:
        >>> schedule = HalfCosineWithWarmup(peak=1.0, warmup_steps=10, steps=110)
        >>> [round(schedule.at(n), 3) for n in (1, 10, 60, 110)]
        [0.055, 0.55, 0.232, 0.1]
    """

    peak: float
    warmup_steps: int
    steps: int

    def rate(self, n: Any, xp: Any) -> Any:
        length = self.steps - self.warmup_steps
        falling = _mix(self.peak, _fall(n - self.warmup_steps + length, 2 * length, xp))
        middle = _mix(self.peak, 0.5)
        return xp.where(n < self.warmup_steps, _rise(middle, n, self.warmup_steps, xp), falling)


@dataclass(frozen=True, slots=True)
class Stitched(_Curve):
    """One curve below a step, another from it on.

    Attributes:
        first: rate of steps below ``at_step``.
        second: rate of ``at_step`` and later steps, by the same count of steps.
        at_step: where the curves are joined.
    """

    first: _Curve
    second: _Curve
    at_step: int

    def rate(self, n: Any, xp: Any) -> Any:
        return xp.where(n < self.at_step, self.first.rate(n, xp), self.second.rate(n, xp))


@dataclass(frozen=True, slots=True)
class MaxTextCosine(_Curve):
    """MaxText's warm-up and cosine: its steps count from 0, and 0 follows the end.

    Update n is its step s = n - 1: linear from 0 at s = 0 to the peak at s = w, then
    0.1 P + 0.9 P (1 + cos(pi (s - w) / (T - w - 1))) / 2, which is at 0.1 P in update T,
    and 0 in all later ones.

    Attributes:
        peak: P, learning rate at the end of warm-up.
        warmup_steps: w, below ``steps``.
        steps: T, steps of the whole schedule.

    Source: MaxText ``create_learning_rate_schedule``.

    Example:
        >>> schedule = MaxTextCosine(peak=1.0, warmup_steps=10, steps=111)
        >>> [round(schedule.at(n), 3) for n in (1, 2, 11, 61, 111, 112)]
        [0.0, 0.1, 1.0, 0.55, 0.1, 0.0]
    """

    peak: float
    warmup_steps: int
    steps: int

    def rate(self, n: Any, xp: Any) -> Any:
        s, w = n - 1, self.warmup_steps
        rising = _rise(self.peak, s, w, xp)
        falling = _mix(self.peak, _fall(s - w, self.steps - w - 1, xp))
        return xp.where(s < w, rising, xp.where(n > self.steps, 0.0, falling))


@dataclass(frozen=True, slots=True)
class Linear(_Curve):
    """Linear from 0 to the peak, then linear to 0 at the last step.

    Attributes:
        peak: learning rate at the end of warm-up, or where there is none.
        warmup_steps: below ``steps``; 0 for none.
        steps: T, step of rate 0; later steps keep it.

    Source: OLMo-core ``optim/scheduler.py``, LinearWithWarmup with a final fraction of 0.

    Example:
        >>> [round(Linear(1.0, 0, 100).at(n), 3) for n in (1, 50, 100, 101)]
        [0.99, 0.5, 0.0, 0.0]
    """

    peak: float
    warmup_steps: int
    steps: int

    def rate(self, n: Any, xp: Any) -> Any:
        left = _floating(xp.maximum(self.steps - n, 0), xp)
        falling = self.peak * (left / max(self.steps - self.warmup_steps, 1))
        return xp.where(n < self.warmup_steps, _rise(self.peak, n, self.warmup_steps, xp), falling)


def two_stages(peak: float, warmup_steps: int, steps: int) -> Stitched:
    """Return the learning rate of OLMo 3's pre-training, whose horizon was moved half way.

    The first curve is a cosine over ``steps``. At its middle, where the rate is 0.55 P, a
    half cosine to 7/5 of the steps takes over. The published run had read its data at step
    1,413,814 of the second curve's 1,668,931, so its last rate is 3.93e-5 and not the floor.
    It changed over from a checkpoint 999 steps before the middle, where the second curve is
    at most 0.4% below the first; here the curves meet.

    Args:
        peak: P.
        warmup_steps: w.
        steps: T, length of the first curve: 5 trillion tokens in the published run, of which
            the second curve's 7 trillion are 7/5.

    Source: OLMo-core ``src/scripts/official/OLMo3``, both parts of the 7B pre-training.

    Example:
        >>> curves = two_stages(3e-4, 2000, 1_192_093)
        >>> curves.at_step, curves.second.steps
        (597046, 1668931)
    """
    middle = (steps + warmup_steps) // 2
    second = HalfCosineWithWarmup(peak, middle, -(-7 * steps // 5))
    return Stitched(CosineWithWarmup(peak, warmup_steps, steps), second, middle)


SCHEDULES: Final[dict[str, Callable[[float, int, int], Schedule]]] = {
    "cosine": CosineWithWarmup,
    "two_stages": two_stages,
    "maxtext": MaxTextCosine,
    "linear": Linear,
}
"""Schedules by name, each built from peak, warm-up steps and length."""


def find_schedule(name: str) -> Callable[[float, int, int], Schedule]:
    """Return what builds the schedule called ``name`` from peak, warm-up steps and length.

    Raises:
        ConfigError: no such schedule; the nearest name is suggested.
    """
    require_known("--schedule", "schedule", name, SCHEDULES)
    return SCHEDULES[name]


def _rise(peak: float, n: Any, steps: int, xp: Any) -> Any:
    """Return n / steps of the peak."""
    return peak * (_floating(n, xp) / max(steps, 1))


def _fall(done: Any, steps: int, xp: Any) -> Any:
    """Return half a cosine from 1 at 0 steps done to 0 at ``steps``."""
    part = _floating(xp.clip(done, 0, steps), xp) / max(steps, 1)
    return (1.0 + xp.cos(np.pi * part)) / 2.0


def _mix(peak: float, height: Any) -> Any:
    """Return the rate at a height between floor (0) and peak (1)."""
    return peak * (FLOOR + (1.0 - FLOOR) * height)


def _floating(n: Any, xp: Any) -> Any:
    """Turn integers into the widest float that is on."""
    return n.astype(xp.result_type(float))
