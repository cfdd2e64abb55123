"""Fixed holdout text, with a fingerprint that says when it is no longer the same.

C4's validation split is the holdout proper. A local file in C4's JSON-lines form (one
``{"text": …}`` a line, ``.gz`` or not) stands in where no network is, under a name of
its own: only C4 is ever called ``c4_en``.
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from evalmon.config import HoldoutSettings
from evalmon.errors import ConfigError, DataError, FetchError
from evalmon.types import Document

__all__ = ["C4_NAME", "OLMO_NAMES", "Document", "Holdout", "c4_validation", "load", "read_jsonl"]

C4_NAME = "c4_en"
"""Name of the C4 holdout, as in ``eval/lm/c4_en-validation/ce_nats``."""

OLMO_NAMES = (
    C4_NAME, "dolma_books", "dolma_common-crawl", "dolma_pes2o", "dolma_reddit", "dolma_stack",
    "dolma_wiki", "ice", "m2d2_s2orc", "pile", "wikitext_103",
)  # fmt: skip
"""Holdouts that AI2's trainers score, by their names.

Source: OLMo-core ``data/mixes/v3-small-ppl-validation.txt``.
"""


@dataclass(frozen=True)
class Holdout:
    """Named text that is never trained on.

    Attributes:
        name: as in ``eval/lm/<name>-validation/ce_nats``.
        documents: the texts, in order.
    """

    name: str
    documents: tuple[Document, ...]

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits over names and texts, in order.

        Example:
            >>> one = Holdout("a", (Document("1", "some text"),))
            >>> one.fingerprint == Holdout("a", (Document("1", "some  text"),)).fingerprint
            False
        """
        digest = hashlib.blake2b(digest_size=8)
        for item in self.documents:
            for part in (item.id, item.text):
                encoded = part.encode()
                digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()


def load(settings: HoldoutSettings) -> Holdout:
    """Read the holdout that the settings name.

    Raises:
        ConfigError: no path for a name other than ``c4_en``.
        DataError: the file cannot be used.
        FetchError: C4 could not be fetched.
    """
    limit = settings.limit or None
    if settings.path:
        return read_jsonl(Path(settings.path), settings.name, limit)
    if settings.name == C4_NAME:
        return c4_validation(limit)
    known = (
        "AI2 publishes its tokens and not its text, so it cannot be fetched"
        if settings.name in OLMO_NAMES
        else f"only {C4_NAME!r} can be fetched"
    )
    raise ConfigError(
        f"evaluation.holdouts: {settings.name!r} has no path, and {known}; give its text as the "
        "path of a .jsonl or .jsonl.gz file"
    )


def read_jsonl(path: Path, name: str, limit: int | None = None) -> Holdout:
    """Read documents in C4's JSON-lines form.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``; each line an object with ``text`` and
            optionally ``id`` and ``source``.
        name: the holdout's name.
        limit: documents read at most, the first ones; None for all.

    Raises:
        ConfigError: ``limit`` below 1.
        DataError: the file is missing, empty, torn or not of that form; file, line and
            value are named.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"holdout {name!r}: limit must be at least 1, got {limit}")
    documents: list[Document] = []
    try:
        with _opened(path) as file:
            for number, line in enumerate(islice(file, limit), start=1):
                documents.append(_document(line, f"{path}, line {number}", number))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read after {len(documents)} documents "
            f"({getattr(error, 'strerror', None) or error}); give a whole JSON-lines file"
        ) from error
    if not documents:
        raise DataError(f"{path}: holds no document; expected one JSON object a line")
    ids = [item.id for item in documents]
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise DataError(f"{path}: two documents have the id {twice!r}; ids must differ")
    return Holdout(name, tuple(documents))


def c4_validation(limit: int | None, path: Path | None = None) -> Holdout:
    """Return the first documents of English C4's validation split.

    Args:
        limit: documents at most, None for all 364,608.
        path: local copy in C4's JSON-lines form; None streams ``allenai/c4`` from the
            Hugging Face hub.

    Raises:
        FetchError: the hub cannot be reached.
        DataError: the local copy cannot be used.

    Source: https://huggingface.co/datasets/allenai/c4 (ODC-BY).
    """
    if path is not None:
        return read_jsonl(path, C4_NAME, limit)
    try:
        import datasets

        stream = datasets.load_dataset("allenai/c4", "en", split="validation", streaming=True)
        rows = [cast("dict[str, Any]", row) for row in islice(stream, limit)]
    except (OSError, ValueError, RuntimeError) as error:
        raise FetchError(
            f"allenai/c4 (en, validation) could not be fetched ({error}); check the network, or "
            "name a local file in C4's JSON-lines form as the path of [[evaluation.holdouts]] "
            f"{C4_NAME!r}"
        ) from error
    except ImportError as error:
        raise FetchError(
            "datasets is not installed, so C4 cannot be fetched; pip install 'evalmon[evaluate]'"
        ) from error
    place = "allenai/c4 (en, validation), row"
    return Holdout(
        C4_NAME,
        tuple(
            Document(str(number), _text(row.get("text"), f"{place} {number}"))
            for number, row in enumerate(rows, 1)
        ),
    )


def _opened(path: Path) -> IO[bytes]:
    """Open a file for reading lines, decompressing ``.gz``."""
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _document(line: bytes, place: str, number: int) -> Document:
    """Read one line; its number is the id of a document without one."""
    try:
        record = json.loads(line)
    except ValueError as error:
        shown = line[:60].decode("utf-8", "replace")
        raise DataError(f"{place}: not JSON ({error}): {shown!r}") from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: expected an object with a text, got {str(record)[:60]!r}")
    fields = cast("dict[str, Any]", record)
    text = _text(fields.get("text"), place)
    return Document(
        id=str(fields.get("id", number)), text=text, source=str(fields.get("source", ""))
    )


def _text(text: Any, place: str) -> str:
    """Return a text that can be scored, or refuse what was found in its place."""
    if not isinstance(text, str) or not text:
        raise DataError(
            f"{place}: expected a text of at least one byte under 'text', got {text!r}; "
            "remove the line"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: 'text' holds half a character ({error.object[error.start]!r} at character "
            f"{error.start}); mend or remove the line"
        ) from error
    return text
