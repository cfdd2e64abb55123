import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

from evalmon.errors import ConfigError, DataError
from trainer.cli import commands
from trainer.data.index import InstanceIndex, TokenFolder
from trainer.data.manifest import IndexRequest, ManifestEntry, index_manifest, read_manifest
from trainer.data.source import InstanceSource
from trainer.data.tokenize import train_tokenizer

TEXT = """\
# a mix

web,web/{TOKENIZER}/part-1.npy
code, code/{TOKENIZER}/part-0.npy
web,web/{TOKENIZER}/part-0.npy
"""
PATHS = ["web/our/tok/part-1.npy", "code/our/tok/part-0.npy", "web/our/tok/part-0.npy"]

Make = Callable[..., IndexRequest]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a manifest of three files of 8 tokens below a root."""
    manifest, root = tmp_path / "mix.txt", tmp_path / "root"
    manifest.write_text(TEXT)
    for number, path in enumerate(PATHS):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        np.arange(8 * number, 8 * number + 8, dtype="<u4").tofile(root / path)

    def request(**options: Any) -> IndexRequest:
        known: dict[str, Any] = {
            "vocab_size": 64,
            "eos_id": 7,
            "root": str(root),
            "tokenizer": "our/tok",
        }
        return IndexRequest(manifest, **{**known, **options})

    return request


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Train a tokenizer of 257 ids, whose end-of-text is 0."""
    made = train_tokenizer(["a b c"], 257)
    made.save(str(tmp_path / "made.json"))
    return tmp_path / "made.json"


