"""`evalmon reference`: the curves a run is laid over.

Exit codes: 0 done or sound, 1 `verify` found faults, 2 bad input, 4 what had to be fetched
or written could not be.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalmon.errors import ConfigError, DataError
from evalmon.token_option import TokenCount

if TYPE_CHECKING:
    from evalmon.types import RunCurves

__all__ = ["reference"]

_PATH = click.Path(path_type=Path)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object last.")


def _day(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Refuse what is no day written as 2026-11-30."""
    from datetime import date

    try:
        written = date.fromisoformat(text).isoformat() if text else ""
    except ValueError:
        written = None
    if text != written:
        raise click.BadParameter(f"{text!r} is no day; write it as 2026-11-30")
    return text


def _described(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what a new reference is."""
    options = (
        click.option("--name", required=True, help="What it is called from now on."),
        click.option("--alias", "aliases", multiple=True, help="Another name; repeatable."),
        click.option("--model", default="", help="Model and size."),
        click.option("--stage", default="", help="Part of the training."),
        click.option("--tokenizer", default="", help="Name of the tokenizer."),
        click.option("--source", default="", help="Who published the figures, and where."),
        click.option("--licence", default="not stated", help="Licence of the figures."),
        click.option(
            "--date", default="", callback=_day, help="Day they were taken, as 2026-11-30 (today)."
        ),
        click.option(
            "--planned-tokens", type=TokenCount(), help="Of the whole schedule, as 5.93e12."
        ),
        click.option("--warmup-tokens", type=TokenCount(least=0), help="Of the warm-up."),
        click.option("--fault", "faults", multiple=True, help="A known fault, with its place."),
        click.option("--folder", type=_PATH, help="Folder of curves; by default your own."),
        _JSON,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def reference() -> None:
    """List, check and add the published curves that runs are laid over."""


@reference.command("list")
@_JSON
def list_command(*, as_json: bool) -> None:
    """Name every reference.

    Ends with 2 when an index cannot be read, after naming those of the others.
    """
    from evalmon import reference as curves
    from evalmon.reference_shown import short, summary

    if missing := curves.missing_folder():
        click.echo(f"note: {missing}", err=True)
    found, faults = curves.readable()
    for entry in found:
        points = sum(item.points for item in entry.curves.values())
        planned = f"{short(entry.planned_tokens)} tokens" if entry.planned_tokens else "open plan"
        train = "with train loss" if "train/ce_nats" in entry.curves else "no train loss"
        click.echo(
            f"{entry.name:<40} {entry.model:<20} {planned:<13} {len(entry.curves):>3} curves  "
            f"{points:>6,} points  {train}",
            err=as_json,
        )
    if as_json:
        said = [fault.message for fault in faults]
        _echo({"references": [summary(entry) for entry in found], "faults": said})
    if faults:
        raise DataError(faults[0].message)


@reference.command("show")
@click.argument("name")
@_JSON
def show_command(name: str, *, as_json: bool) -> None:
    """Say all that is known of reference NAME: curves, sources, faults, single numbers."""
    from evalmon import reference as curves
    from evalmon.reference_shown import curve, lines, summary

    entry = curves.find(name)
    loaded = curves.load(entry.name)
    record = summary(entry) | {
        "curves": {metric: curve(entry, loaded, metric) for metric in entry.curves},
        "published": [asdict(point) for point in entry.published],
    }
    for line in lines(entry, record):
        click.echo(line, err=as_json)
    if as_json:
        _echo(record)


@reference.command("verify")
@click.argument("names", nargs=-1)
@_JSON
def verify_command(names: tuple[str, ...], *, as_json: bool) -> None:
    """Check hashes, counts, rising steps and tokens of NAMES, or of all references.

    Ends with 1 when something is wrong.
    """
    from evalmon import reference as curves

    faults = curves.verify(names)
    for fault in faults:
        click.echo(fault.message, err=as_json)
    unread = {fault.reference for fault in faults}
    checked = [name if name in unread else curves.find(name).name for name in names]
    if not faults:
        whole = checked or list(curves.names())
        click.echo(f"{len(whole)} references are sound", err=as_json)
    if as_json:
        said = [asdict(fault) | {"file": str(fault.file)} for fault in faults]
        _echo({"sound": not faults, "checked": checked or "all", "faults": said})
    raise SystemExit(int(bool(faults)))


@reference.command("add")
@click.argument("table", type=_PATH)
@click.option("--run", help="Which run, of a table of several.")
@click.option("--tokens-per-step", type=TokenCount(), help="Where the table holds no tokens.")
@click.option(
    "--thinned",
    metavar="RULE",
    help="The rule by which train loss was thinned, which must not look at the values.",
)
@_described
def add_command(
    table: Path, run: str | None, tokens_per_step: int | None, thinned: str | None, **about: Any
) -> None:
    """Add a run of TABLE (run,metric,step,tokens,value; CSV, .csv.gz, Parquet).

    A curve that looks broken is added with a warning, and the fault stays in the index.
    """
    from evalmon.logs import tables

    if table.exists() and not table.is_file():
        raise DataError(
            f"{table}: no file but a folder or a pipe; save the table to a file and name that"
        )
    if thinned is not None and not thinned.strip():
        raise ConfigError("--thinned '': say the rule, as 'every 25th step'")
    curves = tables.read(table, run, thinned=thinned is not None, tokens_per_step=tokens_per_step)
    _add(_with_rule(curves, thinned or ""), about, f"file {table.name}")


@reference.group("build")
def build() -> None:
    """Make a curve that nobody published as figures."""


@build.command("checkpoints")
@click.argument("run", type=_PATH)
@click.option("--config", type=_PATH, help="Settings (TOML): what is scored.")
@click.option("--store", default="", help="Results store: path or database URL.")
@_described
def checkpoints_command(run: Path, config: Path | None, store: str, **about: Any) -> None:
    """Score every checkpoint of RUN (a run directory) and add the curves."""
    from evalmon.config import Settings, load
    from evalmon.types import RunDescription

    description = RunDescription.load(run.resolve())
    settings = load(config) if config else Settings()
    _refuse_name(about)
    # Imported late: what is wrong with the command line is said before they are loaded.
    from tqdm import tqdm

    from evalmon.reference_build import from_checkpoints
    from evalmon.store import Store

    opened = Store.open(store or settings.store or description.path.parent / "evalmon.sqlite")
    try:
        with tqdm(desc=description.name, unit="checkpoint", disable=None) as bar:
            curves = from_checkpoints(description, opened, settings, bar.update)
    finally:
        opened.close()
    _add(curves, about, f"checkpoints of {description.name}, scored by evalmon")


@build.command("wandb")
@click.argument("path", metavar="ENTITY/PROJECT/RUN")
@click.option("--train-key", default="train/CE loss", show_default=True, help="Its train loss.")
@click.option(
    "--eval-key",
    "eval_keys",
    multiple=True,
    metavar="KEY[=METRIC]",
    help="A holdout or task, and its canonical name where the dictionary lacks it; repeatable.",
)
@click.option("--lr-key", help="Its learning rate.")
@click.option("--step-key", default="_step", show_default=True, help="The training step.")
@click.option("--tokens-key", default="", help="Tokens trained on.")
@click.option("--tokens-per-step", type=TokenCount(), help="Where no key holds them.")
@click.option("--trainer", default="", help="Whose names the keys are: olmo_core, maxtext, …")
@_described
def wandb_command(
    path: str,
    train_key: str,
    eval_keys: tuple[str, ...],
    lr_key: str | None,
    step_key: str,
    tokens_key: str,
    tokens_per_step: int | None,
    trainer: str,
    **about: Any,
) -> None:
    """Add a W&B run from its full history; rows that are missing are refused, with counts."""
    from evalmon.reference_build import (
        HistoryKeys,
        check_keys,
        check_path,
        from_history,
        open_history,
    )

    check_path(path)
    metrics = {train_key: "train/ce_nats"} if train_key else {}
    if lr_key:
        metrics[lr_key] = "optim/lr"
    for text in eval_keys:
        key, _, metric = text.partition("=")
        metrics[key] = metric
    if not metrics:
        raise ConfigError("nothing is read; give --train-key or --eval-key")
    keys = HistoryKeys(metrics, step_key, tokens_key, tokens_per_step, trainer)
    check_keys(keys)
    _refuse_name(about)
    _add(from_history(open_history(path), keys, path), about, f"W&B run {path}, full history")


def _refuse_name(about: Mapping[str, Any]) -> None:
    """Refuse a name that cannot be added, before a run is scored or fetched."""
    from evalmon import reference as known
    from evalmon.reference_index import Entry
    from evalmon.reference_writing import refuse_name

    folder = about["folder"] or known.user_folder()
    refuse_name(Entry(about["name"], folder, {}, aliases=about["aliases"]))


def _add(curves: "RunCurves", about: Mapping[str, Any], source: str) -> None:
    """Add a run with what the options say of it, and print what came of it."""
    from evalmon import reference as known
    from evalmon.reference_fitness import refuse_long_warmup, refuse_short_plan, unfit
    from evalmon.reference_index import Entry, Source
    from evalmon.reference_shown import summary
    from evalmon.reference_writing import add, refuse_values

    refuse_values(curves)
    refuse_short_plan(curves, about["planned_tokens"])
    refuse_long_warmup(curves, about["planned_tokens"], about["warmup_tokens"])
    found = unfit(curves, about["planned_tokens"] or 0)
    folder = about["folder"] or known.user_folder()
    entry = Entry(
        name=about["name"],
        folder=folder,
        curves={},
        aliases=about["aliases"],
        model=about["model"],
        stage=about["stage"],
        tokenizer=about["tokenizer"],
        planned_tokens=about["planned_tokens"],
        planned_tokens_source="given when it was added" if about["planned_tokens"] else "",
        warmup_tokens=about["warmup_tokens"] or 0,
        known_faults=(*about["faults"], *found),
    )
    curves = _with_tokenizer(curves, about["tokenizer"])
    unread = [fault.message for fault in known.readable()[1]]
    day = about["date"] or _today()
    added = add(curves, entry, Source(about["source"] or source, about["licence"], day))
    warnings = (*unread, *added.warnings, *found)
    for note in curves.notes:
        click.echo(f"note: {note}", err=True)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    as_json = about["as_json"]
    for item in added.entry.curves.values():
        click.echo(f"{item.metric:<52} {item.points:>6,} points  {item.sampling}", err=as_json)
    click.echo(f"added {added.entry.name} to {folder}", err=as_json)
    if folder not in known.folders():
        click.echo(f"it is found by name when {known.FOLDER_VARIABLE} names {folder}", err=True)
    if as_json:
        _echo(summary(added.entry) | {"warnings": list(warnings), "notes": list(curves.notes)})


def _with_rule(curves: "RunCurves", rule: str) -> "RunCurves":
    """Write the rule beside the curves that it thinned."""
    from evalmon.types import Sampling

    return replace(
        curves,
        curves={
            metric: replace(item, note=rule) if item.sampling is Sampling.THINNED else item
            for metric, item in curves.curves.items()
        },
    )


def _with_tokenizer(curves: "RunCurves", tokenizer: str) -> "RunCurves":
    """Write the tokenizer beside the losses, whose nats per token depend on it."""
    if not tokenizer:
        return curves
    return replace(
        curves,
        curves={
            metric: replace(item, facts={"tokenizer": tokenizer, **item.facts})
            if metric.startswith(("train/", "eval/lm/"))
            else item
            for metric, item in curves.curves.items()
        },
    )


def _today() -> str:
    """Return today's date, UTC."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


def _echo(record: Mapping[str, Any]) -> None:
    """Print one JSON object as the last line."""
    click.echo(json.dumps(record, allow_nan=False))
