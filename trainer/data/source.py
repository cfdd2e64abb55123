"""Random access to instances: one, in the form Grain reads from, or many at once."""

import hashlib
import resource
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from trainer.data.index import InstanceIndex
from trainer.data.selection import Selection

__all__ = ["Instance", "InstanceSource"]


class Instance(TypedDict):
    """One record: ``tokens`` [L] and ``instance``, its global index in the token folder."""

    tokens: NDArray[np.uint32]
    instance: np.int64


class InstanceSource:
    """The instances a run reads, by memory maps that are opened when first read.

    Args:
        index: all instances of the folder.
        selection: which of them a pass reads, None for all once.
        cache_dir: where copies of far files are kept, None for the default.
    """

    def __init__(
        self,
        index: InstanceIndex,
        selection: Selection | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        self.index = index
        self.selection = Selection.evenly(len(index)) if selection is None else selection
        self._cache_dir = cache_dir
        self._length = len(self.selection)
        self._maps: dict[int, NDArray[np.uint32]] = {}

    @property
    def fingerprint(self) -> str:
        """Return a hash of the tokens behind every position."""
        text = f"{self.index.fingerprint}:{self.selection.fingerprint}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Instance:
        """Return the instance at position ``index`` of the selection."""
        tokens, instances = self.read(np.array([int(index)], np.int64))
        return {"tokens": tokens[0], "instance": instances[0]}

    def read(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Copy the instances at positions of the selection.

        Args:
            positions: [n] within 0 and the length of the source.

        Returns:
            Token ids [n, L], and the global indices [n] of the instances in the folder.

        Raises:
            DataError: a file is gone or was changed, or cannot be fetched.
        """
        instances = self.selection.at(positions)
        files, starts = self.index.locate_many(instances)
        length = self.index.sequence_length
        tokens = np.empty((len(instances), length), np.uint32)
        for row, (file, start) in enumerate(zip(files.tolist(), starts.tolist(), strict=True)):
            opened = self._maps.get(file)
            if opened is None:
                opened = self._open(file)
            tokens[row] = opened[start : start + length]
        return tokens, instances

    def __repr__(self) -> str:
        """Name the content, because Grain compares this text when it restores a position."""
        return f"InstanceSource({self.fingerprint}, {self._length} of {len(self.index)})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the maps behind: a worker opens those it reads."""
        return {**self.__dict__, "_maps": {}}

    def _open(self, file: int) -> NDArray[np.uint32]:
        """Map a file; the one mapped first makes room, because every map holds a descriptor."""
        while len(self._maps) >= max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2):
            del self._maps[next(iter(self._maps))]
        opened = self._maps[file] = self.index.folder.tokens(file, self._cache_dir)
        return opened
