import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evalmon.errors import DataError
from trainer.data.index import InstanceIndex, TokenFolder

MakeFolder = Callable[..., TokenFolder]


def test_a_folder_is_read_back_as_it_was_written(make_folder: MakeFolder) -> None:
    folder = make_folder(10, 7)
    again = TokenFolder.open(folder.path)
    again.check()
    assert again == folder
    assert again.fingerprint == folder.fingerprint


def test_instances_of_each_file_follow_one_another_without_its_tail(
    make_folder: MakeFolder,
) -> None:
    index = InstanceIndex.build(make_folder(11, 3, 8), 4)
    assert len(index) == 4
    assert [index.locate(i) for i in range(4)] == [(0, 0), (0, 4), (2, 0), (2, 4)]


def test_the_fingerprint_follows_content_and_sequence_length(make_folder: MakeFolder) -> None:
    one, other = make_folder(16, name="one"), make_folder(16, vocab_size=65, name="other")
    fingerprints = {
        InstanceIndex.build(folder, length).fingerprint
        for folder in (one, other)
        for length in (4, 8)
    }
    assert len(fingerprints) == 4


def test_files_shorter_than_an_instance_are_refused(make_folder: MakeFolder) -> None:
    with pytest.raises(DataError, match="the longest has 3"):
        InstanceIndex.build(make_folder(3, 2), 4)


def _spoil(path: Path, how: str) -> None:
    file = path / "s0-00000.npy"
    if how == "missing":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "ten bytes":
        file.write_bytes(b"0123456789")
    elif how == "header":
        np.save(file, np.arange(8, dtype=np.uint32))
    elif how == "cut off":
        file.write_bytes(file.read_bytes()[:-4])
    else:
        file.write_bytes(file.read_bytes() + b"\0\0\0\0")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("missing", "no such token file"),
        ("empty", "empty token file"),
        ("ten bytes", "10 bytes, not a multiple of 4"),
        ("header", "NumPy header"),
        ("cut off", "7 tokens, but index.json says 8"),
        ("grown", "9 tokens, but index.json says 8"),
    ],
)
def test_a_bad_token_file_is_refused_by_name(make_folder: MakeFolder, how: str, says: str) -> None:
    folder = make_folder(8)
    _spoil(folder.path, how)
    with pytest.raises(DataError, match=says) as error:
        TokenFolder.open(folder.path)
    assert "s0-00000.npy" in str(error.value)


def test_an_id_outside_the_vocabulary_is_named_with_its_offset(make_folder: MakeFolder) -> None:
    folder = make_folder(8)
    tokens = np.fromfile(folder.path / "s0-00000.npy", "<u4")
    tokens[5] = 64
    tokens.tofile(folder.path / "s0-00000.npy")
    with pytest.raises(DataError, match=r"token id 64 at token 5 \(byte 20\)"):
        TokenFolder.open(folder.path).check()


def test_uint16_ids_are_recognized(make_folder: MakeFolder) -> None:
    folder = make_folder(8)
    np.arange(1, 17, dtype="<u2").tofile(folder.path / "s0-00000.npy")
    with pytest.raises(DataError, match="look like uint16 ids"):
        TokenFolder.open(folder.path).check()


def test_uint32_bytes_are_never_read_as_uint16(make_folder: MakeFolder) -> None:
    # Read with the wrong width [1, 70000, 5] would be [1, 0, 4464, 1, 5, 0].
    folder = make_folder(3, vocab_size=100_000)
    np.array([1, 70_000, 5], "<u4").tofile(folder.path / "s0-00000.npy")
    with pytest.raises(DataError, match=r"its content is not what index\.json was written for"):
        TokenFolder.open(folder.path).check()
    assert np.fromfile(folder.path / "s0-00000.npy", "<u2").tolist() == [1, 0, 4464, 1, 5, 0]


def test_other_content_of_the_same_size_is_noticed(make_folder: MakeFolder) -> None:
    folder = make_folder(8)
    np.zeros(8, "<u4").tofile(folder.path / "s0-00000.npy")
    with pytest.raises(DataError, match="its content is not"):
        TokenFolder.open(folder.path).check()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "uint16"}, "format and dtype"),
        ({"format": 9}, "format and dtype"),
        ({"files": []}, "names no token files"),
        ({"files": [{"path": "a"}]}, "a field is missing"),
    ],
)
def test_a_bad_index_is_refused(
    make_folder: MakeFolder, change: dict[str, object], says: str
) -> None:
    file = make_folder(8).path / "index.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(DataError, match=says):
        TokenFolder.open(file.parent)


def test_a_folder_without_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no index\.json"):
        TokenFolder.open(tmp_path)
    with pytest.raises(DataError, match="no such token folder"):
        TokenFolder.open(tmp_path / "absent")
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        TokenFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("path", 5), ("n_tokens", "10"), ("n_tokens", -1), ("label", None)]
)
def test_a_field_of_another_type_in_the_index_is_named(
    make_folder: MakeFolder, name: str, value: object
) -> None:
    file = make_folder(10).path / "index.json"
    record = json.loads(file.read_text())
    record["files"][0][name] = value
    file.write_text(json.dumps(record))
    with pytest.raises(DataError, match=rf"index\.json: a field .* \('{name}' is {value!r}\)"):
        TokenFolder.open(file.parent)


def test_a_folder_without_its_tokenizer_is_refused(make_folder: MakeFolder) -> None:
    folder = make_folder(10).path
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json: no such tokenizer file"):
        TokenFolder.open(folder)
