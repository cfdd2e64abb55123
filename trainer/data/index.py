"""Token folders: which files there are, what they must look like, and their instances.

A token file is AI2's form: raw little-endian uint32 ids without a header, documents
ended by EOS. An **instance** is ``sequence_length`` consecutive tokens of one file;
instances do not overlap, the tail of each file is dropped, and their global index
runs over the files in the order of ``index.json``.

Source: OLMo-core ``data/numpy_dataset.py`` (NumpyFSLDataset).
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError

__all__ = ["INDEX_FORMAT", "InstanceIndex", "TokenFile", "TokenFolder", "read_tokens"]

INDEX_FORMAT: Final = 1
TOKEN_BYTES: Final = 4
NPY_MAGIC: Final = b"\x93NUMPY"
_CHUNK_TOKENS: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One file of token ids, as ``index.json`` records it.

    Attributes:
        path: name inside the folder.
        label: source of the text.
        n_tokens: ids in it.
        n_documents: documents in it.
        sha256: hash of its bytes.
    """

    path: str
    label: str
    n_tokens: int
    n_documents: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TokenFolder:
    """A folder of token files with its tokenizer.

    Attributes:
        path: the folder.
        files: its token files, in order.
        vocab_size: ids are below this.
        eos_id: id that ends documents.
        tokenizer: name of the tokenizer file inside the folder.
    """

    path: Path
    files: tuple[TokenFile, ...]
    vocab_size: int
    eos_id: int
    tokenizer: str = "tokenizer.json"

    @property
    def fingerprint(self) -> str:
        """Return a hash of everything that changes the tokens or their meaning."""
        record = [[asdict(file) for file in self.files], self.vocab_size, self.eos_id]
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:32]

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
        """Read ``index.json`` and check that each file is there with the size it names.

        Raises:
            DataError: no such folder or index, another format or dtype, or a file that
                is missing, empty, cut off, or a real ``.npy`` file.
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
                "make the folder again with `python -m trainer tokenize`"
            ) from error
        if not files:
            raise DataError(f"{path / 'index.json'}: names no token files; tokenize some text")
        for file in files:
            _check_form(path / file.path, file.n_tokens)
        if not (path / folder.tokenizer).is_file():
            raise DataError(
                f"{path / folder.tokenizer}: no such tokenizer file, but index.json names it; "
                "restore it: holdout and tasks can be scored with no other"
            )
        return folder

    def check(self) -> None:
        """Read every token once: ids within the vocabulary, bytes as they were written.

        Raises:
            DataError: an id at or above ``vocab_size`` (with file and offset), or a file
                whose hash is not the one in ``index.json``.
        """
        for file in self.files:
            path = self.path / file.path
            tokens = read_tokens(path)
            digest = hashlib.sha256()
            for start in range(0, len(tokens), _CHUNK_TOKENS):
                chunk = tokens[start : start + _CHUNK_TOKENS]
                _check_ids(path, chunk, start, self.vocab_size)
                digest.update(chunk.tobytes())
            if digest.hexdigest() != file.sha256:
                raise DataError(
                    f"{path}: its content is not what index.json was written for (SHA-256 "
                    f"{digest.hexdigest()[:12]}, expected {file.sha256[:12]}); tokenize again"
                )


@dataclass(frozen=True, slots=True)
class InstanceIndex:
    """The instances of a token folder at one sequence length.

    Attributes:
        folder: the token files.
        sequence_length: tokens an instance, at least 2.
        offsets: [files + 1] global index of each file's first instance, then the total.
    """

    folder: TokenFolder
    sequence_length: int
    offsets: NDArray[np.int64]

    @classmethod
    def build(cls, folder: TokenFolder, sequence_length: int) -> Self:
        """Count the instances of each file.

        Raises:
            DataError: no file is as long as one instance.
        """
        counts = [file.n_tokens // sequence_length for file in folder.files]
        if not sum(counts):
            raise DataError(
                f"{folder.path}: no file holds {sequence_length} tokens (the longest has "
                f"{max(file.n_tokens for file in folder.files)}); lower --sequence-length"
            )
        return cls(folder, sequence_length, np.concatenate([[0], np.cumsum(counts)]))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def fingerprint(self) -> str:
        """Return a hash of the tokens and of how they are cut into instances."""
        text = f"{self.folder.fingerprint}:{self.sequence_length}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def locate(self, instance: int) -> tuple[int, int]:
        """Return (number of the file, first token in it) of a global index.

        Example:
            >>> files = tuple(TokenFile(f"{n}.npy", "a", n, 1, "") for n in (9, 10))
            >>> index = InstanceIndex.build(TokenFolder(Path("x"), files, 5, 0), 4)
            >>> len(index), index.locate(1), index.locate(2)
            (4, (0, 4), (1, 0))
        """
        file = int(np.searchsorted(self.offsets, instance, side="right")) - 1
        return file, (instance - int(self.offsets[file])) * self.sequence_length


def read_tokens(path: Path) -> NDArray[np.uint32]:
    """Map a token file into memory as uint32."""
    return np.memmap(path, dtype="<u4", mode="r")


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
        raise DataError(f"{file}: cannot be read as JSON ({error})") from error
    record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    found = (record.get("format"), record.get("dtype"))
    if found != (INDEX_FORMAT, "uint32"):
        raise DataError(
            f"{file}: format and dtype are {found}, expected {(INDEX_FORMAT, 'uint32')}; "
            "tokenize again with this version"
        )
    return record


def _check_types(item: TokenFile | TokenFolder) -> None:
    """Raise a TypeError that names a field whose value is not of its type, or below 0."""
    for name, hint in get_type_hints(type(item)).items():
        value: object = getattr(item, name)
        if hint in (int, str) and (type(value) is not hint or (type(value) is int and value < 0)):
            raise TypeError(f"{name!r} is {value!r}")


def _check_form(path: Path, n_tokens: int) -> None:
    """Raise when a token file cannot be headerless uint32 of the recorded size."""
    if not path.is_file():
        raise DataError(f"{path}: no such token file, but index.json names it; tokenize again")
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(len(NPY_MAGIC))
    if start == NPY_MAGIC:
        raise DataError(
            f"{path}: starts with a NumPy header; token files are headerless uint32. "
            "Write it with ndarray.tofile, not numpy.save"
        )
    if size == 0:
        raise DataError(f"{path}: empty token file; tokenize again or drop it from index.json")
    if size % TOKEN_BYTES:
        raise DataError(
            f"{path}: {size} bytes, not a multiple of {TOKEN_BYTES}; it is cut off or not uint32"
        )
    if size != n_tokens * TOKEN_BYTES:
        raise DataError(
            f"{path}: {size // TOKEN_BYTES} tokens, but index.json says {n_tokens}; it is cut off "
            "or another file; tokenize again"
        )


def _check_ids(path: Path, chunk: NDArray[np.uint32], start: int, vocab_size: int) -> None:
    """Raise when an id lies outside the vocabulary, naming its offset."""
    outside = np.flatnonzero(chunk >= vocab_size)
    if not outside.size:
        return
    first = int(outside[0])
    message = (
        f"{path}: token id {int(chunk[first])} at token {start + first} (byte "
        f"{(start + first) * TOKEN_BYTES}), but the vocabulary has {vocab_size} ids"
    )
    halves = np.frombuffer(chunk.tobytes(), dtype="<u2")
    if outside.size > len(chunk) // 2 and bool((halves < vocab_size).all()):
        raise DataError(f"{message}; the bytes look like uint16 ids: rewrite the file as uint32")
    raise DataError(f"{message}; tokenize with the tokenizer in this folder")
