"""Task accuracies of a run against its reference's at equal tokens: corroboration, no trigger.

A task is compared by the best that is known of it:

1. item by item, where both answers to each item are kept (McNemar's test, Tango's interval);
2. by the number of items, where both curves state it (Newcombe's interval; items count as
   independent between the two, so the interval is wider than need be);
3. by how much accuracies move from one checkpoint to the next.

The third knows nothing of items. Two runs of one recipe differ for good, by their seeds, about
as much as their own checkpoints vary, however many of these are averaged: on six tasks of the
seven pairs of OLMo ladder runs that share a recipe, the variance of what lasts is 0.9 times that
of a checkpoint (1.8 on ARC-Challenge, 1.4 on HellaSwag). It enters with 2. Of 672 tests on those
pairs none then finds a difference; without it 29 do.

BoolQ swings with how often a model says yes, in all items at once. Errors from its items are too
small, so the wider of 3. and the others holds, and it stays out of the mean.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from types import MappingProxyType
from typing import Final

import numpy as np

from evalmon import equivalence
from evalmon.detectors.task_values import (
    PairedItems,
    Values,
    items_stated,
    recent_spread,
    unlike,
    values_at,
)
from evalmon.equivalence import FEWEST_POINTS, Comparison, Spread
from evalmon.metrics import Interval
from evalmon.paired_counts import MARGIN_ACC, discordant
from evalmon.types import Curve, Series, TaskDifference

__all__ = [
    "MACRO", "PairedItems", "examine", "is_accuracy", "macro", "shared", "summary",
]  # fmt: skip

MACRO = "mean_without_boolq"
"""What the mean of the tasks but BoolQ is called."""

_METRIC: Final = re.compile(
    r"(?P<label>eval/downstream/(?P<task>[^/]+?)(?:_(?:val|test|train))?(?:_(?:rc|mc))?_\d+shot)"
    r"(?:/(?P<metric>acc|len_norm))?"
)
_BY_LENGTH: Final = frozenset({"arc_challenge", "hellaswag", "openbookqa", "piqa"})
_MEAN_OF: Final = _BY_LENGTH | {"arc_easy", "sciq", "winogrande"}
_SIGNIFICANT: Final = 0.05
_SPREAD: Final = (
    "unpaired: items not known; spread between checkpoints and between runs of one recipe"
)
_LASTING_VARIANCE = 2.0  # of a run's own, in variances of one checkpoint; see above
_Z95, _Z90, _Z80 = 1.959964, 1.644854, 0.841621
_NO_ITEMS: Final[Mapping[str, "PairedItems"]] = MappingProxyType({})


def is_accuracy(metric: str) -> bool:
    """Tell whether a canonical metric is a task's accuracy, of either kind.

    Example:
        >>> is_accuracy("eval/downstream/piqa_0shot/len_norm"), is_accuracy("train/ce_nats")
        (True, False)
    """
    return _METRIC.fullmatch(metric) is not None


def shared(run: Iterable[str], reference: Iterable[str]) -> list[str]:
    """Return the task metrics of both, one a task: its primary metric where both have that.

    Example:
        >>> both = [f"eval/downstream/piqa_0shot/{kind}" for kind in ("acc", "len_norm")]
        >>> shared(both, both), shared(both[:1], both)
        (['eval/downstream/piqa_0shot/len_norm'], ['eval/downstream/piqa_0shot/acc'])
    """
    chosen: dict[str, str] = {}
    for metric in sorted({*run} & {*reference}):
        named = _METRIC.fullmatch(metric)
        if named is None:
            continue
        primary = "len_norm" if named["task"] in _BY_LENGTH else "acc"
        if named["metric"] in (None, primary):
            chosen[named["label"]] = metric
        else:
            chosen.setdefault(named["label"], metric)
    return sorted(chosen.values())


def examine(
    run: Mapping[str, Curve],
    reference: Mapping[str, Curve],
    at_tokens: int,
    paired: Mapping[str, PairedItems] = _NO_ITEMS,
) -> tuple[tuple[TaskDifference, ...], tuple[str, ...]]:
    """Compare every task that both curves can be compared on, and name the others.

    The run's value is its last evaluation at or before ``at_tokens``, with those in the 2 % of
    tokens before it, five at most. The reference is read at the same tokens each, linearly in
    log tokens, so that a curve that moves moves in both.

    Args:
        run: canonical metric -> curve of the run.
        reference: the same of the reference.
        at_tokens: tokens up to which the run is looked at.
        paired: canonical metric -> both answers to each item, where they are kept; of
            checkpoints at equal tokens.

    Returns:
        One difference a task, in order of its metric, with p-values adjusted by Holm over all
        of them; and "metric: why" of each task metric that is not compared. A second metric of a
        task that is compared is not named.
    """
    found: dict[str, tuple[Comparison, str]] = {}
    chosen = shared(run, reference)
    labels = {_label(metric) for metric in chosen}
    said = [
        f"{metric}: only {'the run' if metric in run else 'the reference'} has it"
        for metric in sorted({*run} ^ {*reference})
        if is_accuracy(metric) and _label(metric) not in labels
    ]
    for metric in chosen:
        one = _measure(metric, run[metric], reference[metric], at_tokens, paired.get(metric))
        if isinstance(one, str):
            said.append(f"{metric}: {one}")
        else:
            found[metric] = one
    return _differences(found, paired), tuple(said)


def _differences(
    found: Mapping[str, tuple[Comparison, str]], paired: Mapping[str, PairedItems]
) -> tuple[TaskDifference, ...]:
    """Test tasks together, each with how it was compared."""
    raw = [comparison.p_value for comparison, _ in found.values()]
    adjusted, levels = equivalence.holm(raw), _levels(raw)
    return tuple(
        TaskDifference(
            task=metric,
            outcome=_outcome(one.value, p_value, equivalent=one.equivalent),
            difference_acc=one.value,
            low_acc=one.low,
            high_acc=one.high,
            detectable_acc=one.detectable(level),
            items=one.items,
            paired=metric in paired,
            p_value=p_value,
            method=method,
        )
        for (metric, (one, method)), p_value, level in zip(
            found.items(), adjusted, levels, strict=True
        )
    )


def macro(differences: Sequence[TaskDifference]) -> TaskDifference | None:
    """Return the difference of the mean over ARC, HellaSwag, OpenBookQA, PIQA, SciQ, WinoGrande.

    Each counts once and the same; of several forms of one task (shots, splits) the one with the
    narrowest interval counts. Tasks are independent, having different items.

    Args:
        differences: of :func:`examine`.

    Returns:
        The mean over those of the seven that are there, its p-value adjusted for HellaSwag being
        tested beside it; None without any.
    """
    parts = _parts(differences)
    if not parts:
        return None
    found = equivalence.mean_of([_interval(part) for part in parts.values()])
    raw = [equivalence.p_value_of(item) for item in (found, *_hellaswag(parts))]
    p_value, shrink = equivalence.holm(raw)[0], _Z90 / _Z95
    equivalent = (
        found.value - shrink * (found.value - found.low) > -MARGIN_ACC
        and found.value + shrink * (found.high - found.value) < MARGIN_ACC
    )
    stderr = (found.high - found.low) / 2 / _Z95
    known = [part.items for part in parts.values() if part.items is not None]
    return TaskDifference(
        task=MACRO,
        outcome=_outcome(found.value, p_value, equivalent=equivalent),
        difference_acc=found.value,
        low_acc=found.low,
        high_acc=found.high,
        detectable_acc=(NormalDist().inv_cdf(1 - _levels(raw)[0] / 2) + _Z80) * stderr,
        items=sum(known) if len(known) == len(parts) else None,
        paired=all(part.paired for part in parts.values()),
        p_value=p_value,
        method=f"mean of {len(parts)} of 7 tasks: {', '.join(parts)}",
    )


def summary(differences: Sequence[TaskDifference]) -> str:
    """Return what the tasks say: ``gain``, ``loss``, ``equivalent``, ``inconclusive``, or "".

    Two statistics have power: the mean of the seven tasks, which leads, and HellaSwag, which
    speaks where the mean is neither gain nor loss. It is held to Holm's level over all tasks.

    Args:
        differences: of :func:`examine`.

    Returns:
        "" where none of the seven was compared.
    """
    whole = macro(differences)
    if whole is None:
        return ""
    alone = _parts(differences).get("hellaswag")
    decided = [one.outcome for one in (whole, alone) if one and one.outcome in ("gain", "loss")]
    return decided[0] if decided else whole.outcome


def _label(metric: str) -> str:
    """Return a task metric without which accuracy it is."""
    named = _METRIC.fullmatch(metric)
    return named["label"] if named else metric


def _measure(
    metric: str, mine: Curve, theirs: Curve, at_tokens: int, answers: PairedItems | None
) -> tuple[Comparison, str] | str:
    """Return a comparison and how it was made, or why there is none."""
    if reason := unlike(mine, theirs):
        return reason
    values = answers.values if answers else values_at(mine.series, theirs.series, at_tokens)
    if isinstance(values, str):
        return values
    by_items = _by_items(mine, theirs, values, answers)
    if by_items is not None and not _is_boolq(metric):
        return by_items
    spread = _by_spread(mine.series, theirs.series, at_tokens, values)
    if isinstance(spread, str) or by_items is None:
        return spread if isinstance(spread, str) else (spread, f"{_SPREAD}, {values}")
    if spread.stderr <= by_items[0].stderr:
        return by_items
    return replace(spread, items=by_items[0].items), (
        f"{by_items[1]}; the spread between checkpoints is wider and holds"
    )


def _by_items(
    mine: Curve, theirs: Curve, values: Values, answers: PairedItems | None
) -> tuple[Comparison, str] | None:
    """Compare answers item by item, else by the number of items, None where it is not known."""
    if answers is None:
        items = items_stated(mine)
        if items is None or items_stated(theirs) is None:
            return None
        return equivalence.compare_shares(values.run, values.reference, items), (
            f"unpaired: {items:,} items counted as independent (Newcombe's interval), {values}"
        )
    count = len(answers.ids)
    if np.isin([answers.run, answers.reference], (0.0, 1.0)).all():
        b, c, _ = discordant(answers.run, answers.reference)
        return equivalence.compare_counts(b, c, count), (
            f"paired: {b:,} and {c:,} of {count:,} items differ (McNemar, Tango's interval)"
        )
    found = equivalence.compare_values(answers.run, answers.reference)
    return found, f"paired: Student's t over {count:,} items"


def _by_spread(mine: Series, theirs: Series, at_tokens: int, values: Values) -> Comparison | str:
    """Compare by the spread of each curve, or say why that cannot be."""
    parts: list[tuple[float, Spread]] = []
    for which, series, count in (
        ("run", mine, values.run_evaluations),
        ("reference", theirs, values.reference_evaluations),
    ):
        spread = recent_spread(series, at_tokens)
        if spread is None:
            return (
                f"the {which} has fewer than {FEWEST_POINTS} evaluations up to {at_tokens:,} "
                "tokens, too few for the spread between checkpoints; state the number of items, "
                "or keep the answers"
            )
        if not spread.sd:
            return f"the {which}'s last evaluations are all the same: how sure they are is unknown"
        parts.append((1 / count + _LASTING_VARIANCE, spread))
    return equivalence.compare_means(values.difference, parts)


def _outcome(value: float, p_value: float, *, equivalent: bool) -> str:
    """Return what a difference comes to."""
    if p_value < _SIGNIFICANT and value:
        return "gain" if value > 0 else "loss"
    return "equivalent" if equivalent else "inconclusive"


def _levels(p_values: Sequence[float]) -> list[float]:
    """Return the level at which Holm's procedure tests each of these."""
    ranks = np.argsort(np.argsort(p_values, kind="stable"), kind="stable")
    return [_SIGNIFICANT / (len(p_values) - int(rank)) for rank in ranks]


def _parts(differences: Sequence[TaskDifference]) -> dict[str, TaskDifference]:
    """Return the tasks of the mean, each in its narrowest form."""
    found: dict[str, TaskDifference] = {}
    for item in sorted(differences, key=lambda one: (one.half_width_acc, one.task)):
        named = _METRIC.fullmatch(item.task)
        if named is not None and named["task"] in _MEAN_OF:
            found.setdefault(named["task"], item)
    return dict(sorted(found.items()))


def _hellaswag(parts: Mapping[str, TaskDifference]) -> list[Interval]:
    """Return HellaSwag's difference, where it says more than the mean."""
    return [_interval(parts["hellaswag"])] if "hellaswag" in parts and len(parts) > 1 else []


def _interval(item: TaskDifference) -> Interval:
    """Return a difference as an interval."""
    return Interval(item.difference_acc, item.low_acc, item.high_acc, item.items or 0)


def _is_boolq(metric: str) -> bool:
    """Tell whether a metric is BoolQ's."""
    named = _METRIC.fullmatch(metric)
    return named is not None and named["task"] == "boolq"
