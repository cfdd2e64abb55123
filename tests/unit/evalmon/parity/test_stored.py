"""A stored reference: what was kept comes back bit for bit, and nothing else is taken for one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import CheckpointError, ConfigError, WriteError
from evalmon.parity.reference import ReferenceFacts, file_hash
from evalmon.parity.stored import Recorder, open_stored

FACTS = ReferenceFacts("hf", "huggingface", 5, 4, "bfloat16", "c0", {"transformers": "9.9"})
PROMPTS = [[0, 1, 2, 3, 4, 0, 1], [2], [4, 3, 2]]
ROWS = [
    np.random.default_rng(i).normal(size=(len(ids), 5)).astype(np.float32)
    for i, ids in enumerate(PROMPTS)
]


def record(target: Path, budget_bytes: int = 10**6, part: int = 3) -> Recorder:
    recorder = Recorder(target, PROMPTS, 5, budget_bytes)
    for number, rows in enumerate(ROWS):
        for start in range(0, len(rows), part):
            positions = np.arange(start, min(start + part, len(rows)))
            recorder.add(number, positions, rows[positions])
    recorder.save(FACTS, "w0", "2.0")
    return recorder


def test_everything_comes_back(tmp_path: Path):
    recorder = record(tmp_path / "golden.npz")
    assert (recorder.kept, recorder.positions) == (11, 11)
    found = open_stored(tmp_path / "golden.npz")
    assert found.prompts == PROMPTS
    assert (found.facts.form, found.facts.path, found.facts.weights_hash) == ("stored", "hf", "w0")
    assert found.facts.stored_in == str(tmp_path / "golden.npz")
    assert found.facts.versions == {"transformers": "9.9", "numpy": "2.0"}
    for number, rows in enumerate(ROWS):
        between = found.read(number, PROMPTS[number])
        positions, values = between(0, len(rows))
        assert positions.tolist() == list(range(len(rows)))
        np.testing.assert_array_equal(values, rows)
    positions, values = found.read(0, PROMPTS[0])(2, 5)
    assert positions.tolist() == [2, 3, 4]
    np.testing.assert_array_equal(values, ROWS[0][2:5])
    assert found.read(0, PROMPTS[0])(7, 9)[0].tolist() == []


@pytest.mark.parametrize("rows", range(1, 12))
def test_too_many_positions_are_sampled_evenly_up_to_the_last(tmp_path: Path, rows: int):
    recorder = record(tmp_path / "golden.npz", budget_bytes=4 * 5 * rows + 19, part=2)
    assert recorder.kept == rows
    found = open_stored(tmp_path / "golden.npz")
    at: list[int] = []
    start = 0
    for number, ids in enumerate(PROMPTS):
        positions, values = found.read(number, ids)(0, len(ids))
        np.testing.assert_array_equal(values, ROWS[number][positions])
        at += (start + positions).tolist()
        start += len(ids)
    gaps = np.diff(at)
    assert at[-1] == 10
    assert len(at) == rows
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_an_existing_file_is_never_written_over(tmp_path: Path):
    (tmp_path / "golden.npz").write_text("precious")
    with pytest.raises(ConfigError, match=r"golden.npz: exists"):
        record(tmp_path / "golden.npz")
    assert (tmp_path / "golden.npz").read_text() == "precious"


def test_a_row_that_does_not_fit_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="5 entries do not fit"):
        record(tmp_path / "golden.npz", budget_bytes=19)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path):
    recorder = Recorder(tmp_path / "absent/golden.npz", PROMPTS, 5)
    for number, rows in enumerate(ROWS):
        recorder.add(number, np.arange(len(rows)), rows)
    with pytest.raises(WriteError, match=r"absent/golden.npz: cannot be written"):
        recorder.save(FACTS, "w0", "2.0")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    below = Recorder(tmp_path / "file/golden.npz", PROMPTS, 5)
    for number, rows in enumerate(ROWS):
        below.add(number, np.arange(len(rows)), rows)
    with pytest.raises(WriteError, match=r"file/golden.npz: cannot be written"):
        below.save(FACTS, "w0", "2.0")


def rewrite(path: Path, **changes: Any) -> None:
    """Write the arrays again, some of them otherwise."""
    with np.load(path) as archive:
        arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    arrays |= changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


def as_record(**record: Any) -> Any:
    return np.frombuffer(json.dumps(record).encode(), np.uint8)


_FACTS: dict[str, Any] = {
    "format": 1, "path": "x", "form": "huggingface", "vocab_size": 5, "stored_dtype": "float32",
    "config_hash": "c", "versions": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"record": as_record(format=2)}, "not format 1"),
        ({"record": as_record(format=1, path="x")}, "missing"),
        ({"record": np.frombuffer(b"{", np.uint8)}, "Expecting"),
        ({"record": as_record(**_FACTS, window="4")}, "window is '4'"),
        ({"record": as_record(**_FACTS, window=None)}, "window is None"),
        ({"record": as_record(**{**_FACTS, "versions": [1]}, window=4)}, r"versions is \[1\]"),
        ({"tokens": None}, "tokens"),
        ({"tokens": np.zeros((2, 2), np.int64)}, "tokens is int64"),
        ({"tokens": np.zeros(10, np.int64)}, "lengths and tokens differ"),
        ({"lengths": np.array([11, 0], np.int64)}, "a text without a token"),
        ({"log_probabilities": np.zeros((11, 4), np.float32)}, "rows, positions and vocabulary"),
        ({"log_probabilities": np.zeros((11, 5))}, "log_probabilities is float64"),
        ({"prompt": np.full(11, 3)}, "a position of no text"),
        ({"position": np.zeros(11, np.int64)}, "positions out of order"),
        ({"position": np.arange(11)}, "a position of no token"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
):
    file = tmp_path / "golden.npz"
    record(file)
    rewrite(file, **changes)
    with pytest.raises(CheckpointError, match=says) as caught:
        open_stored(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("content", ["cut", "text", "empty", "pickled"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str):
    file = tmp_path / "golden.npz"
    record(file)
    match content:
        case "cut":
            file.write_bytes(file.read_bytes()[:-100])
        case "text":
            file.write_text("hello")
        case "empty":
            file.write_bytes(b"")
        case _:
            np.savez(file, allow_pickle=True, record=np.array([{"format": 1}], object))
    with pytest.raises(CheckpointError, match="no stored reference"):
        open_stored(file)


def test_a_hash_follows_names_and_contents(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"3")
    first = file_hash([tmp_path / "a", tmp_path / "b"])
    assert len(first) == 64
    assert first == file_hash([tmp_path / "a", tmp_path / "b"])
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"23")
    assert file_hash([tmp_path / "a", tmp_path / "b"]) != first
    with pytest.raises(CheckpointError, match="cannot be read"):
        file_hash([tmp_path / "absent"])
