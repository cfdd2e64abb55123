import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest

from evalmon.errors import DataError, FetchError
from trainer.data.folder import TokenFolder, in_threads, some_of
from trainer.data.index import InstanceIndex
from trainer.data.token_file import TokenFile

MakeFolder = Callable[..., TokenFolder]


def test_a_folder_is_read_back_as_it_was_written(make_folder: MakeFolder) -> None:
    folder = make_folder(10, 7)
    again = TokenFolder.open(folder.path)
    again.check()
    assert again == folder
    assert again.fingerprint == folder.fingerprint
    assert again.warnings == []


def test_files_may_lie_anywhere(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(8, 8, 8)
    url = f"memory://{tmp_path.name}/s2-00000.npy"
    here = [folder.path / file.path for file in folder.files]
    fsspec.filesystem("memory").pipe_file(url, here[2].read_bytes())
    paths = ("../data/s0-00000.npy", str(here[1].resolve()), url)
    files = tuple(replace(f, path=p) for f, p in zip(folder.files, paths, strict=True))
    (tmp_path / "pointing").mkdir()
    pointing = TokenFolder(tmp_path / "pointing", files, 64, 0, tokenizer="")
    pointing.save()
    opened = TokenFolder.open(pointing.path)
    opened.check(cache_dir=tmp_path / "cache")
    assert opened.fingerprint == folder.fingerprint
    for number, path in enumerate(here):
        tokens = opened.tokens(number, tmp_path / "cache")
        assert tokens.tolist() == np.fromfile(path, "<u4").tolist()
        assert not tokens.flags.writeable


def test_an_empty_file_holds_no_instances_and_is_told_of(make_folder: MakeFolder) -> None:
    folder = TokenFolder.open(make_folder(8, 0, 8).path)
    folder.check()
    assert folder.warnings == [f"{folder.path}: 1 empty token files, of no instances: s1-00000.npy"]
    index = InstanceIndex.build(folder, 4)
    assert [index.locate(i)[0] for i in range(len(index))] == [0, 0, 2, 2]


def _spoil(path: Path, how: str) -> None:
    file = path / "s0-00000.npy"
    if how == "missing":
        file.unlink()
    elif how == "ten bytes":
        file.write_bytes(b"0123456789")
    elif how == "header":
        np.save(file, np.arange(8, dtype=np.uint32))
    elif how == "cut off":
        file.write_bytes(file.read_bytes()[:-4])
    elif how == "emptied":
        file.write_bytes(b"")
    else:
        file.write_bytes(file.read_bytes() + b"\0\0\0\0")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("missing", "1 of the 1 token files it names are missing: "),
        ("ten bytes", "10 bytes, not a multiple of 4"),
        ("header", "NumPy header"),
        ("cut off", "7 tokens, but index.json says 8"),
        ("emptied", "0 tokens, but index.json says 8"),
        ("grown", "9 tokens, but index.json says 8"),
    ],
)
def test_a_bad_token_file_is_refused_by_name(make_folder: MakeFolder, how: str, says: str) -> None:
    folder = make_folder(8)
    _spoil(folder.path, how)
    with pytest.raises(DataError, match=says) as error:
        TokenFolder.open(folder.path)
    assert "s0-00000.npy" in str(error.value)
    with pytest.raises(DataError, match=r"s0-00000\.npy"):
        folder.check()
    with pytest.raises(DataError, match=r"s0-00000\.npy"):
        folder.tokens(0)


def test_all_missing_files_are_told_of_at_once(make_folder: MakeFolder) -> None:
    folder = make_folder(*[8] * 9)
    for number in range(1, 9):
        (folder.path / f"s{number}-00000.npy").unlink()
    says = r"8 of the 9 token files .* missing: (\S*s[1-5]-00000\.npy,? ){5}and 3 more; restore"
    with pytest.raises(DataError, match=says):
        TokenFolder.open(folder.path)


