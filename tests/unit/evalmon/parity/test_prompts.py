"""Prompts: reproducible at random, and each form of a file read or refused by its line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from evalmon.errors import DataError
from evalmon.parity.prompts import random_prompts, read_prompts, require_ids, tokenizer_encode


def read(
    tmp_path: Path, text: str, encode: Callable[[str], list[int]] | None = None
) -> list[list[int]]:
    (tmp_path / "prompts").write_text(text, encoding="utf-8")
    return read_prompts(tmp_path / "prompts", encode)


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_random_prompts_follow_their_seed_alone():
    first = random_prompts(3, 50, 2, 400)
    assert first == random_prompts(3, 50, 2, 400)
    assert first != random_prompts(4, 50, 2, 400)
    assert [len(ids) for ids in first] == [400, 400]
    assert {token for ids in first for token in ids} == set(range(50))


def test_lines_of_ids(tmp_path: Path):
    assert read(tmp_path, '{"tokens": [1, 2]}\n\n{"tokens": [3], "id": "x"}\n') == [[1, 2], [3]]


def test_a_byte_order_mark_and_separators_inside_a_text_are_no_form(tmp_path: Path):
    assert read(tmp_path, '\ufeff{"tokens": [1]}\n') == [[1]]
    text = "a\u2028b\x85c"
    assert read(tmp_path, f'{{"text": "{text}"}}\r\n', letters) == [letters(text)]


@pytest.mark.parametrize(
    ("text", "line"), [("[1, 2]\n[3]", 1), ('ab\n{"tokens": [1]}', 2), ('a\n\n{"text": "b"}', 3)]
)
def test_ids_are_never_compared_as_the_text_they_are_written_in(
    tmp_path: Path, text: str, line: int
):
    with pytest.raises(DataError, match=f":{line}: JSON in a file whose first line"):
        read(tmp_path, text, letters)


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"text": "a\\ud800"}', "half a character"), ('{"tokens": ' + "[" * 10**5, "not JSON")],
)
def test_what_no_tokenizer_takes_is_refused(tmp_path: Path, text: str, says: str):
    with pytest.raises(DataError, match=f":1: .*{says}"):
        read(tmp_path, text, letters)


def test_lines_of_text_in_any_form(tmp_path: Path):
    mixed = '{"text": "ab"}\n{"prompt": "c"}\n{"tokens": [7]}\n'
    assert read(tmp_path, mixed, letters) == [[97, 98], [99], [7]]
    assert read(tmp_path, "ab\n\n[1]\n", letters) == [[97, 98], letters("[1]")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "prompts: no prompt in it"),
        ("\n \n", "prompts: no prompt in it"),
        ('{"tokens": []}', "prompts:1: an empty prompt"),
        ('{"tokens": [1]}\n{"text": ""}', "prompts:2: an empty prompt"),
        ('{"tokens": [1]}\n\nhello', "prompts:3: not JSON"),
        ('{"tokens": [1]}\n[2]', "prompts:2: expected"),
        ('{"ids": [1]}', "prompts:1: expected"),
        ('{"tokens": "abc"}', "prompts:1: 'tokens' must be a list of whole numbers"),
        ('{"tokens": [1, 2.0]}', "prompts:1: 'tokens' must be a list"),
        ('{"tokens": [true]}', "prompts:1: 'tokens' must be a list"),
        ('{"text": 3}', "prompts:1: the text must be a string"),
    ],
)
def test_a_file_of_no_prompts_is_refused_by_its_line(tmp_path: Path, text: str, says: str):
    with pytest.raises(DataError, match=says):
        read(tmp_path, text, letters)


def test_text_without_a_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"prompts:1: a text needs a tokenizer, and neither"):
        read(tmp_path, "hello")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be read as UTF-8"):
        read_prompts(tmp_path / "absent", None)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="cannot be read as UTF-8"):
        read_prompts(tmp_path / "latin", None)


@pytest.mark.parametrize("token", [-1, 10])
def test_an_id_only_one_side_has_is_named_with_its_place(token: int):
    require_ids([[0, 9]], 10, "f")
    with pytest.raises(DataError, match=f"f: prompt 1 has token id {token} at position 2, outside"):
        require_ids([[0], [1, 2, token]], 10, "f")


def test_the_first_tokenizer_file_there_is_encodes_and_adds_no_token(tmp_path: Path):
    assert tokenizer_encode([tmp_path / "absent.json"]) is None
    tokenizer = Tokenizer(models.WordLevel({"a": 1, "b": 2, "[X]": 0}, unk_token="[X]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode = tokenizer_encode([tmp_path / "absent.json", tmp_path / "tokenizer.json"])
    assert encode is not None
    assert encode("b a c") == [2, 1, 0]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": 1}))
    encode = tokenizer_encode([tmp_path / "tokenizer.json"])
    assert encode is not None
    with pytest.raises(DataError, match="not a tokenizers JSON file"):
        encode("b")
