"""Token folders: what index.json may say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import DataError
from evalmon.token_folders import FolderIndex, Instances


def write(folder: Path, *files: dict[str, Any], **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    record = {"format": 2, "dtype": "uint32", "files": files, **fields}
    (folder / "index.json").write_text(json.dumps(record))
    return folder


def tokens(path: Path, count: int, first: int = 0) -> None:
    np.arange(first, first + count, dtype="<u4").tofile(path)


def test_paths_are_relative_to_the_folder_or_absolute(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    tokens(tmp_path / "elsewhere/b.npy", 9, first=100)
    folder = write(
        tmp_path / "data",
        {"path": "a.npy", "label": "web", "n_tokens": 10, "sha256": None},
        {"path": str(tmp_path / "elsewhere/b.npy"), "label": "books", "n_tokens": 9},
        {"path": "../elsewhere/b.npy", "label": "books", "n_tokens": 9},
        eos_id=3, tokenizer="tokenizer.json", fingerprint="f",
    )  # fmt: skip
    tokens(folder / "a.npy", 10)
    index = FolderIndex.read(folder)
    assert (index.eos_id, index.fingerprint) == (3, "f")
    assert index.tokenizer == folder / "tokenizer.json"
    assert [file.tokens()[0] for file in index.files] == [0, 100, 100]
    instances = Instances(folder, 4)
    assert len(instances) == 6
    assert instances.tokens(1) == (4, 5, 6, 7)
    assert instances.tokens(3) == (104, 105, 106, 107)
    assert instances.by_label() == {"web": [0, 1], "books": [2, 3, 4, 5]}
    assert [instances.label(n) for n in range(6)] == ["web"] * 2 + ["books"] * 4
    for number in (-1, 6):
        with pytest.raises(IndexError):
            instances.tokens(number)


def test_an_empty_file_has_no_instances(tmp_path: Path):
    folder = write(tmp_path, {"path": "a.npy", "label": "web", "n_tokens": 0})
    (folder / "a.npy").touch()
    assert len(Instances(folder, 4)) == 0


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path):
    index = FolderIndex.read(write(tmp_path, tokenizer=""))
    assert (index.tokenizer, index.eos_id) == (None, None)


@pytest.mark.parametrize("url", ["s3://bucket/a.npy", "https://host/a.npy", "file:///a.npy"])
def test_data_behind_a_url_is_refused_by_name(tmp_path: Path, url: str):
    write(tmp_path, {"path": url, "label": "web", "n_tokens": 3})
    with pytest.raises(
        DataError, match="is a URL, and evalmon reads local token files only"
    ) as got:
        FolderIndex.read(tmp_path)
    assert url in str(got.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": [{"path": "a"}]}', '{"files": 3}'])
def test_what_is_no_index_is_refused(tmp_path: Path, content: str):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(DataError, match=r"index\.json: cannot be read as the index"):
        FolderIndex.read(tmp_path)


@pytest.mark.parametrize("count", [None, 9, 11])
def test_a_file_that_is_missing_or_of_another_size_is_named(tmp_path: Path, count: int | None):
    write(tmp_path, {"path": "a.npy", "label": "web", "n_tokens": 10})
    if count is not None:
        tokens(tmp_path / "a.npy", count)
    with pytest.raises(DataError, match=r"a\.npy: not the 10 uint32 tokens"):
        Instances(tmp_path, 4)
