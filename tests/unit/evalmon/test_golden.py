"""Golden slices: written whole, read as they were, refused when they are not whole."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon import golden
from evalmon.errors import DataError, WriteError
from evalmon.models import LanguageModel


class TableModel:
    """Log-probabilities that depend on the last token alone."""

    dtype = "float32"
    vocab_size = 8

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        table = np.log(np.full((8, 8), 1 / 8, np.float32)) + np.arange(8, dtype=np.float32)[:, None]
        yield table[list(ids[:2])]
        yield table[list(ids[2:])]


MODEL = cast("LanguageModel", TableModel())


def test_a_slice_comes_back_as_it_was_written(tmp_path: Path):
    made = golden.take(MODEL, [1, 2, 3, 4], [0, 7], "0123456789abcdef")
    assert made.logprobs.shape == (4, 2)
    assert np.allclose(made.logprobs[:, 0] + np.log(8), [1, 2, 3, 4])
    golden.save(tmp_path / golden.GOLDEN_NAME, made)
    read = golden.load(tmp_path / golden.GOLDEN_NAME)
    assert (read.weights, read.dtype) == ("0123456789abcdef", "float32")
    for name in ("ids", "columns", "logprobs"):
        assert np.array_equal(getattr(read, name), getattr(made, name))
    assert [path.name for path in tmp_path.iterdir()] == ["golden.npz"]


def test_a_trainer_can_write_one_with_numpy_alone(tmp_path: Path):
    np.savez(
        tmp_path / "golden.npz", format=1, weights="w", dtype="float32",
        ids=np.array([1, 2], np.int32), columns=np.array([3], np.int32),
        logprobs=np.array([[-1.0], [-2.0]], np.float32),
    )  # fmt: skip
    assert golden.load(tmp_path / "golden.npz").logprobs.tolist() == [[-1.0], [-2.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2 with"),
        ({"logprobs": np.zeros((1, 1), np.float32)}, r"shape \(1, 1\), expected format 1"),
        ({"ids": np.empty(0, np.int32), "logprobs": np.empty((0, 1), np.float32)}, "expected"),
        ({"logprobs": np.full((2, 1), np.nan, np.float32)}, "not finite"),
        ({"ids": np.array([[1, 2]])}, r"ids of shape \(1, 2\) and type int64 are no token ids"),
        ({"ids": np.array([1.5, 2.0])}, "ids of shape .* type float64 are no token ids"),
        ({"columns": np.array([-3])}, "columns of shape .* are no token ids"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    values: dict[str, Any] = {
        "format": 1, "weights": "w", "dtype": "float32", "ids": np.array([1, 2], np.int32),
        "columns": np.array([3], np.int32), "logprobs": np.zeros((2, 1), np.float32),
    }  # fmt: skip
    np.savez(tmp_path / "golden.npz", **{**values, **changes})
    with pytest.raises(DataError, match=message):
        golden.load(tmp_path / "golden.npz")


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, keep: int):
    path = tmp_path / "golden.npz"
    golden.save(path, golden.take(MODEL, [1, 2, 3], [0], "w"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="no golden slice"):
        golden.load(path)


def test_a_folder_that_is_not_there_cannot_be_written_to(tmp_path: Path):
    made = golden.take(MODEL, [1, 2, 3], [0], "w")
    with pytest.raises(WriteError, match="cannot be written"):
        golden.save(tmp_path / "none" / "golden.npz", made)
