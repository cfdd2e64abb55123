"""A run followed evaluation by evaluation is judged as one read whole."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from evalmon.detectors.curve import CurveInputs, CurveResult
from evalmon.detectors.follower import Follower
from evalmon.detectors.profiles import PROFILES
from evalmon.detectors.unmatched_drop import detect
from evalmon.types import Series

TOKENS = 1_000


def run(seed: int, *, every: int, points: int, drop: float = 0.0) -> tuple[Series, Series]:
    """Return train and holdout CE of a run of 200 evaluations, train logged now and then."""
    rng = np.random.default_rng(seed)
    total = 200 * every
    steps = np.sort(rng.choice(np.arange(1, total + 1), points, replace=False))
    curve = 2 + 1.5 * (steps / total + 0.01) ** -0.1
    train = curve + 0.01 * rng.standard_normal(points) - drop * (steps > 0.6 * total)
    at = np.arange(every, total + 1, every)
    holdout = 0.3 + 2 + 1.5 * (at / total + 0.01) ** -0.1 + 0.001 * rng.standard_normal(200)
    return (
        Series("train/ce_nats", steps, steps * TOKENS, train),
        Series("eval/lm/x-validation/ce_nats", at, at * TOKENS, holdout),
    )


def part(points: Series, after: int, until: int) -> Series:
    kept = (points.steps > after) & (points.steps <= until)
    return Series(points.metric, points.steps[kept], points.tokens[kept], points.values[kept])


def plain(result: CurveResult) -> dict[str, Any]:
    """Return a result's fields, arrays as lists."""
    found = {item.name: getattr(result, item.name) for item in fields(result)}
    points = found.pop("points")
    arrays = {item.name: getattr(points, item.name) for item in fields(points)}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in (found | arrays).items()
    }


@pytest.mark.parametrize("profile", ["full", "sparse", "short"])
@pytest.mark.parametrize("referenced", [False, True])
@pytest.mark.parametrize(("points", "thinned"), [(8_000, False), (700, True), (300, True)])
def test_every_evaluation_is_judged_as_in_the_whole(
    profile: str, referenced: bool, points: int, thinned: bool
):
    train, holdout = run(1, every=40, points=points, drop=0.2)
    reference = run(2, every=30, points=150 if thinned else 5_000) if referenced else (None, None)
    whole = CurveInputs(
        train, holdout, 200 * 40 * TOKENS, 0, *reference, thinned=thinned,
        reference_thinned=referenced and thinned,
    )  # fmt: skip
    known = 800
    begun = replace(whole, train=part(train, 0, known), holdout=part(holdout, 0, known))
    follower = Follower(begun, PROFILES[profile])
    for step in range(known, 200 * 40, 1_200):
        later = step + 1_200
        found = follower.extend(part(train, step, later), part(holdout, step, later))
        expected = detect(
            replace(whole, train=train.until(later), holdout=holdout.until(later)),
            PROFILES[profile],
        )
        assert plain(found) == plain(expected)
    assert follower.result is not None
    assert follower.result.alarm is not None or referenced


def test_one_evaluation_at_a_time_and_many_at_once_are_the_same():
    train, holdout = run(3, every=40, points=8_000)
    whole = CurveInputs(train, holdout, 200 * 40 * TOKENS)
    begun = replace(whole, train=part(train, 0, 40), holdout=part(holdout, 0, 40))
    follower = Follower(begun, PROFILES["full"])
    for step in range(40, 60 * 40, 40):
        follower.extend(part(train, step, step + 40), part(holdout, step, step + 40))
    at_once = Follower(
        replace(whole, train=train.until(2_400), holdout=holdout.until(2_400)), PROFILES["full"]
    )
    assert follower.result is not None
    assert at_once.result is not None
    assert plain(follower.result) == plain(at_once.result)


def test_points_that_do_not_follow_are_refused():
    train, holdout = run(3, every=40, points=8_000)
    follower = Follower(CurveInputs(train, holdout, 200 * 40 * TOKENS), PROFILES["full"])
    with pytest.raises(ValueError, match="must follow steps 8000 and 8000, got 200 evaluations"):
        follower.extend(train, holdout)
    with pytest.raises(ValueError, match="got 0 evaluations"):
        follower.extend(train, part(holdout, 8_000, 9_000))
