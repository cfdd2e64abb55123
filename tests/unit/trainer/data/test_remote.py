import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from evalmon.errors import FetchError, WriteError
from trainer.data import remote
from trainer.data.remote import local_copy, read_range, size_of

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Put a file into memory under an address of its own."""
    address = f"memory://{tmp_path.name}/part.npy"
    fsspec.filesystem("memory").pipe_file(address, CONTENT)
    return address


def test_a_far_file_is_fetched_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = local_copy(url, tmp_path / "cache")
    assert copy.read_bytes() == CONTENT

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(MemoryFileSystem, "get_file", refuse)
    assert local_copy(url, tmp_path / "cache") == copy
    assert list((tmp_path / "cache").iterdir()) == [copy]


def test_any_protocol_will_do(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(CONTENT)
    address = f"file://{tmp_path}/a.npy"
    assert local_copy(address, tmp_path / "cache").read_bytes() == CONTENT
    assert size_of(address) == len(CONTENT)
    assert read_range(address, 3, 7) == CONTENT[3:7]


def test_another_version_is_fetched_again(url: str, tmp_path: Path) -> None:
    first = local_copy(url, tmp_path)
    other = CONTENT[::-1]
    fsspec.filesystem("memory").pipe_file(url, other)
    second = local_copy(url, tmp_path)
    assert (first.read_bytes(), second.read_bytes()) == (CONTENT, other)


def test_a_copy_of_another_size_is_fetched_again(url: str, tmp_path: Path) -> None:
    copy = local_copy(url, tmp_path)
    os.truncate(copy, 100)
    assert local_copy(url, tmp_path) == copy
    assert copy.read_bytes() == CONTENT


def test_two_that_fetch_the_same_file_both_get_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.npy").write_bytes(CONTENT)
    address, cache = f"file://{tmp_path}/a.npy", tmp_path / "cache"
    both, get_file = threading.Barrier(2), LocalFileSystem.get_file

    def together(self: Any, *arguments: Any, **options: Any) -> None:
        both.wait(10)
        get_file(self, *arguments, **options)
        both.wait(10)

    monkeypatch.setattr(LocalFileSystem, "get_file", together)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: local_copy(address, cache), range(2))
    assert one == other
    assert one.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [one]


def test_a_file_that_comes_short_is_refused_and_leaves_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(_self: Any, _remote: str, local: str, **_: Any) -> None:
        Path(local).write_bytes(CONTENT[:-1])

    monkeypatch.setattr(MemoryFileSystem, "get_file", short)
    with pytest.raises(FetchError, match=rf"{url}: 10239 bytes came of 10240; .* try again"):
        local_copy(url, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_as_one(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(MemoryFileSystem, "get_file", full)
    with pytest.raises(WriteError, match="free some space"):
        local_copy(url, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"file/cache: the copy of memory://"):
        local_copy(url, tmp_path / "file" / "cache")


def test_what_a_file_system_raises_names_the_address(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("signature expired")

    monkeypatch.setattr(MemoryFileSystem, "info", broken)
    for ask in (size_of, local_copy):
        with pytest.raises(FetchError, match=rf"{url}: cannot be read \(RuntimeError: signature"):
            ask(url)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}/absent.npy"
    assert size_of(address) is None
    for ask in (lambda: local_copy(address, tmp_path), lambda: read_range(address, 0, 4)):
        with pytest.raises(FetchError, match=rf"{address}: no such file"):
            ask()


def test_an_unknown_protocol_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="nowhere://a/b"):
        local_copy("nowhere://a/b", tmp_path)


def test_the_cache_is_where_the_environment_says(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALMON_CACHE", str(tmp_path / "named"))
    assert local_copy(url).parent == tmp_path / "named" / "tokens"
    monkeypatch.delenv("EVALMON_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert local_copy(url).parent == tmp_path / "home/.cache/evalmon/tokens"


def test_fetching_a_large_file_shows_how_far_it_is(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    local_copy(url, tmp_path / "one")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(remote, "_SHOWN_BYTES", len(CONTENT))
    local_copy(url, tmp_path / "two")
    out, err = capsys.readouterr()
    assert out == ""
    assert "part.npy: 100%" in err
