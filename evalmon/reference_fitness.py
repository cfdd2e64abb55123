"""Whether a run that is to be a reference can serve as one: long enough, and sound by itself."""

import re

from evalmon.config import ComparisonSettings
from evalmon.errors import ConfigError
from evalmon.evidence import build_case
from evalmon.run_evidence import TRAIN_METRIC, RunEvidence
from evalmon.types import RunCurves

__all__ = ["refuse_long_warmup", "refuse_short_plan", "unfit"]

_HOLDOUT = re.compile(r"eval/lm/.+-validation/ce_nats")
_FEWEST_EVALUATIONS = 6


def refuse_short_plan(curves: RunCurves, planned_tokens: int | None) -> None:
    """Refuse a plan that the run has gone beyond.

    Args:
        curves: the run.
        planned_tokens: tokens of the whole schedule that were given, None where none were.

    Raises:
        ConfigError: a curve goes on after them.
    """
    last, metric = _end(curves)
    if planned_tokens and planned_tokens < last:
        raise ConfigError(
            f"--planned-tokens {planned_tokens:,}: {metric} of {curves.name} reaches {last:,} "
            "tokens; give the tokens of the whole schedule"
        )


def refuse_long_warmup(
    curves: RunCurves, planned_tokens: int | None, warmup_tokens: int | None
) -> None:
    """Refuse a warm-up of more tokens than the schedule has.

    Args:
        curves: the run.
        planned_tokens: tokens of the whole schedule that were given, None where none were: then
            those that the run records, else its last.
        warmup_tokens: tokens of the warm-up that were given, None where none were.

    Raises:
        ConfigError: the warm-up is longer.
    """
    recorded = planned_tokens or curves.planned_tokens
    planned = recorded or _end(curves)[0]
    if warmup_tokens and warmup_tokens > planned:
        what = "of the schedule" if recorded else f"that {curves.name} reaches"
        raise ConfigError(
            f"--warmup-tokens {warmup_tokens:,}: more than the {planned:,} tokens {what}; correct "
            "it, or give --planned-tokens"
        )


def _end(curves: RunCurves) -> tuple[int, str]:
    """Return the last tokens of a run and the metric that reaches them."""
    ends = (
        (int(item.series.tokens[-1]), metric)
        for metric, item in curves.curves.items()
        if len(item.series)
    )
    return max(ends, default=(0, ""))


def unfit(curves: RunCurves, planned_tokens: int = 0) -> tuple[str, ...]:
    """Return why a verdict against a run would be weak or wrong, one sentence each.

    Args:
        curves: the run.
        planned_tokens: tokens of the whole schedule, 0 = recorded, else the last of the run.

    Returns:
        A holdout of too few evaluations; one whose difference to train loss makes the rule speak
        where the run is judged alone.
    """
    found: list[str] = []
    for metric, curve in curves.curves.items():
        count = len(curve.series)
        if not _HOLDOUT.fullmatch(metric) or not count:
            continue
        if count < _FEWEST_EVALUATIONS:
            found.append(
                f"{metric}: {count} evaluation{'s' if count > 1 else ''}, fewer than the "
                f"{_FEWEST_EVALUATIONS} that a verdict against it needs."
            )
        if TRAIN_METRIC not in curves.curves:
            continue
        settings = ComparisonSettings(planned_tokens=planned_tokens)
        result = build_case(RunEvidence(curves, curve.series, curve.facts), settings).curve
        spoken = result.alarm or result.mirrored
        if spoken is not None:
            found.append(
                f"{metric}: judged alone, it and train loss part by {spoken.magnitude_nats:.3f} "
                f"nats from {spoken.onset_tokens:,} tokens, seen at step {spoken.step:,}; against "
                "such a reference a run with the same fault looks healthy."
            )
    return tuple(found)
