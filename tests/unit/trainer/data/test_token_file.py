from pathlib import Path

import numpy as np
import pytest

from evalmon.errors import DataError
from trainer.data.token_file import TokenFile, check_ids, read_sample, read_tokens


def _write(path: Path, tokens: object) -> Path:
    np.array(tokens, "<u4").tofile(path)
    return path


def test_a_file_is_described_by_all_its_bytes(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.npy", [5, 0, 7, 8, 0, 9])
    found = TokenFile.of(path, "a.npy", "web", ids=(10, 0))
    assert (found.path, found.label, found.n_tokens, found.n_documents) == ("a.npy", "web", 6, 2)
    assert found.n_bytes == path.stat().st_size == 24
    assert found.sha256 is not None
    assert len(found.sha256) == 64
    looked = TokenFile.of(path, "a.npy", "web", whole=False, ids=(10, 0))
    assert (looked.n_documents, looked.sha256, looked.sample) == (None, None, found.sample)


def test_an_empty_file_has_no_tokens_and_is_no_error(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.npy", [])
    assert TokenFile.of(path, "a.npy", "web", ids=(10, 0)).n_tokens == 0
    assert read_tokens(path).tolist() == []


def test_the_sample_reads_head_middle_and_tail(tmp_path: Path) -> None:
    size = 1_000_001
    content = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8).tobytes()
    (tmp_path / "a").write_bytes(content)
    sample = read_sample(tmp_path / "a", size)
    assert [(start, len(block)) for start, block in sample.blocks] == [
        (0, 65536),
        (467232, 65536),
        (934464, 65537),
    ]
    assert all(content[start : start + len(block)] == block for start, block in sample.blocks)
    small = read_sample(tmp_path / "a", 3 * 65536)
    assert [(start, len(block)) for start, block in small.blocks] == [(0, 3 * 65536)]


def test_files_of_other_size_with_the_same_blocks_are_told_apart(tmp_path: Path) -> None:
    samples = {
        TokenFile.of(_write(tmp_path / str(n), np.zeros(n)), "a", "b", whole=False).sample
        for n in (100_000, 100_001, 200_000)
    }
    assert len(samples) == 3


@pytest.mark.parametrize("whole", [True, False])
def test_an_id_outside_the_vocabulary_is_named_with_file_and_offset(
    tmp_path: Path, whole: bool
) -> None:
    path = _write(tmp_path / "a.npy", [1, 2, 3, 10, 11])
    with pytest.raises(DataError, match=r"a\.npy: token id 10 at token 3 \(byte 12\)"):
        TokenFile.of(path, "a.npy", "web", whole=whole, ids=(10, 0))


def test_offsets_count_from_the_start_of_the_file() -> None:
    with pytest.raises(DataError, match=r"token id 9 at token 101 \(byte 404\)"):
        check_ids("a.npy", np.array([1, 9], np.uint32), 100, 9)


def test_uint16_and_uint64_ids_are_recognized(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(1, 50_000, 256)
    ids.astype("<u2").tofile(tmp_path / "narrow.npy")
    ids.astype("<u8").tofile(tmp_path / "wide.npy")
    for vocab_size in (50_000, 100_278):
        with pytest.raises(DataError, match=r"narrow\.npy: .* look like uint16 ids"):
            TokenFile.of(tmp_path / "narrow.npy", "a", "b", ids=(vocab_size, 0))
        with pytest.raises(DataError, match=r"wide\.npy: .* look like uint64 ids"):
            TokenFile.of(tmp_path / "wide.npy", "a", "b", ids=(vocab_size, 0))
    for plain in (ids, np.zeros(256), np.arange(256) % 2):
        path = _write(tmp_path / "right.npy", plain)
        assert TokenFile.of(path, "a", "b", ids=(50_000, 0)).n_tokens == 256


def test_uint32_bytes_are_read_as_uint32_only(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.npy", [1, 70_000, 5])
    assert path.stat().st_size == 12
    assert np.fromfile(path, "<u2").tolist() == [1, 0, 4464, 1, 5, 0]
    assert read_tokens(path).tolist() == [1, 70_000, 5]
    TokenFile.of(path, "a.npy", "web", ids=(100_278, 0))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"0123456789", "10 bytes, not a multiple of 4"),
        (b"\x93NUMPY\x01\x00v\x00{'de", "starts with a NumPy header"),
        (None, "no such token file"),
    ],
)
def test_what_cannot_be_a_token_file_is_refused_by_name(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    path = tmp_path / "part.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=says) as error:
        TokenFile.of(path, "part.npy", "web")
    assert str(path) in str(error.value)
