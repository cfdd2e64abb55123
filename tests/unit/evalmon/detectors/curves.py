"""Synthetic curves of tiny runs, for tests of the rule."""

import numpy as np

from evalmon.detectors.curve import CurveInputs
from evalmon.types import Series

STEPS, BATCH_TOKENS, EVERY = 200, 2_048, 10
PLAN = STEPS * BATCH_TOKENS


def tiny(
    seed: int, *, lower: "np.ndarray | None" = None, noise: float = 0.1
) -> tuple[Series, Series]:
    """Return train and holdout CE of a run that falls from 8.3 to 6 nats.

    Args:
        seed: seed of the noise.
        lower: [201] nats by which train CE lies below what the holdout shows.
        noise: spread of one train step.
    """
    rng = np.random.default_rng(seed)
    steps = np.arange(STEPS + 1)
    curve = 5.8 + 2.5 / (1 + (steps / 30) ** 1.1)
    train = curve - (0 if lower is None else lower) + noise * rng.standard_normal(STEPS + 1)
    at = steps[EVERY::EVERY]
    holdout = 0.05 + curve[at] + 0.01 * rng.standard_normal(len(at))
    return (
        Series("train/ce_nats", steps[1:], steps[1:] * BATCH_TOKENS, train[1:]),
        Series("eval/lm/x-validation/ce_nats", at, at * BATCH_TOKENS, holdout),
    )


def repeats_from(step: int, slope: float = 0.0057) -> "np.ndarray":
    """Return [201] nats by which train CE lies too low once instances repeat."""
    return slope * np.maximum(0, np.arange(STEPS + 1) - step)


def alone(run: tuple[Series, Series]) -> CurveInputs:
    """Return the inputs of a run without a reference."""
    return CurveInputs(*run, planned_tokens=PLAN)


def against(
    run: tuple[Series, Series], reference: tuple[Series, Series], same: bool
) -> CurveInputs:
    """Return the inputs of a run and its reference."""
    return CurveInputs(*run, PLAN, 0, *reference, same)
