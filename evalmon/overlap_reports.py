"""Reports of ``evalmon audit leakage --json``, read back from the file they were kept in."""

import json
from pathlib import Path
from typing import Any, cast

from evalmon.errors import DataError
from evalmon.types import DocumentOverlap, LeakageReport, OverlapMeasure, TrainingDocument

__all__ = ["read"]

_MADE = "keep what `evalmon audit leakage RUN --holdout FILE --json` prints"


def read(path: Path) -> LeakageReport:
    """Read a report: the last line of a file that is not empty, as the command prints it.

    Args:
        path: what the command printed on standard output.

    Raises:
        DataError: the file cannot be read, or its last line is no such report.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {_MADE}") from error
    if not lines:
        raise DataError(f"{path}: empty; {_MADE}")
    try:
        found: Any = json.loads(lines[-1])
    except ValueError as error:
        raise DataError(f"{path}: line {len(lines)}: no JSON ({error}); {_MADE}") from error
    try:
        return _report(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: line {len(lines)}: no report of holdout leakage ({error!r}); {_MADE}"
        ) from error


def _report(found: Any) -> LeakageReport:
    """Return a report from its JSON object."""
    return LeakageReport(
        run=_text(found["run"]),
        holdout=_text(found["holdout"]),
        fingerprint=_text(found["holdout_fingerprint"]),
        measure=OverlapMeasure(found["ngram"], found["minimum"], found["share"]),
        documents=found["documents"],
        short=found["short_documents"],
        training_documents=found["training_documents"],
        training_tokens=found["training_tokens"],
        overlaps=tuple(_overlap(item) for item in cast("list[Any]", found["overlaps"])),
    )


def _overlap(item: Any) -> DocumentOverlap:
    """Return one document's overlap from its JSON object."""
    return DocumentOverlap(
        id=_text(item["id"]),
        exact=bool(item["exact"]),
        ngrams=int(item["ngrams"]),
        found=int(item["found"]),
        sources=tuple(TrainingDocument(**source) for source in item["sources"]),
    )


def _text(value: Any) -> str:
    """Return a name, refusing what is none."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name")
    return value
