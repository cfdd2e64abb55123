"""Files of token ids: their form, and what tells one content from another.

A token file is AI2's form: raw little-endian uint32 ids without a header. So nothing in it
says how wide its numbers are: that is recognized by what they look like.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from trainer.data import remote

__all__ = [
    "TOKEN_BYTES",
    "Place",
    "Sample",
    "TokenFile",
    "check_form",
    "check_ids",
    "chunks",
    "read_range",
    "read_sample",
    "read_tokens",
    "size_of",
]

TOKEN_BYTES: Final = 4
NPY_MAGIC: Final = b"\x93NUMPY"

Place = Path | str
"""Where a file lies: a path of this machine, or an address."""

_BLOCK: Final = 1 << 16
_CHUNK_TOKENS: Final = 1 << 22
_FEWEST_PAIRS: Final = 64


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One file of token ids, as ``index.json`` records it.

    Attributes:
        path: name inside the folder, absolute path, or address.
        label: source of the text.
        n_tokens: ids in it.
        n_documents: documents in it, None where they were not counted.
        sha256: hash of its bytes, None where it was not read whole.
        sample: hash of its size and of the 64 KiB at its head, middle and tail.
    """

    path: str
    label: str
    n_tokens: int
    n_documents: int | None
    sha256: str | None
    sample: str

    @classmethod
    def of(
        cls,
        place: Place,
        path: str,
        label: str,
        *,
        whole: bool = True,
        ids: tuple[int, int] | None = None,
    ) -> Self:
        """Describe a file of the right form.

        Args:
            place: where it lies.
            path: what ``index.json`` is to call it.
            label: source of the text.
            whole: whether to read all of it; else head, middle and tail.
            ids: vocabulary size and id that ends documents: what is read is checked against
                the one, and with ``whole`` documents are counted by the other.

        Raises:
            DataError: no such file, none of headerless uint32, or an id outside the vocabulary.
        """
        size = size_of(place)
        if size is None:
            raise DataError(f"{place}: no such token file; restore it, or leave it out")
        sample = read_sample(place, size)
        check_form(place, size, sample.head)
        n_documents, sha256 = None, None
        if whole:
            n_documents, sha256 = _read_whole(place, ids)
        elif ids is not None:
            for start, block in sample.tokens():
                check_ids(place, block, start, ids[0])
        return cls(path, label, size // TOKEN_BYTES, n_documents, sha256, sample.fingerprint)

    @property
    def n_bytes(self) -> int:
        """Return its size."""
        return self.n_tokens * TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Sample:
    """The blocks of a file that are looked at where reading all would take too long.

    Attributes:
        size: bytes of the file.
        blocks: (first byte, content) of each.
    """

    size: int
    blocks: tuple[tuple[int, bytes], ...]

    @property
    def head(self) -> bytes:
        """Return how the file begins."""
        return self.blocks[0][1]

    @property
    def fingerprint(self) -> str:
        """Return a hash of size and blocks."""
        digest = hashlib.sha256(str(self.size).encode())
        for start, block in self.blocks:
            digest.update(f":{start}:".encode())
            digest.update(block)
        return digest.hexdigest()[:32]

    def tokens(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """Yield the number of the first token of each block, and its ids."""
        for start, block in self.blocks:
            whole = len(block) // TOKEN_BYTES * TOKEN_BYTES
            yield start // TOKEN_BYTES, np.frombuffer(block[:whole], "<u4")


def read_sample(place: Place, size: int) -> Sample:
    """Read head, middle and tail of a file, all of a small one.

    Args:
        place: where it lies.
        size: its bytes.
    """
    if size <= 3 * _BLOCK:
        spans = [(0, size)]
    else:
        middle, tail = ((size - _BLOCK) // part // TOKEN_BYTES * TOKEN_BYTES for part in (2, 1))
        spans = [(0, _BLOCK), (middle, middle + _BLOCK), (tail, size)]
    return Sample(size, tuple((start, read_range(place, start, stop)) for start, stop in spans))


def size_of(place: Place) -> int | None:
    """Return the bytes of a file, None if there is none.

    Raises:
        FetchError: an address that cannot be asked.
    """
    if isinstance(place, str):
        return remote.size_of(place)
    try:
        return place.stat().st_size if place.is_file() else None
    except OSError as error:
        raise DataError(f"{place}: cannot be looked at ({error}); check its rights") from error


def read_range(place: Place, start: int, stop: int) -> bytes:
    """Return the bytes of a file from ``start`` up to ``stop``.

    Raises:
        DataError: they cannot be read.
    """
    if isinstance(place, str):
        return remote.read_range(place, start, stop) if stop > start else b""
    try:
        with place.open("rb") as stream:
            stream.seek(start)
            return stream.read(stop - start)
    except OSError as error:
        raise DataError(f"{place}: cannot be read ({error}); check its rights") from error


def read_tokens(path: Path) -> NDArray[np.uint32]:
    """Map a token file into memory as uint32."""
    if not path.stat().st_size:
        return np.empty(0, np.uint32)
    # A plain view of the map: slicing a memmap itself is several times as slow.
    return np.asarray(np.memmap(path, dtype="<u4", mode="r"))


def chunks(tokens: NDArray[np.uint32]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield the tokens of a file in parts, and the number of the first of each."""
    for start in range(0, len(tokens), _CHUNK_TOKENS):
        yield start, tokens[start : start + _CHUNK_TOKENS]


def check_form(place: Place, size: int, head: bytes) -> None:
    """Raise unless a file can be headerless uint32.

    Args:
        place: where it lies.
        size: its bytes.
        head: how it begins.
    """
    if head.startswith(NPY_MAGIC):
        raise DataError(
            f"{place}: starts with a NumPy header; token files are headerless uint32. "
            "Write it with ndarray.tofile, not numpy.save"
        )
    if size % TOKEN_BYTES:
        raise DataError(
            f"{place}: {size} bytes, not a multiple of {TOKEN_BYTES}; it is cut off or not uint32: "
            "restore it, or write it again as uint32"
        )


def check_ids(place: Place, chunk: NDArray[np.uint32], start: int, vocab_size: int) -> None:
    """Raise when ids lie outside the vocabulary, or look like numbers of another width.

    Args:
        place: where the file lies.
        chunk: [n] some of its ids.
        start: number of the first of them in the file.
        vocab_size: ids are below this.
    """
    _check_width(place, chunk)
    outside = np.flatnonzero(chunk >= vocab_size)
    if not outside.size:
        return
    first = int(outside[0])
    message = (
        f"{place}: token id {int(chunk[first])} at token {start + first} (byte "
        f"{(start + first) * TOKEN_BYTES}), but the vocabulary has {vocab_size} ids"
    )
    halves = np.frombuffer(chunk.tobytes(), dtype="<u2")
    if outside.size > len(chunk) // 2 and bool((halves < vocab_size).all()):
        raise DataError(f"{message}; the bytes look like uint16 ids: rewrite the file as uint32")
    raise DataError(f"{message}; it belongs to another tokenizer: tokenize with that of the folder")


def _check_width(place: Place, chunk: NDArray[np.uint32]) -> None:
    """Raise when every second id is 0, and hardly any other: the high halves of uint64."""
    pairs = len(chunk) // 2
    if pairs < _FEWEST_PAIRS:
        return
    low, high = chunk[: 2 * pairs : 2], chunk[1 : 2 * pairs : 2]
    if not high.any() and np.count_nonzero(low) > pairs // 2:
        raise DataError(
            f"{place}: every second id is 0; the bytes look like uint64 ids: rewrite the file as "
            "uint32"
        )


def _read_whole(place: Place, ids: tuple[int, int] | None) -> tuple[int | None, str]:
    """Read every token of a file, a far one's copy: return its documents and its hash."""
    path = remote.local_copy(place) if isinstance(place, str) else place
    digest, ends = hashlib.sha256(), 0
    for start, chunk in chunks(read_tokens(path)):
        digest.update(chunk.data)
        if ids is not None:
            check_ids(place, chunk, start, ids[0])
            ends += int(np.count_nonzero(chunk == ids[1]))
    return None if ids is None else ends, digest.hexdigest()