def test_lines_keep_their_order_and_comments_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "mix.txt").write_text(TEXT)
    assert read_manifest(tmp_path / "mix.txt", "our/tok") == (
        ManifestEntry("web", PATHS[0], 3),
        ManifestEntry("code", PATHS[1], 4),
        ManifestEntry("web", PATHS[2], 5),
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("web", "'web' is no label,relative/path.npy"),
        (",a.npy", "',a.npy' is no label"),
        ("web,", "'web,' is no label"),
        ("web,/a.npy", "does not lie below the root"),
        ("web,../a.npy", "does not lie below the root"),
        ("web,s3://a.npy", "does not lie below the root"),
        ("web,{TOKENIZER}/a.npy", "nor may --tokenizer leave it"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "mix.txt").write_text(f"web,good.npy\n{line}\n")
    with pytest.raises(DataError, match=says) as error:
        read_manifest(tmp_path / "mix.txt", "../t")
    assert str(error.value).startswith(f"{tmp_path / 'mix.txt'}:2: ")


def test_a_byte_order_mark_is_no_part_of_a_label(tmp_path: Path) -> None:
    (tmp_path / "mix.txt").write_bytes(b"\xef\xbb\xbfweb,a.npy\r\n")
    assert read_manifest(tmp_path / "mix.txt", "t") == (ManifestEntry("web", "a.npy", 1),)


def test_a_manifest_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: cannot be read as a manifest"):
        read_manifest(tmp_path / "absent.txt", "t")
    (tmp_path / "mix.txt").write_text("# nothing\n\n")
    with pytest.raises(DataError, match="names no token files"):
        read_manifest(tmp_path / "mix.txt", "t")
    (tmp_path / "mix.txt").write_bytes(b"web,caf\xe9.npy\n")
    with pytest.raises(DataError, match="cannot be read as a manifest"):
        read_manifest(tmp_path / "mix.txt", "t")


@pytest.mark.parametrize("whole", [None, True, False])
def test_a_folder_points_at_the_files_where_they_lie(
    make: Make, tmp_path: Path, whole: bool | None
) -> None:
    folder = index_manifest(make(whole=whole), tmp_path / "out")
    opened = TokenFolder.open(tmp_path / "out")
    opened.check()
    assert opened == folder
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["index.json"]
    assert [file.label for file in folder.files] == ["web", "code", "web"]
    assert [file.path for file in folder.files] == [str(tmp_path / "root" / p) for p in PATHS]
    assert [file.n_documents for file in folder.files] == (
        [None] * 3 if whole is False else [1, 0, 0]
    )
    assert [file.sha256 is None for file in folder.files] == [whole is False] * 3
    source = InstanceSource(InstanceIndex.build(opened, 8))
    assert source.read(np.arange(3))[0].tolist() == np.arange(24).reshape(3, 8).tolist()


def test_a_folder_points_at_files_far_away(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALMON_CACHE", str(tmp_path / "cache"))
    far = fsspec.filesystem("memory")
    root = f"memory://{tmp_path.name}/mix"
    for path in PATHS:
        far.pipe_file(f"{root}/{path}", (tmp_path / "root" / path).read_bytes())
    folder = index_manifest(make(root=f"{root}/", whole=False), tmp_path / "out")
    assert not (tmp_path / "cache").exists()
    assert [file.path for file in folder.files] == [f"{root}/{path}" for path in PATHS]
    here = index_manifest(make(whole=False), tmp_path / "here")
    assert folder.fingerprint == here.fingerprint
    source = InstanceSource(InstanceIndex.build(TokenFolder.open(tmp_path / "out"), 8))
    assert source.read(np.arange(3))[0].tolist() == np.arange(24).reshape(3, 8).tolist()


def test_all_missing_files_are_told_of_at_once_and_no_index_is_left(
    make: Make, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"3 of 3 .* not at --root .*part-1\.npy") as error:
        index_manifest(make(tokenizer="other"), tmp_path / "out")
    assert str(error.value).startswith(f"{tmp_path / 'mix.txt'}: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"0123456789", "10 bytes, not a multiple of 4"),
        (b"\x93NUMPY\x01\x00v\x00{'de", "starts with a NumPy header"),
        (np.array([1, 64], "<u4").tobytes(), r"token id 64 at token 1 \(byte 4\)"),
        (np.full(10, 1, "<u2").tobytes(), "look like uint16 ids"),
    ],
)
def test_a_bad_file_is_named_and_no_index_is_left(
    make: Make, tmp_path: Path, content: bytes, says: str, whole: bool
) -> None:
    (tmp_path / "root" / PATHS[1]).write_bytes(content)
    with pytest.raises(DataError, match=says) as error:
        index_manifest(make(whole=whole), tmp_path / "out")
    assert PATHS[1] in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_refused(make: Make, tmp_path: Path) -> None:
    index_manifest(make(), tmp_path / "out")
    with pytest.raises(DataError, match="already holds a token folder"):
        index_manifest(make(), tmp_path / "out")


def test_vocabulary_and_end_of_text_are_the_tokenizers(
    make: Make, tmp_path: Path, tokenizer: Path
) -> None:
    unknown = {"vocab_size": None, "eos_id": None}
    folder = index_manifest(make(**unknown, tokenizer_file=tokenizer), tmp_path / "out")
    assert (folder.vocab_size, folder.eos_id, folder.tokenizer) == (257, 0, "tokenizer.json")
    assert Tokenizer.from_file(str(tmp_path / "out/tokenizer.json")).get_vocab_size() == 257
    given = index_manifest(make(tokenizer_file=tokenizer), tmp_path / "given")
    assert (given.vocab_size, given.eos_id) == (64, 7)


def test_those_of_published_mixes_are_known(make: Make, tmp_path: Path) -> None:
    for path in PATHS:
        target = tmp_path / "root" / path.replace("our/tok", "allenai/dolma2-tokenizer")
        target.parent.mkdir(parents=True, exist_ok=True)
        np.array([100_277, 100_257], "<u4").tofile(target)
    request = make(tokenizer="allenai/dolma2-tokenizer", vocab_size=None, eos_id=None)
    folder = index_manifest(request, tmp_path / "out")
    assert (folder.vocab_size, folder.eos_id, folder.tokenizer) == (100_278, 100_257, "")
    assert [file.n_documents for file in folder.files] == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocab_size": None}, "--vocab-size: not known of tokenizer 'our/tok'"),
        ({"eos_id": None}, "--eos-id: not known of tokenizer 'our/tok'"),
        ({"eos_id": 64}, "--eos-id 64: not within the 64 ids"),
        ({"eos_id": -1}, "--eos-id -1: not within"),
        ({"vocab_size": 0}, "--vocab-size 0: at least 1"),
        ({"vocab_size": 1 << 31}, "--vocab-size 2147483648: at least 1, at most 2147483647"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(
    make: Make, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        index_manifest(make(**options), tmp_path / "out")


def test_the_command_makes_a_folder_and_warns(make: Make, tmp_path: Path, tokenizer: Path) -> None:
    request = make()
    (tmp_path / "root" / PATHS[1]).write_bytes(b"")
    request.manifest.write_text(f"{TEXT}web,{PATHS[0]}\n")
    arguments = ["index", str(request.manifest), "--root", request.root, "--tokenizer", "our/tok"]
    arguments += ["--tokenizer-file", str(tokenizer), "--out", str(tmp_path / "out"), "--sample"]
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    told = json.loads(result.stdout.splitlines()[-1])
    folder = TokenFolder.open(tmp_path / "out")
    assert told == {
        "out": str(tmp_path / "out"),
        "vocab_size": 257,
        "eos_id": 0,
        "files": 4,
        "tokens": 24,
        "whole": False,
        "fingerprint": folder.fingerprint,
    }
    empty, twice = result.stderr.splitlines()
    assert "1 empty token files" in empty
    assert "1 files are named more than once" in twice
