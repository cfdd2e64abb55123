"""`evalmon audit`: look at a data stream before, beside and after a run.

Exit codes: 0 sound, 1 findings, 2 bad input, 3 the window is too short to tell.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalmon.errors import DataError

if TYPE_CHECKING:
    from evalmon.types import RepeatSummary, RunDescription

__all__ = ["audit"]

_PATH = click.Path(path_type=Path)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def audit() -> None:
    """Find instances that a data stream reads twice, skips or leaks."""


@audit.command("config")
@click.argument("target")
@click.option("--hosts", type=int, help="Hosts the pipeline is built for; by default 2.")
@click.option("--arg", "args", multiple=True, metavar="K=V", help="Keyword argument of a callable.")
@_JSON
def config_command(target: str, hosts: int | None, args: tuple[str, ...], *, as_json: bool) -> None:
    """Name redundant or missing sharding of TARGET before anything runs.

    TARGET is a pipeline description (.toml, .json, or a run directory), or MODULE:CALLABLE
    that is called as callable(host, hosts) and returns a Grain pipeline.

    Exit codes: 0 sound (warnings may be listed), 1 an error was found, 2 bad input, 3 some of
    it was not understood and the rest shows no error.
    """
    from evalmon.audit.static_check import check_config
    from evalmon.audit.targets import parse_arguments

    report = check_config(target, hosts, parse_arguments(args))
    _print(report.text(), report.record(), as_json=as_json)
    raise SystemExit(report.exit_code)


@audit.command("replay")
@click.argument("target", metavar="MODULE:CALLABLE")
@click.option("--hosts", type=int, required=True, help="S: loaders driven side by side.")
@click.option("--workers", type=int, help="Given to the callable as workers; compared with 0.")
@click.option("--arg", "args", multiple=True, metavar="K=V", help="Keyword argument; V is JSON.")
@click.option("--instances", type=int, help="N: size of the source; coverage needs it.")
@click.option("--epochs", type=int, default=1, show_default=True, help="E: planned passes.")
@click.option("--steps", type=int, help="Window in steps (2 N draws, else 4,096 batches a host).")
@click.option("--stop-at", metavar="N[,N]", help="Steps after which all hosts stop and go on.")
@click.option(
    "--resume",
    metavar="[HOSTS,]MODE",
    help="Hosts to go on with, and how: argument (the callable gets step and consumed), state "
    "(of the iterators), skip (read and thrown away) or fresh.",
)
@click.option("--token-field", help="Field of token ids (tokens, inputs or input_ids).")
@click.option("--id-field", help="Field of instance ids (instance); none to go by text.")
@click.option("--holdout", metavar="MODULE:CALLABLE", help="Loader of texts never to be drawn.")
@click.option("--time-limit", type=float, default=120, show_default=True, help="Seconds a batch.")
@_JSON
def replay_command(
    target: str, hosts: int, args: tuple[str, ...], epochs: int, *, as_json: bool, **options: Any
) -> None:
    """Drive S real loaders and count what they draw.

    MODULE:CALLABLE (or PATH/FILE.py:CALLABLE) is called as callable(host, hosts) and returns
    batches: a Grain loader or dataset, or any iterable. A finding is an instance drawn more
    than E times, again before the pass is complete, or by two hosts in one step. What follows
    E complete passes is outside the plan.
    """
    from tqdm import tqdm

    from evalmon.audit.batches import BatchReader
    from evalmon.audit.drive import DrivePlan
    from evalmon.audit.replay import replay
    from evalmon.audit.replay_report import lines, record
    from evalmon.audit.resume import parse_resume
    from evalmon.audit.targets import load_target, parse_arguments

    plan = DrivePlan(
        target=load_target(target),
        hosts=hosts,
        arguments=parse_arguments(args),
        workers=options["workers"],
        instances=options["instances"],
        steps=options["steps"],
        resume=parse_resume(options["stop_at"], options["resume"]),
        reader=BatchReader(options["token_field"], options["id_field"]),
        seconds=options["time_limit"],
    )
    holdout = load_target(options["holdout"]) if options["holdout"] else None
    with tqdm(desc="draws", unit=" draws", disable=None) as bar:
        result = replay(plan, epochs=epochs, holdout=holdout, progress=bar.update)
    _print(lines(result), record(result), as_json=as_json)
    raise SystemExit(result.exit_code)


@audit.command("run")
@click.argument("run", type=_PATH)
@click.option(
    "--exact",
    is_flag=True,
    help="Keep every draw also of a log of more than 16 million: about 36 bytes of memory each.",
)
@_JSON
def run_command(run: Path, *, exact: bool, as_json: bool) -> None:
    """Find repeats in the id log of RUN; replays after restarts and planned ones are none.

    Ends with 0 when it is sound, 1 with findings, 2 when the log cannot be used, 3 before the
    first draw.
    """
    from evalmon.audit import repeat_report
    from evalmon.detectors import repeated_instances
    from evalmon.types import RunDescription

    description = RunDescription.load(run)
    path, size, summary = _repeats(description, exact=exact)
    if not summary.draws:
        click.echo(f"{path}: holds no whole step yet; look again later", err=True)
    construction = repeated_instances.construction(summary)
    found = (
        repeated_instances.finding(description.name, summary),
        repeat_report.changed_texts(description.name, summary),
    )
    findings = [item for item in found if item is not None]
    _print(
        repeat_report.lines(summary, findings, construction, size),
        repeat_report.record(description.name, summary, findings, construction, (path, size)),
        as_json=as_json,
    )
    raise SystemExit(3 if not summary.draws else int(bool(findings)))


@audit.command("leakage")
@click.argument("run", type=_PATH)
@click.option(
    "--holdout",
    required=True,
    help="JSON lines in C4's form (.jsonl, .jsonl.gz), or c4_en to fetch C4's validation split.",
)
@click.option("--limit", type=int, default=0, help="Documents of the holdout; 0 for all.")
@click.option("--ngram", type=click.IntRange(min=1), default=13, show_default=True)
@click.option(
    "--minimum",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Fewest n-grams of a document that a training document must share to be named.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="Share of a document's n-grams from which on it counts as leaked.",
)
@_JSON
def leakage_command(
    run: Path, holdout: str, limit: int, ngram: int, minimum: int, share: float, *, as_json: bool
) -> None:
    """Find holdout documents in what RUN trains on, whole or by n-grams of words.

    Ends with 1 when a document is there whole, or with at least --share of its n-grams.
    """
    from evalmon import leakage
    from evalmon.types import OverlapMeasure, RunDescription

    description = RunDescription.load(run)
    report = leakage.overlap(
        description,
        leakage.find_holdout(holdout, limit),
        OverlapMeasure(ngram=ngram, minimum=minimum, share=share),
    )
    _print(leakage.lines(report), leakage.record(report), as_json=as_json)
    raise SystemExit(int(bool(report.leaked)))


def _repeats(run: "RunDescription", *, exact: bool) -> "tuple[Path, int, RepeatSummary]":
    """Read a run's id log with a progress bar and count; return the file and its bytes too."""
    from tqdm import tqdm

    from evalmon import id_logs
    from evalmon.audit import repeats
    from evalmon.logs import jsonl
    from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD

    path = run.path / id_logs.ID_LOG_NAME
    size = path.stat().st_size if path.is_file() else 0
    if 0 < size < len(ID_LOG_MAGIC):
        raise DataError(
            f"{path}: {size} bytes, fewer than the {len(ID_LOG_MAGIC)} that an id log begins with; "
            "restore the file its trainer wrote"
        )
    few = size <= id_logs.EXACT_DRAWS * ID_LOG_RECORD.itemsize
    rate = 1 if exact or few else id_logs.SAMPLED_RATE
    with tqdm(
        total=size, desc=path.name, unit="B", unit_scale=True, delay=1, disable=None
    ) as progress:
        log = id_logs.read(run, rate=rate, progress=progress.update)
    if log is None:
        raise DataError(
            f"{path}: no such file, so nothing tells what the run drew; give a run whose trainer "
            "writes an id log, or audit its loader: evalmon audit replay"
        )
    resumes: tuple[int, ...] = ()
    if (run.path / jsonl.LOG_NAME).is_file():
        segments = jsonl.read(run).segments
        resumes = tuple(item.resumed_from_step or 0 for item in segments)
    return path, size, repeats.summarize(log, run, resumes)


def _print(lines: list[str], record: dict[str, Any], *, as_json: bool) -> None:
    """Print a report for a person, and with --json the record as the last line."""
    click.echo("\n".join(lines), err=as_json)
    if as_json:
        click.echo(json.dumps(record, allow_nan=False))
