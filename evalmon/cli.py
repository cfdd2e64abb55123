"""The command line: every command, and how an error becomes an exit code.

Exit codes: 0 healthy, 1 findings, 2 usage or bad input, 3 not enough data or
inconclusive, 4 infrastructure, or an error of evalmon's own. With ``--json`` a command
prints one JSON object as its last line on standard output; progress and logs go to
standard error.
"""

import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalmon.audit_cli import audit
from evalmon.compare_cli import compare, printable
from evalmon.errors import ConfigError, EvalmonError, WriteError, exit_code_of
from evalmon.reference_cli import reference

if TYPE_CHECKING:
    from evalmon.config import Settings
    from evalmon.store import Store
    from evalmon.types import Alert, Evaluation, Failure, RunDescription, Verdict

__all__ = ["main"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it

_NO_PLACE = frozenset({errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF, errno.EDQUOT})

_RUN = click.argument("run", type=click.Path(path_type=Path))
_CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), help="Settings (TOML); defaults otherwise."
)
_STORE = click.option("--store", default="", help="Results store: path or database URL.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object last.")


class _Group(click.Group):
    """A group whose commands end an error as a message and its exit code, never as a finding."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt as error:
            click.echo("stopped; what was stored is kept", err=True)
            raise SystemExit(_INTERRUPTED) from error
        except Exception as error:  # else Python ends with 1, which says findings
            raise SystemExit(_ended(error)) from error


def _ended(error: Exception) -> int:
    """Print what ended a command, and return its exit code."""
    if isinstance(error, EvalmonError):
        _say(error)
        return error.exit_code
    # A stream has no name: every file that is opened by name says which it is.
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_PLACE:
        _drop_output()
        unwritten = WriteError(
            f"output cannot be written ({error.strerror}); make room, or send it elsewhere"
        )
        _say(unwritten)
        return unwritten.exit_code
    with suppress(OSError, ValueError):  # nowhere to print it: the exit code still tells
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        said = (
            f"unexpected error, a fault of evalmon: {type(error).__name__}: {error}; please report "
            "it with the traceback above"
        )
        click.echo(printable(said), err=True)
    return EvalmonError.exit_code


def _say(error: EvalmonError) -> None:
    """Print an error, with what a terminal would act on written out."""
    for line in f"Error: {error}".split("\n"):
        click.echo(printable(line), err=True)


def _drop_output() -> None:
    """Let go of what could not be written, which the interpreter would try again at its end."""
    with suppress(OSError, ValueError, AttributeError):
        empty = os.open(os.devnull, os.O_WRONLY)
        os.dup2(empty, sys.stdout.fileno())
        os.close(empty)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evalmon")
def main() -> None:
    """Tell whether a falling train loss is learning or memorizing."""


main.add_command(audit)
main.add_command(compare)
main.add_command(reference)


@main.command()
@_RUN
@_CONFIG
@_STORE
@click.option("--reference", help="Run of the same store to judge against.")
@click.option("--profile", help="Profile of the decision rule.")
@click.option("--once", is_flag=True, help="One pass over what is there, then end.")
@_JSON
def watch(
    run: Path,
    config: Path | None,
    store: str,
    reference: str | None,
    profile: str | None,
    once: bool,
    as_json: bool,
) -> None:
    """Score each checkpoint of RUN as it appears; judge and alert until the run ends.

    The exit code is the last verdict's.
    """
    from evalmon.monitor import Monitor

    settings = _settings(config, store, reference, profile)
    description = _run(run)
    opened = _open(description, settings)
    try:
        monitor = Monitor(description, opened, settings)
        if once:
            monitor.one_pass()
        else:
            monitor.follow()
        verdict = opened.latest_verdict(description.name)
        failures = [item for item in opened.failures(description.name) if not item.superseded]
        alerts = opened.alerts(description.name)
    finally:
        opened.close()
    if failures:
        last = failures[-1].failure
        click.echo(
            f"{len(failures)} failures stored, the last: {last.evaluator} at step "
            f"{last.checkpoint.step}: {last.message}; all with: evalmon report {run}",
            err=True,
        )
    _finish(verdict, alerts, as_json)


@main.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@_CONFIG
@_STORE
@click.option("--tasks", help="Suites and tasks, by comma: olmo-core8-0shot, olmes-core8-5shot, …")
@click.option("--limit", type=click.IntRange(min=0), help="Items a task at most, 0 for all.")
@click.option("--batch-size", type=click.IntRange(min=0), help="Rows computed at a time, 0: many.")
@_JSON
def evaluate(
    checkpoint: Path,
    config: Path | None,
    store: str,
    tasks: str | None,
    limit: int | None,
    batch_size: int | None,
    as_json: bool,
) -> None:
    """Score one CHECKPOINT (RUN/checkpoints/STEP) and store the scores."""
    from dataclasses import replace

    from evalmon.monitor import Monitor

    if checkpoint.parent.name != "checkpoints" or not checkpoint.name.isdecimal():
        raise ConfigError(f"{checkpoint}: not a checkpoint; give RUN/checkpoints/STEP")
    description = _run(checkpoint.parent.parent)
    settings = _settings(config, store, None, None)
    evaluation = settings.evaluation
    if tasks is not None:
        names = tuple(name.strip() for name in tasks.split(","))
        if not all(names):
            raise ConfigError(f"--tasks {tasks!r}: a name is empty; name suites or tasks by comma")
        evaluation = replace(evaluation, tasks=names)
    if limit is not None:
        evaluation = replace(evaluation, item_limit=limit)
    if batch_size is not None:
        evaluation = replace(evaluation, batch_size=batch_size)
    settings = replace(settings, evaluation=evaluation)
    opened = _open(description, settings)
    try:
        result = Monitor(description, opened, settings).evaluate_step(int(checkpoint.name))
        stored = opened.evaluations(description.name, int(checkpoint.name))
    finally:
        opened.close()
    asked = tuple(item for item in stored if (item.evaluator, item.version) in result.asked)
    _finish_step(description.name, int(checkpoint.name), asked, result.failures, as_json=as_json)


@main.command()
@_RUN
@_STORE
@click.option("--out", type=click.Path(path_type=Path), help="HTML page (default RUN/report.html).")
@click.option("--markdown", is_flag=True, help="Print Markdown instead of plain text.")
@_JSON
def report(run: Path, store: str, out: Path | None, markdown: bool, as_json: bool) -> None:
    """Judge RUN from what is at hand now; print the verdict and write a page.

    The exit code is the verdict's.
    """
    from evalmon import report as pages
    from evalmon.judging import rejudge

    description = _run(run)
    settings = _settings(None, store, None, None)
    # Opened for reading first, because a report never creates a store.
    _open(description, settings, read_only=True).close()
    opened = _open(description, settings)
    try:
        verdict = rejudge(description, opened)
        view = pages.collect(opened, description.name)
    finally:
        opened.close()
    target = out or run / "report.html"
    click.echo(pages.markdown(view) if markdown else pages.text(view), err=as_json)
    try:
        target.write_text(pages.html(view), encoding="utf-8")
    except OSError as error:
        raise WriteError(
            f"{target}: cannot be written ({error.strerror}); give another --out"
        ) from error
    click.echo(f"page: {target}", err=True)
    _finish(verdict, view.alerts, as_json, quiet=True)


@main.command()
@click.option(
    "--reference",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of published weights, or a file that --save-reference wrote.",
)
@click.option(
    "--model",
    required=True,
    type=click.Path(path_type=Path),
    help="RUN/checkpoints/STEP, or a folder that `python -m trainer convert` wrote.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="One prompt a line: text, or JSON with tokens or text; random tokens otherwise.",
)
@click.option("--dtype", help="Compute in float32 or bfloat16; the model's own otherwise.")
@click.option("--top-k", default=10, show_default=True, help="Likeliest tokens compared.")
@click.option("--seed", type=int, help="Seed of random prompts (0).")
@click.option("--length", type=int, help="Tokens of a random prompt (4 windows, at least 64).")
@click.option("--count", type=int, help="Random prompts (2).")
@click.option("--max-kl", type=float, help="Largest KL that passes (1e-6 in float32), nats.")
@click.option("--mean-kl", type=float, help="Mean KL that passes (1.5e-3 in bfloat16), nats.")
@click.option(
    "--save-reference",
    type=click.Path(path_type=Path),
    help="Store the reference's log-probabilities, to check again without torch.",
)
@_JSON
def parity(as_json: bool, **options: Any) -> None:
    """Compare a model's predictions with a reference's, token by token.

    Exit code 1 when they differ by more than the threshold, 4 when the installed
    transformers is found to get OLMo 3 wrong.
    """
    from evalmon.parity import ParityOptions, check_parity

    result = check_parity(ParityOptions(**options), lambda said: click.echo(said, err=True))
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(result.text(), err=as_json)
    if as_json:
        click.echo(json.dumps(result.record(), allow_nan=False))
    raise SystemExit(0 if result.passed else 1)


@main.command()
@click.option("--seed", default=0, show_default=True, help="Seed of weights and data order.")
@click.option(
    "--out",
    default="demo",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Output folder.",
)
def demo(seed: int, out: Path) -> None:
    """Re-enact the incident: train, evaluate, compare, alert, explain."""
    from evalmon.demo import run_demo

    raise SystemExit(run_demo(out, seed))


def _finish_step(
    run: str,
    step: int,
    stored: "Sequence[Evaluation]",
    failures: "Sequence[Failure]",
    *,
    as_json: bool,
) -> None:
    """Print what scoring one checkpoint gave and what failed, and end with its exit code."""
    scores = {score.metric: score for item in stored for score in item.scores}
    for name, score in sorted(scores.items()):
        error = "" if score.stderr is None else f" ± {score.stderr:.4f}"
        shown = f"{score.value:.1e}" if 0 < abs(score.value) < 1e-3 else f"{score.value:.4f}"
        click.echo(f"{name:<52} {shown}{error}  ({score.items} items)", err=as_json)
    for item in stored:
        if cut := item.header.get("prompts_cut", 0):
            click.echo(
                f"warning: {item.evaluator}: {cut} prompts are longer than the model's "
                f"{item.header['max_length']} tokens and were cut from the left, by "
                f"{item.header['prompt_tokens_cut']} tokens in all",
                err=True,
            )
    for failure in failures:
        click.echo(f"Error: {failure.evaluator}: {failure.message}", err=True)
    if as_json:
        values = {
            name: {
                "value": score.value,
                "stderr": score.stderr,
                "items": score.items,
                "identity": score.identity.fingerprint,
            }
            for name, score in sorted(scores.items())
        }
        record = {
            "run": run,
            "step": step,
            "scores": values,
            "headers": {item.evaluator: dict(item.header) for item in stored},
            "failures": {item.evaluator: item.message for item in failures},
        }
        click.echo(json.dumps(record, allow_nan=False))
    if failures:
        if stored:
            click.echo("what is printed is stored; what failed is tried again next time", err=True)
        raise SystemExit(max(exit_code_of(item.error) for item in failures))


def _run(path: Path) -> "RunDescription":
    """Read the run directory named on the command line."""
    from evalmon.types import RunDescription

    return RunDescription.load(path.resolve())


def _settings(
    config: Path | None, store: str, reference: str | None, profile: str | None
) -> "Settings":
    """Read the settings file, then let options overrule it."""
    from dataclasses import replace

    from evalmon.config import Settings, load

    settings = load(config) if config else Settings()
    comparison = settings.comparison
    if reference is not None:
        comparison = replace(comparison, reference=reference)
    if profile is not None:
        comparison = replace(comparison, profile=profile)
    return replace(settings, store=store or settings.store, comparison=comparison)


def _open(run: "RunDescription", settings: "Settings", *, read_only: bool = False) -> "Store":
    """Open the store of the settings, by default the one beside the run."""
    from evalmon.store import Store

    place = settings.store or run.path.parent / "evalmon.sqlite"
    return Store.open(place, read_only=read_only)


def _finish(
    verdict: "Verdict | None", alerts: "Sequence[Alert]", as_json: bool, *, quiet: bool = False
) -> None:
    """Print a verdict and end with its exit code."""
    if verdict is None:
        click.echo("no checkpoint was judged yet", err=True)
        raise SystemExit(3)
    if not quiet:
        click.echo(f"{verdict.run}: {verdict.verdict}", err=as_json)
        for reason in verdict.reasons:
            click.echo(f"  {reason}", err=as_json)
    if as_json:
        click.echo(json.dumps(verdict.record(alerts), allow_nan=False))
    raise SystemExit(verdict.verdict.exit_code)
