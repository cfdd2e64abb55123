"""Token folders: which token files belong together, where they lie, and whether they changed."""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from trainer.data.remote import is_url, local_copy
from trainer.data.token_file import (
    TOKEN_BYTES,
    Place,
    TokenFile,
    check_form,
    check_ids,
    chunks,
    read_range,
    read_sample,
    read_tokens,
    size_of,
)

__all__ = ["INDEX_FORMAT", "WHOLE_BYTES", "TokenFolder", "in_threads", "some_of"]

INDEX_FORMAT: Final = 2
WHOLE_BYTES: Final = 4 << 30
"""Bytes up to which every token of a folder is read where nobody says; some seconds' work."""

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")
_THREADS: Final = 16
_NAMED: Final = 5
_HEAD_BYTES: Final = 8
_AGAIN: Final = "make the folder again with `python -m trainer tokenize` or `index`"


@dataclass(frozen=True, slots=True)
class TokenFolder:
    """A folder that names token files, with their tokenizer.

    Attributes:
        path: the folder.
        files: its token files, in order.
        vocab_size: ids are below this.
        eos_id: id that ends documents.
        tokenizer: name of the tokenizer file inside the folder, "" where there is none: such
            a folder can be trained on, but text cannot be scored.
    """

    path: Path
    files: tuple[TokenFile, ...]
    vocab_size: int
    eos_id: int
    tokenizer: str = "tokenizer.json"

    @property
    def fingerprint(self) -> str:
        """Return a hash of everything that changes the tokens or their meaning.

        Where the files lie is no part of it, so that data may move.
        """
        return _hash(self.identity())

    @property
    def n_bytes(self) -> int:
        """Return the size of its files together."""
        return sum(file.n_bytes for file in self.files)

    @property
    def warnings(self) -> list[str]:
        """Return what a person should hear of although it is no error."""
        empty = [file.path for file in self.files if not file.n_tokens]
        if not empty:
            return []
        return [f"{self.path}: {len(empty)} empty token files, of no instances: {some_of(empty)}"]

    def identity(self) -> dict[str, Any]:
        """Return, name by name, what makes the tokens what they are."""
        names = [[PurePosixPath(file.path).name, file.label] for file in self.files]
        return {
            "file names and labels": _hash(names),
            "file sizes": _hash([file.n_tokens for file in self.files]),
            "file contents": _hash([[file.sample, file.sha256] for file in self.files]),
            "dtype": "uint32",
            "vocab_size": self.vocab_size,
            "eos_id": self.eos_id,
        }

    def place(self, file: TokenFile) -> Place:
        """Return where a file lies."""
        return file.path if is_url(file.path) else self.path / file.path

    def tokens(self, number: int, cache_dir: Path | None = None) -> NDArray[np.uint32]:
        """Map a file into memory, a far one after fetching it once.

        Args:
            number: which of the files.
            cache_dir: where copies of far files are kept, None for the default.

        Returns:
            [its tokens], read-only.

        Raises:
            DataError: it is gone, or of another size or form than the index says.
            WriteError: the copy of a far file cannot be kept.
        """
        file = self.files[number]
        place = self.place(file)
        path = local_copy(place, cache_dir) if isinstance(place, str) else place
        _check_head(file, place, path)
        return read_tokens(path)

    def save(self) -> None:
        """Write ``index.json``, whole or not at all."""
        record = {
            "format": INDEX_FORMAT,
            "dtype": "uint32",
            "vocab_size": self.vocab_size,
            "eos_id": self.eos_id,
            "tokenizer": self.tokenizer,
            "files": [asdict(file) for file in self.files],
            "fingerprint": self.fingerprint,
        }
        target = self.path / "index.json"
        partial = target.with_suffix(".json.partial")
        partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        partial.replace(target)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read ``index.json``, and check size and form of each file that lies on this machine.

        Far files are looked at by ``check``, and when they are first read.

        Raises:
            DataError: no such folder or index, another format or dtype, or a file that
                is missing, cut off, or a real ``.npy`` file.
        """
        record = _read_index(path)
        try:
            files = tuple(TokenFile(**item) for item in record["files"])
            folder = cls(path, files, record["vocab_size"], record["eos_id"], record["tokenizer"])
            for item in (folder, *files):
                _check_types(item)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path / 'index.json'}: a field is missing or has the wrong type ({error}); "
                f"{_AGAIN}"
            ) from error
        if not files:
            raise DataError(f"{path / 'index.json'}: names no token files; tokenize some text")
        _check_files_here(folder)
        if folder.tokenizer and not (path / folder.tokenizer).is_file():
            raise DataError(
                f"{path / folder.tokenizer}: no such tokenizer file, but index.json names it; "
                "restore it: holdout and tasks can be scored with no other"
            )
        return folder

    def check(
        self,
        progress: Callable[[int], None] | None = None,
        *,
        whole: bool | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        """Look at what is in the files: ids of the vocabulary, and what the index was made for.

        Args:
            progress: called with the bytes read since, where all are read.
            whole: True to read every token, False for head, middle and tail of each file;
                None for every token up to ``WHOLE_BYTES``.
            cache_dir: where copies of far files are kept, None for the default.

        Raises:
            DataError: an id at or above ``vocab_size`` (with file and offset), or a file
                that is gone or whose content is not that in ``index.json``.
            WriteError: the copy of a far file cannot be kept.
        """
        in_threads(self._check_sample, self.files)
        if whole is None:
            whole = self.n_bytes <= WHOLE_BYTES
        for number, file in enumerate(self.files if whole else ()):
            digest, place = hashlib.sha256(), self.place(file)
            for start, chunk in chunks(self.tokens(number, cache_dir)):
                check_ids(place, chunk, start, self.vocab_size)
                if file.sha256 is not None:
                    digest.update(chunk.data)
                if progress is not None:
                    progress(chunk.nbytes)
            if file.sha256 is not None and file.sha256 != digest.hexdigest():
                raise _changed(place, digest.hexdigest(), file.sha256)

    def _check_sample(self, file: TokenFile) -> None:
        """Raise unless head, middle and tail of a file are those recorded."""
        place = self.place(file)
        size = size_of(place)
        if size is None:
            raise _gone(place)
        sample = read_sample(place, size)
        _check_size(file, place, size, sample.head)
        for start, ids in sample.tokens():
            check_ids(place, ids, start, self.vocab_size)
        if sample.fingerprint != file.sample:
            raise _changed(place, sample.fingerprint, file.sample)


def in_threads(look: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
    """Do the same for many files at once: each waits for a disk or a network.

    Returns:
        What came of each, in order.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(look, items))


