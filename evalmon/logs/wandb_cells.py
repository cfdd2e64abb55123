"""NaN in a history of which no cell is empty: a value, or a step at which nothing was logged.

pandas keeps both as NaN, so that a table written with ``na_rep="NaN"`` tells them apart by the
pattern of rows alone: a metric that is logged every so many steps has no value between these.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from evalmon.logs.wandb_steps import NO_STEP
from evalmon.types import FloatArray, IntArray

__all__ = ["not_logged"]

_FEWEST = 3
"""Fewer steps with a value show no interval."""
_ON_GRID = 0.9
"""Share of a metric's steps that lie its interval apart; a last evaluation may lie elsewhere."""
_SPARSE = 0.5
"""A metric that is NaN in more rows than this, and at no interval, is not logged in those in which
another one was."""

_Mask = np.ndarray[Any, np.dtype[np.bool_]]


def not_logged(steps: IntArray, values: Mapping[str, FloatArray]) -> tuple[dict[str, _Mask], str]:
    """Tell the NaN cells that hold no value.

    Args:
        steps: [n] step of each row, ``NO_STEP`` where it has none.
        values: metric -> [n] its cells, none of them empty.

    Returns:
        metric -> [n] whether nothing was logged there, for metrics with such rows; and a note, ""
        where there are none.

    Example:
        >>> steps, nan = np.arange(10, 90, 10), np.nan
        >>> cells = np.array([nan, 3.0, nan, 2.5, nan, nan, nan, 2.0])  # every 20, broken at 60
        >>> found, _ = not_logged(steps, {"eval/loss": cells})
        >>> steps[found["eval/loss"]].tolist()
        [10, 30, 50, 70]
    """
    count = sum((~np.isnan(cells)).astype(np.int64) for cells in values.values())
    beside = {name: count > ~np.isnan(cells) for name, cells in values.items()}
    found = {name: _empty(steps, cells, beside[name]) for name, cells in values.items()}
    found = {name: mask for name, mask in found.items() if bool(mask.any())}
    if not found:
        return {}, ""
    taken = ", ".join(f"{name} {np.count_nonzero(mask):,}" for name, mask in found.items())
    note = (
        f"no cell is empty: NaN off the steps at which a metric is logged is taken for not logged "
        f"({taken} cells), on them for a value; leave cells empty where nothing was logged"
    )
    return found, note


def _empty(steps: IntArray, cells: FloatArray, beside: _Mask) -> _Mask:
    """Return in which rows a metric was not logged; ``beside`` where another one was."""
    nan = np.isnan(cells)
    logged = np.unique(steps[~nan & (steps != NO_STEP)])
    if not bool(nan.any()) or len(logged) == 0:
        return np.zeros(len(cells), np.bool_)
    elsewhere = np.isin(steps, logged) | (steps == NO_STEP)
    if len(logged) >= _FEWEST:
        gaps, counts = np.unique(np.diff(logged), return_counts=True)
        every = int(gaps[np.argmax(counts)])
        phases, counts = np.unique(logged % every, return_counts=True)
        if counts.max() >= _ON_GRID * len(logged):
            return nan & (elsewhere | (steps % every != phases[np.argmax(counts)]))
    return nan & (elsewhere | (beside & (np.mean(nan) > _SPARSE)))
