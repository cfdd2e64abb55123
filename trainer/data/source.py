"""Random access to instances, in the form Grain reads from."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import ConfigError
from trainer.data.index import InstanceIndex, read_tokens

__all__ = ["Instance", "InstanceSource", "evenly_spaced"]


class Instance(TypedDict):
    """One record: ``tokens`` [L] and ``instance``, its global index in the token folder."""

    tokens: NDArray[np.uint32]
    instance: np.int64


class InstanceSource:
    """The instances a run reads, by memory map.

    Args:
        index: all instances of the folder.
        keep: how many of them the run reads, evenly spaced over the folder so that every
            source contributes; None for all.

    Raises:
        ConfigError: ``keep`` is not within 1 and the number of instances.
    """

    def __init__(self, index: InstanceIndex, keep: int | None = None) -> None:
        total = len(index)
        if keep is not None and not 1 <= keep <= total:
            raise ConfigError(
                f"--instances {keep}: {index.folder.path} holds {total} instances of "
                f"{index.sequence_length} tokens; give 1 to {total}, or more text"
            )
        self.index = index
        self._length = keep or total
        self._files = [read_tokens(index.folder.path / file.path) for file in index.folder.files]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Instance:
        """Return instance ``index`` of those kept."""
        instance = evenly_spaced(int(index), self._length, len(self.index))
        file, start = self.index.locate(instance)
        tokens = self._files[file][start : start + self.index.sequence_length]
        return {"tokens": np.array(tokens), "instance": np.int64(instance)}

    def __repr__(self) -> str:
        """Name the content, because Grain compares this text when it restores a position."""
        return f"InstanceSource({self.index.fingerprint}, {self._length} of {len(self.index)})"


def evenly_spaced(position: int, keep: int, total: int) -> int:
    """Return which of ``total`` is the ``position``-th of ``keep`` evenly spaced ones.

    Example:
        >>> [evenly_spaced(i, 4, 10) for i in range(4)]
        [0, 2, 5, 7]
    """
    return position * total // keep
