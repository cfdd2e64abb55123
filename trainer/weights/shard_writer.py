"""Shards of tensors and their index, written tensor by tensor in any order.

Source: huggingface/safetensors, format section of its README; file names and index as
transformers' ``save_pretrained`` writes them.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from evalmon.errors import ConfigError, WriteError
from trainer.weights.casting import DTYPES, Array, blocks
from trainer.weights.safetensors_files import CODES, INDEX, SINGLE, StoredTensor

__all__ = ["ShardWriter", "Signature", "parse_size"]

Signature: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of a tensor."""

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return bytes for a size as ``5GB`` (10^9), ``500MB`` or ``2GiB`` (2^30).

    Raises:
        ConfigError: it is no size, or zero.

    Example:
        >>> parse_size("5GB"), parse_size("2GiB")
        (5000000000, 2147483648)
    """
    match = _SIZE.fullmatch(text.strip())
    power = " kmgt".index(match[2].lower() or " ") if match else 0
    size = float(match[1]) * (1024 if match[3] else 1000) ** power if match else 0.0
    if not 1 <= size < math.inf:
        raise ConfigError(f"--max-shard-size {text!r}: expected a size as 5GB or 500MB")
    return int(size)


class ShardWriter:
    """Shards of known tensors, filled in any order.

    Args:
        folder: where to write; it exists and is empty.
        tensors: dtype and shape by name, in order.
        shard_bytes: bytes of tensors a file at most; a larger tensor has its own file.

    Raises:
        WriteError: a file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        tensors: Mapping[str, Signature],
        shard_bytes: int,
    ) -> None:
        self._folder = folder
        self._places: dict[str, StoredTensor] = {}
        shards = _split({n: _bytes(*signature) for n, signature in tensors.items()}, shard_bytes)
        for number, names in enumerate(shards, 1):
            name = (
                SINGLE
                if len(shards) == 1
                else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            )
            self._lay_out(folder / name, {n: tensors[n] for n in names})
        if len(shards) > 1:
            self._write_index()

    def write(self, name: str, array: Array) -> None:
        """Write one tensor, of the dtype and shape that were announced."""
        place = self._places[name]
        if (array.dtype, array.shape) != (place.dtype, place.shape):
            raise ValueError(f"{name}: {array.dtype} {array.shape}, announced {place}")
        try:
            with place.file.open("r+b") as file:
                file.seek(place.begin)
                for part in blocks(array):
                    file.write(np.ascontiguousarray(part).view(np.uint8).data)
        except OSError as error:
            raise WriteError(
                f"{place.file}: cannot be written ({error}); free some space"
            ) from error

    def _lay_out(self, file: Path, tensors: Mapping[str, Signature]) -> None:
        """Write a file's header, and note where its tensors go."""
        codes = {DTYPES[name]: code for code, name in CODES.items()}
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        # The widest first, so that every tensor lies on a multiple of its own width.
        ordered = sorted(tensors.items(), key=lambda item: -item[1][0].itemsize)
        for name, (dtype, shape) in ordered:
            begin, end = end, end + _bytes(dtype, shape)
            header[name] = {"dtype": codes[dtype], "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        for name, (dtype, shape) in ordered:
            begin = 8 + len(text) + header[name]["data_offsets"][0]
            self._places[name] = StoredTensor(file, begin, dtype, shape)
        try:
            with file.open("wb") as opened:
                opened.write(len(text).to_bytes(8, "little") + text)
                opened.truncate(8 + len(text) + end)
        except OSError as error:
            raise WriteError(f"{file}: cannot be written ({error}); free some space") from error

    def _write_index(self) -> None:
        """Write which file each tensor is in."""
        sizes = [place.nbytes for place in self._places.values()]
        counts = [int(np.prod(place.shape, dtype=np.int64)) for place in self._places.values()]
        record = {
            "metadata": {"total_parameters": sum(counts), "total_size": sum(sizes)},
            "weight_map": {name: place.file.name for name, place in self._places.items()},
        }
        text = json.dumps(record, indent=2, sort_keys=True) + "\n"
        try:
            (self._folder / INDEX).write_text(text, encoding="utf-8")
        except OSError as error:
            raise WriteError(
                f"{self._folder / INDEX}: cannot be written ({error}); free some space"
            ) from error


def _split(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Return names in groups of at most ``limit`` bytes, in order."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor."""
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))
