"""Run directories: made for a new run, checked and opened again for a resumed one."""

import os
import sys
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jax
from jax.sharding import Mesh
from tqdm import tqdm

from evalmon.errors import CheckpointError, ConfigError, DataError, WriteError
from evalmon.types import RunDescription
from trainer.architecture import Olmo3Config
from trainer.config import TrainSettings
from trainer.continuation import progress_at, with_batch, with_data
from trainer.data.index import InstanceIndex, TokenFolder
from trainer.data.loaders import find_loader
from trainer.data.order import GlobalOrder
from trainer.data.selection import Selection, parse_ratios
from trainer.data.source import InstanceSource
from trainer.distributed import require_hosts
from trainer.flops import CONVENTION
from trainer.objective import Objective, loss_identity
from trainer.sharding import default_mesh_shape, make_mesh, parse_mesh, require_fits
from trainer.start import start_fingerprint, stored_dtypes

__all__ = [
    "ADAPTER",
    "RESUMABLE",
    "Run",
    "create_run",
    "model_config",
    "open_run",
    "stored_settings",
]

ADAPTER: Final = "olmo3"
RESUMABLE: Final = frozenset(
    {"hosts", "mesh", "accumulate", "remat", "scan_layers", "workers", "batch_instances"}
)
"""Settings that a resumed run may change: they split the work, or cut it into other steps."""

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

    @property
    def start(self) -> Path | None:
        """Return the checkpoint or weights folder it starts from, None for fresh values."""
        named = self.settings.init_from
        return None if named is None else self.description.resolve(named)

    @property
    def stacked(self) -> Olmo3Config | None:
        """Return the shapes of the model if its layers are stacked, None if they are not."""
        return self.model if self.settings.scan_layers else None

    def mesh(self) -> Mesh:
        """Return the devices it is spread over.

        Raises:
            ConfigError: the mesh needs more devices than there are, or does not divide the
                batch or the model.
        """
        return _mesh(self.settings, self.model)


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
            f"--tokenizer {data / (folder.tokenizer or 'tokenizer.json')}"
        )
    source = _source(folder, settings)
    config = settings.model(_rows(folder))
    _require_float64(config)
    _mesh(settings, config)
    settings, start = _checked_start(settings, config, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        description = _describe(out, name, settings, source, start)
        if fresh_data is not None:
            description = replace(description, fresh_data=_relative(fresh_data, out))
        description.save()
    except OSError as error:
        raise WriteError(f"{out}: cannot be written ({error}); free some space") from error
    return Run(description, settings, source)


def open_run(
    out: Path,
    *,
    data: Path | None = None,
    accept_changed_data: bool = False,
    **changes: int | str | bool | None,
) -> Run:
    """Open a run directory to resume it.

    Args:
        out: the directory.
        data: token folder to go on with, None for the run's own.
        accept_changed_data: go on though the data is not what the run was started on; it is
            read from its beginning, and the run is marked.
        changes: settings of ``RESUMABLE`` to go on with; None for as before.

    Raises:
        CheckpointError: no run there, or not one of this trainer.
        ConfigError: a changed setting is out of range, or does not fit the batch.
        DataError: the data is not what the run was started on.
        WriteError: a change cannot be noted in ``run.json``.
    """
    description = RunDescription.load(out)
    settings = stored_settings(description)
    given = {name: value for name, value in changes.items() if value is not None}
    assert set(given) <= RESUMABLE
    changed = replace(settings, **given)
    _require_float64(model_config(description))
    _mesh(changed, model_config(description))
    folder = _checked_folder(data or description.resolve(description.data))
    source, done = _source(folder, changed), progress_at(description)
    after = with_data(description, source, done, accepted=accept_changed_data)
    if after.extra["data"] != description.extra["data"]:
        after = replace(after, data=_relative(folder.path, out))
    after = with_batch(after, changed, len(source), done)
    if changed != settings:
        after = replace(
            after, hosts=changed.hosts, extra={**after.extra, "settings": asdict(changed)}
        )
    if after != description:
        try:
            after.save()
        except OSError as error:
            raise WriteError(f"{out}: cannot be written ({error}); free some space") from error
    return Run(after, changed, source)


def stored_settings(description: RunDescription) -> TrainSettings:
    """Return the settings that ``run.json`` records.

    Raises:
        CheckpointError: not a run of this trainer.
        ConfigError: a setting is unknown, missing or out of range.
    """
    file, extra = str(description.path / "run.json"), description.extra
    if (
        description.adapter != ADAPTER
        or not isinstance(extra.get("settings"), dict)
        or not isinstance(extra.get("data"), dict)
    ):
        raise CheckpointError(f"{file}: written by another trainer; resume it there")
    return TrainSettings.from_record(extra["settings"], file)


def model_config(description: RunDescription) -> Olmo3Config:
    """Return the model shapes that ``run.json`` records.

    Raises:
        ConfigError: a field is missing, unknown, or no shape a model can have.
    """
    file = description.path / "run.json"
    config = Olmo3Config.from_record(description.model, f"{file}: field 'model'")
    if config.vocab_size != description.vocab_size:
        raise ConfigError(
            f"{file}: field 'model': 'vocab_size' is {config.vocab_size}, but the run's is "
            f"{description.vocab_size}; restore the file"
        )
    return config


def _mesh(settings: TrainSettings, config: Olmo3Config) -> Mesh:
    """Return the devices that settings ask for, where they split everything evenly."""
    require_hosts(settings.hosts)
    rows = settings.batch_instances // settings.accumulate
    if settings.mesh is None:
        shape = default_mesh_shape(jax.device_count(), rows)
    else:
        shape = parse_mesh(settings.mesh)
    require_fits(shape, config, rows)
    return make_mesh(shape)


def _require_float64(config: Olmo3Config) -> None:
    """Refuse float64 where JAX would quietly compute in float32."""
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ConfigError("--dtype float64: JAX has it turned off; set JAX_ENABLE_X64=1")


def _rows(folder: TokenFolder) -> int:
    """Return the rows of the embedding: the ids, padded."""
    return -(-folder.vocab_size // _PAD_ROWS) * _PAD_ROWS


def _describe(
    out: Path, name: str, settings: TrainSettings, source: InstanceSource, start: str | None
) -> RunDescription:
    """Say in the shared form what the run is."""
    folder, rows = source.index.folder, _rows(source.index.folder)
    order = GlobalOrder(settings.seed, len(source))
    end = order.after(0, settings.steps, settings.batch_instances)
    return RunDescription(
        name=name,
        path=out,
        adapter=ADAPTER,
        model=asdict(settings.model(rows)),
        tokenizer=folder.tokenizer and _relative(folder.path / folder.tokenizer, out),
        vocab_size=rows,
        eos_id=folder.eos_id,
        sequence_length=settings.sequence_length,
        batch_instances=settings.batch_instances,
        planned_steps=settings.steps,
        planned_passes=-(-end // len(source)),
        source_instances=len(source),
        hosts=settings.hosts,
        loader=settings.loader,
        seed=settings.seed,
        warmup_steps=settings.warmup_steps,
        recipe=settings.recipe(source.index.fingerprint, start),
        loss=_loss_identity(settings, folder.eos_id),
        data=_relative(folder.path, out),
        upsampled=source.selection.upsampled,
        extra={
            "settings": asdict(settings),
            "loader_fault": find_loader(settings.loader).fault,
            "data": source.index.identity(),
            "index_instances": len(source.index),
            "start": _describe_start(out, settings, start),
            "mfu_convention": CONVENTION,
            "versions": {p: version(p) for p in ("jax", "flax", "optax", "grain")},
        },
    )


def _loss_identity(settings: TrainSettings, eos_id: int) -> dict[str, Any]:
    """Say what the run's train loss means."""
    objective = Objective(
        settings.z_weight,
        settings.loss_normalization,
        eos_id=eos_id if settings.document_masking else None,
    )
    return loss_identity(objective, masks=settings.instance_filter != "none")


def _checked_start(
    settings: TrainSettings, config: Olmo3Config, out: Path
) -> tuple[TrainSettings, str | None]:
    """Return settings that find the start from the run directory, and its fingerprint."""
    if settings.init_from is None:
        return settings, None
    path = Path(settings.init_from)
    fingerprint = start_fingerprint(path, config)
    if settings.init_optimizer and (path / "model.json").is_file():
        raise ConfigError(
            f"--init-from {path}: a weights folder holds no optimizer; add --without-optimizer to "
            "start with its parameters alone, or give RUN/checkpoints/STEP"
        )
    return replace(settings, init_from=_relative(path, out)), fingerprint


def _describe_start(out: Path, settings: TrainSettings, start: str | None) -> dict[str, Any] | None:
    """Say what the parameters were before the first step, None for freshly drawn ones."""
    if start is None or settings.init_from is None:
        return None
    return {
        "path": settings.init_from,
        "fingerprint": start,
        "optimizer": settings.init_optimizer,
        "stored_in": stored_dtypes(out / settings.init_from),
        "trained_in": settings.model(1).master_dtype,
    }


def _source(folder: TokenFolder, settings: TrainSettings) -> InstanceSource:
    """Return the instances of a run, at least one batch of them."""
    index = InstanceIndex.build(folder, settings.sequence_length)
    source = InstanceSource(index, _selection(index, settings))
    if len(source) < settings.batch_instances:
        raise DataError(
            f"{folder.path}: {len(source)} instances of {settings.sequence_length} tokens, fewer "
            f"than one batch of {settings.batch_instances}; lower --batch or give more text"
        )
    return source


def _selection(index: InstanceIndex, settings: TrainSettings) -> Selection:
    """Return which instances of a folder a run reads."""
    if settings.ratios is None:
        if settings.max_repeats > 1:
            raise ConfigError(
                f"--max-repeats {settings.max_repeats}: without --ratios every instance is read "
                "once a pass; give --ratios, or leave it out"
            )
        return Selection.evenly(len(index), settings.instances)
    ratios = parse_ratios(settings.ratios)
    return Selection.mixture(index, ratios, settings.instances, settings.max_repeats)


def _checked_folder(path: Path) -> TokenFolder:
    """Open a token folder and look at its tokens, at all of one that is not large."""
    folder = TokenFolder.open(path)
    for warning in folder.warnings:
        tqdm.write(f"warning: {warning}", file=sys.stderr)
    # Of a folder that is large only samples are read, which is no work to show.
    with tqdm(
        total=folder.n_bytes, desc="tokens", unit="B", unit_scale=True, leave=False, delay=2.0
    ) as bar:

        def advance(read: int) -> None:
            bar.update(read)

        folder.check(advance)
    return folder


def _relative(path: Path, out: Path) -> str:
    """Return ``path`` as seen from the run directory, so that both can move together."""
    return os.path.relpath(path.resolve(), out.resolve())
