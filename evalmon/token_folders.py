"""Token folders as ``index.json`` names them: files of little-endian uint32 token ids.

The trainer writes them (or points at files of another's), evalmon only reads: which
instances there are, and what text. Paths are relative to the folder or absolute; data
behind a URL must be fetched first.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from evalmon.types import IntArray

__all__ = ["FolderFile", "FolderIndex", "Instances"]


@dataclass(frozen=True, slots=True)
class FolderFile:
    """One file of token ids.

    Attributes:
        path: where it lies.
        name: how ``index.json`` names it.
        label: source of the text.
        n_tokens: ids in it.
    """

    path: Path
    name: str
    label: str
    n_tokens: int

    def tokens(self) -> NDArray[np.uint32]:
        """Map the [n_tokens] ids into memory.

        Raises:
            DataError: no such file, or one of another size.
        """
        size = self.path.stat().st_size if self.path.is_file() else -1
        if size != 4 * self.n_tokens:
            raise DataError(
                f"{self.path}: not the {self.n_tokens} uint32 tokens that index.json names; "
                "restore the file, or make the folder again"
            )
        if not size:
            return np.empty(0, np.uint32)
        return np.memmap(self.path, dtype="<u4", mode="r")


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """What ``index.json`` says.

    Attributes:
        folder: the folder.
        files: its token files, in order.
        fingerprint: hash of what they hold, "" when it is not said.
        eos_id: id that ends documents, None when it is not said.
        tokenizer: its ``tokenizers`` JSON file, None without one.
    """

    folder: Path
    files: tuple[FolderFile, ...]
    fingerprint: str
    eos_id: int | None
    tokenizer: Path | None

    @classmethod
    def read(cls, folder: Path) -> "FolderIndex":
        """Read ``index.json``; the files are not looked at.

        Raises:
            DataError: no index, not of this form, or a file of it behind a URL.
        """
        index = folder / "index.json"
        try:
            record = cast("dict[str, Any]", json.loads(index.read_text(encoding="utf-8")))
            files = tuple(
                FolderFile(
                    folder / item["path"], item["path"], str(item["label"]), int(item["n_tokens"])
                )
                for item in record["files"]
            )
            eos_id = None if record.get("eos_id") is None else int(record["eos_id"])
            tokenizer = folder / record["tokenizer"] if record.get("tokenizer") else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{index}: cannot be read as the index of a token folder ({error}); give the "
                "folder that run.json names"
            ) from error
        for file in files:
            if "://" in file.name:
                raise DataError(
                    f"{index}: {file.name!r} is a URL, and evalmon reads local token files only; "
                    "fetch them and index the copies with `python -m trainer index`"
                )
        return cls(folder, files, str(record.get("fingerprint", "")), eos_id, tokenizer)


class Instances:
    """The instances of a token folder: consecutive ``length`` tokens of one file.

    The global index runs over the files in the order of ``index.json``; the tail of each
    file is dropped.

    Args:
        folder: the token folder.
        length: tokens an instance.

    Raises:
        DataError: no index, or a token file of another size than it names.
    """

    def __init__(self, folder: Path, length: int) -> None:
        index = FolderIndex.read(folder)
        self.folder, self.fingerprint = folder, index.fingerprint
        self._length = length
        self._labels = [file.label for file in index.files]
        self._files = [file.tokens() for file in index.files]
        counts = [file.n_tokens // length for file in index.files]
        self._starts: IntArray = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def label(self, instance: int) -> str:
        """Return the source an instance is of.

        Raises:
            IndexError: there is no such instance.
        """
        return self._labels[self._file(instance)]

    def by_label(self) -> dict[str, list[int]]:
        """Return the instances of each source."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for file, label in enumerate(self._labels):
            found[label] += range(int(self._starts[file]), int(self._starts[file + 1]))
        return dict(found)

    def tokens(self, instance: int) -> tuple[int, ...]:
        """Return the token ids of an instance.

        Raises:
            IndexError: there is no such instance.
        """
        file = self._file(instance)
        start = (instance - int(self._starts[file])) * self._length
        return tuple(self._files[file][start : start + self._length].tolist())

    def _file(self, instance: int) -> int:
        """Return the number of the file an instance is in."""
        if not 0 <= instance < len(self):
            raise IndexError(instance)
        return int(np.searchsorted(self._starts, instance, side="right")) - 1
