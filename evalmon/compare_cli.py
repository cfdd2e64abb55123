"""`evalmon compare`: from whatever holds a run's curves to a verdict, in one command.

Exit codes: the verdict's (0 healthy, 1 findings, 3 not enough data or inconclusive), 2 for
input that cannot be used, 4 for a store that cannot be read.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from evalmon.errors import ConfigError, WriteError
from evalmon.token_option import TokenCount

if TYPE_CHECKING:
    from evalmon.comparing import Comparison
    from evalmon.types import Verdict

__all__ = ["compare", "printable"]

_NAME_LENGTH = 80
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"))


@click.command()
@click.argument("run")
@click.option(
    "--run", "run_name", metavar="NAME", help="Run of a table, log, chart or store of several."
)
@click.option(
    "--reference",
    metavar="NAME",
    help="What to judge against: a reference curve, a run beside RUN, TABLE:NAME, or a path.",
)
@click.option("--same-recipe", is_flag=True, help="Mix, tokenizer, length and loss are equal.")
@click.option(
    "--profile",
    type=click.Choice(["full", "sparse", "loose", "short"]),
    help="Constants of the rule; by default chosen by how often the run is evaluated.",
)
@click.option(
    "--planned-tokens",
    type=TokenCount(),
    metavar="N",
    help="Tokens of the whole schedule, as 5.93e12.",
)
@click.option("--holdout", metavar="NAME", default="", help="By default c4_en, else the only one.")
@click.option("--thinned", is_flag=True, help="Train points were thinned by a fixed rule.")
@click.option("--store", default="", help="Results store: path or database URL.")
@click.option(
    "--tokens-per-step",
    type=TokenCount(),
    metavar="N",
    help="Tokens of a step of RUN, where it does not say.",
)
@click.option(
    "--without-leaked",
    metavar="REPORT",
    default="",
    help="Leave out documents that a report of `evalmon audit leakage --json` names.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object last.")
def compare(*, as_json: bool, **options: Any) -> None:
    """Judge RUN by its train and holdout loss, alone or against a reference.

    RUN is a run directory, a run of a store, a MaxText log, a W&B CSV export, a table
    run,metric,step,tokens,value (CSV, .csv.gz, Parquet) or a reference curve.

    The exit code is the verdict's.
    """
    from evalmon.comparing import CompareOptions
    from evalmon.comparing import compare as judged

    _check(options)
    options["profile"] = options["profile"] or ""
    options["planned_tokens"] = options["planned_tokens"] or 0
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise WriteError("standard output is closed, so the verdict has no place; open it")
    comparison = judged(CompareOptions(**options))
    for line in _lines(comparison):
        click.echo(printable(line), err=as_json)
    if as_json:
        click.echo(json.dumps(comparison.record, allow_nan=False))
    raise SystemExit(comparison.verdict.verdict.exit_code)


def _check(options: dict[str, Any]) -> None:
    """Refuse options that say nothing."""
    if options["reference"] is not None and not options["reference"].strip():
        raise ConfigError("--reference is empty; name a reference, or leave it out")
    if options["same_recipe"] and not options["reference"]:
        raise ConfigError(
            "--same-recipe says that the reference has the recipe of RUN, and there is none; give "
            "--reference, or leave out --same-recipe"
        )


def _lines(comparison: "Comparison") -> list[str]:
    """Return a comparison as a person reads it."""
    verdict, record = comparison.verdict, comparison.record
    against = "alone"
    if comparison.reference is not None:
        against = f"against {_short(comparison.reference.name)}"
    lines = [
        f"{_short(verdict.run)}: {verdict.verdict}",
        (
            f"  {against} on {record['holdout']}, {verdict.basis}, "
            f"{_tokens(comparison.first_tokens)} to {_tokens(comparison.last_tokens)} of "
            f"{_tokens(record['planned_tokens'])} tokens planned "
            f"({record['planned_tokens_source']}), profile {verdict.profile}"
        ),
    ]
    numbers = _numbers(verdict)
    lines += [f"  {numbers}"] if numbers else []
    lines += [f"  - {reason}" for reason in verdict.reasons]
    lines += [f"  note: {note}" for note in record["notes"]]
    if verdict.tasks:
        lines.append(f"  tasks at {_tokens(verdict.tokens)} tokens, run minus reference:")
    width = max((len(_task(task.task)) for task in verdict.tasks), default=0)
    lines += [
        f"    {_task(task.task):<{width}}  {task.difference_acc:+.4f}  "
        f"({task.low_acc:+.4f} to {task.high_acc:+.4f})  {task.outcome}"
        + (f" (± {task.half_width_acc:.3f})" if task.outcome == "inconclusive" else "")
        for task in verdict.tasks
    ]
    return lines


def printable(text: str) -> str:
    r"""Return text with every character that a terminal would act on written out.

    Example:
        >>> printable("run\x1b[31m")
        'run\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _short(name: str) -> str:
    """Return a name as far as a line has room for it."""
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"


def _numbers(verdict: "Verdict") -> str:
    """Return the numbers of a verdict in one line."""
    parts: list[str] = []
    if verdict.train_gap_nats is not None and verdict.basis != "holdout only":
        parts.append(f"train gap {verdict.train_gap_nats:+.3f}{_since(verdict, 'train_nats')}")
    if verdict.holdout_gap_nats is not None:
        since = _since(verdict, "holdout_nats")
        parts.append(f"holdout gap {verdict.holdout_gap_nats:+.3f}{since} nats")
    if verdict.unmatched_nats is not None and verdict.basis != "holdout only":
        interval = ""
        if verdict.unmatched_low_nats is not None and verdict.unmatched_high_nats is not None:
            interval = (
                f" (95 % {verdict.unmatched_low_nats:+.3f} to {verdict.unmatched_high_nats:+.3f})"
            )
        parts.append(f"unmatched drop {verdict.unmatched_nats:+.3f}{interval}")
    if verdict.matched_fraction is not None:
        parts.append(f"matched {100 * verdict.matched_fraction:.0f} %")
    if verdict.slope is not None:
        parts.append(f"slope {verdict.slope:.2f}")
    return ", ".join(parts)


def _since(verdict: "Verdict", loss: str) -> str:
    """Say how far a gap has moved, where only its movement is judged, or ""."""
    moved = verdict.evidence.get("since_baseline")
    if verdict.evidence.get("mode") != "reference" or not isinstance(moved, dict):
        return ""
    change = moved.get(loss)
    return f" ({change:+.3f} since the baseline)" if isinstance(change, float) else ""


def _task(metric: str) -> str:
    """Return a task's metric without what all have in common."""
    return metric.removeprefix("eval/downstream/")


def _tokens(count: int) -> str:
    """Return a number of tokens to three digits.

    Example:
        >>> _tokens(5_930_000_000_000), _tokens(2048)
        ('5.93T', '2,048')
    """
    for size, unit in _UNITS:
        if count >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return f"{count:,}"
