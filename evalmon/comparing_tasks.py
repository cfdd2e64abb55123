"""Task accuracies of a run against its reference's at one evaluation, wherever both are from.

Only what lies at or before the evaluation counts; of the reference, what lies up to its first
point at or after the same tokens, which reading it between two points needs. So a run that went
on and one that ended there are compared alike, whenever that is done.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from evalmon import series
from evalmon.detectors import task_differences
from evalmon.detectors.task_differences import PairedItems
from evalmon.types import Curve, IntArray, Json, Score, Series, TaskDifference

__all__ = ["Answers", "ComparedTasks", "TaskScores", "awaited", "compare", "extent"]

_NO_SPACE = "_no_space"

Answers: TypeAlias = Callable[[int, Collection[str]], Mapping[str, Score]]
"""Step and metrics -> those scores of the step that keep their items, by metric."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """What one side says of its tasks.

    Attributes:
        curves: canonical metric -> curve, of accuracies alone.
        answers: reads the answers to single items; None where none are kept.
        no_space: metric of an accuracy per character -> the same accuracy where an answer's
            leading space is not counted.
    """

    curves: Mapping[str, Curve]
    answers: Answers | None = None
    no_space: Mapping[str, Curve] = field(default_factory=dict[str, Curve])

    @classmethod
    def of(cls, curves: Mapping[str, Curve], answers: Answers | None = None) -> "TaskScores":
        """Pick the accuracies among a run's curves."""
        picked = {name: curve for name, curve in curves.items() if _accuracy(name, curve)}
        bare = {name: curves[name + _NO_SPACE] for name in picked if name + _NO_SPACE in curves}
        return cls(picked, answers, bare)

    def counted_as(self, other: "TaskScores") -> "TaskScores":
        """Return these scores by the characters that the other side counts, where both are known.

        AI2's trainers did not count an answer's leading space before ``ai2-olmo-eval`` 0.8, and
        OLMo 2's curves are from then. The evaluations stay the same: where one of them lacks the
        other accuracy, nothing is taken in its place.
        """
        taken = {
            metric: replace(bare, series=replace(bare.series, metric=metric))
            for metric, bare in self.no_space.items()
            if metric in other.curves
            and other.curves[metric].facts.get("normalization") == bare.facts.get("normalization")
            and np.array_equal(bare.series.steps, self.curves[metric].series.steps)
        }
        return replace(self, curves={**self.curves, **taken})


@dataclass(frozen=True, slots=True)
class ComparedTasks:
    """What came of comparing.

    Attributes:
        differences: one a task, then the mean of the seven; none where a side has no task.
        left_out: "metric: why" of each task that only one side has or that cannot be compared.
    """

    differences: tuple[TaskDifference, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """One sentence on what was left out, "" where nothing was."""
        return f"tasks not compared: {'; '.join(self.left_out)}" if self.left_out else ""


def compare(run: TaskScores, reference: TaskScores, step: int, tokens: int) -> ComparedTasks:
    """Compare the tasks that both have at an evaluation, and the mean of the seven.

    Answers are compared item by item where both sides keep those of the same items at equal
    tokens; else accuracies are, see :mod:`evalmon.detectors.task_differences`.

    Args:
        run: the run's tasks.
        reference: its reference's.
        step: the run's evaluation that is judged.
        tokens: the same in tokens.

    Raises:
        StoreError: answers cannot be read.
    """
    run, reference = run.counted_as(reference), reference.counted_as(run)
    mine = _parts(run.curves, tokens, _until)
    theirs = _parts(reference.curves, tokens, series.reaching)
    if not mine or not theirs:
        return ComparedTasks()
    paired = _paired(replace(run, curves=mine), replace(reference, curves=theirs), step, tokens)
    found, left_out = task_differences.examine(mine, theirs, tokens, paired)
    mean = task_differences.macro(found)
    return ComparedTasks((*found, mean) if mean else found, left_out)


def extent(run: TaskScores, reference: TaskScores, tokens: int) -> list[Json]:
    """Return, in JSON values, what :func:`compare` rests on: more, or other, is other evidence.

    Args:
        run: the run's tasks.
        reference: its reference's.
        tokens: tokens of the evaluation judged.

    Returns:
        Of each side's metrics the number of points that count, the last one's tokens and what the
        metric means; nothing where a side has none.
    """
    run, reference = run.counted_as(reference), reference.counted_as(run)
    sides = [
        _counted(run.curves, lambda at: int(at.searchsorted(tokens, side="right"))),
        _counted(reference.curves, lambda at: int(at.searchsorted(tokens)) + 1),
    ]
    return list(sides) if all(sides) else []


def awaited(run: TaskScores, reference: TaskScores, tokens: int) -> bool:
    """Tell whether the reference's tasks do not reach yet what the run's are compared with.

    Args:
        run: the run's tasks.
        reference: its reference's.
        tokens: tokens of the evaluation judged.
    """
    for metric in task_differences.shared(run.curves, reference.curves):
        scored = run.curves[metric].series.tokens
        end = int(np.searchsorted(scored, tokens, side="right"))
        if end and int(reference.curves[metric].series.tokens[-1]) < int(scored[end - 1]):
            return True
    return False


def _accuracy(metric: str, curve: Curve) -> bool:
    """Tell whether a curve is an accuracy that was scored at all."""
    return task_differences.is_accuracy(metric) and len(curve.series) > 0


def _until(points: Series, tokens: int) -> Series:
    """Return a curve up to its last point at or before ``tokens``."""
    return points.pick(slice(int(np.searchsorted(points.tokens, tokens, side="right"))))


def _parts(
    curves: Mapping[str, Curve], tokens: int, part: Callable[[Series, int], Series]
) -> dict[str, Curve]:
    """Return the part of each curve that counts, without those of which none does."""
    cut = {name: replace(item, series=part(item.series, tokens)) for name, item in curves.items()}
    return {name: item for name, item in cut.items() if len(item.series)}


def _counted(curves: Mapping[str, Curve], counted: Callable[[IntArray], int]) -> list[Json]:
    """Return each metric with how many of its points count, the last one, and its meaning."""
    found: list[Json] = []
    for metric, curve in curves.items():
        points = curve.series.tokens
        count = min(len(points), counted(points))
        if count:
            found.append([metric, count, int(points[count - 1]), curve.facts.get("identity")])
    return found


def _paired(
    run: TaskScores, reference: TaskScores, step: int, tokens: int
) -> dict[str, PairedItems]:
    """Return both answers to each item, where both sides keep them at equal tokens."""
    if run.answers is None or reference.answers is None:
        return {}
    wanted = task_differences.shared(run.curves, reference.curves)
    parts = (reference.curves[metric].series for metric in wanted)
    steps = {int(at) for part in parts for at in part.steps[part.tokens == tokens]}
    if not steps:
        return {}
    mine = run.answers(step, wanted)
    theirs = reference.answers(max(steps), wanted)
    paired: dict[str, PairedItems] = {}
    for metric in sorted({*mine} & {*theirs}):
        own, known = mine[metric], theirs[metric]
        if own.identity != known.identity:  # of an evaluator that is no longer the curve's
            continue
        ours, their = (
            dict(zip(score.item_ids, score.item_values, strict=True)) for score in (own, known)
        )
        if ours.keys() == their.keys() and len(ours) > 1:
            values = tuple(their[item] for item in ours)
            paired[metric] = PairedItems(tuple(ours), tuple(ours.values()), values)
    return paired
