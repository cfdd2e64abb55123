"""The id log: which instance was read in which step by which host, with its hash.

Source: ``evalmon.types`` fixes the form (16 bytes of magic, then 24-byte records).
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, text_hashes
from trainer.data.pipeline import GlobalBatch

__all__ = ["IdLogWriter", "id_records"]


class IdLogWriter:
    """Appends one record an instance to ``ids.bin``, before the step that trains on it.

    Args:
        path: the file, made if it is not there. A record cut off by a kill is removed.

    Raises:
        DataError: the file is not an id log.
    """

    def __init__(self, path: Path) -> None:
        self._stream = path.open("ab")
        size = path.stat().st_size
        with path.open("rb") as existing:
            magic = existing.read(len(ID_LOG_MAGIC))
        if magic != ID_LOG_MAGIC[:size]:
            self._stream.close()
            raise DataError(
                f"{path}: starts with {magic!r}, not an id log of this version; move it away"
            )
        if size < len(ID_LOG_MAGIC):
            self._stream.write(ID_LOG_MAGIC[size:])
            self._stream.flush()
            return
        torn = (size - len(ID_LOG_MAGIC)) % ID_LOG_RECORD.itemsize
        if torn:
            os.truncate(path, size - torn)

    def append(self, records: NDArray[np.void]) -> None:
        """Write the records of one step and hand them to the system."""
        self._stream.write(records.tobytes())
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()


def id_records(step: int, batch: GlobalBatch) -> NDArray[np.void]:
    """Return the records of a step's instances.

    Args:
        step: 1-based step that trains on them.
        batch: its instances.

    Returns:
        [rows of the batch] of dtype ``ID_LOG_RECORD``.
    """
    records = np.empty(len(batch.instances), dtype=ID_LOG_RECORD)
    records["step"] = step
    records["host"] = batch.hosts
    records["instance"] = batch.instances
    records["text_hash"] = text_hashes(batch.tokens)
    return records