BLOCK = 1 << 14
LENGTH = 100_003


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("token", [0, BLOCK - 1, LENGTH // 2, LENGTH - BLOCK, LENGTH - 1])
def test_other_tokens_at_head_middle_or_tail_are_noticed_at_once(
    make_folder: MakeFolder, token: int, sampled: bool
) -> None:
    folder = make_folder(LENGTH)
    _change(folder, token)
    with pytest.raises(DataError, match=r"s0-00000\.npy: its content is not .*expected .*restore"):
        TokenFolder.open(folder.path).check(whole=False if sampled else None)


@pytest.mark.parametrize("token", [BLOCK, LENGTH // 4, LENGTH - BLOCK - 2])
def test_other_tokens_elsewhere_are_noticed_when_all_are_read(
    make_folder: MakeFolder, token: int
) -> None:
    folder = make_folder(LENGTH)
    _change(folder, token)
    opened = TokenFolder.open(folder.path)
    opened.check(whole=False)
    with pytest.raises(DataError, match=r"s0-00000\.npy: its content is not"):
        opened.check()


def _change(folder: TokenFolder, token: int) -> None:
    path = folder.path / folder.files[0].path
    tokens = np.fromfile(path, "<u4")
    tokens[token] = (tokens[token] + 1) % 64
    tokens.tofile(path)


@pytest.mark.parametrize(("token", "sampled"), [(5, True), (LENGTH - 3, True), (40_000, False)])
def test_an_id_outside_the_vocabulary_is_named_with_its_offset(
    make_folder: MakeFolder, token: int, sampled: bool
) -> None:
    folder = make_folder(LENGTH)
    path = folder.path / folder.files[0].path
    tokens = np.fromfile(path, "<u4")
    tokens[token] = 64
    tokens.tofile(path)
    says = rf"s0-00000\.npy: token id 64 at token {token} \(byte {4 * token}\)"
    with pytest.raises(DataError, match=says):
        TokenFolder.open(folder.path).check(whole=not sampled)


def test_uint16_ids_are_recognized(make_folder: MakeFolder) -> None:
    folder = make_folder(8)
    np.arange(1, 17, dtype="<u2").tofile(folder.path / "s0-00000.npy")
    with pytest.raises(DataError, match="look like uint16 ids"):
        TokenFolder.open(folder.path).check()


def test_a_large_folder_is_only_sampled_unless_asked(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(8, 5)
    read: list[int] = []
    folder.check(read.append)
    assert sum(read) == folder.n_bytes == 52
    monkeypatch.setattr("trainer.data.folder.WHOLE_BYTES", 51)
    read.clear()
    folder.check(read.append)
    assert read == []
    folder.check(read.append, whole=True)
    assert sum(read) == 52


def test_a_far_file_that_changed_or_went_away_is_noticed(tmp_path: Path) -> None:
    far, url = fsspec.filesystem("memory"), f"memory://{tmp_path.name}/a.npy"
    tokens = np.arange(8, dtype="<u4")
    far.pipe_file(url, tokens.tobytes())
    file = TokenFile.of(url, url, "far", whole=False)
    folder = TokenFolder(tmp_path, (file,), 64, 0, tokenizer="")
    far.pipe_file(url, tokens[::-1].tobytes())
    with pytest.raises(DataError, match=rf"{url}: its content is not"):
        folder.check(cache_dir=tmp_path)
    far.pipe_file(url, tokens[:7].tobytes())
    with pytest.raises(DataError, match=rf"{url}: 7 tokens, but index\.json says 8"):
        folder.tokens(0, tmp_path)
    far.rm_file(url)
    with pytest.raises(DataError, match=rf"{url}: no such token file"):
        folder.check(cache_dir=tmp_path)
    with pytest.raises(FetchError, match=rf"{url}: no such file"):
        folder.tokens(0, tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "uint16"}, "format and dtype"),
        ({"format": 1}, "format and dtype"),
        ({"files": []}, "names no token files"),
        ({"files": [{"path": "a"}]}, "a field is missing"),
        ({"files": 3}, "a field is missing"),
        ({"tokenizer": None}, "a field is missing"),
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
    ("name", "value"),
    [
        ("path", 5),
        ("n_tokens", "10"),
        ("n_tokens", -1),
        ("n_tokens", True),
        ("label", None),
        ("n_documents", "1"),
        ("sha256", 7),
        ("sample", None),
    ],
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


def test_a_folder_without_its_tokenizer_is_refused_unless_it_never_had_one(
    make_folder: MakeFolder,
) -> None:
    folder = make_folder(10)
    (folder.path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json: no such tokenizer file"):
        TokenFolder.open(folder.path)
    replace(folder, tokenizer="").save()
    assert TokenFolder.open(folder.path).tokenizer == ""


def test_threads_keep_the_order_and_raise_the_first_error() -> None:
    assert in_threads(lambda n: n * n, range(99)) == [n * n for n in range(99)]

    def refuse(number: int) -> int:
        if number > 3:
            raise DataError(str(number))
        return number

    with pytest.raises(DataError, match=r"^4$"):
        in_threads(refuse, range(9))


def test_only_the_first_names_are_told() -> None:
    assert some_of("abcde") == "a, b, c, d, e"
    assert some_of("abcdefg") == "a, b, c, d, e and 2 more"
