"""How the further evidence of a verdict reads: basis, slope, last window, tasks, reference.

Like :mod:`~evalmon.report.wording`, the one place that turns these into words.
"""

import re
from typing import Final

from evalmon.report.view import AboutReference
from evalmon.report.wording import nats_text, share_text, task_label
from evalmon.types import TaskDifference, Verdict

__all__ = [
    "OUTCOME_HEADER",
    "OUTCOME_LEAD",
    "last_window_text",
    "outcome_cells",
    "reference_lines",
    "verdict_facts",
    "window_text",
]

OUTCOME_HEADER: Final = ("task", "outcome", "difference", "half-width", "detectable", "questions")
"""Columns of :func:`outcome_cells`."""

OUTCOME_LEAD: Final = (
    "Accuracy of the run minus the reference's, with half of its 95 % interval; equivalent means "
    "within 0.005. Detectable is the least true difference that would have been found four times "
    "of five."
)

_TASK: Final = re.compile(r"eval/downstream/(?P<task>[^/]+?)(?:_0shot)?(?:/(?P<metric>\w+))?")
_MEAN: Final = "mean_without_boolq"


def window_text(
    drop_nats: float, gain_nats: float, shortfall_nats: float, limit_nats: float, *, unmatched: bool
) -> str:
    """Say how the losses of a window stand to the literal tolerance.

    Example:
        >>> print(window_text(0.08, 0.0, 0.08, 0.005, unmatched=True))
        train fell 0.080, holdout gained 0.000: shortfall 0.080 > 0.005
        >>> print(window_text(-0.02, 0.01, -0.03, 0.005, unmatched=False))
        train rose 0.020, holdout gained 0.010: shortfall −0.030 ≤ 0.005
    """
    train, holdout = nats_text(abs(drop_nats)), nats_text(abs(gain_nats))
    lacking = nats_text(shortfall_nats)
    if lacking == nats_text(limit_nats):
        lacking = f"{shortfall_nats:.6f}"  # else an excess by a hair would not be seen
    return (
        f"train {'fell' if round(drop_nats, 3) >= 0 else 'rose'} {train}, "
        f"holdout {'gained' if round(gain_nats, 3) >= 0 else 'lost'} {holdout}: "
        f"shortfall {lacking} {'>' if unmatched else '≤'} {limit_nats:g}"
    )


def last_window_text(verdict: Verdict) -> str:
    """Say how the last window stands to the literal tolerance, "" where it is not known."""
    found = verdict.literal or {}
    names = ("train_drop_nats", "holdout_gain_nats", "shortfall_nats", "tolerance_nats")
    drop, gain, lacking, limit = (found.get(name) for name in names)
    if not (
        isinstance(drop, int | float)
        and isinstance(gain, int | float)
        and isinstance(lacking, int | float)
        and isinstance(limit, int | float)
    ):
        return ""
    told = window_text(drop, gain, lacking, limit, unmatched=bool(found.get("unmatched")))
    return f"{told} (an observation: sound runs exceed it at most of their windows)"


def verdict_facts(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return gaps, matched fraction, slope and basis of a verdict as (label, text)."""
    facts = [
        ("Train gap", f"{nats_text(verdict.train_gap_nats, signed=True)} nats"),
        ("Holdout gap", f"{nats_text(verdict.holdout_gap_nats, signed=True)} nats"),
    ]
    if verdict.matched_fraction is not None:
        share = share_text(verdict.matched_fraction).replace("-", "−")
        facts.append(("Matched", f"{share} of the train drop"))
    if verdict.slope is not None:
        slope = f"{verdict.slope:.2f}".replace("-", "−")
        facts.append(("Slope", f"{slope} nats of holdout loss per nat of train loss"))
    facts.append(("Basis", verdict.basis))
    return tuple(facts)


def outcome_cells(item: TaskDifference) -> tuple[str, ...]:
    """Return how one task stands against the reference, as cells of :data:`OUTCOME_HEADER`.

    Example:
        >>> outcome_cells(TaskDifference("eval/downstream/piqa_0shot/acc", "gain", 0.03, 0.01,
        ...                              0.05, 0.028, 1838, True, 0.004, "McNemar"))
        ('PIQA acc', 'gain', '+0.030', '±0.020', '0.028', '1,838, paired')
    """
    questions = "not known" if item.items is None else f"{item.items:,}"
    return (
        _label(item.task),
        item.outcome,
        f"{item.difference_acc:+.3f}".replace("-", "−"),
        f"±{item.half_width_acc:.3f}",
        f"{item.detectable_acc:.3f}",
        f"{questions}, paired" if item.paired else questions,
    )


def reference_lines(about: AboutReference) -> tuple[str, ...]:
    """Return what a reader must know of a reference curve, one line each."""
    return (
        *(f"{label}: {told}" for label, told in about.facts),
        *about.differences,
        *(f"stated by the reference alone: {told}" for told in about.one_sided),
        *(f"known fault: {told}" for told in about.known_faults),
    )


def _label(task: str) -> str:
    """Return the name of a task's canonical metric in tables."""
    if task == _MEAN:
        return "mean without BoolQ"
    found = _TASK.fullmatch(task)
    if found is None:
        return task
    return f"{task_label(found['task'])} {found['metric'] or ''}".strip()
