import pickle
import resource
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest

from evalmon.errors import DataError
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder
from trainer.data.selection import Selection
from trainer.data.source import InstanceSource

MakeFolder = Callable[..., TokenFolder]


def test_records_are_the_slices_of_the_files(make_folder: MakeFolder) -> None:
    folder = make_folder(10, 9)
    source = InstanceSource(InstanceIndex.build(folder, 4))
    whole = [np.fromfile(folder.path / file.path, "<u4")[:8] for file in folder.files]
    expected = np.concatenate(whole).reshape(4, 4)
    assert len(source) == 4
    assert [source[i]["tokens"].tolist() for i in range(4)] == expected.tolist()
    assert [int(source[i]["instance"]) for i in range(4)] == [0, 1, 2, 3]
    tokens, instances = source.read(np.array([3, 0, 0]))
    assert tokens.dtype == np.uint32
    assert tokens.tolist() == expected[[3, 0, 0]].tolist()
    assert instances.tolist() == [3, 0, 0]


def test_positions_go_through_the_selection(make_folder: MakeFolder) -> None:
    index = InstanceIndex.build(make_folder(40, 40), 4)
    whole, some = InstanceSource(index), InstanceSource(index, Selection.evenly(20, 6))
    tokens, instances = some.read(np.arange(6))
    assert instances.tolist() == [0, 3, 6, 10, 13, 16]
    assert tokens.tolist() == whole.read(instances)[0].tolist()
    assert {index.locate(int(i))[0] for i in instances} == {0, 1}


def test_what_is_read_is_a_copy_that_may_be_changed(make_folder: MakeFolder) -> None:
    source = InstanceSource(InstanceIndex.build(make_folder(8), 4))
    before = source[1]["tokens"].tolist()
    source[1]["tokens"][:] = 99
    assert source[1]["tokens"].tolist() == before


def test_sources_of_other_content_have_other_names(make_folder: MakeFolder) -> None:
    one = InstanceIndex.build(make_folder(16, name="one"), 4)
    other = InstanceIndex.build(make_folder(16, vocab_size=63, name="other"), 4)
    kept = Selection.evenly(4, 2)
    names = {
        repr(InstanceSource(one)),
        repr(InstanceSource(other)),
        repr(InstanceSource(one, kept)),
    }
    assert len(names) == 3


def test_what_a_worker_is_given_holds_no_tokens(make_folder: MakeFolder) -> None:
    source = InstanceSource(InstanceIndex.build(make_folder(4096), 4))
    tokens, _ = source.read(np.arange(1024))
    sent = pickle.dumps(source)
    assert len(sent) < 2048
    assert pickle.loads(sent).read(np.arange(1024))[0].tolist() == tokens.tolist()


def test_a_file_that_goes_away_before_it_is_read_is_named(make_folder: MakeFolder) -> None:
    folder = make_folder(8, 8)
    source = InstanceSource(InstanceIndex.build(TokenFolder.open(folder.path), 4))
    (folder.path / "s1-00000.npy").unlink()
    assert source[0]["tokens"].shape == (4,)
    with pytest.raises(DataError, match=r"s1-00000\.npy: no such token file"):
        source[3]


def test_more_files_than_may_be_open_can_be_read(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = InstanceIndex.build(make_folder(*[4] * 9), 4)
    expected = InstanceSource(index).read(np.arange(9))[0].tolist()
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (4, 4))
    source = InstanceSource(index)
    order = np.random.default_rng(0).permutation(9)
    assert source.read(order)[0].tolist() == [expected[i] for i in order]


def test_a_far_file_is_fetched_when_it_is_first_read(tmp_path: Path) -> None:
    far = fsspec.filesystem("memory")
    files: list[TokenFile] = []
    for number in range(2):
        url = f"memory://{tmp_path.name}/{number}.npy"
        far.pipe_file(url, np.arange(8 * number, 8 * number + 8, dtype="<u4").tobytes())
        files.append(TokenFile.of(url, url, "far", whole=False))
    TokenFolder(tmp_path, tuple(files), 64, 0, tokenizer="").save()
    cache = tmp_path / "cache"
    index = InstanceIndex.build(TokenFolder.open(tmp_path), 4)
    source = InstanceSource(index, cache_dir=cache)
    assert not cache.exists()
    assert source.read(np.array([2, 3]))[0].tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert len(list(cache.iterdir())) == 1
    assert source[0]["tokens"].tolist() == [0, 1, 2, 3]
    assert len(list(cache.iterdir())) == 2
