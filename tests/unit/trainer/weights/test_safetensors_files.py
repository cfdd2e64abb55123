import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import CheckpointError
from trainer.weights.casting import Array
from trainer.weights.safetensors_files import open_tensors

Write = Callable[[Path, dict[str, Array]], None]
ONE = np.arange(6, dtype=np.float32).reshape(2, 3)
TWO = np.arange(4, dtype=np.float16)
ENTRY = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def _index(folder: Path, weight_map: dict[str, str], total: int | None = 32) -> None:
    record = {"metadata": {} if total is None else {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(record))


def test_tensors_are_views_of_the_file(
    tmp_path: Path, write_file: Write, bfloat16: np.dtype[Any]
) -> None:
    three = np.array([1.0, 2.5], bfloat16)
    write_file(tmp_path / "model.safetensors", {"one": ONE, "two": TWO, "three": three})
    tensors, files = open_tensors(tmp_path)
    assert files == (tmp_path / "model.safetensors",)
    for name, expected in (("one", ONE), ("two", TWO), ("three", three)):
        found = tensors[name].read()
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
        assert not found.flags.owndata
        assert not found.flags.writeable


def test_shards_are_read_through_their_index(tmp_path: Path, write_file: Write) -> None:
    write_file(tmp_path / FIRST, {"one": ONE})
    write_file(tmp_path / SECOND, {"two": TWO})
    _index(tmp_path, {"one": FIRST, "two": SECOND})
    tensors, files = open_tensors(tmp_path)
    assert tensors["two"].read().tolist() == TWO.tolist()
    assert [file.name for file in files] == ["model.safetensors.index.json", FIRST, SECOND]


def test_what_an_index_says_must_be_so(tmp_path: Path, write_file: Write) -> None:
    write_file(tmp_path / FIRST, {"one": ONE})
    write_file(tmp_path / SECOND, {"two": TWO})
    right = {"one": FIRST, "two": SECOND}
    for weight_map, total, said in (
        ({**right, "two": "model-00003.safetensors"}, 32, "names 'model-00003.safetensors', which"),
        ({"one": SECOND, "two": FIRST}, 32, f"says one is in {SECOND}, but it is in {FIRST}"),
        ({**right, "three": FIRST}, 32, f"three is not in {FIRST}, nor in another shard"),
        ({"one": FIRST}, 32, "total_size is 32, but its tensors have 24 bytes"),
        (right, 33, "total_size is 33, but its tensors have 32 bytes"),
        ({"two": "../x.safetensors"}, 32, "names '../x.safetensors'"),
        ({}, 32, "no weight_map"),
    ):
        _index(tmp_path, weight_map, total)
        with pytest.raises(CheckpointError) as error:
            open_tensors(tmp_path)
        assert said in str(error.value)
    _index(tmp_path, right, None)
    assert len(open_tensors(tmp_path)[0]) == 2


def test_a_tensor_in_two_shards_is_named_with_both(tmp_path: Path, write_file: Write) -> None:
    write_file(tmp_path / FIRST, {"one": ONE})
    write_file(tmp_path / SECOND, {"one": ONE, "two": TWO})
    _index(tmp_path, {"one": FIRST, "two": SECOND})
    with pytest.raises(CheckpointError, match=f"one is in {FIRST} and in {SECOND}"):
        open_tensors(tmp_path)


def test_a_tensor_that_no_index_lists_is_named(tmp_path: Path, write_file: Write) -> None:
    write_file(tmp_path / FIRST, {"one": ONE, "two": TWO})
    _index(tmp_path, {"one": FIRST})
    with pytest.raises(CheckpointError, match=f"does not list two of {FIRST}"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 8, 50, -1, -7])
def test_a_file_cut_off_anywhere_is_an_error(tmp_path: Path, write_file: Write, kept: int) -> None:
    file = tmp_path / "model.safetensors"
    write_file(file, {"one": ONE, "two": TWO})
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="cut off"):
        open_tensors(tmp_path)


def test_a_file_longer_than_its_header_says_is_an_error(tmp_path: Path, write_file: Write) -> None:
    file = tmp_path / "model.safetensors"
    write_file(file, {"one": ONE})
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match="longer than it should be"):
        open_tensors(tmp_path)


def _with_header(file: Path, header: str, body: bytes = b"") -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + body)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ('{"w":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}', "w has dtype F8_E4M3"),
        ('{"w":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}', "w has dtype I32"),
        ('{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "8 bytes, but has 4"),
        ('{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', "but has -4"),
        ('{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "entry of w is damaged"),
        ('{"w":{"dtype":"F32","shape":[1]}}', "entry of w is damaged"),
        ('{"w":null}', "entry of w is damaged"),
        ('{"w":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}}', "entry of w is damaged"),
        ("[" * 50_000, "its header cannot be read"),
        ("[1]", "its header is no object"),
        ("{x}", "its header cannot be read"),
        (f'{{"w":{ENTRY},"w":{ENTRY}}}', "a name stands twice"),
        (f'{{"v":{ENTRY},"w":{ENTRY}}}', "the bytes of w overlap"),
    ],
)
def test_a_damaged_header_is_one_clear_error(tmp_path: Path, header: str, said: str) -> None:
    file = tmp_path / "model.safetensors"
    _with_header(file, header, b"\0" * 4)
    with pytest.raises(CheckpointError) as error:
        open_tensors(tmp_path)
    assert str(error.value).startswith(str(file))
    assert said in str(error.value)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model.safetensors: cannot be read"):
        open_tensors(tmp_path)


def test_neither_form_and_both_forms_are_refused(tmp_path: Path, write_file: Write) -> None:
    with pytest.raises(CheckpointError, match="holds neither"):
        open_tensors(tmp_path)
    write_file(tmp_path / "model.safetensors", {"one": ONE})
    _index(tmp_path, {"one": "model.safetensors"})
    with pytest.raises(CheckpointError, match="remove one of them"):
        open_tensors(tmp_path)
