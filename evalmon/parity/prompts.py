"""Token ids to compare predictions on: drawn at random, or read from a file."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np

from evalmon.errors import DataError
from evalmon.tokenizer import TextTokenizer

__all__ = ["Prompts", "random_prompts", "read_prompts", "require_ids", "tokenizer_encode"]

Prompts: TypeAlias = list[list[int]]
"""Token ids of each text, at least one text of at least one id."""

_TEXT: Final = ("text", "prompt")


def random_prompts(seed: int, vocabulary: int, count: int, length: int) -> Prompts:
    """Return texts of ids drawn uniformly, the same for the same seed everywhere.

    Args:
        seed: at least 0.
        vocabulary: ids are below it.
        count: texts.
        length: ids in each.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.integers(0, vocabulary, (count, length)).tolist()


def read_prompts(path: Path, encode: Callable[[str], list[int]] | None) -> Prompts:
    """Read prompts, one a line.

    A line is a JSON object with ``tokens`` (ids) or with ``text`` or ``prompt``; in a file
    whose first line is no object, each line is a text: none may be such an object, nor the
    first a list of ids. Empty lines are left out.

    Args:
        path: UTF-8 text.
        encode: text to ids, None where there is no tokenizer.

    Raises:
        DataError: the file cannot be read or holds no prompt; a line is not of its form or
            has no token; a text, and no tokenizer. The line is named.
    """
    try:
        # Not splitlines: a text may hold other line separators than the line feed.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    numbered = [(f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise DataError(f"{path}: no prompt in it; give one a line")
    structured = numbered[0][1].lstrip().startswith("{")
    if not structured:
        _require_texts(numbered)
    found: Prompts = []
    for place, line in numbered:
        value: Any = _object(line, place) if structured else {"text": line}
        ids = value["tokens"] if "tokens" in value else _encoded(value, place, encode)
        if not isinstance(ids, list) or any(type(i) is not int for i in cast("list[Any]", ids)):
            raise DataError(f"{place}: 'tokens' must be a list of whole numbers")
        if not ids:
            raise DataError(f"{place}: an empty prompt; give it at least one token")
        found.append(cast("list[int]", ids))
    return found


def require_ids(prompts: Sequence[Sequence[int]], vocabulary: int, place: str) -> None:
    """Refuse ids that one of the two sides does not have.

    Args:
        prompts: token ids.
        vocabulary: entries both sides have.
        place: where the prompts are from, for messages.

    Raises:
        DataError: an id outside; prompt, position and id are named.
    """
    for number, ids in enumerate(prompts):
        for position, token in enumerate(ids):
            if not 0 <= token < vocabulary:
                raise DataError(
                    f"{place}: prompt {number} has token id {token} at position {position}, "
                    f"outside the {vocabulary} ids that model and reference share; "
                    "was it made with their tokenizer?"
                )


def tokenizer_encode(candidates: Sequence[Path]) -> Callable[[str], list[int]] | None:
    """Return the encoder of the first tokenizer file there is; it adds no token of its own.

    Args:
        candidates: ``tokenizers`` JSON files, which need not exist.
    """
    file = next((path for path in candidates if path.is_file()), None)
    return None if file is None else TextTokenizer(file).encode


def _require_texts(numbered: Sequence[tuple[str, str]]) -> None:
    """Refuse token ids among texts: they would be compared as the digits they are written in."""
    for row, (place, line) in enumerate(numbered):
        try:
            value: Any = json.loads(line) if line.lstrip()[0] in "[{" else None
        except (ValueError, RecursionError):
            continue
        ids = (
            row == 0
            and isinstance(value, list)
            and all(type(i) is int for i in cast("list[Any]", value))
        )
        if ids or (isinstance(value, dict) and {"tokens", *_TEXT} & set(cast("Any", value))):
            raise DataError(
                f"{place}: JSON in a file whose first line is no JSON object, so that each line "
                'is a text; write {"tokens": [...]} or {"text": "..."} in every line'
            )


def _object(line: str, place: str) -> dict[str, Any]:
    """Read one line as a JSON object with a prompt in it."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error})") from error
    if not isinstance(value, dict) or not any(name in value for name in ("tokens", *_TEXT)):
        raise DataError(f'{place}: expected {{"tokens": [...]}} or {{"text": "..."}}')
    return cast("dict[str, Any]", value)


def _encoded(
    value: dict[str, Any], place: str, encode: Callable[[str], list[int]] | None
) -> list[int]:
    """Return the ids of a prompt given as text."""
    text = next(value[name] for name in _TEXT if name in value)
    if not isinstance(text, str):
        raise DataError(f"{place}: the text must be a string, got {str(text)[:60]!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: the text holds half a character ({text[error.start]!r} at character "
            f"{error.start}); mend or remove the line"
        ) from error
    if encode is None:
        raise DataError(
            f"{place}: a text needs a tokenizer, and neither the model nor the reference has one "
            "(tokenizer.json); give token ids"
        )
    return encode(text)
