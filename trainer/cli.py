"""Commands of the trainer, one for each thing that people do with it."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from evalmon.errors import ConfigError, EvalmonError
from trainer.data_cli import index_command

__all__ = ["commands", "main"]

_PATH = click.Path(path_type=Path)
_REQUIRED = ("data", "steps", "batch_instances", "sequence_length")
_PATHS = ("data", "fresh_data", "init_from")


@click.group()
def commands() -> None:
    """Train OLMo 3 models in JAX, and make the token files they train on."""


commands.add_command(index_command)


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
        documents=sum(file.n_documents or 0 for file in folder.files),
        tokens=sum(file.n_tokens for file in folder.files),
        fingerprint=folder.fingerprint,
    )


@commands.command("train")
@click.option("--out", required=True, type=_PATH, help="Run directory.")
@click.option("--resume", is_flag=True, help="Go on from the last committed checkpoint.")
@click.option(
    "--accept-changed-data",
    is_flag=True,
    help="With --resume: go on with other data, from its beginning; the run is marked.",
)
@click.option("--name", help="Name of the run; by default the directory's.")
@click.option("--data", type=_PATH, help="Token folder to train on.")
@click.option("--fresh-data", type=_PATH, help="Token folder that is never trained on.")
@click.option("--recipe", "recipe_name", help="Take defaults from a recipe of `recipes`.")
@click.option("--preset", default="tiny", show_default=True, help="Model size.")
@click.option("--heads", type=int, help="Query heads instead of the preset's.")
@click.option("--kv-heads", type=int, help="Key and value heads instead of the preset's.")
@click.option("--head-dim", type=int, help="Width of a head instead of the preset's.")
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
@click.option(
    "--order", default="olmo_core", show_default=True, help="Of instances: olmo_core or maxtext."
)
@click.option("--workers", default=0, show_default=True, help="Reading processes of each host.")
@click.option(
    "--instance-filter",
    default="none",
    show_default=True,
    help="repetition masks instances that repeat 1 to 13 tokens 32 times or more.",
)
@click.option(
    "--document-masking/--no-document-masking", default=False, help="Attend within a document."
)
@click.option("--ratios", help="Share of each source, as web=0.7,code=0.3; by default all of all.")
@click.option(
    "--max-repeats", default=1, show_default=True, help="Readings of a source to fill its share."
)
@click.option("--seed", default=0, show_default=True, help="Of initial values and data order.")
@click.option("--checkpoint-every", default=100, show_default=True, help="Steps.")
@click.option("--instances", type=int, help="Read only so many, evenly spaced over the data.")
@click.option("--learning-rate", default=4e-3, show_default=True, help="Peak.")
@click.option("--warmup-steps", type=int, help="Of linear warm-up; by default a tenth of --steps.")
@click.option(
    "--schedule", default="cosine", show_default=True, help="cosine, two_stages, maxtext or linear."
)
@click.option("--schedule-steps", type=int, help="Length of the schedule; by default --steps.")
@click.option(
    "--skip-step", default="none", show_default=True, help="On spikes: none, olmo_core or maxtext."
)
@click.option(
    "--loss-normalization",
    default="olmo_core",
    show_default=True,
    help="How masked instances count: olmo_core or maxtext.",
)
@click.option("--accumulate", default=1, show_default=True, help="Micro-batches of an update.")
@click.option(
    "--dtype", default="float32", show_default=True, help="Of computing; parameters are float32."
)
@click.option("--remat", default="none", show_default=True, help="none, projections, dots or full.")
@click.option(
    "--scan-layers/--no-scan-layers", default=False, help="Compile four layers once, and loop."
)
@click.option("--mesh", help="Devices, as data=2,fsdp=4,tensor=1; by default all on data.")
@click.option("--coordinator", help="HOST:PORT of process 0, where several share the run.")
@click.option("--processes", type=int, help="How many there are.")
@click.option("--process-id", type=int, help="Which this is, from 0.")
@click.option("--init-from", help="Start from RUN/checkpoints/STEP or a converted folder.")
@click.option("--without-optimizer", is_flag=True, help="Take only parameters from --init-from.")
@click.option(
    "--tensorboard",
    type=_PATH,
    is_flag=False,
    flag_value=Path(),
    help="Write event files too, by default into OUT/tensorboard.",
)
@click.option("--wandb", help="Write to this W&B project too; WANDB_MODE=offline stays local.")
@click.pass_context
def train_command(
    context: click.Context,
    out: Path,
    *,
    resume: bool,
    accept_changed_data: bool,
    tensorboard: Path | None,
    wandb: str | None,
    **options: Any,
) -> None:
    """Train a model.

    With --resume all but how the work is split (--hosts, --mesh, --batch, --workers,
    --accumulate, --remat, --scan-layers) is in run.json.
    """
    from trainer.distributed import first_then_others, initialize_from_options
    from trainer.loop import train
    from trainer.rundir import RESUMABLE, open_run
    from trainer.writers import Writer, open_writers, require_installed

    if accept_changed_data and not resume:
        raise ConfigError("--accept-changed-data: only with --resume; leave it out")
    require_installed(tensorboard=tensorboard is not None, wandb=wandb is not None)
    initialize_from_options(*(options.pop(n) for n in ("coordinator", "processes", "process_id")))

    def make() -> Any:
        if not resume:
            return _new_run(context, out, options)
        _refuse_changes(context, out)  # before anything of the run is changed
        changes = {n: options[n] for n in RESUMABLE if _is_given(context, n)}
        data = options["data"] if accept_changed_data else None
        return open_run(out, data=data, accept_changed_data=accept_changed_data, **changes)

    run = first_then_others(make, lambda: open_run(out))
    settings, place = asdict(run.settings), out / "tensorboard"
    place = place if tensorboard == Path() else tensorboard
    name = run.description.name
    writers = first_then_others(
        lambda: open_writers(out, name, settings, place, wandb), list[Writer]
    )
    reason = train(run, resume=resume, writers=writers)
    _print(run=run.description.name, out=str(out), reason=reason)


@commands.command("recipes")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def recipes_command(*, as_json: bool) -> None:
    """List the published recipes that `train --recipe` takes."""
    from trainer.recipes import RECIPES

    if as_json:
        click.echo(json.dumps([asdict(each) for each in RECIPES.values()]))
        return
    for each in RECIPES.values():
        click.echo(each.name)
        for name, value in asdict(each).items():
            lines = value if isinstance(value, tuple) else (value,)
            for line in cast("tuple[Any, ...]", lines) if name != "name" else ():
                click.echo(f"  {name:20}{'-' if line is None else line}")


@commands.command("schedule")
@click.argument("recipe_name", metavar="RECIPE")
@click.option("--steps", required=True, help="Steps (1-based) with commas between.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def schedule_command(recipe_name: str, steps: str, *, as_json: bool) -> None:
    """Print the learning rate of a recipe at some steps."""
    from trainer.recipes import recipe

    chosen = recipe(recipe_name)
    try:
        wanted = [int(step) for step in steps.split(",")]
    except ValueError:
        raise ConfigError(f"--steps {steps!r}: whole numbers with commas between") from None
    if min(wanted) < 1:
        raise ConfigError(f"--steps {steps!r}: steps count from 1")
    curve = chosen.learning_rates
    rows = [{"step": step, "learning_rate": curve.at(step)} for step in wanted]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(f"{row['step']:>12,}  {row['learning_rate']:.4e}")


@commands.command("presets")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def presets_command(*, as_json: bool) -> None:
    """List the published sizes: parameters, and training FLOPs a token at 8,192 tokens."""
    from trainer.flops import published_costs

    costs = published_costs()
    if as_json:
        click.echo(json.dumps(costs))
        return
    click.echo(f"{'':12}{'parameters':>16}{'non-embedding':>16}   GFLOP a token by convention")
    for cost in costs:
        flops = ", ".join(f"{k} {v / 1e9:.3f}" for k, v in cost["flops_per_token"].items())
        click.echo(
            f"{cost['name']:12}{cost['parameters']:>16,}{cost['non_embedding']:>16,}   {flops}"
        )


@commands.command("plan")
@click.option("--preset", required=True, help="Model size.")
@click.option("--mesh", required=True, help="Devices, as data=64,fsdp=8.")
@click.option("--recipe", "recipe_name", default="olmo3-7b-stage1", show_default=True)
@click.option("--batch", "batch_instances", type=int, help="By default the recipe's.")
@click.option("--sequence-length", type=int, help="By default the recipe's.")
@click.option("--accumulate", default=1, show_default=True, help="Micro-batches of an update.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of computing.")
@click.option("--remat", default="full", show_default=True, help="none, projections, dots or full.")
@click.option("--scan/--no-scan", "scan_layers", default=True, show_default=True)
@click.option("--heads", type=int, help="Query heads instead of the preset's.")
@click.option("--kv-heads", type=int, help="Key and value heads instead of the preset's.")
@click.option("--head-dim", type=int, help="Width of a head instead of the preset's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan_command(*, mesh: str, as_json: bool, **options: Any) -> None:
    """Say what a run would need of each device, without having them."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from trainer.plan import planned, summary

    facts = planned(mesh, options, lambda text: click.echo(f"plan: {text}", err=True))
    if as_json:
        _print(**facts)
    else:
        click.echo("\n".join(summary(facts)))


