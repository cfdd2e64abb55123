"""Holdout leakage: documents of a holdout in what a run trains on, whole or by n-grams.

Training text is decoded document by document from the token folder that ``run.json`` names,
also what the run's own choice of instances leaves out. A holdout document is there whole
when a training document is equal to it up to case and white space. Its n-grams are runs of
words (letters, digits, underscores; case folded, punctuation aside) by scikit-learn's
CountVectorizer; one that is found counts once, in however many training documents it is. A
few hundred training documents are held at a time.

Source: 13-grams of words as in GPT-3's contamination study (Brown et al. 2020, appendix C).
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from evalmon import holdout as holdouts
from evalmon.config import HoldoutSettings
from evalmon.errors import ConfigError, DataError
from evalmon.holdout import Holdout
from evalmon.token_folders import FolderFile, FolderIndex
from evalmon.tokenizer import TextTokenizer
from evalmon.types import (
    Document,
    DocumentOverlap,
    LeakageReport,
    OverlapMeasure,
    RunDescription,
    TrainingDocument,
)

__all__ = ["find_holdout", "lines", "overlap", "record"]

_BATCH: Final = 256  # training documents held at a time
_PIECE: Final = 1 << 22  # tokens searched for ends at a time
_NAMED: Final = 5  # training documents named for one of the holdout
_SHOWN: Final = 20  # documents in the text


def find_holdout(name: str, limit: int = 0) -> Holdout:
    """Return the holdout that a file or a known name gives.

    Args:
        name: a JSON-lines file in C4's form, or ``c4_en`` to fetch C4's validation split.
        limit: documents read at most, 0 for all.

    Raises:
        ConfigError: neither.
        DataError: the file cannot be used.
        FetchError: C4 could not be fetched.
    """
    path = Path(name)
    if name == holdouts.C4_NAME and not path.exists():
        return holdouts.load(HoldoutSettings(name, limit=limit))
    if not path.is_file():
        raise ConfigError(
            f"--holdout {name!r}: no such file; give a JSON-lines file in C4's form, or "
            f"{holdouts.C4_NAME!r}"
        )
    return holdouts.read_jsonl(path, path.name.partition(".")[0], limit or None)


def overlap(
    run: RunDescription, holdout: Holdout, measure: OverlapMeasure | None = None
) -> LeakageReport:
    """Look for a holdout's documents in the training text of a run.

    Args:
        run: names the token folder.
        holdout: the documents looked for.
        measure: what counts as overlap.

    Raises:
        DataError: the token folder or its tokenizer cannot be used, a file of it lies
            behind a URL, or a library is not installed.
    """
    measure = measure or OverlapMeasure()
    index = FolderIndex.read(run.resolve(run.data))
    tokenizer = _tokenizer(index, run)
    search = _Search(holdout.documents, measure)
    eos_id = run.eos_id if index.eos_id is None else index.eos_id
    total = sum(file.n_tokens for file in index.files)
    seen = 0
    with tqdm(
        total=total, desc="training text", unit="tok", unit_scale=True, delay=1, disable=None
    ) as progress:
        for file in index.files:
            documents = _documents(file, eos_id)
            while batch := list(islice(documents, _BATCH)):
                texts = tokenizer.decode_batch([tokens.tolist() for _, tokens in batch])
                search.add(file, [number for number, _ in batch], texts)
                seen += len(batch)
                progress.update(sum(len(tokens) for _, tokens in batch))
    return LeakageReport(
        run=run.name,
        holdout=holdout.name,
        fingerprint=holdout.fingerprint,
        measure=measure,
        documents=len(holdout.documents),
        short=search.short,
        training_documents=seen,
        training_tokens=total,
        overlaps=search.overlaps(),
    )


def record(report: LeakageReport) -> dict[str, Any]:
    """Return a report as one JSON object.

    Returns:
        ``run``, ``holdout``, ``holdout_fingerprint``, ``ngram``, ``minimum``, ``share``,
        ``documents``, ``short_documents``, ``training_documents``, ``training_tokens``,
        ``exact`` (documents there whole), ``overlapping`` (with any n-gram, or whole),
        ``leaked`` (whole, or from ``share`` on), ``overlaps`` (``id``, ``exact``, ``ngrams``,
        ``found``, ``share``, ``sources`` of ``file``, ``document``, ``label``, ``ngrams``,
        ``exact``), ``findings`` (``detector``, ``kind``, ``message``), ``sound``.
    """
    finding = report.finding
    return {
        "run": report.run,
        "holdout": report.holdout,
        "holdout_fingerprint": report.fingerprint,
        **asdict(report.measure),
        "documents": report.documents,
        "short_documents": report.short,
        "training_documents": report.training_documents,
        "training_tokens": report.training_tokens,
        "exact": report.exact,
        "overlapping": len(report.overlaps),
        "leaked": len(report.leaked),
        "overlaps": [item.record() for item in report.overlaps],
        "findings": [
            {"detector": item.detector, "kind": item.kind, "message": item.message}
            for item in [finding]
            if item is not None
        ],
        "sound": finding is None,
    }


def lines(report: LeakageReport) -> list[str]:
    """Return a report for a person."""
    shown = [
        (
            f"{report.documents:,} documents of {report.holdout}; training text: "
            f"{report.training_documents:,} documents ({report.training_tokens:,} tokens)"
        ),
        f"whole             {report.exact:,}",
        f"any {report.measure.ngram}-gram       {len(report.overlaps):,}"
        + (f" ({report.short:,} documents are shorter)" if report.short else ""),
        (
            f"leaked            {len(report.leaked):,} (whole, or at least "
            f"{report.measure.share:.0%} of the n-grams)"
        ),
    ]
    for item in report.overlaps[:_SHOWN]:
        places = ", ".join(f"{source.file} #{source.document}" for source in item.sources)
        how = "whole" if item.exact else f"{item.found} of {item.ngrams} n-grams"
        shown.append(f"  {item.id}: {how} ({item.share:.0%}), in {places}")
    if len(report.overlaps) > _SHOWN:
        shown.append(f"  and {len(report.overlaps) - _SHOWN:,} more, all with --json")
    finding = report.finding
    shown.append(f"FINDING: {finding.message}" if finding else "sound: no document leaked")
    return shown


@dataclass(slots=True)
class _Found:
    """What was found of one holdout document."""

    exact: bool = False
    sources: list[TrainingDocument] = field(default_factory=list[TrainingDocument])

    def add(self, source: TrainingDocument) -> None:
        """Keep a training document while it is among those that hold most."""
        self.exact = self.exact or source.exact
        kept = sorted([*self.sources, source], key=lambda i: (i.exact, i.ngrams), reverse=True)
        self.sources = kept[:_NAMED]


class _Search:
    """The holdout's documents, looked for in batches of training documents."""

    def __init__(self, documents: Sequence[Document], measure: OverlapMeasure) -> None:
        self._documents, self._minimum = documents, measure.minimum
        self._equal: defaultdict[str, set[int]] = defaultdict(set)
        for place, item in enumerate(documents):
            self._equal[_digest(item.text)].add(place)
        self._vectorizer = _vectorizer(measure.ngram)
        texts = [item.text for item in documents]
        try:
            self._ngrams = self._vectorizer.fit_transform(texts)
        except ValueError:  # no document has so many words
            self._ngrams = None
        width = 0 if self._ngrams is None else self._ngrams.shape[1]
        self._seen = np.zeros(width, np.bool_)
        self._found: defaultdict[int, _Found] = defaultdict(_Found)

    @property
    def short(self) -> int:
        """Documents without an n-gram."""
        if self._ngrams is None:
            return len(self._documents)
        return int(np.count_nonzero(np.diff(self._ngrams.indptr) == 0))

    def add(self, file: FolderFile, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Look at training documents of one file."""
        shared: dict[tuple[int, int], int] = {}
        if self._ngrams is not None:
            found = self._vectorizer.transform(texts)
            self._seen[found.indices] = True
            both = (self._ngrams @ found.T).tocoo()
            places = zip(both.row.tolist(), both.col.tolist(), strict=True)
            shared = dict(zip(places, both.data.tolist(), strict=True))
        pairs = {pair for pair, count in shared.items() if count >= self._minimum}
        equal = {
            (place, column)
            for column, text in enumerate(texts)
            for place in self._equal.get(_digest(text), ())
        }
        for place, column in sorted(pairs | equal):
            self._found[place].add(
                TrainingDocument(
                    ngrams=shared.get((place, column), 0),
                    exact=(place, column) in equal,
                    file=file.name,
                    document=numbers[column],
                    label=file.label,
                )
            )

    def overlaps(self) -> tuple[DocumentOverlap, ...]:
        """Return what was found, most first."""
        made: list[DocumentOverlap] = []
        for place, found in sorted(self._found.items()):
            own = np.empty(0, np.int64)
            if self._ngrams is not None:
                start, end = self._ngrams.indptr[place : place + 2]
                own = self._ngrams.indices[start:end]
            made.append(
                DocumentOverlap(
                    id=self._documents[place].id,
                    exact=found.exact,
                    ngrams=len(own),
                    found=int(np.count_nonzero(self._seen[own])),
                    sources=tuple(found.sources),
                )
            )
        return tuple(sorted(made, key=lambda item: -item.share))


def _digest(text: str) -> str:
    """Hash a text up to case and white space."""
    key = " ".join(text.casefold().split()).encode()
    return hashlib.blake2b(key, digest_size=16).hexdigest()


def _documents(file: FolderFile, eos_id: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield number and tokens of each document that is not empty."""
    tokens = file.tokens()
    begin = number = 0
    for start in range(0, len(tokens), _PIECE):
        ends = np.flatnonzero(tokens[start : start + _PIECE] == eos_id) + start
        for end in ends.tolist():
            number += 1
            if end > begin:
                yield number, tokens[begin:end]
            begin = end + 1
    if begin < len(tokens):
        yield number + 1, tokens[begin:]


def _vectorizer(ngram: int) -> Any:
    """Return what counts the different n-grams of words of texts."""
    try:
        from sklearn.feature_extraction.text import CountVectorizer
    except ImportError as error:
        raise DataError(
            "scikit-learn is not installed, so n-grams cannot be counted; "
            "pip install 'evalmon[evaluate]'"
        ) from error
    return CountVectorizer(
        ngram_range=(ngram, ngram),
        preprocessor=str.casefold,
        token_pattern=r"(?u)\w+",  # noqa: S106 - what a word is
        lowercase=False,
        binary=True,
        dtype=np.int64,
    )


def _tokenizer(index: FolderIndex, run: RunDescription) -> TextTokenizer:
    """Return what makes texts of token ids: the folder's tokenizer, else the run's."""
    path = index.tokenizer or (run.resolve(run.tokenizer) if run.tokenizer else None)
    if path is None:
        raise DataError(
            f"{index.folder / 'index.json'}: names no tokenizer, so its tokens cannot be read as "
            "text; index the folder again with --tokenizer-file"
        )
    return TextTokenizer(path)
