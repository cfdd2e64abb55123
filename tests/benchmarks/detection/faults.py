"""What can happen to a simulated run: faults, and sound changes that look like one."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAULTS", "RAMP_FRACTION", "Fault", "Floats"]

Floats = NDArray[np.float64]

RAMP_FRACTION = 200 / 1414
"""Length of a ramp as a fraction of the plan: 200 evaluations, one every 1,000 steps."""

_PASS_GAPS = MappingProxyType(
    {  # passes in all -> (fraction of the plan, gap in nats) along a run of so many
        4: ((1.0, 0.026),),
        6: ((0.44, 0.029), (1.0, 0.045)),
        14: ((0.26, 0.039), (0.34, 0.052), (1.0, 0.11)),
        24: ((0.08, 0.041), (0.19, 0.075), (1.0, 0.245)),
        44: ((1.0, 0.60),),
    }
)
_PASS_POWER = 0.7  # of the fraction of the plan, before the first point: the curve of 24 passes
_SECOND_PASS = 0.9  # of a pass after the first, in which the gap opens

Shape = Callable[[Floats, Floats], Floats]
"""Fraction of the plan [n], onsets [R, 1] -> share of the full size reached [R, n]."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of train loss, holdout loss or both.

    Attributes:
        name: its name in tables.
        shape: how it comes.
        train_nats: movement of train loss at full size.
        holdout_nats: movement of holdout loss at full size.
        slope_error: spread of the holdout's movement, as a fraction of it.
        train_factor: train loss is multiplied by this at full size.
        evaluations: evaluations it lasts, 0 for the rest of the run.
        remembered: whether the movement of train loss is memory of text, which a probe finds.
        earliest: least fraction of the plan at which it begins.
        latest: largest.
    """

    name: str
    shape: Shape
    train_nats: float = 0.0
    holdout_nats: float = 0.0
    slope_error: float = 0.0
    train_factor: float = 1.0
    evaluations: int = 0
    remembered: bool = False
    earliest: float = 0.2
    latest: float = 0.8

    def begins(self, rng: np.random.Generator, runs: int, n: int) -> Floats:
        """Return [runs, 1] the last evaluation before it, as a fraction of the plan."""
        at = rng.uniform(self.earliest, self.latest, (runs, 1))
        return np.ceil(at * n) / n


def _nothing(u: Floats, onset: Floats) -> Floats:
    """Never."""
    return np.zeros(np.broadcast_shapes(u.shape, onset.shape))


def _sudden(u: Floats, onset: Floats) -> Floats:
    """At once."""
    return (u > onset).astype(np.float64)


def _ramp(u: Floats, onset: Floats) -> Floats:
    """In a straight line over 200 evaluations of 1,000 steps."""
    return np.clip((u - onset) / RAMP_FRACTION, 0.0, 1.0)


def _stair(u: Floats, onset: Floats) -> Floats:
    """In four equal steps over 200 evaluations of 1,000 steps."""
    return np.clip(np.ceil((u - onset) / RAMP_FRACTION * 4) / 4, 0.0, 1.0)


def _accelerating(u: Floats, onset: Floats) -> Floats:
    """With the square of the time since its onset, full at the end of the plan."""
    return np.clip((u - onset) / (1 - onset), 0.0, 1.0) ** 2


def _passes(total: int) -> Shape:
    """Double sharding from the first step: the gap along runs of so many passes in all.

    Log-log through the points known of it. A run that reads little text often shows more
    at its second pass than one that ends there: passes so far do not tell the gap alone.
    """
    known = np.log(np.array(_PASS_GAPS[total]))

    def gap(u: Floats, onset: Floats) -> Floats:
        """Gap in nats; none in the first pass."""
        at = np.log(np.maximum(u + 0 * onset, 1e-9))
        before = np.minimum(at - known[0, 0], 0.0) * _PASS_POWER
        opened = np.clip((total * u - 1) / _SECOND_PASS, 0.0, 1.0)
        return opened * np.exp(np.interp(at, known[:, 0], known[:, 1]) + before)

    return gap


def _table() -> dict[str, Fault]:
    """Return every fault by name."""
    sizes = (0.02, 0.05, 0.10, 0.25)
    forms = {
        "sudden": (_sudden, 0.2, 0.8),
        "ramp": (_ramp, 0.2, 0.7),
        "stair": (_stair, 0.2, 0.7),
        "accelerating": (_accelerating, 0.45, 0.55),
    }
    faults = [Fault("none", _nothing)]
    faults += [
        Fault(f"{form} {size:.2f}", shape, -size, remembered=True, earliest=first, latest=last)
        for form, (shape, first, last) in forms.items()
        for size in sizes
    ]
    faults += [
        Fault(f"{total} passes", _passes(total), -1.0, remembered=True, earliest=0, latest=0)
        for total in (4, 6, 14, 24, 44)
    ]
    faults += [
        Fault("both 0.05", _sudden, -0.05, -0.05),
        Fault("real gain 0.05", _ramp, -0.05, -0.05, slope_error=0.1, latest=0.7),
        Fault("early anneal 0.10", _ramp, -0.10, -0.10, slope_error=0.1, latest=0.7),
        Fault("both worse 0.05", _ramp, 0.05, 0.05, slope_error=0.1, latest=0.7),
        Fault("easier mix 0.05", _sudden, -0.05),
        Fault("normalization x0.97", _sudden, train_factor=0.97),
        Fault("harder mix 0.05", _sudden, 0.05),
        Fault("leak 0.03", _ramp, 0.0, -0.03, latest=0.7),
        Fault("evaluator +0.10", _sudden, 0.0, 0.10),
        Fault("one bad checkpoint +0.30", _sudden, 0.0, 0.30, evaluations=1),
        Fault("divergence spike +0.30", _sudden, 0.30, 0.30, evaluations=3),
    ]
    return {fault.name: fault for fault in faults}


FAULTS: MappingProxyType[str, Fault] = MappingProxyType(_table())
"""Fault by name; ``none`` leaves the run sound."""