@commands.command("convert")
@click.argument("src", type=_PATH)
@click.argument("dst", type=_PATH)
@click.option("--to", help="hf, orbax or maxtext; by default hf from ours, else orbax.")
@click.option("--dtype", help="float32, bfloat16 or float16; by default as stored.")
@click.option("--vocab-size", type=int, help="Rows of embedding and head; by default as stored.")
@click.option("--preset", help="What a checkpoint without configuration is.")
@click.option("--config", type=_PATH, help="The same as a published config.json.")
@click.option("--scan/--no-scan", default=None, help="Stack MaxText's layers; by default --scan.")
@click.option("--max-shard-size", help="Largest published file; by default 5GB.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def convert_command(
    src: Path,
    dst: Path,
    *,
    preset: str | None,
    config: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert weights: published files, our checkpoints and folders, MaxText's checkpoints.

    SRC is any of them and stays as it is; DST is made, with provenance.json in it.
    """
    # Nothing is computed, so an accelerator that others use is left alone.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from trainer.weights.convert import Options, convert
    from trainer.weights.source import Given
    from trainer.weights.summary import summary

    facts = convert(src, dst, Options(given=Given(config, preset), **options))
    if as_json:
        _print(**facts)
    else:
        click.echo("\n".join(summary(facts)))


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
        click.echo("stopped; what was finished is kept", err=True)
        sys.exit(130)


def _new_run(context: click.Context, out: Path, options: dict[str, Any]) -> Any:
    """Make the run that the options and the recipe's defaults ask for."""
    from trainer.config import TrainSettings
    from trainer.recipes import recipe
    from trainer.rundir import create_run

    if options["recipe_name"] is not None:
        chosen = recipe(options["recipe_name"])
        if chosen.starts_from is not None and options["init_from"] is None:
            raise ConfigError(
                f"--recipe {chosen.name}: starts from {chosen.starts_from}; name it by --init-from"
            )
        defaults = {n: v for n, v in chosen.settings.items() if not _is_given(context, n)}
        options = {**options, **defaults}
    missing = [name for name in _REQUIRED if options[name] is None]
    if missing:
        flags = ", ".join(_flag(name) for name in missing)
        raise ConfigError(f"{flags}: needed for a new run; an old one goes on with --resume")
    name = options.pop("name") or out.name
    data, fresh_data = options.pop("data"), options.pop("fresh_data")
    if options["warmup_steps"] is None:
        options["warmup_steps"] = options["steps"] // 10
    without = options.pop("without_optimizer")
    if without and options["init_from"] is None:
        raise ConfigError("--without-optimizer: only with --init-from; leave it out")
    settings = TrainSettings(init_optimizer=not without, **options)
    return create_run(out, name, settings, data, fresh_data)


def _is_given(context: click.Context, name: str) -> bool:
    """Return whether an option stands on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _made_with(out: Path) -> dict[str, Any]:
    """Return the options that a run was made with, by parameter; paths are absolute."""
    from evalmon.types import RunDescription
    from trainer.rundir import stored_settings

    described = RunDescription.load(out)
    settings = stored_settings(described)
    paths = (described.data, described.fresh_data, settings.init_from)
    found = [None if path is None else described.resolve(path).resolve() for path in paths]
    return {
        **asdict(settings),
        "name": described.name,
        "without_optimizer": not settings.init_optimizer,
        **dict(zip(_PATHS, found, strict=True)),
    }


def _refuse_changes(context: click.Context, out: Path) -> None:
    """Raise when an option given with --resume differs from what the run was made with."""
    from trainer.rundir import RESUMABLE

    stored, free = _made_with(out), set(RESUMABLE)
    if context.params["accept_changed_data"]:
        free.add("data")
    for name in (name for name in stored if name not in free and _is_given(context, name)):
        value = context.params[name]
        if stored[name] != (Path(value).resolve() if name in _PATHS else value):
            raise ConfigError(
                f"{_flag(name)} {value}: the run was made with {stored[name]}; leave it out to "
                "resume, or start a new run"
            )


def _flag(name: str) -> str:
    """Return the command-line spelling of a parameter."""
    from trainer.config import option

    return option(name)


def _print(**facts: Any) -> None:
    """Print one JSON object as the last line of standard output."""
    click.echo(json.dumps(facts))
