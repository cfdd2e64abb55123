"""JSON objects in files."""

import json
import math
from pathlib import Path
from typing import Any, cast

from evalmon.errors import CheckpointError

__all__ = ["read_object"]


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: no such file, or it holds anything else; a number is NaN or infinite.
    """
    try:
        text = file.read_text(encoding="utf-8")
        loaded = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; copy it from the source") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file}: no JSON object; copy it from the source again")
    return cast("dict[str, Any]", loaded)


def _finite(text: str) -> float:
    """Read a number; JSON has neither NaN nor infinity, but Python reads and writes both."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value
