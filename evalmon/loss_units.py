"""Whether a loss was logged in another unit than the one it is laid over.

Bits per token, base-10 logarithms and perplexities pass for nats by their size. Against a
reference they are told by how they move: what sets two models apart is by and large added to the
loss, L = E + A(model) + B(tokens); another unit multiplies it or exponentiates it, level and
movement alike. So a loss counts as one of another unit only where, converted, it lies within
1.2 % of the reference's at nine evaluations of ten **and** what is then left moves by at most an
eighth of what the reference moves. An added offset leaves at least 0.30 of it (1 - ln 2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evalmon.types import FloatArray, IntArray

__all__ = ["LaidOver", "Unit", "told", "unit_of"]

_FEWEST = 6
_LEVEL = 0.012  # share of the reference's loss; published pairs are at least 0.168 off
_NEARLY_ALL = 0.9
_MOVEMENT = 1 / 8
_SPREAD = (10, 90)  # percentiles
_AGREES = 0.05  # share within which two holdout losses are in one unit


@dataclass(frozen=True, slots=True)
class LaidOver:
    """A loss of a run and its reference's at equal tokens.

    Attributes:
        metric: canonical name.
        steps: [n] steps of the run.
        run: [n] the run's loss, as it was logged.
        reference: [n] the reference's at the run's tokens, as it was logged.
    """

    metric: str
    steps: IntArray
    run: FloatArray
    reference: FloatArray


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that a loss is logged in by mistake.

    Attributes:
        name: what the loss is.
        remedy: how it becomes nats.
        to_nats: the same as a function of a loss, which is positive.
    """

    name: str
    remedy: str
    to_nats: Callable[[FloatArray], FloatArray]


_UNITS = (
    Unit("bits per token", "multiply it by 0.693147 (ln 2)", lambda loss: loss * np.log(2)),
    Unit(
        "a base-10 logarithm per token",
        "multiply it by 2.302585 (ln 10)",
        lambda loss: loss * np.log(10),
    ),
    Unit("a perplexity", "take its natural logarithm", np.log),
)


def unit_of(loss: FloatArray, other: FloatArray) -> Unit | None:
    """Return the unit of a loss, given another one that is in nats.

    Args:
        loss: [n] loss at rising tokens.
        other: [n] another run's at the same tokens, in nats per token.

    Returns:
        The unit, None where it is nats or cannot be told: fewer than six points, or a loss that
        hardly moves between them.

    Example:
        >>> other = 2.0 + 3.0 / np.arange(1, 11)
        >>> unit_of(other / np.log(2), other).name, unit_of(np.exp(other), other).name
        ('bits per token', 'a perplexity')
        >>> unit_of(other + 1.0, other) is None
        True
    """
    if len(loss) < _FEWEST or (loss <= 0).any():
        return None
    for unit in _UNITS:
        left = unit.to_nats(loss) - other
        near = float(np.mean(np.abs(left) <= _LEVEL * other))
        if near >= _NEARLY_ALL and _spread(left) <= _MOVEMENT * _spread(other):
            return unit
    return None


def told(holdout: LaidOver, train: LaidOver | None, run: str, reference: str) -> str:
    """Say that a run or its reference logged a loss in another unit than the other, or "".

    A holdout is the same text on both sides and speaks for itself. A train loss is of the text
    trained on, which may differ, and speaks alone only where the holdouts agree as they stand.

    Args:
        holdout: both holdout losses.
        train: both train losses, None where one has none.
        run: where the run's losses are from, for the reader.
        reference: where the reference's are from.

    Returns:
        One sentence that names source, metrics, the two values at one step, and what to do.
    """
    for whose, place, swapped in (("run", run, False), ("reference", reference, True)):
        found = [(part, _unit(part, swapped=swapped)) for part in (holdout, train) if part]
        named = [(part, unit) for part, unit in found if unit]
        if not named or (named[0][0] is not holdout and not _agree(holdout)):
            continue
        part, unit = named[0]
        same = [item.metric for item, other in named if other is unit]
        rest = [item for item, other in found if other is not unit]
        more = "".join(_likely(item, unit, swapped=swapped) for item in rest)
        return (
            f"{' and '.join(same)} of the {whose} {place} {'are' if len(same) > 1 else 'is'} "
            f"{unit.name}, not nats: at step {part.steps[-1]:,} {part.metric} is "
            f"{part.run[-1]:.4f} in the run and {part.reference[-1]:.4f} in the reference, and "
            f"once converted they move as one{more}. No verdict rests on it: {unit.remedy}, or log "
            "it in nats per token; if it is in nats, its tokens are another tokenizer's or the two "
            "models are far apart in size: choose another reference"
        )
    return ""


def _unit(part: LaidOver, *, swapped: bool) -> Unit | None:
    """Return the unit of the run's loss, or of the reference's."""
    mine, theirs = part.run, part.reference
    return unit_of(theirs, mine) if swapped else unit_of(mine, theirs)


def _likely(part: LaidOver, unit: Unit, *, swapped: bool) -> str:
    """Say that a loss lies nearer to the other's if it is in that unit too, or ""."""
    loss, other = (part.reference, part.run) if swapped else (part.run, part.reference)
    if not len(loss) or (loss <= 0).any():
        return ""
    converted, plain = (float(np.median(np.abs(x - other))) for x in (unit.to_nats(loss), loss))
    if converted >= plain / 2:
        return ""
    return (
        f"; {part.metric} ({part.run[-1]:.4f} against {part.reference[-1]:.4f}) is likely "
        f"{unit.name} as well"
    )


def _agree(part: LaidOver) -> bool:
    """Tell whether two losses are of one size as they stand."""
    return bool(np.median(np.abs(part.run - part.reference) / part.reference) <= _AGREES)


def _spread(values: FloatArray) -> float:
    """Return how far values lie apart, all but the outermost tenths."""
    low, high = np.percentile(values, _SPREAD)
    return float(high - low)