def some_of(names: Sequence[object]) -> str:
    """Return the first names, and how many more there are.

    Example:
        >>> some_of(range(7))
        '0, 1, 2, 3, 4 and 2 more'
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(str, names[:_NAMED])) + more


def _check_files_here(folder: TokenFolder) -> None:
    """Raise unless each file of this machine is there, of the right size and form."""
    here = [(f, place) for f in folder.files if isinstance(place := folder.place(f), Path)]

    def look(item: tuple[TokenFile, Path]) -> Path | None:
        file, path = item
        if size_of(path) is None:
            return path
        _check_head(file, path, path)
        return None

    missing = [path for path in in_threads(look, here) if path is not None]
    if missing:
        raise DataError(
            f"{folder.path / 'index.json'}: {len(missing)} of the {len(folder.files)} token files "
            f"it names are missing: {some_of(missing)}; restore them, or {_AGAIN}"
        )


def _check_head(file: TokenFile, place: Place, path: Path) -> None:
    """Raise unless a file, or its copy at ``path``, has the recorded size and the right form."""
    size = size_of(path)
    if size is None:
        raise _gone(place)
    _check_size(file, place, size, read_range(path, 0, _HEAD_BYTES))


def _check_size(file: TokenFile, place: Place, size: int, head: bytes) -> None:
    """Raise unless a file is headerless uint32 of the recorded size."""
    check_form(place, size, head)
    if size != file.n_bytes:
        raise DataError(
            f"{place}: {size // TOKEN_BYTES} tokens, but index.json says {file.n_tokens}; it is "
            f"cut off or another file: restore it, or {_AGAIN}"
        )


def _gone(place: Place) -> DataError:
    """Say that a file is missing."""
    return DataError(
        f"{place}: no such token file, but index.json names it; restore it, or {_AGAIN}"
    )


def _changed(place: Place, found: str, expected: str) -> DataError:
    """Say that a file has other content."""
    return DataError(
        f"{place}: its content is not what index.json was written for (SHA-256 {found[:12]}, "
        f"expected {expected[:12]}); restore it, or {_AGAIN}"
    )


def _hash(record: object) -> str:
    """Hash a record of JSON values."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]


def _read_index(path: Path) -> dict[str, Any]:
    """Read index.json and check format and dtype."""
    file = path / "index.json"
    if not path.is_dir():
        raise DataError(f"{path}: no such token folder; make it with `python -m trainer tokenize`")
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: not a token folder (no index.json); make it with `python -m trainer tokenize`"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as JSON ({error}); {_AGAIN}") from error
    record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    found = (record.get("format"), record.get("dtype"))
    if found != (INDEX_FORMAT, "uint32"):
        raise DataError(
            f"{file}: format and dtype are {found}, expected {(INDEX_FORMAT, 'uint32')}; {_AGAIN}"
        )
    return record


@cache
def _field_types(kind: type[TokenFile] | type[TokenFolder]) -> dict[str, tuple[type, ...]]:
    """Return the fields of JSON values, and the types each may have."""
    known: dict[object, tuple[type, ...]] = {
        int: (int,),
        str: (str,),
        int | None: (int, type(None)),
        str | None: (str, type(None)),
    }
    return {name: known[hint] for name, hint in get_type_hints(kind).items() if hint in known}


def _check_types(item: TokenFile | TokenFolder) -> None:
    """Raise a TypeError that names a field whose value is not of its type, or below 0."""
    for name, kinds in _field_types(type(item)).items():
        value: object = getattr(item, name)
        if type(value) not in kinds or (type(value) is int and value < 0):
            raise TypeError(f"{name!r} is {value!r}")
