"""How far a run is: the small JSON record that stands in each of its checkpoints."""

import json
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from evalmon.errors import CheckpointError

__all__ = ["FINGERPRINT", "Progress", "last_committed", "progress_of", "read_record"]

FINGERPRINT: Final = "params_fingerprint"
"""Field of the record beside ``Progress``: hash of the parameters as they were saved."""


class Progress(TypedDict):
    """Updates made, tokens trained on, and position in the data order (``data/order.py``)."""

    step: int
    tokens: int
    position: int


def last_committed(directory: Path) -> Path | None:
    """Return the last checkpoint in ``RUN/checkpoints`` with a record, None without any.

    Orbax gives a checkpoint the bare name of its step when it is whole.
    """
    steps = [
        int(path.parent.parent.name)
        for path in directory.glob("[0-9]*/progress/metadata")
        if path.parent.parent.name.isdigit()
    ]
    return directory / str(max(steps)) if steps else None


def read_record(path: Path, way_out: str) -> dict[str, Any]:
    """Return the record of the checkpoint ``RUN/checkpoints/STEP``.

    Args:
        path: the checkpoint.
        way_out: what to do where it cannot be read.

    Raises:
        CheckpointError: it cannot be read as a JSON object.
    """
    file = path / "progress" / "metadata"
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be restored ({file}: {error}); {way_out}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: cannot be restored ({file}: no JSON object); {way_out}")
    return cast("dict[str, Any]", loaded)


def progress_of(path: Path, way_out: str) -> Progress:
    """Return how far the run was at a checkpoint.

    Raises:
        CheckpointError: it cannot be read, or lacks a whole step, tokens or position.
    """
    record = read_record(path, way_out)
    found = {name: record.get(name) for name in Progress.__annotations__}
    for name, value in found.items():
        if type(value) is not int or value < 0:
            raise CheckpointError(
                f"{path / 'progress' / 'metadata'}: {name!r} is {value!r}, expected a whole "
                f"number; {way_out}"
            )
    return cast("Progress", found)
