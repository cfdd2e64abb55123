"""What loaders drew: one record an instance, in columns that grow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalmon.types import IntArray, text_hashes

__all__ = ["DrawLog", "Draws", "single_token"]

_TOGETHER = 256
_TOKENS_TOGETHER = 1 << 22


@dataclass(frozen=True, slots=True)
class Draws:
    """Records of draws, by step, then host, then place in the host's batch.

    Attributes:
        step: [n] 1-based step of all hosts together.
        host: [n] 0-based host.
        slot: [n] 0-based place in the host's batch.
        instance: [n] the loader's own id; -1 throughout where it has none.
        text_hash: [n] 64 bits of the token ids.
        single: [n] whether all tokens of the instance are one and the same.
    """

    step: NDArray[np.int32]
    host: NDArray[np.int32]
    slot: NDArray[np.int32]
    instance: IntArray
    text_hash: NDArray[np.uint64]
    single: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)


class DrawLog:
    """Collects draws: 29 bytes each, in columns that double when full."""

    def __init__(self) -> None:
        self._columns: dict[str, NDArray[Any]] = {
            "step": np.empty(1024, np.int32),
            "host": np.empty(1024, np.int32),
            "slot": np.empty(1024, np.int32),
            "instance": np.empty(1024, np.int64),
            "text_hash": np.empty(1024, np.uint64),
            "single": np.empty(1024, np.bool_),
        }
        self._waiting: list[tuple[int, int, NDArray[Any], IntArray | None]] = []
        self._waiting_tokens = 0
        self._length = 0
        self._written = 0

    def __len__(self) -> int:
        return self._length

    def append(self, step: int, host: int, tokens: NDArray[Any], ids: IntArray | None) -> None:
        """Add one host's batch of one step.

        Args:
            step: 1-based.
            host: 0-based.
            tokens: [b, L] integers; copied, because a loader may use its memory again.
            ids: [b] the loader's ids; of one log all batches have them or none has.
        """
        waiting = self._waiting
        if waiting and waiting[0][2].shape[1] != tokens.shape[1]:
            self._write()
            waiting = self._waiting
        # Batches are hashed many at a time: one alone costs more than its loader.
        waiting.append((step, host, tokens.copy(), ids))
        self._waiting_tokens += tokens.size
        self._length += len(tokens)
        if len(waiting) >= _TOGETHER or self._waiting_tokens >= _TOKENS_TOGETHER:
            self._write()

    def draws(self) -> Draws:
        """Return what was collected so far, without a copy."""
        self._write()
        cut = {name: column[: self._length] for name, column in self._columns.items()}
        return Draws(**cut)

    def _write(self) -> None:
        """Put what waits into the columns."""
        if not self._waiting:
            return
        steps, hosts, parts, ids = zip(*self._waiting, strict=True)
        sizes = [len(part) for part in parts]
        start, stop = self._written, self._written + sum(sizes)
        if stop > len(self._columns["step"]):
            self._grow(stop)
        columns = self._columns
        tokens = np.concatenate(parts)
        columns["step"][start:stop] = np.repeat(steps, sizes)
        columns["host"][start:stop] = np.repeat(hosts, sizes)
        columns["slot"][start:stop] = np.concatenate([np.arange(size) for size in sizes])
        columns["text_hash"][start:stop] = text_hashes(tokens)
        columns["single"][start:stop] = single_token(tokens)
        columns["instance"][start:stop] = -1 if ids[0] is None else np.concatenate(ids)
        self._written, self._waiting, self._waiting_tokens = stop, [], 0

    def _grow(self, needed: int) -> None:
        """Make room for ``needed`` records."""
        size = max(needed, 2 * len(self._columns["step"]))
        for name, column in self._columns.items():
            grown = np.empty(size, column.dtype)
            grown[: self._written] = column[: self._written]
            self._columns[name] = grown


def single_token(tokens: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows hold one token over and over.

    Args:
        tokens: [b, L]; rows of one token alone are texts like others.

    Returns:
        [b] flags.
    """
    if tokens.shape[1] < 2:
        return np.zeros(len(tokens), np.bool_)
    return (tokens == tokens[:, :1]).all(axis=1)
