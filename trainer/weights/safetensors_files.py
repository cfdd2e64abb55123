"""Shards of tensors, read as memory maps.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name ->
dtype, shape, begin and end of its bytes) and the bytes. A folder is one file, or several
and an index that names the file of each tensor.

Source: huggingface/safetensors, format section of its README.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from evalmon.errors import CheckpointError
from trainer.weights.casting import DTYPES, Array
from trainer.weights.json_files import read_object

__all__ = ["CODES", "INDEX", "SINGLE", "StoredTensor", "open_tensors"]

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

CODES: Final = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Dtypes by their names in a header."""
_LONGEST_HEADER: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: its bytes are mapped when it is read, never copied."""

    file: Path
    begin: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Length of its bytes."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def read(self) -> Array:
        """Return the tensor as a view of the file."""
        mapped = np.memmap(self.file, self.dtype, "r", self.begin, self.shape)
        return mapped.view(np.ndarray)


def open_tensors(folder: Path) -> tuple[dict[str, StoredTensor], tuple[Path, ...]]:
    """Read the headers of a folder of shards.

    Returns:
        Tensors by name, and the files they are in (the index among them).

    Raises:
        CheckpointError: no shards, or both forms; a file is cut off or no safetensors file;
            the index does not fit the files; a tensor is in two files, or of a dtype that
            is no weight's.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.exists() and index.exists():
        raise CheckpointError(f"{folder}: holds {SINGLE} and {INDEX}; remove one of them")
    if single.exists():
        return _header(single), (single,)
    if not index.exists():
        raise CheckpointError(
            f"{folder}: holds neither {SINGLE} nor {INDEX}; give a folder that save_pretrained "
            "wrote, with safe_serialization"
        )
    return _open_shards(folder, index)


def _open_shards(folder: Path, index: Path) -> tuple[dict[str, StoredTensor], tuple[Path, ...]]:
    """Read the files of an index, and compare them with it."""
    record = read_object(index)
    listed = record.get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{index}: no weight_map; copy it from the source again")
    weight_map = cast("dict[str, Any]", listed)
    tensors: dict[str, StoredTensor] = {}
    files = sorted({str(name) for name in weight_map.values()})
    for name in files:
        file = folder / name
        if Path(name).name != name or not file.exists():
            raise CheckpointError(f"{index}: names {name!r}, which is not in {folder}; fetch it")
        for tensor, stored in _header(file).items():
            if tensor in tensors:
                raise CheckpointError(
                    f"{folder}: {tensor} is in {tensors[tensor].file.name} and in {name}; "
                    "write the shards again"
                )
            tensors[tensor] = stored
    for tensor, name in weight_map.items():
        if tensor not in tensors:
            raise CheckpointError(f"{index}: {tensor} is not in {name}, nor in another shard")
        if tensors[tensor].file.name != name:
            raise CheckpointError(
                f"{index}: says {tensor} is in {name}, but it is in {tensors[tensor].file.name}"
            )
    if unlisted := sorted(set(tensors) - set(weight_map)):
        raise CheckpointError(
            f"{index}: does not list {unlisted[0]} of {tensors[unlisted[0]].file.name}"
        )
    _require_total(record, tensors.values(), index)
    return tensors, (index, *(folder / name for name in files))


def _require_total(record: Mapping[str, Any], tensors: Iterable[StoredTensor], index: Path) -> None:
    """Refuse an index that says another number of bytes than the files hold."""
    total = sum(tensor.nbytes for tensor in tensors)
    metadata = record.get("metadata")
    said = (
        cast("dict[str, Any]", metadata).get("total_size") if isinstance(metadata, dict) else None
    )
    if said is not None and said != total:
        raise CheckpointError(
            f"{index}: total_size is {said}, but its tensors have {total} bytes; a shard or the "
            "index is of another model"
        )


def _header(file: Path) -> dict[str, StoredTensor]:
    """Read the header of a file and check it against the file's length."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little") if size >= 8 else 0
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise CheckpointError(
                    f"{file}: {size} bytes, but a header of {length} is announced; cut off, or no "
                    "safetensors file: fetch it again"
                )
            text = opened.read(length)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); fetch it again") from error
    entries = _parse(text, file)
    entries.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _tensor(name, entry, file, start) for name, entry in entries.items()}
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.begin != end:
            raise CheckpointError(f"{file}: the bytes of {name} overlap others or leave a gap")
        end += tensor.nbytes
    if end != size:
        raise CheckpointError(
            f"{file}: {size} bytes, but its header says {end}; it is "
            f"{'cut off' if size < end else 'longer than it should be'}: fetch it again"
        )
    return tensors


def _tensor(name: str, entry: Any, file: Path, start: int) -> StoredTensor:
    """Read one entry of a header."""
    try:
        code, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        code, shape, begin, end, whole = "", (), 0, 0, False
    if not whole or not isinstance(code, str):
        raise CheckpointError(f"{file}: the header's entry of {name} is damaged; fetch it again")
    if code not in CODES:
        raise CheckpointError(
            f"{file}: {name} has dtype {code}; expected one of {', '.join(CODES)}: export the "
            "weights unquantized"
        )
    stored = StoredTensor(file, start + begin, DTYPES[CODES[code]], shape)
    if end - begin != stored.nbytes:
        raise CheckpointError(
            f"{file}: {name} is {code} {list(shape)}, {stored.nbytes} bytes, but has "
            f"{end - begin}; fetch it again"
        )
    return stored


def _parse(text: bytes, file: Path) -> dict[str, Any]:
    """Parse a header; a name that stands twice is no dictionary."""

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            raise ValueError("a name stands twice")
        return record

    try:
        loaded = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: its header cannot be read ({error}); no safetensors file, or damaged"
        ) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file}: its header is no object; no safetensors file, or damaged")
    return cast("dict[str, Any]", loaded)
