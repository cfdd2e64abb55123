from collections.abc import Callable

import numpy as np
import pytest

from evalmon.errors import ConfigError
from trainer.data.index import InstanceIndex, TokenFolder
from trainer.data.source import InstanceSource, evenly_spaced

MakeFolder = Callable[..., TokenFolder]


def test_records_are_the_slices_of_the_files(make_folder: MakeFolder) -> None:
    folder = make_folder(10, 9)
    source = InstanceSource(InstanceIndex.build(folder, 4))
    whole = [np.fromfile(folder.path / file.path, "<u4")[:8] for file in folder.files]
    expected = np.concatenate(whole).reshape(4, 4)
    assert len(source) == 4
    assert [source[i]["tokens"].tolist() for i in range(4)] == expected.tolist()
    assert [int(source[i]["instance"]) for i in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("keep", "total"), [(1, 9), (4, 10), (9, 9), (7, 1000)])
def test_kept_instances_are_distinct_and_evenly_spaced(keep: int, total: int) -> None:
    kept = [evenly_spaced(i, keep, total) for i in range(keep)]
    gaps = np.diff([*kept, total])
    assert kept[0] == 0
    assert set(gaps) <= {total // keep, total // keep + 1}


def test_a_restricted_source_reads_every_file(make_folder: MakeFolder) -> None:
    index = InstanceIndex.build(make_folder(40, 40), 4)
    source = InstanceSource(index, keep=6)
    files = {index.locate(int(source[i]["instance"]))[0] for i in range(6)}
    assert files == {0, 1}


@pytest.mark.parametrize("keep", [0, 5, -1])
def test_more_instances_than_there_are_is_refused(make_folder: MakeFolder, keep: int) -> None:
    with pytest.raises(ConfigError, match=f"--instances {keep}"):
        InstanceSource(InstanceIndex.build(make_folder(16), 4), keep)


def test_sources_of_other_content_have_other_names(make_folder: MakeFolder) -> None:
    one = InstanceIndex.build(make_folder(16, name="one"), 4)
    other = InstanceIndex.build(make_folder(16, vocab_size=63, name="other"), 4)
    names = {repr(InstanceSource(one)), repr(InstanceSource(other)), repr(InstanceSource(one, 2))}
    assert len(names) == 3
