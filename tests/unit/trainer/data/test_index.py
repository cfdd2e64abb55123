from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from evalmon.errors import DataError
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder, differences

MakeFolder = Callable[..., TokenFolder]


def test_instances_of_each_file_follow_one_another_without_its_tail(
    make_folder: MakeFolder,
) -> None:
    index = InstanceIndex.build(make_folder(11, 3, 8), 4)
    assert len(index) == 4
    assert [index.locate(i) for i in range(4)] == [(0, 0), (0, 4), (2, 0), (2, 4)]


def test_many_are_located_as_each_is(make_folder: MakeFolder) -> None:
    index = InstanceIndex.build(make_folder(11, 3, 0, 8, 41), 4)
    order = np.random.default_rng(0).permutation(len(index))
    files, starts = index.locate_many(order)
    assert list(zip(files.tolist(), starts.tolist(), strict=True)) == [
        index.locate(int(i)) for i in order
    ]


def test_the_fingerprint_follows_content_and_sequence_length(make_folder: MakeFolder) -> None:
    one, other = make_folder(16, name="one"), make_folder(16, vocab_size=65, name="other")
    fingerprints = {
        InstanceIndex.build(folder, length).fingerprint
        for folder in (one, other)
        for length in (4, 8)
    }
    assert len(fingerprints) == 4


def test_files_shorter_than_an_instance_are_refused(make_folder: MakeFolder) -> None:
    with pytest.raises(DataError, match="the longest has 3"):
        InstanceIndex.build(make_folder(3, 2), 4)


def test_two_files_of_equal_length_and_other_tokens_are_other_data(
    make_folder: MakeFolder,
) -> None:
    one, other = make_folder(200_000, name="one"), make_folder(200_000, name="other")
    (file,) = other.files
    mine = InstanceIndex.build(one, 8).identity()
    assert differences(mine, InstanceIndex.build(other, 8).identity()) == []
    tokens = np.fromfile(other.path / file.path, "<u4")
    tokens[-1] = (tokens[-1] + 1) % 64
    tokens.tofile(other.path / file.path)
    again = TokenFile.of(other.path / file.path, file.path, file.label)
    changed = InstanceIndex.build(replace(other, files=(again,)), 8)
    (said,) = differences(mine, changed.identity())
    assert said.startswith("file contents is ")
    assert changed.fingerprint != InstanceIndex.build(one, 8).fingerprint


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"vocab_size": 65}, {"vocab_size"}),
        ({"eos_id": 1}, {"eos_id"}),
        ({"n_tokens": 17}, {"file sizes"}),
        ({"label": "other"}, {"file names and labels"}),
        ({"path": "other.npy"}, {"file names and labels"}),
        ({"sample": "0"}, {"file contents"}),
        ({"sha256": None}, {"file contents"}),
        ({"n_tokens": 23}, {"file sizes"}),
        ({"n_tokens": 24}, {"file sizes", "instances"}),
        ({"sequence_length": 4}, {"sequence_length", "instances"}),
    ],
)
def test_all_that_changes_the_instances_is_in_the_identity_by_name(
    make_folder: MakeFolder, change: dict[str, object], differing: set[str]
) -> None:
    folder = make_folder(16)
    index = InstanceIndex.build(folder, 8)
    length = 8
    if "sequence_length" in change:
        other, length = folder, 4
    elif set(change) <= {"vocab_size", "eos_id"}:
        other = replace(folder, **change)
    else:
        other = replace(folder, files=(replace(folder.files[0], **change),))
    changed = InstanceIndex.build(other, length)
    said = differences(index.identity(), changed.identity())
    assert {text.split(" is ")[0] for text in said} == differing
    assert changed.fingerprint != index.fingerprint


def test_data_that_moved_is_the_same_data(make_folder: MakeFolder) -> None:
    folder = make_folder(16)
    (file,) = folder.files
    for path in (f"/elsewhere/{file.path}", f"s3://bucket/deep/{file.path}"):
        moved = replace(folder, path=folder.path / "x", files=(replace(file, path=path),))
        assert moved.fingerprint == folder.fingerprint
        assert moved.identity() == folder.identity()


def test_differences_name_both_values() -> None:
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == [
        "b is 3, was 2",
        "c is 4, was not known",
    ]
