"""Commands of the trainer: ``tokenize`` and ``train``."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from evalmon.errors import ConfigError, EvalmonError

__all__ = ["commands", "main"]

_PATH = click.Path(path_type=Path)
_REQUIRED = ("data", "steps", "batch_instances", "sequence_length")


@click.group()
def commands() -> None:
    """Train OLMo 3 models in JAX, and make the token files they train on."""


@commands.command("tokenize")
@click.argument("texts", nargs=-1, required=True, type=_PATH)
@click.option("--out", required=True, type=_PATH, help="Token folder to make.")
@click.option("--vocab-size", default=4096, show_default=True, help="Ids of the BPE to train.")
@click.option("--tokenizer", type=_PATH, help="Use this tokenizer file instead of training one.")
def tokenize_command(texts: tuple[Path, ...], out: Path, vocab_size: int, tokenizer: Path) -> None:
    """Turn JSON-lines TEXTS ({"text": …, "source": …}, plain or .gz) into a token folder."""
    from trainer.data.tokenize import tokenize

    folder = tokenize(texts, out, vocab_size, tokenizer)
    _print(
        out=str(out),
        vocab_size=folder.vocab_size,
        documents=sum(file.n_documents for file in folder.files),
        tokens=sum(file.n_tokens for file in folder.files),
        fingerprint=folder.fingerprint,
    )


@commands.command("train")
@click.option("--out", required=True, type=_PATH, help="Run directory.")
@click.option("--resume", is_flag=True, help="Go on from the last committed checkpoint.")
@click.option("--name", help="Name of the run; by default the directory's.")
@click.option("--data", type=_PATH, help="Token folder to train on.")
@click.option("--fresh-data", type=_PATH, help="Token folder that is never trained on.")
@click.option("--preset", default="tiny", show_default=True, help="Model size.")
@click.option("--steps", type=int, help="Optimizer updates.")
@click.option("--batch", "batch_instances", type=int, help="Instances an update.")
@click.option("--sequence-length", type=int, help="Tokens an instance.")
@click.option("--hosts", default=1, show_default=True, help="Simulated data-parallel hosts.")
@click.option(
    "--loader",
    default="batch_strided",
    show_default=True,
    help="batch_strided, or a FAULT for tests: double_shard, double_shard_resume.",
)
@click.option("--seed", default=0, show_default=True, help="Of initial values and data order.")
@click.option("--checkpoint-every", default=100, show_default=True, help="Steps.")
@click.option("--instances", type=int, help="Read only so many, evenly spaced over the data.")
@click.option("--learning-rate", default=4e-3, show_default=True, help="Peak.")
@click.option("--warmup-steps", type=int, help="Of linear warm-up; by default a tenth of --steps.")
@click.pass_context
def train_command(
    context: click.Context, out: Path, *, resume: bool, hosts: int, **options: Any
) -> None:
    """Train a model; with --resume only --out and --hosts matter, the rest is in run.json."""
    from trainer.config import TrainSettings
    from trainer.loop import train
    from trainer.rundir import create_run, open_run

    if resume:
        given = context.get_parameter_source("hosts") is ParameterSource.COMMANDLINE
        run = open_run(out, hosts if given else None)
        _refuse_changes(context, {"name": run.description.name, **_settings_of(run.settings)})
    else:
        missing = [name for name in _REQUIRED if options[name] is None]
        if missing:
            flags = ", ".join(_flag(name) for name in missing)
            raise ConfigError(f"{flags}: needed for a new run; an old one goes on with --resume")
        name = options.pop("name") or out.name
        data, fresh_data = options.pop("data"), options.pop("fresh_data")
        if options["warmup_steps"] is None:
            options["warmup_steps"] = options["steps"] // 10
        settings = TrainSettings(hosts=hosts, **options)
        run = create_run(out, name, settings, data, fresh_data)
    reason = train(run, resume=resume)
    _print(run=run.description.name, out=str(out), reason=reason)


def main() -> None:
    """Run a command; an error on purpose becomes a message and its exit code."""
    try:
        commands.main(standalone_mode=False, prog_name="python -m trainer")
    except EvalmonError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)


def _settings_of(settings: Any) -> dict[str, Any]:
    """Return the stored settings by option name."""
    from dataclasses import asdict

    return asdict(settings)


def _refuse_changes(context: click.Context, stored: dict[str, Any]) -> None:
    """Raise when an option given with --resume differs from what the run was made with."""
    for name, value in context.params.items():
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name in stored and value != stored[name]:
            raise ConfigError(
                f"{_flag(name)} {value}: the run was made with {stored[name]}; leave it out to "
                "resume, or start a new run"
            )


def _flag(name: str) -> str:
    """Return the command-line spelling of a parameter."""
    return "--batch" if name == "batch_instances" else f"--{name.replace('_', '-')}"


def _print(**facts: Any) -> None:
    """Print one JSON object as the last line of standard output."""
    click.echo(json.dumps(facts))
