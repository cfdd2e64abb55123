"""Text to token folders: a byte-level BPE trained once, then one file a source.

The text is C4's form, JSON lines with ``text`` and perhaps ``source``, plain or gzip.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from evalmon.errors import ConfigError, DataError, WriteError
from trainer.data.index import TokenFile, TokenFolder

__all__ = [
    "EOS",
    "TextDocument",
    "load_tokenizer",
    "read_documents",
    "tokenize",
    "train_tokenizer",
]

EOS: Final = "<|endoftext|>"
_ALPHABET: Final = 256
_MOST_IDS: Final = 2**31 - 1
_BATCH_DOCUMENTS: Final = 256


@dataclass(frozen=True, slots=True)
class TextDocument:
    """One line of text input: its text and the label of the source it came from."""

    text: str
    label: str


@dataclass(slots=True)
class _Output:
    """A token file being written."""

    path: Path
    stream: IO[bytes]
    n_documents: int = 0


def read_documents(paths: Sequence[Path]) -> Iterator[TextDocument]:
    """Yield the documents of JSON-lines files, in order; empty texts are left out.

    Args:
        paths: ``.jsonl`` or ``.jsonl.gz`` files; a line without ``source`` gets the
            file's name as label.

    Raises:
        DataError: a file that is missing or unreadable, or a line that is not a JSON
            object with a string ``text``.
    """
    for path in paths:
        label = path.name.removesuffix(".gz").removesuffix(".jsonl")
        try:
            with (
                gzip.open(path, "rt", encoding="utf-8")
                if path.suffix == ".gz"
                else path.open(encoding="utf-8") as lines
            ):
                for number, line in enumerate(lines, start=1):
                    document = _parse(line, f"{path}:{number}", label)
                    if document.text:
                        yield document
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as text lines ({error})") from error


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose id 0 is the end-of-text token.

    Args:
        texts: what to learn from.
        vocab_size: ids, at least 257 (256 bytes and the end-of-text token); fewer come
            out when the text has no more pairs to merge.

    Raises:
        ConfigError: ``vocab_size`` below 257, or no int32.

    Source: Sennrich et al. 2016, arXiv:1508.07909; bytes as in GPT-2.
    """
    if not _ALPHABET < vocab_size <= _MOST_IDS:
        raise ConfigError(
            f"--vocab-size {vocab_size}: at least {_ALPHABET + 1} (bytes and EOS), at most "
            f"{_MOST_IDS}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenize(
    paths: Sequence[Path], out: Path, vocab_size: int, reuse: Path | None = None
) -> TokenFolder:
    """Write a token folder from text files.

    Args:
        paths: text files.
        out: the folder, made here; must not hold an index already.
        vocab_size: ids of the tokenizer to train.
        reuse: a tokenizer file to take instead of training one.

    Returns:
        The folder, its ``index.json`` written last.

    Raises:
        DataError: bad text, no documents, or the folder is in use.
        WriteError: the folder cannot be written.
        ConfigError: ``vocab_size`` too small.
    """
    if (out / "index.json").exists():
        raise DataError(f"{out}: already holds a token folder; remove it or give another --out")
    if reuse is None:
        texts = (document.text for document in read_documents(paths))
        tokenizer = train_tokenizer(texts, vocab_size)
    else:
        tokenizer = load_tokenizer(reuse)
    eos = tokenizer.token_to_id(EOS)
    if eos is None:
        raise DataError(f"{reuse}: has no {EOS!r} token; use the tokenizer of a token folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(out / "tokenizer.json"))
        files = _write_files(paths, tokenizer, eos, out)
        folder = TokenFolder(out, files, tokenizer.get_vocab_size(), eos)
        folder.save()
    except OSError as error:
        raise WriteError(f"{out}: cannot be written ({error}); free some space") from error
    return folder


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer file.

    Raises:
        DataError: the file is missing or not a tokenizer.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such tokenizer file; give tokenizer.json of a token folder")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        # The library raises bare Exception for anything it cannot parse.
        if type(error) is not Exception:
            raise
        raise DataError(f"{path}: not a tokenizers JSON file ({error})") from error


def _parse(line: str, place: str, label: str) -> TextDocument:
    """Read one JSON line."""
    try:
        loaded = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not a JSON line ({error}); expected {{'text': …}}") from error
    record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    text = record.get("text")
    if not isinstance(text, str):
        raise DataError(f"{place}: no string field 'text'; expected {{'text': …, 'source': …}}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: 'text' holds half a character ({error.object[error.start]!r} at character "
            f"{error.start}); mend or remove the line"
        ) from error
    source = str(record.get("source", label))
    return TextDocument(text, re.sub(r"[^A-Za-z0-9_.-]+", "-", source) or label)


def _write_files(
    paths: Sequence[Path], tokenizer: Tokenizer, eos: int, out: Path
) -> tuple[TokenFile, ...]:
    """Encode documents and append each to its source's file."""
    outputs: dict[str, _Output] = {}
    for batch in _batches(read_documents(paths)):
        for document, encoding in zip(
            batch, tokenizer.encode_batch([d.text for d in batch]), strict=True
        ):
            output = outputs.get(document.label)
            if output is None:
                path = out / f"{document.label}-00000.npy"
                output = outputs[document.label] = _Output(path, path.open("wb"))
            content = np.array([*encoding.ids, eos], dtype="<u4").tobytes()
            output.stream.write(content)
            output.n_documents += 1
    for output in outputs.values():
        output.stream.close()
    if not outputs:
        raise DataError(f"{', '.join(map(str, paths))}: no documents with text")
    return tuple(
        replace(TokenFile.of(o.path, o.path.name, label), n_documents=o.n_documents)
        for label, o in sorted(outputs.items())
    )


def _batches(documents: Iterable[TextDocument]) -> Iterator[list[TextDocument]]:
    """Group documents so that the tokenizer can encode them in parallel."""
    batch: list[TextDocument] = []
    for document in documents:
        batch.append(document)
        if len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch = []
    if batch:
        yield batch
