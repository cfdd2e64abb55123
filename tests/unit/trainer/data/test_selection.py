from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from evalmon.errors import ConfigError
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder
from trainer.data.selection import Portion, Selection, parse_ratios

MakeFolder = Callable[..., TokenFolder]


def _all(selection: Selection) -> list[int]:
    return selection.at(np.arange(len(selection))).tolist()


@pytest.fixture
def index(make_folder: MakeFolder) -> InstanceIndex:
    """Index 10 instances of web, 3 of code, 5 of web again and 2 of maths."""
    folder = make_folder(20, 6, 11, 5)
    labels = ("web", "code", "web", "maths")
    files = tuple(
        TokenFile(f.path, label, f.n_tokens, None, None, f.sample)
        for f, label in zip(folder.files, labels, strict=True)
    )
    return InstanceIndex.build(TokenFolder(folder.path, files, 64, 0), 2)


@pytest.mark.parametrize(("keep", "total"), [(1, 9), (4, 10), (9, 9), (7, 1000)])
def test_kept_instances_are_distinct_and_evenly_spaced(keep: int, total: int) -> None:
    kept = _all(Selection.evenly(total, keep))
    assert kept == [position * total // keep for position in range(keep)]
    assert {b - a for a, b in pairwise([*kept, total])} <= {total // keep, total // keep + 1}


def test_all_is_each_once_in_order() -> None:
    assert _all(Selection.evenly(7)) == list(range(7))
    assert Selection.evenly(7) == Selection.evenly(7, 7)
    assert Selection.evenly(7).upsampled == []


def test_very_many_instances_are_selected_exactly() -> None:
    total, keep = 724_000_000, 723_999_999
    positions = np.array([0, 1, keep // 2, keep - 1])
    expected = [int(p) * total // keep for p in positions]
    assert Selection.evenly(total, keep).at(positions).tolist() == expected


@pytest.mark.parametrize("keep", [0, 11, -1])
def test_more_instances_than_there_are_is_refused(keep: int) -> None:
    with pytest.raises(ConfigError, match=rf"--instances {keep}: .* give 1 to 10"):
        Selection.evenly(10, keep)


def test_a_portion_is_whole_passes_and_then_evenly_spaced_ones() -> None:
    portion = Portion(((2, 4), (10, 13)), 12)
    assert portion.at(np.arange(12)).tolist() == [2, 3, 10, 11, 12] * 2 + [2, 10]
    assert (portion.available, portion.times) == (5, 3)


def test_positions_may_be_asked_in_any_order(index: InstanceIndex) -> None:
    selection = Selection.mixture(index, {"web": 0.5, "code": 0.5}, 12, max_repeats=2)
    whole = np.array(_all(selection))
    shuffled = np.random.default_rng(0).permutation(len(selection))
    assert selection.at(shuffled).tolist() == whole[shuffled].tolist()
    assert selection.at(np.array([], np.int64)).tolist() == []


def test_a_mixture_has_the_wanted_share_of_each_source(index: InstanceIndex) -> None:
    # 0.62 * 10 = 6.2, 0.23 * 10 = 2.3, 0.15 * 10 = 1.5: the one left goes to the last.
    selection = Selection.mixture(index, {"web": 0.62, "code": 0.23, "maths": 0.15}, 10)
    read = _all(selection)
    assert len(selection) == len(read) == 10
    web = [*range(10), *range(13, 18)]
    assert read == [
        *(web[i * 15 // 6] for i in range(6)),
        *(10 + i * 3 // 2 for i in range(2)),
        18,
        19,
    ]


def test_the_default_is_the_most_that_reads_nothing_too_often(index: InstanceIndex) -> None:
    ratios = {"web": 0.6, "code": 0.4}
    for times, expected in ((1, 7), (2, 15), (5, 37)):
        selection = Selection.mixture(index, ratios, max_repeats=times)
        assert len(selection) == expected
        assert max(Counter(_all(selection)).values()) <= times
        with pytest.raises(ConfigError, match="source 'code'"):
            Selection.mixture(index, ratios, expected + 2, times)


def test_a_share_as_typed_is_exact(index: InstanceIndex) -> None:
    # In binary 3 / 0.3 is above 10, and 0.1 * 3 is not 0.3.
    assert len(Selection.mixture(index, {"code": 0.3, "web": 0.7})) == 10


def test_what_is_read_more_than_once_is_told_with_the_most_times(index: InstanceIndex) -> None:
    selection = Selection.mixture(
        index, {"web": 0.4, "code": 0.32, "maths": 0.28}, 25, max_repeats=4
    )
    read = Counter(_all(selection))
    # 8 of 3 code, 7 of 2 maths, 10 of 15 web.
    assert selection.upsampled == [[10, 13, 3], [18, 20, 4]]
    for first, stop, times in selection.upsampled:
        assert max(read[i] for i in range(first, stop)) == times
    planned = {i for first, stop, _ in selection.upsampled for i in range(first, stop)}
    assert all(count == 1 for i, count in read.items() if i not in planned)


def test_neighboring_ranges_read_equally_often_are_told_as_one() -> None:
    one = Selection((Portion(((0, 4), (8, 9)), 10), Portion(((4, 8),), 8), Portion(((9, 12),), 2)))
    assert one.upsampled == [[0, 9, 2]]


def test_selections_that_read_other_instances_have_other_fingerprints(
    index: InstanceIndex,
) -> None:
    ratios = {"web": 0.6, "code": 0.4}
    found = {
        Selection.evenly(20).fingerprint,
        Selection.evenly(20, 7).fingerprint,
        Selection.mixture(index, ratios).fingerprint,
        Selection.mixture(index, ratios, 5).fingerprint,
        Selection.mixture(index, ratios, max_repeats=2).fingerprint,
    }
    assert len(found) == 5


@pytest.mark.parametrize(
    ("ratios", "options", "says"),
    [
        ({"wed": 0.5, "code": 0.5}, {}, "'wed' is no source of .*; nearest is 'web' of web, code"),
        ({"web": 0.5, "code": 0.4}, {}, "sum to 0.9, not 1"),
        ({"web": 1.5, "code": -0.5}, {}, "the share of 'code' is -0.5"),
        ({"web": 0.5, "code": 0.5}, {"max_repeats": 0}, "--max-repeats 0"),
        ({"web": 0.5, "code": 0.5}, {"count": 0}, "--instances 0"),
        (
            {"web": 0.5, "code": 0.5},
            {"count": 8},
            "source 'code': 4 instances wanted, but 3 are there, to be read at most 1 times",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(
    index: InstanceIndex, ratios: dict[str, float], options: dict[str, int], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Selection.mixture(index, ratios, **options)


def test_a_source_without_a_whole_instance_is_refused(make_folder: MakeFolder) -> None:
    index = InstanceIndex.build(make_folder(8, 3), 4)
    with pytest.raises(ConfigError, match="source 's1' holds no instance of 4 tokens"):
        Selection.mixture(index, {"s0": 0.5, "s1": 0.5})


def test_ratios_are_read_as_typed() -> None:
    assert parse_ratios("web=0.7,code=.25, maths = 5e-2") == {
        "web": 0.7,
        "code": 0.25,
        "maths": 0.05,
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no source=share"),
        ("web", "'web' is no source=share"),
        ("web=0.5,=0.5", "'=0.5' is no source=share"),
        ("web=half,code=0.5", "the share of 'web' is 'half', no number"),
        ("web=0.5,web=0.5", "'web' is named twice"),
        ("web=0.5,code=0.6", "sum to 1.1, not 1"),
        ("web=nan,code=1", "the share of 'web' is nan"),
        ("web=1,code=0", "the share of 'code' is 0.0; give one above 0"),
    ],
)
def test_bad_ratios_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match="--ratios") as error:
        parse_ratios(text)
    assert says in str(error.value)
