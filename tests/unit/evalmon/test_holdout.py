"""Holdout text: read as it is, fingerprinted, and named for what it is."""

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evalmon.config import HoldoutSettings
from evalmon.errors import ConfigError, DataError, FetchError
from evalmon.holdout import Document, Holdout, c4_validation, load, read_jsonl

C4 = Path(__file__).parents[4] / "shared/data/c4/c4-en-validation.jsonl.gz"


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_documents_are_read_in_order_with_id_and_source(tmp_path: Path):
    path = write(
        tmp_path / "a.jsonl", {"text": "one", "id": "x", "source": "web"}, {"text": "zwei ü"}
    )
    assert read_jsonl(path, "mine").documents == (
        Document("x", "one", "web"),
        Document("2", "zwei ü", ""),
    )


def test_compressed_files_read_the_same(tmp_path: Path):
    plain = write(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"})
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_jsonl(plain, "x") == read_jsonl(packed, "x")


def test_a_limit_takes_the_first_documents(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"}, {"text": "three"})
    assert [item.text for item in read_jsonl(path, "x", limit=2).documents] == ["one", "two"]
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        read_jsonl(path, "x", limit=0)


def test_the_fingerprint_follows_texts_ids_and_order_but_not_the_name():
    one, two = Document("1", "ab"), Document("2", "c")
    base = Holdout("n", (one, two)).fingerprint
    assert Holdout("other", (one, two)).fingerprint == base
    changed = [
        Holdout("n", (two, one)),
        Holdout("n", (one,)),
        Holdout("n", (Document("1", "a"), Document("2", "bc"))),
        Holdout("n", (Document("9", "ab"), two)),
    ]
    assert len({base, *(item.fingerprint for item in changed)}) == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": ""}', "line 2: expected a text of at least one byte"),
        ('{"text": 5}', "got 5"),
        ('{"body": "x"}', "got None"),
        ('["text"]', "expected an object"),
        ('{"text": "cut', "line 2: not JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_value(tmp_path: Path, line: str, said: str):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(DataError, match=said) as caught:
        read_jsonl(path, "x")
    assert str(path) in str(caught.value)


def test_missing_empty_torn_and_ambiguous_files_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="No such file"):
        read_jsonl(tmp_path / "none.jsonl", "x")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="holds no document"):
        read_jsonl(tmp_path / "empty.jsonl", "x")
    packed = gzip.compress(b'{"text": "one"}\n' * 100)
    (tmp_path / "torn.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"torn.jsonl.gz: cannot be read after \d+ documents"):
        read_jsonl(tmp_path / "torn.jsonl.gz", "x")
    twice = write(tmp_path / "twice.jsonl", {"text": "a", "id": "k"}, {"text": "b", "id": "k"})
    with pytest.raises(DataError, match="the id 'k'"):
        read_jsonl(twice, "x")


def test_only_c4_can_be_had_without_a_file():
    with pytest.raises(ConfigError, match="'mine' has no path"):
        load(HoldoutSettings("mine"))


def test_a_holdout_whose_text_is_not_published_is_asked_for_by_path():
    with pytest.raises(ConfigError, match=r"'pile' has no path, .*give its text as the path"):
        load(HoldoutSettings("pile"))


def test_a_row_of_the_hub_without_text_is_named(monkeypatch: pytest.MonkeyPatch):
    for row in ({"text": ""}, {"url": "u"}):
        stub_datasets(monkeypatch, [{"text": "a"}, row])
        with pytest.raises(DataError, match=r"allenai/c4 .*row 2: expected a text of at least one"):
            c4_validation(2)


def test_settings_name_file_and_limit(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"})
    assert len(load(HoldoutSettings("mine", str(path))).documents) == 2
    assert len(load(HoldoutSettings("mine", str(path), limit=1)).documents) == 1


def stub_datasets(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(*names: str, **options: Any) -> Any:
        asked.append((*names, options))
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_c4_is_streamed_from_its_validation_split(monkeypatch: pytest.MonkeyPatch):
    asked = stub_datasets(monkeypatch, [{"text": "a", "url": "u"}, {"text": "b"}, {"text": "c"}])
    found = c4_validation(2)
    assert asked == [("allenai/c4", "en", {"split": "validation", "streaming": True})]
    assert found == Holdout("c4_en", (Document("1", "a"), Document("2", "b")))


def test_a_local_copy_of_c4_has_the_fingerprint_of_the_hubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [{"text": "a", "url": "u", "timestamp": "t"}, {"text": "b", "url": "u"}]
    stub_datasets(monkeypatch, rows)
    local = c4_validation(2, write(tmp_path / "c4.jsonl", *rows))
    assert local.fingerprint == c4_validation(2).fingerprint


def test_an_unreachable_hub_names_the_local_file_as_the_way_out(monkeypatch: pytest.MonkeyPatch):
    stub_datasets(monkeypatch, ConnectionError("Couldn't reach 'allenai/c4' on the Hub"))
    with pytest.raises(FetchError, match="name a local file") as caught:
        load(HoldoutSettings("c4_en", limit=10))
    assert caught.value.exit_code == 4


@pytest.mark.skipif(not C4.is_file(), reason="no local copy of C4 beside the checkout")
def test_a_real_c4_file_is_read():
    found = c4_validation(None, C4)
    assert (found.name, len(found.documents)) == ("c4_en", 200)


def test_half_a_character_and_bent_gzip_are_refused(tmp_path: Path):
    half = tmp_path / "half.jsonl"
    half.write_text('{"text": "ok"}\n{"text": "a\\ud800"}\n')
    with pytest.raises(DataError, match=r"half\.jsonl, line 2: 'text' holds half a character"):
        read_jsonl(half, "x")
    packed = gzip.compress(b'{"text": "x"}\n' * 99)
    bent = tmp_path / "bent.jsonl.gz"
    bent.write_bytes(packed[:10] + b"\xff" * 9 + packed[19:])
    with pytest.raises(DataError, match=r"bent\.jsonl\.gz: cannot be read after"):
        read_jsonl(bent, "x")
