"""Splitting text: by hash before any shuffle, near-copies on one side, parts disjoint."""

import random
import re
from pathlib import Path

import pytest

from evalmon import package_data, splits
from evalmon.errors import DataError
from evalmon.types import Document


def documents(count: int, seed: int = 0, words: int = 80) -> list[Document]:
    rng = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(5000)]
    return [
        Document(f"d{n}", " ".join(rng.choices(vocabulary, k=words)), ("x", "y")[n % 2])
        for n in range(count)
    ]


def words(text: str) -> str:
    return " ".join(text.casefold().split())


def windows(texts: list[str]) -> set[str]:
    """All runs of WINDOW words, the slow and obvious way."""
    found: set[str] = set()
    for text in texts:
        parts = words(text).split()
        found |= {
            " ".join(parts[i : i + splits.WINDOW]) for i in range(len(parts) - splits.WINDOW + 1)
        }
    return found


def held_out(given: list[Document], split: splits.Split) -> list[Document]:
    used = {item.id for item in (*split.train, *split.fresh)}
    return [item for item in given if item.id not in used]


def test_parts_are_disjoint_and_nothing_is_lost():
    given = documents(600)
    found = splits.split(given)
    rest = held_out(given, found)
    assert len(found.train) + len(found.fresh) + len(rest) == 600
    assert {item.id.split("#")[0] for item in found.holdout} == {item.id for item in rest}
    assert 5 <= len(rest) <= 50
    assert 5 <= len(found.fresh) <= 50


def test_order_of_documents_moves_none():
    given = documents(300)
    shuffled = random.Random(1).sample(given, len(given))
    assert splits.split(given) == splits.split(shuffled)


def test_more_documents_move_none():
    few = splits.split(documents(300))
    more = splits.split(
        documents(300) + [Document(f"n{item.id}", item.text) for item in documents(200, seed=9)]
    )
    assert {item.id for item in few.train} <= {item.id for item in more.train}
    assert {item.id for item in few.fresh} <= {item.id for item in more.fresh}


def test_no_window_of_words_is_in_two_parts():
    given = documents(400)
    base = splits.split(given)
    # A near-copy of each held-out and fresh text: another start, the same 60 words inside.
    copies = [
        Document(f"copy-{item.id}", "An added start. " + " ".join(item.text.split()[:60]))
        for item in (*base.fresh, *held_out(given, base))
    ]
    found = splits.split([*given, *copies])
    train = windows([item.text for item in found.train])
    fresh = windows([item.text for item in found.fresh])
    rest = windows([item.text for item in held_out([*given, *copies], found)])
    assert not train & fresh
    assert not train & rest
    assert not fresh & rest
    assert found.near_copies == 2 * len(copies)
    assert found.moved >= 0.8 * len(copies)


def test_documents_that_share_less_than_a_window_stay_where_their_hash_says():
    header = " ".join(f"licence{n}" for n in range(splits.WINDOW - 5))
    given = [Document(item.id, f"{header} {item.text}") for item in documents(300)]
    found = splits.split(given)
    assert found.near_copies == 0
    assert found.moved == 0


def test_a_text_inside_another_is_on_its_side():
    given = documents(300)
    base = splits.split(given)
    whole = held_out(given, base)[0]
    inside = Document("inside", " ".join(whole.text.split()[10:70]))
    found = splits.split([*given, inside])
    ids = {item.id for item in (*found.train, *found.fresh)}
    assert (whole.id in ids) == (inside.id in ids)


def test_short_texts_are_left_out_and_counted():
    short = [Document("s", "too short to tell"), Document("t", "x " * (splits.WINDOW - 1))]
    found = splits.split([*documents(300), *short])
    assert found.short == 2
    assert not {"s", "t"} & {item.id for item in found.train}


def test_texts_equal_up_to_case_and_spaces_count_once():
    given = documents(300)
    again = [Document(f"again-{item.id}", item.text.upper().replace(" ", "  ")) for item in given]
    both = splits.split([*given, *again])
    assert len(both.train) == len(splits.split(given).train)


def test_each_prefix_of_the_holdout_has_the_mix_of_the_whole():
    sources = {"a": 3, "b": 1}
    given = [
        Document(f"{source}-{item.id}", item.text, source)
        for source, weight in sources.items()
        for item in documents(400 * weight, seed=weight)
    ]
    holdout = splits.split(given).holdout
    share = sum(item.source == "a" for item in holdout) / len(holdout)
    for size in (20, 40, len(holdout)):
        part = sum(item.source == "a" for item in holdout[:size]) / size
        assert abs(part - share) <= 1 / size + 1e-9


def test_excerpts_are_short_and_together_are_the_text():
    given = [Document(item.id, item.text) for item in documents(100, words=700)]
    found = splits.split(given)
    texts = {item.id: words(item.text) for item in given}
    for item in found.holdout:
        assert splits.EXCERPT_CHARACTERS // 2 - 1 <= len(item.text) <= splits.EXCERPT_CHARACTERS
        assert words(item.text) in texts[item.id.split("#")[0]]


def test_too_few_documents_are_refused():
    with pytest.raises(DataError, match="part empty"):
        splits.split(documents(3))


@pytest.mark.package
@pytest.mark.slow
def test_the_packages_passages_split_into_disjoint_parts(package_root: Path):
    given = list(package_data.passages(package_root))
    found = splits.split(given)
    assert (len(found.train), len(found.fresh), len(found.holdout)) == (6304, 240, 1011)
    assert (found.near_copies, found.moved, found.short) == (49, 5, 1077)
    keys = [
        {words(item.text) for item in part} for part in (found.train, found.fresh, found.holdout)
    ]
    assert not keys[0] & keys[1]
    train = windows([item.text for item in found.train if item.source != "qasper"])
    rest = windows([item.text for item in found.holdout])
    assert not train & rest
    assert re.fullmatch(r"train 6,304 documents of 11,830,075 characters.*", found.summary())
