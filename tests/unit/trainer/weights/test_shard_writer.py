import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import ConfigError, WriteError
from trainer.weights.casting import Array
from trainer.weights.safetensors_files import open_tensors
from trainer.weights.shard_writer import ShardWriter, parse_size

Read = Callable[[Path], dict[str, Array]]


def _write(folder: Path, tensors: dict[str, Array], limit: int) -> None:
    writer = ShardWriter(folder, {n: (a.dtype, a.shape) for n, a in tensors.items()}, limit)
    for name in reversed(tensors):  # any order
        writer.write(name, tensors[name])


@pytest.fixture
def tensors(bfloat16: np.dtype[Any]) -> dict[str, Array]:
    """Tensors of two widths and of every layout in memory."""
    rng = np.random.default_rng(0)
    return {
        "odd": rng.standard_normal(3).astype(bfloat16),
        "plain": rng.standard_normal((4, 6)).astype(np.float32),
        "turned": rng.standard_normal((6, 4)).astype(np.float32).T,
        "slice": rng.standard_normal((4, 3, 5)).astype(bfloat16)[:, 1],
    }


@pytest.mark.parametrize(("limit", "files"), [(10**9, 1), (110, 3), (1, 4)])
def test_what_is_written_is_read_whatever_the_shards(
    tmp_path: Path,
    tensors: dict[str, Array],
    read_folder: Read,
    same: Callable[..., None],
    limit: int,
    files: int,
) -> None:
    _write(tmp_path, tensors, limit)
    assert len(list(tmp_path.glob("*.safetensors"))) == files
    same(read_folder(tmp_path), tensors)
    same({n: t.read() for n, t in open_tensors(tmp_path)[0].items()}, tensors)


def test_no_shard_is_larger_than_asked_unless_one_tensor_is(
    tmp_path: Path, tensors: dict[str, Array]
) -> None:
    _write(tmp_path, tensors, 110)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    sizes: dict[str, int] = {}
    for name, file in index["weight_map"].items():
        sizes[file] = sizes.get(file, 0) + tensors[name].nbytes
    assert max(sizes.values()) <= 110
    assert index["metadata"] == {"total_parameters": 3 + 24 + 24 + 20, "total_size": 238}


def test_every_tensor_lies_on_a_multiple_of_its_width(
    tmp_path: Path, tensors: dict[str, Array]
) -> None:
    _write(tmp_path, tensors, 10**9)
    for tensor in open_tensors(tmp_path)[0].values():
        assert tensor.begin % tensor.dtype.itemsize == 0


def test_a_full_disk_is_a_write_error(tmp_path: Path, tensors: dict[str, Array]) -> None:
    signatures = {n: (a.dtype, a.shape) for n, a in tensors.items()}
    with pytest.raises(WriteError, match="cannot be written"):
        ShardWriter(tmp_path / "gone", signatures, 10**9)
    writer = ShardWriter(tmp_path, signatures, 10**9)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WriteError, match="cannot be written"):
        writer.write("plain", tensors["plain"])


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("1.5 kb", 1500), ("2GiB", 2**31), ("300", 300), ("20MB", 2 * 10**7)],
)
def test_sizes_are_read_in_both_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-5GB", "5 bananas", "0", "1e9", "0.1B", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-shard-size"):
        parse_size(text)
