"""Where two runs are in other phases of their learning-rate schedules.

An annealed run lies below one that is not: that is the schedule, neither gain nor loss.
Rates are compared as fractions of each run's own peak, so that another peak alone is no
other phase.

Source: allenai/OLMo issue 887 (a schedule longer than the run, which never decays to zero).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from evalmon import series
from evalmon.types import Series

__all__ = ["RateDifference", "difference"]

_APART: Final = 0.10  # of the peak


@dataclass(frozen=True, slots=True)
class RateDifference:
    """A stretch, up to the evaluation judged, in which the rates differ.

    Attributes:
        since_tokens: where it begins.
        run_fraction: the run's rate at the evaluation, of its peak.
        reference_fraction: the reference's.
    """

    since_tokens: int
    run_fraction: float
    reference_fraction: float

    @property
    def annealed(self) -> bool:
        """Whether the run is the one that is further down its schedule."""
        return self.run_fraction < self.reference_fraction


def difference(run: Series, reference: Series, tokens: int) -> RateDifference | None:
    """Return from where on the learning rates of two runs differ.

    Args:
        run: learning rate of the run.
        reference: of its reference.
        tokens: the evaluation judged; later rates are not looked at.

    Returns:
        The stretch that lasts until there, None where the rates agree within a tenth of
        the peak or do not overlap.

    Example:
        >>> at = np.array([10, 20, 30, 40])
        >>> flat = Series("optim/lr", at, at, np.array([1.0, 1.0, 1.0, 1.0]))
        >>> falling = Series("optim/lr", at, at, np.array([2.0, 2.0, 1.0, 0.0]))
        >>> found = difference(falling, flat, 40)
        >>> found.since_tokens, found.run_fraction, found.annealed
        (30, 0.0, True)
    """
    own = run.until(int(run.steps[np.searchsorted(run.tokens, tokens, side="right") - 1]))
    peaks = [float(item.values.max(initial=0.0)) for item in (own, reference)]
    where, theirs = series.align(reference, own.tokens)
    if min(peaks) <= 0 or not len(where):
        return None
    mine = own.values[where] / peaks[0]
    apart = np.abs(mine - theirs / peaks[1]) > _APART
    if not apart[-1]:
        return None
    same = np.flatnonzero(~apart)
    first = int(same[-1]) + 1 if len(same) else 0
    return RateDifference(
        int(own.tokens[where[first]]), float(mine[-1]), float(theirs[-1] / peaks[1])
    )
