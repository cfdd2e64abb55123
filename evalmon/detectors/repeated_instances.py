"""Repeats from fingerprints: a host draws an instance more often than planned."""

from types import MappingProxyType
from typing import Final

from evalmon.types import Finding, RepeatSummary

__all__ = ["CONSTRUCTIONS", "construction", "finding", "suggestion"]

_NEAR: Final = 0.05  # relative agreement of a period with what a construct predicts

CONSTRUCTIONS: MappingProxyType[str, str] = MappingProxyType(
    {
        "double_sharding": "the source is sharded twice: no instance returns before N / S draws",
        "double_sharding_with_resume_fault": (
            "the source is sharded twice, and a resume goes back to a fraction of the steps done"
        ),
        "unsharded_same_seed": (
            "hosts draw the same instances in the same step: the source is not sharded"
        ),
        "unsharded_per_host_seed": (
            "hosts draw each other's instances at other steps: each shuffles all by itself"
        ),
        "sampler_sharded_loader_not": (
            "a host draws each instance several times in a row: the sampler divides its index by "
            "the number of shards, and the loader does not stride by it"
        ),
        "further_pass": "the whole source is read again: a pass more than planned",
    }
)
"""What a construction of a loader that repeats instances does, by its name."""


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
    about = "about " if summary.rate > 1 else ""
    message = (
        f"{about}{summary.repeated:,} of {summary.draws:,} draws ({summary.repeated_fraction:.1%}) "
        f"read an instance beyond the planned {_times(summary.planned_passes)}, the first at "
        f"step {summary.first_repeat_step:,}"
    )
    if summary.rate > 1:
        message += (
            f", as a sample of one text in {summary.rate:,} shows ({summary.kept:,} draws kept)"
        )
    return Finding(
        detector="repeated_instances",
        kind="memorization",
        run=run,
        alarm_step=summary.first_repeat_step,
        alarm_tokens=summary.first_repeat_tokens,
        onset_tokens=summary.first_repeat_tokens,
        channel="",
        magnitude_nats=None,
        message=message + (f"; {cause}" if cause else ""),
        evidence={
            "draws": summary.draws,
            "unique": summary.unique,
            "repeated": summary.repeated,
            "repeated_fraction": round(summary.repeated_fraction, 6),
            "planned_repeats": summary.planned_repeats,
            "same_step_duplicates": summary.same_step_duplicates,
            "cross_host": summary.cross_host,
            "period_draws": summary.period_draws,
            "hosts": summary.hosts,
            "sampling_rate": summary.rate,
            "draws_kept": summary.kept,
            "construction": construction(summary),
            "suggestion": cause,
        },
    )


def construction(summary: RepeatSummary) -> str:
    """Name the construction of a loader whose signature the repeats bear, or "".

    Returns:
        A key of :data:`CONSTRUCTIONS`.
    """
    hosts, repeated = summary.hosts, summary.repeated
    if (
        hosts > 1
        and repeated
        and summary.cross_host >= 0.5 * repeated <= summary.same_step_duplicates
    ):
        return "unsharded_same_seed"
    if summary.period_draws is not None and (name := _periodic(summary, summary.period_draws)):
        return name
    if hosts == 1 or not repeated:
        return ""
    if any(_back_by_fraction(seam.step, seam.previous_step, hosts) for seam in summary.seams):
        return "double_sharding_with_resume_fault"
    drawn = summary.first_repeat_draws
    if (
        summary.period_draws is None
        and drawn is not None
        and _close(drawn * hosts, summary.source_instances)
    ):
        return "double_sharding"
    return "unsharded_per_host_seed" if summary.cross_host >= 0.5 * repeated else ""


def suggestion(summary: RepeatSummary) -> str:
    """Say what the signature of the repeats points to, or ""."""
    name, hosts, period = construction(summary), summary.hosts, summary.period_draws
    if name == "double_sharding" and period is not None:
        return (
            f"each of {hosts} hosts re-reads the same 1/{hosts} of its 1/{hosts} (every {period} "
            "draws): the source is sharded twice"
        )
    if name == "further_pass" and period is not None:
        return f"the whole source is read again after {period * hosts:,} draws: a further epoch"
    if not name and period is not None:
        return f"each host returns to the same instances every {period} draws"
    return CONSTRUCTIONS.get(name, "")


def _periodic(summary: RepeatSummary, period: int) -> str:
    """Name the construction that returns after so many draws of one host."""
    hosts, source = summary.hosts, summary.source_instances
    if hosts > 1 and _close(period * hosts * hosts, source):
        return "double_sharding"
    if _close(period * hosts, source):
        return "further_pass"
    return "sampler_sharded_loader_not" if hosts > 1 and period == 1 else ""


def _back_by_fraction(step: int, previous: int, hosts: int) -> bool:
    """Tell whether a resume after ``step`` went on after about a fraction 1 / S of it."""
    return abs(previous - step / hosts) <= max(2.0, _NEAR * step / hosts)


def _close(value: int, expected: int) -> bool:
    """Tell whether two counts agree up to what a shard rule rounds away."""
    return abs(value - expected) <= _NEAR * expected


def _times(passes: int) -> str:
    """Return a number of passes in words."""
    return "single pass" if passes == 1 else f"{passes} passes"
