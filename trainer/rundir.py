"""Run directories: made for a new run, checked and opened again for a resumed one."""

import os
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, get_type_hints

from evalmon.errors import CheckpointError, ConfigError, DataError, WriteError
from evalmon.types import RunDescription
from trainer.config import TrainSettings
from trainer.data.index import InstanceIndex, TokenFolder
from trainer.data.loaders import find_loader
from trainer.data.source import InstanceSource
from trainer.flops import CONVENTION
from trainer.model import Olmo3Config
from trainer.objective import LOSS_IDENTITY
from trainer.presets import preset

__all__ = ["ADAPTER", "Run", "create_run", "model_config", "open_run"]

ADAPTER: Final = "olmo3"
_PAD_ROWS: Final = 128


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory ready for training.

    Attributes:
        description: what ``run.json`` says.
        settings: the settings it was made with.
        source: its instances.
    """

    description: RunDescription
    settings: TrainSettings
    source: InstanceSource

    @property
    def model(self) -> Olmo3Config:
        """Return the shapes of the model."""
        return model_config(self.description)


def create_run(
    out: Path, name: str, settings: TrainSettings, data: Path, fresh_data: Path | None = None
) -> Run:
    """Check the data, make the run directory and write ``run.json``.

    Args:
        out: the directory, which must not hold a run.
        name: the run's name.
        settings: how to train.
        data: token folder to train on.
        fresh_data: token folder of text that is never trained on.

    Raises:
        ConfigError: ``out`` holds a run already, or more instances are asked for than exist.
        DataError: the token folder cannot be used, or holds less than one batch.
    """
    if (out / "run.json").exists():
        raise ConfigError(f"{out}: already holds a run; go on with --resume or give another --out")
    folder = _checked_folder(data)
    if fresh_data is not None and _checked_folder(fresh_data).vocab_size != folder.vocab_size:
        raise DataError(
            f"{fresh_data}: made with another tokenizer than {data}; tokenize it with "
            f"--tokenizer {data / folder.tokenizer}"
        )
    source = _source(folder, settings)
    try:
        out.mkdir(parents=True, exist_ok=True)
        description = _describe(out, name, settings, source)
        if fresh_data is not None:
            description = replace(description, fresh_data=_relative(fresh_data, out))
        description.save()
    except OSError as error:
        raise WriteError(f"{out}: cannot be written ({error}); free some space") from error
    return Run(description, settings, source)


def open_run(out: Path, hosts: int | None = None) -> Run:
    """Open a run directory to resume it.

    Args:
        out: the directory.
        hosts: another number of hosts to go on with; None for as before.

    Raises:
        CheckpointError: no run there, or not one of this trainer.
        ConfigError: the number of hosts does not divide the batch.
        DataError: the data is not what the run was started on.
    """
    description = RunDescription.load(out)
    file = str(out / "run.json")
    extra = description.extra
    if (
        description.adapter != ADAPTER
        or not isinstance(extra.get("settings"), dict)
        or not isinstance(extra.get("data_fingerprint"), str)
    ):
        raise CheckpointError(f"{file}: written by another trainer; resume it there")
    settings = TrainSettings.from_record(extra["settings"], file)
    if hosts is not None and hosts != settings.hosts:
        settings = replace(settings, hosts=hosts)
        extra = {**extra, "settings": asdict(settings)}
        description = replace(description, hosts=hosts, extra=extra)
        description.save()
    source = _source(_checked_folder(description.resolve(description.data)), settings)
    expected = extra["data_fingerprint"]
    if source.index.fingerprint != expected:
        raise DataError(
            f"{description.resolve(description.data)}: instances are {source.index.fingerprint}, "
            f"but the run was started on {expected}; give it its own data back"
        )
    return Run(description, settings, source)


def model_config(description: RunDescription) -> Olmo3Config:
    """Return the model shapes that ``run.json`` records.

    Raises:
        ConfigError: a field is missing, unknown, or no shape a model can have.
    """
    try:
        config = Olmo3Config(**description.model)
        _check_shapes(config, description.vocab_size)
    except TypeError as error:
        raise ConfigError(
            f"{description.path / 'run.json'}: field 'model' is not an OLMo 3 ({error}); "
            "use the trainer that wrote the run"
        ) from error
    return config


def _check_shapes(config: Olmo3Config, vocab_size: int) -> None:
    """Raise a TypeError that names a field no model can have been built with."""
    for name, kind in get_type_hints(Olmo3Config).items():
        value = getattr(config, name)
        if type(value) is not kind or (kind is not str and not value > 0):
            raise TypeError(f"{name!r} is {value!r}, expected {kind.__name__}")
    if config.vocab_size != vocab_size:
        raise TypeError(f"'vocab_size' is {config.vocab_size}, but the run's is {vocab_size}")


def _describe(
    out: Path, name: str, settings: TrainSettings, source: InstanceSource
) -> RunDescription:
    """Say in the shared form what the run is."""
    folder = source.index.folder
    rows = -(-folder.vocab_size // _PAD_ROWS) * _PAD_ROWS
    per_epoch = len(source) // settings.batch_instances
    return RunDescription(
        name=name,
        path=out,
        adapter=ADAPTER,
        model=asdict(preset(settings.preset, rows)),
        tokenizer=_relative(folder.path / folder.tokenizer, out),
        vocab_size=rows,
        eos_id=folder.eos_id,
        sequence_length=settings.sequence_length,
        batch_instances=settings.batch_instances,
        planned_steps=settings.steps,
        planned_passes=-(-settings.steps // per_epoch),
        source_instances=len(source),
        hosts=settings.hosts,
        loader=settings.loader,
        seed=settings.seed,
        warmup_steps=settings.warmup_steps,
        recipe=settings.recipe(source.index.fingerprint),
        loss=dict(LOSS_IDENTITY),
        data=_relative(folder.path, out),
        extra={
            "settings": asdict(settings),
            "loader_fault": find_loader(settings.loader).fault,
            "data_fingerprint": source.index.fingerprint,
            "index_instances": len(source.index),
            "mfu_convention": CONVENTION,
            "versions": {p: version(p) for p in ("jax", "flax", "optax", "grain")},
        },
    )


def _source(folder: TokenFolder, settings: TrainSettings) -> InstanceSource:
    """Return the instances of a run, at least one batch of them."""
    index = InstanceIndex.build(folder, settings.sequence_length)
    source = InstanceSource(index, settings.instances)
    if len(source) < settings.batch_instances:
        raise DataError(
            f"{folder.path}: {len(source)} instances of {settings.sequence_length} tokens, fewer "
            f"than one batch of {settings.batch_instances}; lower --batch or give more text"
        )
    return source


def _checked_folder(path: Path) -> TokenFolder:
    """Open a token folder and read every token once."""
    folder = TokenFolder.open(path)
    folder.check()
    return folder


def _relative(path: Path, out: Path) -> str:
    """Return ``path`` as seen from the run directory, so that both can move together."""
    return os.path.relpath(path.resolve(), out.resolve())
