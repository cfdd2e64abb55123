"""The instances of a token folder, and what makes them the same ones again.

An **instance** is ``sequence_length`` consecutive tokens of one file; instances do not
overlap, the tail of each file is dropped, and their global index runs over the files in the
order of ``index.json``.

Source: OLMo-core ``data/numpy_dataset.py`` (NumpyFSLDataset).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from trainer.data.folder import INDEX_FORMAT, TokenFolder
from trainer.data.token_file import TokenFile, read_tokens

__all__ = [
    "INDEX_FORMAT",
    "InstanceIndex",
    "TokenFile",
    "TokenFolder",
    "differences",
    "read_tokens",
]


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

    def identity(self) -> dict[str, Any]:
        """Return, name by name, what makes the instances what they are, as JSON values."""
        return {
            **self.folder.identity(),
            "sequence_length": self.sequence_length,
            "instances": len(self),
        }

    def locate(self, instance: int) -> tuple[int, int]:
        """Return (number of the file, first token in it) of a global index.

        Example:
            >>> from pathlib import Path
            >>> files = tuple(TokenFile(f"{n}.npy", "a", n, 1, None, "") for n in (9, 10))
            >>> index = InstanceIndex.build(TokenFolder(Path("x"), files, 5, 0), 4)
            >>> len(index), index.locate(1), index.locate(2)
            (4, (0, 4), (1, 0))
        """
        files, starts = self.locate_many(np.array([instance], np.int64))
        return int(files[0]), int(starts[0])

    def locate_many(
        self, instances: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (numbers of the files, first tokens in them) of global indices.

        Args:
            instances: [n] within 0 and the length of the index.

        Returns:
            Two arrays [n].
        """
        files = np.searchsorted(self.offsets, instances, side="right") - 1
        return files, (instances - self.offsets[files]) * self.sequence_length


def differences(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Say in what two identities of data differ.

    Args:
        recorded: what ``InstanceIndex.identity`` was once.
        found: what it is now.

    Returns:
        A phrase for each field that differs, with both values.

    Example:
        >>> differences({"eos_id": 0, "dtype": "uint32"}, {"eos_id": 3, "dtype": "uint32"})
        ['eos_id is 3, was 0']
    """
    return [
        f"{name} is {found.get(name, 'not known')}, was {recorded.get(name, 'not known')}"
        for name in dict.fromkeys([*recorded, *found])
        if recorded.get(name) != found.get(name)
    ]
