"""A loss in another unit is told against a reference, and what only differs from it never is."""

from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon import reference, series
from evalmon.comparing import CompareOptions, Comparison, compare
from evalmon.loss_units import LaidOver, told, unit_of
from evalmon.types import FloatArray, Series

from .drawn_runs import C4, TRAIN, drawn, rows, write

UNITS: dict[str, Any] = {
    "bits per token": lambda nats: nats / np.log(2),
    "a base-10 logarithm per token": lambda nats: nats / np.log(10),
    "a perplexity": np.exp,
}
KEPT = ("train/ce_nats", C4, "eval/lm/pile-validation/ce_nats")


def trained(seed: int, *, memorized: float = 0.0) -> tuple[Series, Series]:
    """Return a drawn run of losses from 4.5 to 2.3, whose perplexities pass for losses at last."""
    train, held = (
        replace(part, values=part.values - 3.8) for part in drawn(seed, memorized=memorized)
    )
    return train, held


def logged(parts: tuple[Series, ...], unit: str, *metrics: str) -> tuple[Series, ...]:
    """Return a run with some of its losses in another unit."""
    return tuple(
        replace(part, values=UNITS[unit](part.values)) if part.metric in metrics else part
        for part in parts
    )


def judged(path: Path, run: str, against: str) -> Comparison:
    return compare(CompareOptions(str(path), run_name=run, reference=against))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("metrics", [[C4, TRAIN], [TRAIN], [C4]])
def test_a_loss_in_another_unit_gets_no_verdict_whichever_side_logged_it(
    tmp_path: Path, unit: str, metrics: list[str]
) -> None:
    odd, plain = logged(trained(1), unit, *metrics), trained(2)
    path = write(tmp_path / "t.csv", rows({"odd": odd, "plain": plain}))
    for run, against, whose in (("odd", "plain", "run"), ("plain", "odd", "reference")):
        verdict = judged(path, run, against).verdict
        assert (verdict.verdict, verdict.verdict.exit_code) == ("not_enough_data", 3)
        verb = "are" if len(metrics) > 1 else "is"
        assert verdict.reasons[0].startswith(
            f"{' and '.join(metrics)} of the {whose} odd ({path}) {verb} {unit}, not nats: "
            f"at step 200 {metrics[0]} is "
        )
        values = {part.metric: part.values[-1] for part in (plain if run == "plain" else odd)}
        if metrics[0] == C4:
            assert f"{C4} is {values[C4]:.4f} in the run and" in verdict.reasons[0]


def test_a_memorizing_run_is_judged_in_nats_and_told_by_its_holdout_in_bits(
    tmp_path: Path,
) -> None:
    run = trained(1, memorized=0.005)
    bits = logged(run, "bits per token", TRAIN, C4)
    path = write(tmp_path / "t.csv", rows({"nats": run, "bits": bits, "other": trained(2)}))
    assert judged(path, "nats", "other").verdict.verdict == "memorization_suspected"
    verdict = judged(path, "bits", "other").verdict
    assert verdict.verdict == "not_enough_data"
    assert verdict.reasons[0].startswith(f"{C4} of the run bits ")
    assert f"; {TRAIN} (" in verdict.reasons[0]
    assert "is likely bits per token as well" in verdict.reasons[0]


def test_a_loss_that_lies_higher_or_lower_by_an_offset_is_never_of_another_unit() -> None:
    other = 2.0 + 3.0 / np.sqrt(np.arange(1, 41))
    for offset in np.linspace(-1.9, 12, 500):
        for part in (other, other[10:], other[30:]):
            assert unit_of(part + offset, part) is None
            assert unit_of(part, part + offset) is None


def test_a_train_loss_of_other_text_speaks_only_where_the_holdouts_agree() -> None:
    steps = np.arange(1, 21)
    other = 2.0 + 3.0 / np.sqrt(steps)
    train = LaidOver(TRAIN, steps, other * np.log(2), other)

    def said(holdout: FloatArray) -> str:
        return told(LaidOver(C4, steps, holdout, other), train, "a", "b")

    assert said(other + 0.05).startswith(f"{TRAIN} of the reference b is bits per token")
    assert said(other + 0.3) == ""  # code, of which less is to be guessed


def test_too_few_points_or_a_plateau_tell_nothing() -> None:
    other = 2.0 + 3.0 / np.arange(1, 11)
    assert unit_of(other[:5] / np.log(2), other[:5]) is None
    rng = np.random.default_rng(0)
    flat, noisy = (2.5 + rng.normal(0, 0.01, 40) for _ in range(2))
    assert unit_of(flat / np.log(2), noisy) is None
    assert unit_of(np.append(other, 0.0), np.append(other, 1.0)) is None


@cache
def published() -> dict[str, dict[str, Series]]:
    names = [entry.name for entry in reference.entries()]
    return {
        name: {metric: item.series for metric, item in reference.load(name, KEPT).curves.items()}
        for name in names
    }


def laid(mine: Series, theirs: Series, to: Any = None) -> LaidOver:
    where, values = series.align(theirs, mine.tokens)
    own = mine.values[where]
    return LaidOver(mine.metric, mine.steps[where], to(own) if to else own, values)


def test_no_published_pair_is_refused_and_each_is_against_itself_in_bits() -> None:
    pairs = 0
    for (mine, theirs), metric in (
        (pair, metric) for pair in permutations(published(), 2) for metric in KEPT[1:]
    ):
        one, two = published()[mine], published()[theirs]
        if metric in one and metric in two:
            train = laid(one[TRAIN], two[TRAIN]) if TRAIN in one and TRAIN in two else None
            assert told(laid(one[metric], two[metric]), train, mine, theirs) == ""
            pairs += 1
    assert pairs > 150
    for name, curves in published().items():
        if name == "ladder-190m-10xc-constant-then-decay":
            continue  # which begins at the end of another, and hardly moves
        for unit, to in UNITS.items():
            itself = laid(curves[C4], curves[C4], to)
            assert f"is {unit}" in told(itself, None, name, name)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("olmo3-7b-stage1", "olmo2-7b-stage1"),
        ("ladder-190m-1xc", "ladder-190m-1xc-data-seed"),
        ("ladder-190m-1xc-rerun", "ladder-190m-1xc-init-seed"),
        ("ladder-370m-1xc", "ladder-370m-1xc-rerun"),
    ],
)
@pytest.mark.parametrize("unit", UNITS)
def test_published_runs_of_like_recipes_are_told_by_their_holdout(
    mine: str, theirs: str, unit: str
) -> None:
    for one, two in ((mine, theirs), (theirs, mine)):
        pair = laid(published()[one][C4], published()[two][C4], UNITS[unit])
        assert f"{C4} of the run {one} is {unit}" in told(pair, None, one, two)
