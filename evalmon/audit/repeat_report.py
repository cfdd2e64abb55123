"""What an id log shows, as text and as one JSON object."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalmon.audit.repeats import SPOKEN_REPEATS, WINDOW_STEPS
from evalmon.types import ID_LOG_RECORD, Finding, RepeatSummary

__all__ = ["changed_texts", "lines", "record"]

_SHOWN_TIMES = 8  # rows of the histogram in the text


def changed_texts(run: str, summary: RepeatSummary) -> Finding | None:
    """Return a finding when an instance was drawn with another text than before."""
    if not summary.changed_texts:
        return None
    return Finding(
        detector="changed_texts",
        kind="data",
        run=run,
        alarm_step=0,
        alarm_tokens=0,
        onset_tokens=None,
        channel="",
        magnitude_nats=None,
        message=(
            f"{summary.changed_texts:,} draws read an instance with another text than before: the "
            "token files were changed behind the index, or the logged index is not one"
        ),
        evidence={"changed_texts": summary.changed_texts, "draws": summary.draws},
    )


def record(
    run: str,
    summary: RepeatSummary,
    findings: Sequence[Finding],
    construction: str,
    log: tuple[Path, int],
) -> dict[str, Any]:
    """Return the audit of an id log as one JSON object.

    Args:
        run: the run's name.
        summary: counts of the log.
        findings: what is wrong.
        construction: name of the construction whose signature fits, "" for none.
        log: the file and its size in bytes.

    Returns:
        ``run``, ``draws``, ``unique``, ``instances`` (N), ``coverage`` (unique / N, null where
        N does not count different instances), ``planned_passes``, ``repeated``,
        ``repeated_fraction``, ``first_repeat`` (``step``, ``tokens``, ``instance``, ``host``,
        ``previous_step``, or null), ``replayed_draws``, ``planned_repeats``,
        ``same_step_duplicates``, ``duplicate_texts``, ``changed_texts``, ``multiplicity``
        (instances by times drawn), ``period_draws``, ``cross_host``, ``hosts``,
        ``construction`` (or null), ``sampling_rate``, ``draws_kept``, ``findings``, ``sound``
        (null before the first draw), ``log``, ``log_bytes``, ``bytes_per_instance``.
    """
    first = None
    if summary.first_repeat_step is not None:
        first = {
            "step": summary.first_repeat_step,
            "tokens": summary.first_repeat_tokens,
            "instance": summary.first_repeat_instance,
            "host": summary.first_repeat_host,
            "previous_step": summary.first_repeat_previous_step,
        }
    path, size = log
    return {
        "run": run,
        "draws": summary.draws,
        "unique": summary.unique,
        "instances": summary.source_instances,
        "coverage": summary.coverage,
        "planned_passes": summary.planned_passes,
        "repeated": summary.repeated,
        "repeated_fraction": summary.repeated_fraction,
        "first_repeat": first,
        "replayed_draws": summary.replayed_draws,
        "planned_repeats": summary.planned_repeats,
        "same_step_duplicates": summary.same_step_duplicates,
        "duplicate_texts": summary.duplicate_texts,
        "changed_texts": summary.changed_texts,
        "multiplicity": {str(times): count for times, count in summary.multiplicity},
        "period_draws": summary.period_draws,
        "cross_host": summary.cross_host,
        "hosts": summary.hosts,
        "construction": construction or None,
        "sampling_rate": summary.rate,
        "draws_kept": summary.kept,
        "findings": [
            {"detector": item.detector, "kind": item.kind, "message": item.message}
            for item in findings
        ],
        "sound": not findings if summary.draws else None,
        "log": str(path),
        "log_bytes": size,
        "bytes_per_instance": ID_LOG_RECORD.itemsize,
    }


def lines(
    summary: RepeatSummary, findings: Sequence[Finding], construction: str, size: int
) -> list[str]:
    """Return the audit of an id log for a person."""
    about = "" if summary.rate == 1 else "about "
    shown = [
        (
            f"{summary.draws:,} draws by {summary.hosts} hosts ({size:,} bytes, "
            f"{ID_LOG_RECORD.itemsize} an instance) of {summary.source_instances:,} instances"
        )
    ]
    if summary.rate > 1:
        shown.append(
            f"sampled: of one text in {summary.rate:,} every draw is kept ({summary.kept:,} of "
            "them); counts below are estimates"
        )
    coverage = "" if summary.coverage is None else f", {summary.coverage:.1%} of the source"
    shown.append(f"unique            {about}{summary.unique:,}{coverage}")
    shown.append(
        f"beyond plan       {about}{summary.repeated:,} ({summary.repeated_fraction:.2%}), "
        f"{summary.same_step_duplicates:,} within a step, {summary.cross_host:,} across hosts"
    )
    if summary.first_repeat_step is not None:
        shown.append(
            f"first repeat      step {summary.first_repeat_step:,} "
            f"({summary.first_repeat_tokens:,} tokens): instance {summary.first_repeat_instance} "
            f"by host {summary.first_repeat_host}, drawn before in step "
            f"{summary.first_repeat_previous_step:,}"
        )
    shown.append(
        f"planned repeats   {about}{summary.planned_repeats:,} of {summary.planned_passes} "
        f"planned passes; {summary.replayed_draws:,} draws replayed after restarts"
    )
    shown.append(
        f"texts             {summary.duplicate_texts:,} drawn under a second index, "
        f"{summary.changed_texts:,} changed under theirs"
    )
    counts = [f"{count:,} x {times}" for times, count in summary.multiplicity]
    more = f" and {len(counts) - _SHOWN_TIMES} more" if len(counts) > _SHOWN_TIMES else ""
    shown.append(f"times drawn       {', '.join(counts[:_SHOWN_TIMES])}{more}")
    if construction:
        shown.append(f"construction      {construction}")
    quiet = "sound: no instance beyond plan"
    if summary.repeated:
        quiet = (
            f"sound as far as the sample tells: fewer than {SPOKEN_REPEATS} repeats of it in any "
            f"{WINDOW_STEPS:,} steps"
        )
    if not summary.draws:
        quiet = "nothing to tell: no whole step was drawn yet"
    shown += [f"FINDING: {item.message}" for item in findings] or [quiet]
    return shown
