"""Repeats from fingerprints: a host draws an instance more often than planned."""

from evalmon.types import Finding, RepeatSummary

__all__ = ["finding", "suggestion"]

_NEAR = 0.05  # relative agreement of a period with what a construct predicts


def finding(run: str, summary: RepeatSummary) -> Finding | None:
    """Return a finding when any instance was drawn more often than planned.

    Args:
        run: the run's name.
        summary: counts of its id log.

    Returns:
        A finding of kind ``memorization``, or None.
    """
    if summary.first_repeat_step is None or summary.first_repeat_tokens is None:
        return None
    cause = suggestion(summary)
    return Finding(
        detector="repeated_instances",
        kind="memorization",
        run=run,
        alarm_step=summary.first_repeat_step,
        alarm_tokens=summary.first_repeat_tokens,
        onset_tokens=summary.first_repeat_tokens,
        channel="",
        magnitude_nats=None,
        message=(
            f"{summary.repeated:,} of {summary.draws:,} draws ({summary.repeated_fraction:.1%}) "
            f"read an instance beyond the planned {_times(summary.planned_passes)}, the first at "
            f"step {summary.first_repeat_step:,}" + (f"; {cause}" if cause else "")
        ),
        evidence={
            "draws": summary.draws,
            "unique": summary.unique,
            "repeated": summary.repeated,
            "repeated_fraction": round(summary.repeated_fraction, 6),
            "same_step_duplicates": summary.same_step_duplicates,
            "replayed_draws": summary.replayed_draws,
            "cross_host": summary.cross_host,
            "period_draws": summary.period_draws,
            "hosts": summary.hosts,
            "suggestion": cause,
        },
    )


def suggestion(summary: RepeatSummary) -> str:
    """Name the construct whose signature the repeats bear, or ""."""
    hosts, period = summary.hosts, summary.period_draws
    if not summary.repeated:
        return ""
    if period is not None:
        return _periodic(period, hosts, summary.source_instances)
    if hosts > 1 and summary.same_step_duplicates >= 0.5 * summary.repeated:
        return "hosts draw the same instances in the same step: the source is not sharded"
    if hosts > 1 and summary.cross_host >= 0.5 * summary.repeated:
        return (
            "hosts draw each other's instances at other steps: each shuffles by itself, or "
            "the source is sharded twice around a shuffle"
        )
    return ""


def _periodic(period: int, hosts: int, source: int) -> str:
    """Name the construct that returns after so many draws of one host."""
    if hosts > 1 and _close(period * hosts * hosts, source):
        return (
            f"each of {hosts} hosts re-reads the same 1/{hosts} of its 1/{hosts} (every {period} "
            "draws): the source is sharded twice"
        )
    if _close(period * hosts, source):
        return f"the whole source is read again after {period * hosts:,} draws: a further epoch"
    return f"each host returns to the same instances every {period} draws"


def _close(value: int, expected: int) -> bool:
    """Tell whether two counts agree up to what a shard rule rounds away."""
    return abs(value - expected) <= _NEAR * expected


def _times(passes: int) -> str:
    """Return a number of passes in words."""
    return "single pass" if passes == 1 else f"{passes} passes"
