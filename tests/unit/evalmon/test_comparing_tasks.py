"""Tasks at one evaluation: what counts, what is paired, and what a comparison rests on."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest

from evalmon import comparing_tasks
from evalmon.comparing_tasks import TaskScores
from evalmon.types import Curve, Json, MetricIdentity, Score, Series

SCIQ, PIQA = "eval/downstream/sciq_0shot/acc", "eval/downstream/piqa_0shot/len_norm"
LOSS = "eval/lm/c4_en-validation/ce_nats"
_COLUMNS = ("steps", "tokens", "values")
IDENTITY = MetricIdentity(
    "sciq", "acc", 0, "", "validation", None, "items", "t", "float32", 0, "d", 8
)


def curve(tokens: Collection[int], level: float = 0.5, **facts: Json) -> Curve:
    """Return an accuracy at these tokens that rises with them, one step per 10 tokens."""
    at = np.array(sorted(tokens), np.int64)
    return Curve(Series("accuracy", at // 10, at, level + at / 10_000), {"items": 100, **facts})


def kept(
    right: Mapping[str, float], identity: MetricIdentity = IDENTITY
) -> comparing_tasks.Answers:
    """Return what reads the same answers at every step, of ``SCIQ`` alone."""
    ids, values = tuple(right), tuple(right.values())

    def read(step: int, metrics: Collection[str]) -> Mapping[str, Score]:
        assert SCIQ in metrics
        return {SCIQ: Score(SCIQ, sum(values) / len(values), 0.1, len(ids), identity, ids, values)}

    return read


def paired(mine: comparing_tasks.Answers, theirs: comparing_tasks.Answers, at: int = 200) -> bool:
    """Tell whether answers are compared item by item at some tokens."""
    curves = {SCIQ: curve(range(100, 401, 100))}
    found = comparing_tasks.compare(TaskScores(curves, mine), TaskScores(curves, theirs), 20, at)
    return found.differences[0].paired


def test_losses_and_curves_without_points_are_no_tasks():
    scores = TaskScores.of({SCIQ: curve([10]), PIQA: curve([]), LOSS: curve([10])})
    assert list(scores.curves) == [SCIQ]
    assert comparing_tasks.compare(scores, TaskScores({}), 1, 10).note == ""
    assert comparing_tasks.compare(scores, TaskScores.of({PIQA: curve([10])}), 1, 10).note == (
        f"tasks not compared: {PIQA}: only the reference has it; {SCIQ}: only the run has it"
    )


def test_answers_are_paired_by_id_where_both_have_the_same_of_one_identity():
    right = {"a": 1.0, "b": 0.0, "c": 1.0}
    turned = dict(reversed(right.items()))
    assert paired(kept(right), kept(turned))
    assert not paired(kept(right), kept({**right, "d": 1.0}))
    assert not paired(kept(right), kept(right, replace(IDENTITY, data="other")))
    assert not paired(kept(right), kept(right), at=250)  # the reference has no answers there


@pytest.mark.parametrize("at", [100, 150, 200, 390])
def test_what_comes_after_changes_neither_comparison_nor_extent(at: int):
    """Not even how densely the reference goes on, nor that both turn out to be no accuracies."""
    run, spaced = curve(range(100, 401, 50)), curve(range(100, 421, 40), 0.45).series
    run.series.values[-1] = 7.0
    dense = curve(range(421, 500, 1), 7.0).series
    joined = (np.append(getattr(spaced, name), getattr(dense, name)) for name in _COLUMNS)
    reference = Curve(Series("accuracy", *joined), {"items": 100})
    whole = TaskScores({SCIQ: run}), TaskScores({SCIQ: reference})
    there = int(np.searchsorted(reference.series.tokens, at)) + 1
    ended = (
        TaskScores({SCIQ: replace(run, series=run.series.until(at // 10))}),
        TaskScores({SCIQ: replace(reference, series=reference.series.pick(slice(there)))}),
    )
    found = comparing_tasks.compare(*whole, at // 10, at)
    assert found.differences
    assert found == comparing_tasks.compare(*ended, at // 10, at)
    assert comparing_tasks.extent(*whole, at) == comparing_tasks.extent(*ended, at)


def test_the_extent_differs_with_every_point_that_counts_and_with_what_it_means():
    def extent(run: Curve, reference: Curve) -> object:
        return comparing_tasks.extent(TaskScores({SCIQ: run}), TaskScores({SCIQ: reference}), 250)

    sides = curve([100, 200]), curve([100, 200, 300])
    known = extent(*sides)
    for other in (
        (curve([100]), sides[1]),
        (curve([200]), sides[1]),
        (sides[0], curve([100, 200])),
        (sides[0], curve([100, 200, 250])),
        (sides[0], curve([100, 200, 300], identity="other")),
        (curve([100, 200], identity="other"), sides[1]),
    ):
        assert extent(*other) != known
    assert extent(curve([100, 200, 300]), curve([100, 200, 300, 400])) == known
    assert comparing_tasks.extent(TaskScores({}), TaskScores({SCIQ: sides[1]}), 250) == []


def test_a_reference_is_awaited_until_it_reaches_the_runs_last_task():
    def awaited(reference: Collection[int], at: int) -> bool:
        run = TaskScores({SCIQ: curve([100, 200])})
        return comparing_tasks.awaited(run, TaskScores({SCIQ: curve(reference)}), at)

    assert awaited([100, 150], 250)
    assert not awaited([100, 150], 150)  # the run's last is at 100
    assert not awaited([100, 200], 250)
    assert not awaited([100], 50)  # before the run's first
    assert not comparing_tasks.awaited(TaskScores({}), TaskScores({SCIQ: curve([100])}), 250)


def test_ai2s_older_accuracies_are_laid_over_those_that_do_not_count_the_space():
    tokens = range(100, 401, 100)
    scored = {
        PIQA: curve(tokens, 0.5, normalization="characters_with_space"),
        f"{PIQA}_no_space": curve(tokens, 0.6, normalization="characters"),
    }
    theirs = TaskScores.of({PIQA: curve(tokens, 0.55, normalization="characters")})
    found = comparing_tasks.compare(TaskScores.of(scored), theirs, 40, 400)
    assert found.differences[0].task == PIQA
    assert found.differences[0].difference_acc == pytest.approx(0.05)
    # The same the other way round, and between two that both count the space.
    turned = comparing_tasks.compare(theirs, TaskScores.of(scored), 40, 400)
    assert turned.differences[0].difference_acc == pytest.approx(-0.05)
    same = comparing_tasks.compare(TaskScores.of(scored), TaskScores.of(scored), 40, 400)
    assert same.differences[0].difference_acc == 0


def test_accuracies_of_other_characters_are_not_compared():
    tokens = range(100, 401, 100)
    scored = {PIQA: curve(tokens, 0.5, normalization="characters_with_space")}
    theirs = TaskScores.of({PIQA: curve(tokens, 0.55, normalization="characters")})
    few = scored | {f"{PIQA}_no_space": curve(tokens[1:], 0.6, normalization="characters")}
    for mine in (scored, few):
        found = comparing_tasks.compare(TaskScores.of(mine), theirs, 40, 400)
        assert found.differences == ()
        assert "normalization differs ('characters_with_space' against 'characters')" in found.note
