"""Where weights are from, in enough detail to get them again and to notice another source."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from evalmon.errors import CheckpointError, WriteError
from trainer.weights.casting import Changes, Counts
from trainer.weights.names import published_shapes
from trainer.weights.progress import progress
from trainer.weights.source import PROVENANCE, Source
from trainer.weights.targets import Result

__all__ = ["Conversion", "hash_files", "revision"]

_LIBRARIES: Final = (
    "evalmon", "jax", "ml_dtypes", "numpy", "orbax-checkpoint", "safetensors", "tensorstore",
    "transformers",
)  # fmt: skip
_STEP: Final = (
    "source", "dtype", "vocab_rows_before", "vocab_rows_after", "params_fingerprint",
    "non_finite_values", "vanished_values", "assumed", "options", "versions", "converted_at",
)  # fmt: skip
"""What is kept of earlier conversions, oldest first."""
_PART: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion that is done.

    Attributes:
        source: what was converted.
        result: what was written.
        changes: what was done to the tensors.
        counts: values that deserve a word.
        files: name, length and SHA-256 of each source file.
        fingerprint: of the parameters written.
    """

    source: Source
    result: Result
    changes: Changes
    counts: Counts
    files: list[dict[str, Any]]
    fingerprint: str

    def facts(
        self, dst: Path, form: str, scanned: bool | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return all that is known about the result.

        Args:
            dst: the result's folder.
            form: ``hf``, ``orbax`` or ``maxtext``.
            scanned: whether MaxText's layers are stacked, None in other forms.
            options: the command's.
        """
        source, model = self.source, self.result.model
        shapes = published_shapes(model.config)
        before = source.origin.get("provenance") or {}
        origin = {
            name: value
            for name, value in source.origin.items()
            if name not in {"commit_hash", "provenance"}
        }
        kept = before.get("earlier")
        kept = cast("list[Any]", kept) if isinstance(kept, list) else []
        earlier = [*kept, {n: before[n] for n in _STEP if n in before}]
        return {
            "earlier": earlier if before else [],
            "source": {
                "path": str(source.path),
                "form": source.form,
                "revision": revision(source),
                **origin,
                "left_out": list(source.left_out),
                "files": self.files,
            },
            "result": {"path": str(dst.absolute()), "form": form, "scanned": scanned},
            "dtype": _said(source.dtypes, self.result.dtypes),
            "dtype_before": _counted(source.dtypes),
            "dtype_after": _counted(self.result.dtypes),
            "vocab_rows_before": source.model.config.vocab_size,
            "vocab_rows_after": self.changes.rows,
            "tensors": len(shapes),
            "parameters": sum(math.prod(shape) for shape in shapes.values()),
            "params_fingerprint": self.fingerprint,
            "non_finite_values": self.counts.non_finite,
            "vanished_values": self.counts.vanished,
            "assumed": list(source.assumed),
            "warnings": list(model.warnings),
            "model": asdict(model.config),
            "config": self.result.config_record,
            "options": dict(options),
            "versions": {library: _version(library) for library in _LIBRARIES},
            "converted_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write ``provenance.json``."""
        file = folder / PROVENANCE
        try:
            file.write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise WriteError(f"{file}: cannot be written ({error}); free some space") from error


def revision(source: Source) -> str | None:
    """Return the hub's commit of a published folder, None where that cannot be told.

    It is the folder's name in the hub's cache, the first line of the download record in a
    plain folder, or ``_commit_hash`` of its configuration.
    """
    path = source.path
    if path.parent.name == "snapshots":
        return path.name
    record = path / ".cache" / "huggingface" / "download" / "config.json.metadata"
    try:
        lines = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    except (OSError, UnicodeDecodeError):
        lines = []  # the hub's own file: weights are told by their hashes too
    return lines[0].strip() if lines else source.origin.get("commit_hash")


def hash_files(source: Source) -> list[dict[str, Any]]:
    """Return name, length and SHA-256 of a source's files.

    Raises:
        CheckpointError: a file cannot be read.
    """
    records: list[dict[str, Any]] = []
    try:
        total = sum(file.stat().st_size for file in source.files)
        with progress("hash", total) as on_read:
            for file in source.files:
                digest, size = hashlib.sha256(), 0
                with file.open("rb") as opened:
                    while part := opened.read(_PART):
                        digest.update(part)
                        size += len(part)
                        on_read(len(part))
                name = str(file.relative_to(source.path))
                records.append({"file": name, "bytes": size, "sha256": digest.hexdigest()})
    except OSError as error:
        raise CheckpointError(f"{source.path}: cannot be read ({error})") from error
    return records


def _counted(dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, int]:
    """Return the number of tensors of each dtype."""
    return dict(Counter(str(dtype) for dtype in dtypes.values()))


def _said(before: Mapping[str, np.dtype[Any]], after: Mapping[str, np.dtype[Any]]) -> str:
    """Return what happened to the dtype, in words.

    Example:
        >>> _said({"a": np.dtype("f4")}, {"a": np.dtype("f2")})
        'float32 -> float16'
    """
    old, new = (", ".join(sorted(_counted(dtypes))) for dtypes in (before, after))
    return f"{old} -> {new}" if dict(before) != dict(after) else f"{old}, kept"


def _version(library: str) -> str | None:
    """Return the version of a library, None where it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None
