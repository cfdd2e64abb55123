"""A train loss that was rounded to a grid coarser than what the rule decides on.

A loss computed in bfloat16 has 8 significant bits: between 2 and 4 nats it moves in steps of
1/64, between 4 and 8 in steps of 1/32, three and six times the 0.005 the rule tolerates. The
median of many such values lies on the same grid, so averaging does not mend it. A loss that
was rounded when it was printed, as to three decimals, lies on a far finer grid.

Source: google-deepmind/optax issue 1020.
"""

from typing import Final

import numpy as np

from evalmon.types import FloatArray

__all__ = ["grid_nats"]

_GRIDS: Final = tuple(2.0**-power for power in range(3, 8))
_SLACK: Final = 0.01  # of a grid step: values printed to four decimals still lie on it
_LEAST_POINTS: Final = 20
_LEAST_LEVELS: Final = 3


def grid_nats(values: FloatArray) -> float:
    """Return the spacing of the binary grid that all values lie on, 0.0 without one.

    The grid is one of 1/8 … 1/128 nats: what bfloat16 leaves of a loss between 16 and 1.

    Args:
        values: [n] a train loss, finite; fewer than 20 points or 3 levels tell nothing.

    Returns:
        The coarsest spacing that fits, in nats.

    Example:
        >>> steps = np.arange(64)
        >>> grid_nats(3 - steps / 64), grid_nats(3 - steps / 1000)
        (0.015625, 0.0)
    """
    if len(values) < _LEAST_POINTS:
        return 0.0
    away = values - values[0]
    for grid in _GRIDS:
        first = away[:_LEAST_POINTS] / grid  # a loss that was not rounded shows it at once
        if (np.abs(first - np.round(first)) > _SLACK).any():
            continue
        places = away / grid
        levels = np.round(places)
        if (np.abs(places - levels) <= _SLACK).all():
            return grid if len(np.unique(levels)) >= _LEAST_LEVELS else 0.0
    return 0.0
