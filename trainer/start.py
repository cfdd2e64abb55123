"""What a run starts from: looked at before its directory is made."""

import hashlib
import json
from pathlib import Path
from typing import Final

import jax

from evalmon.errors import CheckpointError
from evalmon.types import ModelDescription, RunDescription
from trainer.architecture import Olmo3Config
from trainer.model import parameter_shapes

__all__ = ["start_fingerprint", "stored_dtypes"]

_RECORDS: Final = ("model.json", "provenance.json", "progress/metadata")
"""Small files that tell two starts apart: they hold hashes of the weights."""


def start_fingerprint(path: Path, config: Olmo3Config) -> str:
    """Check that weights fit a model, and return what tells them from others.

    Args:
        path: ``RUN/checkpoints/STEP``, or a folder that ``convert`` wrote.
        config: shapes of the model that is to start from them.

    Raises:
        CheckpointError: neither is there, or a tensor has another shape; it is named.
    """
    records = [path / name for name in _RECORDS if (path / name).is_file()]
    if not (path / "params").is_dir() or not records:
        raise CheckpointError(
            f"--init-from {path}: no committed checkpoint and no weights folder; give "
            "RUN/checkpoints/STEP, or what `python -m trainer convert` wrote"
        )
    model = _described_model(path)
    if model is not None:
        _require_same_shapes(path, model, config)
    digest = hashlib.blake2b(digest_size=8)
    for record in records:
        digest.update(record.read_bytes())
    return digest.hexdigest()


def stored_dtypes(path: Path) -> list[str] | None:
    """Return the dtypes a weights folder's tensors are stored in, None where none is recorded.

    Args:
        path: ``RUN/checkpoints/STEP``, whose parameters have the run's own dtype, or a folder
            that ``convert`` wrote.

    Raises:
        CheckpointError: its provenance cannot be read.
    """
    file = path / "provenance.json"
    if not file.is_file():
        return None
    try:
        return sorted(json.loads(file.read_text(encoding="utf-8"))["dtype_after"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file}: says no 'dtype_after' ({error}); convert the weights again"
        ) from error


def _described_model(path: Path) -> Olmo3Config | None:
    """Return the shapes that stand beside weights, None where nothing does."""
    run = path.resolve().parent.parent
    if (path / "model.json").is_file():
        description = ModelDescription.load(path)
    elif (run / "run.json").is_file():
        description = RunDescription.load(run).model_description
    else:
        return None
    return Olmo3Config.from_record(description.model, f"{description.path}: 'model'")


def _require_same_shapes(path: Path, stored: Olmo3Config, wanted: Olmo3Config) -> None:
    """Raise an error that names the first tensor whose shape differs."""
    have, want = (
        {
            jax.tree_util.keystr(key, simple=True, separator="."): leaf.shape
            for key, leaf in jax.tree_util.tree_leaves_with_path(parameter_shapes(config))
        }
        for config in (stored, wanted)
    )
    for name in sorted({*have, *want}):
        if have.get(name) != want.get(name):
            raise CheckpointError(
                f"--init-from {path}: {name} has shape {have.get(name)}, but the run's model needs "
                f"{want.get(name)}; give the preset, heads and tokenizer it was trained with"
            )
    for name in ("heads", "kv_heads", "head_dim"):
        if getattr(stored, name) != getattr(wanted, name):
            raise CheckpointError(
                f"--init-from {path}: its model has {name} {getattr(stored, name)}, but the run's "
                f"{getattr(wanted, name)}; give the heads it was trained with"
            )
