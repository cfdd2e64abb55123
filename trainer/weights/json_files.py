"""JSON objects in files."""

import json
from pathlib import Path
from typing import Any, cast

from evalmon.errors import CheckpointError

__all__ = ["read_object"]


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: no such file, or it holds anything else.
    """
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; copy it from the source") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file}: no JSON object; copy it from the source again")
    return cast("dict[str, Any]", loaded)
