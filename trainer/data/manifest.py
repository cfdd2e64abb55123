"""Mix manifests: lists of token files that lie somewhere, made into a token folder.

A line is ``label,relative/path/{TOKENIZER}/part.npy``; the order of lines is the order of
the mix.

Source: OLMo-core ``data/mixes`` (the form of its lists).
"""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from evalmon.errors import ConfigError, DataError, WriteError
from trainer.data.folder import WHOLE_BYTES, TokenFolder, in_threads, some_of
from trainer.data.remote import is_url
from trainer.data.token_file import Place, TokenFile, size_of
from trainer.data.tokenize import EOS, load_tokenizer

__all__ = ["IndexRequest", "ManifestEntry", "index_manifest", "read_manifest", "repeated"]

_PLACEHOLDER: Final = "{TOKENIZER}"
_MOST: Final = 2**31 - 1
_KNOWN: Final = MappingProxyType({"allenai/dolma2-tokenizer": (100278, 100257)})
"""Ids and end-of-text id of tokenizers that published mixes are made with."""


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A line of a manifest.

    Attributes:
        label: source of the text.
        path: of the token file, relative to the root of the mix.
        line: number in the manifest, from 1.
    """

    label: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """What a token folder is to be made of.

    Attributes:
        manifest: list of token files.
        root: folder or address that their paths start from.
        tokenizer: name of the tokenizer they were made with, as their paths have it.
        tokenizer_file: its file; None makes a folder that can be trained on only.
        vocab_size: ids are below this; None for what the tokenizer has.
        eos_id: id that ends documents; None for what the tokenizer has.
        whole: whether to read every token now, or head, middle and tail of each file; None
            for every token up to ``WHOLE_BYTES`` together.
    """

    manifest: Path
    root: str
    tokenizer: str
    tokenizer_file: Path | None = None
    vocab_size: int | None = None
    eos_id: int | None = None
    whole: bool | None = None


def read_manifest(path: Path, tokenizer_name: str) -> tuple[ManifestEntry, ...]:
    """Read a manifest; lines that are blank or start with ``#`` say nothing.

    Args:
        path: the manifest.
        tokenizer_name: takes the place of ``{TOKENIZER}``.

    Returns:
        Its lines, in order.

    Raises:
        DataError: it is missing or no text, holds no line, or a line is no label and
            relative path.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a manifest ({error})") from error
    entries = tuple(
        _entry(line, f"{path}:{number}", number, tokenizer_name)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    if not entries:
        raise DataError(f"{path}: names no token files; expected lines of label,relative/path.npy")
    return entries


def repeated(folder: TokenFolder) -> list[str]:
    """Return the files that a folder names more than once, whose text is read more often."""
    return [path for path, times in Counter(f.path for f in folder.files).items() if times > 1]


def index_manifest(request: IndexRequest, out: Path) -> TokenFolder:
    """Make a token folder that points at the files of a manifest where they lie.

    Args:
        request: what it is made of.
        out: the folder, made here; must not hold an index already.

    Returns:
        The folder, its files checked and its ``index.json`` written last.

    Raises:
        DataError: files are missing, are no token files or hold ids outside the vocabulary;
            or the folder is in use. No index is left behind.
        ConfigError: the vocabulary or end-of-text id is not known, or none.
        WriteError: the folder cannot be written.
    """
    if (out / "index.json").exists():
        raise DataError(f"{out}: already holds a token folder; remove it or give another --out")
    ids = _vocabulary(request)
    entries = read_manifest(request.manifest, request.tokenizer)
    places = [_place(request.root, entry.path) for entry in entries]
    sizes = in_threads(size_of, places)
    missing = [place for place, size in zip(places, sizes, strict=True) if size is None]
    if missing:
        raise DataError(
            f"{request.manifest}: {len(missing)} of {len(places)} token files are not at "
            f"--root {request.root}: {some_of(missing)}; fetch them, or give another --root or "
            "--tokenizer"
        )
    whole = request.whole
    if whole is None:
        whole = sum(size or 0 for size in sizes) <= WHOLE_BYTES

    def describe(item: tuple[Place, ManifestEntry]) -> TokenFile:
        place, entry = item
        return TokenFile.of(place, str(place), entry.label, whole=whole, ids=ids)

    files = tuple(in_threads(describe, list(zip(places, entries, strict=True))))
    name = "" if request.tokenizer_file is None else "tokenizer.json"
    folder = TokenFolder(out, files, *ids, name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if request.tokenizer_file is not None:
            shutil.copyfile(request.tokenizer_file, out / name)
        folder.save()
    except OSError as error:
        raise WriteError(f"{out}: cannot be written ({error}); free some space") from error
    return folder


def _entry(line: str, place: str, number: int, tokenizer_name: str) -> ManifestEntry:
    """Read one line."""
    label, comma, path = (piece.strip() for piece in line.partition(","))
    if not (label and comma and path):
        raise DataError(f"{place}: {line.strip()!r} is no label,relative/path.npy; mend the line")
    path = path.replace(_PLACEHOLDER, tokenizer_name)
    parts = PurePosixPath(path)
    if is_url(path) or parts.is_absolute() or ".." in parts.parts:
        raise DataError(
            f"{place}: path {path!r} does not lie below the root of the mix; make it relative, "
            "and name what it starts from by --root; nor may --tokenizer leave it"
        )
    return ManifestEntry(label, path, number)


def _place(root: str, path: str) -> Place:
    """Return where a file of the manifest lies."""
    return f"{root.rstrip('/')}/{path}" if is_url(root) else Path(root).resolve() / path


def _vocabulary(request: IndexRequest) -> tuple[int, int]:
    """Return the ids there are and the one that ends documents, as asked for or known."""
    found: tuple[int, int | None] | None = _KNOWN.get(request.tokenizer)
    if request.tokenizer_file is not None:
        tokenizer = load_tokenizer(request.tokenizer_file)
        # Ids may have gaps, so that the largest says more than their number.
        found = max(tokenizer.get_vocab().values(), default=-1) + 1, tokenizer.token_to_id(EOS)
    size, eos = found or (None, None)
    size = size if request.vocab_size is None else request.vocab_size
    eos = eos if request.eos_id is None else request.eos_id
    if size is None or eos is None:
        flag = "--vocab-size" if size is None else "--eos-id"
        raise ConfigError(
            f"{flag}: not known of tokenizer {request.tokenizer!r}; give it, or --tokenizer-file"
        )
    if not 1 <= size <= _MOST:
        raise ConfigError(f"--vocab-size {size}: at least 1, at most {_MOST}")
    if not 0 <= eos < size:
        raise ConfigError(f"--eos-id {eos}: not within the {size} ids of --vocab-size")
    return size, eos
