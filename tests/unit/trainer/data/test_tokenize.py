import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from evalmon.errors import ConfigError, DataError
from trainer.data.index import TokenFolder
from trainer.data.tokenize import read_documents, tokenize

LINES = [
    {"text": "the cat sat on the mat, the cat sat", "source": "pets"},
    {"text": "a naïve café – ☕ and the rest", "source": "drinks/hot"},
    {"text": ""},
    {"text": "the end of the line"},
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES), encoding="utf-8")
    return path


def test_each_source_gets_a_file_of_documents_ended_by_eos(text: Path, tmp_path: Path) -> None:
    folder = tokenize([text], tmp_path / "out", vocab_size=280)
    assert TokenFolder.open(tmp_path / "out") == folder
    folder.check()
    assert [file.label for file in folder.files] == ["corpus", "drinks-hot", "pets"]
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    for file, line in zip(folder.files, (LINES[3], LINES[1], LINES[0]), strict=True):
        ids = np.fromfile(tmp_path / "out" / file.path, "<u4")
        assert ids[-1] == folder.eos_id == tokenizer.token_to_id("<|endoftext|>")
        assert folder.eos_id not in ids[:-1]
        assert tokenizer.decode(ids[:-1].tolist()) == line["text"]


def test_the_same_text_gives_the_same_folder(text: Path, tmp_path: Path) -> None:
    one = tokenize([text], tmp_path / "one", vocab_size=300)
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    two = tokenize([packed], tmp_path / "two", vocab_size=300)
    assert one.fingerprint == two.fingerprint


def test_a_tokenizer_can_be_reused(text: Path, tmp_path: Path) -> None:
    one = tokenize([text], tmp_path / "one", vocab_size=300)
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "quite other words"}\n')
    two = tokenize([other], tmp_path / "two", 999, reuse=tmp_path / "one/tokenizer.json")
    assert two.vocab_size == one.vocab_size
    assert (tmp_path / "one/tokenizer.json").read_bytes() == (
        tmp_path / "two/tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not a JSON line"),
        ("[1]", "no string field 'text'"),
        ('{"text": 3}', "no string"),
        ('{"text": "a\\ud800"}', "half a character .* at character 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(DataError, match=says) as error:
        list(read_documents([path]))
    assert f"{path}:2" in str(error.value)


def test_text_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl"):
        list(read_documents([tmp_path / "absent.jsonl"]))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 99)[:-9])
    with pytest.raises(DataError, match=r"cut\.jsonl\.gz"):
        list(read_documents([tmp_path / "cut.jsonl.gz"]))
    packed = gzip.compress(b'{"text": "x"}\n' * 99)
    (tmp_path / "bent.jsonl.gz").write_bytes(packed[:10] + b"\xff" * 9 + packed[19:])
    with pytest.raises(DataError, match=r"bent\.jsonl\.gz"):
        list(read_documents([tmp_path / "bent.jsonl.gz"]))
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"latin\.jsonl"):
        list(read_documents([tmp_path / "latin.jsonl"]))


def test_bad_requests_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--vocab-size 256"):
        tokenize([text], tmp_path / "out", vocab_size=256)
    with pytest.raises(ConfigError, match="at most 2147483647"):
        tokenize([text], tmp_path / "out", vocab_size=10**30)
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="no documents"):
        tokenize([empty], tmp_path / "none", vocab_size=300)
    assert not (tmp_path / "none/index.json").exists()
    with pytest.raises(DataError, match="no such tokenizer"):
        tokenize([text], tmp_path / "out", 300, reuse=tmp_path / "absent.json")
    with pytest.raises(DataError, match="not a tokenizers JSON file"):
        tokenize([text], tmp_path / "out", 300, reuse=text)
    tokenize([text], tmp_path / "out", vocab_size=300)
    with pytest.raises(DataError, match="already holds"):
        tokenize([text], tmp_path / "out", vocab_size=300)
