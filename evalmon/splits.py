"""Train, fresh and holdout text: split by document, before any shuffle, proven disjoint.

A document's part follows from a hash of its text alone, so neither order, nor number of
documents, nor a seed can move it. Texts that share a run of :data:`WINDOW` words (near
copies, one text inside another) are kept on one side: together in train when their
hashes disagree. Texts shorter than the window are left out, since no window could show
that they lie inside another text.

Source: splitting before shuffling avoids google/grain issue 1200; a near-duplicate in the
holdout makes memorizing look like learning (marin-community/marin issue 6742).
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from evalmon.types import Document

__all__ = ["EXCERPT_CHARACTERS", "FRESH_SHARE", "HOLDOUT_SHARE", "WINDOW", "Split", "split"]

WINDOW = 50
"""Words in a row that two parts may not share."""

HOLDOUT_SHARE = 0.04
"""Share of documents kept for the holdout."""

FRESH_SHARE = 0.04
"""Share of documents of the same mix that are never trained on, for the probe."""

EXCERPT_CHARACTERS = 440
"""Longest holdout excerpt: about 128 tokens of a 4,096-token byte-level BPE."""

_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so invertible modulo 2**64


@dataclass(frozen=True, slots=True)
class Split:
    """Three disjoint parts of one collection of documents.

    Attributes:
        train: documents to train on.
        fresh: documents of the same mix, never trained on.
        holdout: excerpts of the held-out documents, ordered so that each prefix has
            the mix of the whole.
        near_copies: documents that share a window with another document.
        moved: documents whose own hash said fresh or holdout, kept in train because
            they share a window with a train document.
        short: documents left out because they have fewer words than a window.
    """

    train: tuple[Document, ...]
    fresh: tuple[Document, ...]
    holdout: tuple[Document, ...]
    near_copies: int
    moved: int
    short: int

    def summary(self) -> str:
        """Return one line with the sizes, for a person."""
        sizes = ", ".join(
            f"{name} {len(part):,} documents of {sum(len(item.text) for item in part):,} characters"
            for name, part in (
                ("train", self.train),
                ("fresh", self.fresh),
                ("holdout excerpts", self.holdout),
            )
        )
        return f"{sizes} ({self.near_copies} near-copies, {self.moved} of them moved to train)"


def split(documents: Iterable[Document]) -> Split:
    """Split documents by the hash of their text.

    Args:
        documents: any order; texts equal up to case and white space are kept once.

    Raises:
        DataError: a part would be empty, or two parts share a window of words (which
            would be a fault of this function).
    """
    unique = {" ".join(_words(item.text)): item for item in documents}
    ordered = [unique[key] for key in sorted(unique)]
    kept = [item for item in ordered if len(_words(item.text)) >= WINDOW]
    owners, hashes = _windows(kept)
    groups = _groups(owners, hashes, len(kept))
    own = [_part(item.text) for item in kept]
    members: defaultdict[int, set[str]] = defaultdict(set)
    for group, part in zip(groups, own, strict=True):
        members[group].add(part)
    final = [
        part if len(members[group]) == 1 else "train"
        for group, part in zip(groups, own, strict=True)
    ]
    sizes = Counter(groups)
    parts = {
        name: [item for item, part in zip(kept, final, strict=True) if part == name]
        for name in ("train", "fresh", "holdout")
    }
    for name, part in parts.items():
        if not part:
            raise DataError(
                f"{len(kept)} documents of at least {WINDOW} words leave the {name} part empty; "
                "give more documents"
            )
    _prove_disjoint(owners, hashes, final)
    return Split(
        train=tuple(parts["train"]),
        fresh=tuple(parts["fresh"]),
        holdout=tuple(_excerpts(parts["holdout"])),
        near_copies=sum(size for size in sizes.values() if size > 1),
        moved=sum(before != after for before, after in zip(own, final, strict=True)),
        short=len(ordered) - len(kept),
    )


def _words(text: str) -> list[str]:
    """Return the words of a text, letter case folded."""
    return text.casefold().split()


def _digest(text: str) -> int:
    """Hash a text, up to case and white space, to 64 bits."""
    key = " ".join(_words(text)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def _part(text: str) -> str:
    """Name the part that a text's hash alone puts it into."""
    position = _digest(text) / 2**64
    if position < HOLDOUT_SHARE:
        return "holdout"
    return "fresh" if position < HOLDOUT_SHARE + FRESH_SHARE else "train"


def _windows(documents: Sequence[Document]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Hash every run of WINDOW words; return document numbers and hashes, sorted by hash.

    The hash of words x at position i is sum over j of x[i+j] * b**(-j) modulo 2**64,
    taken from one running sum of x[k] * b**(-k).
    """
    vocabulary: dict[str, int] = {}
    owners: list[NDArray[np.int64]] = []
    hashes: list[NDArray[np.uint64]] = []
    for number, item in enumerate(documents):
        words = _words(item.text)
        for word in words:
            if word not in vocabulary:
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                vocabulary[word] = int.from_bytes(digest, "big")
        values = np.array([vocabulary[word] for word in words], dtype=np.uint64)
        inverse = np.uint64(pow(_MULTIPLIER, -1, 2**64))
        powers = np.cumprod(np.full(len(words), inverse, dtype=np.uint64))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values * powers, dtype=np.uint64)])
        forward = np.cumprod(np.full(len(words), np.uint64(_MULTIPLIER), dtype=np.uint64))
        found = (sums[WINDOW:] - sums[:-WINDOW]) * forward[: len(words) - WINDOW + 1]
        owners.append(np.full(len(found), number, dtype=np.int64))
        hashes.append(found)
    if not documents:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    every = np.concatenate(hashes)
    order = np.argsort(every, kind="stable")
    return np.concatenate(owners)[order], every[order]


def _groups(owners: NDArray[np.int64], hashes: NDArray[np.uint64], count: int) -> list[int]:
    """Give documents that share a window, directly or through others, one group number."""
    parent = list(range(count))

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    shared = np.nonzero((hashes[1:] == hashes[:-1]) & (owners[1:] != owners[:-1]))[0]
    for place in shared.tolist():
        parent[root(int(owners[place + 1]))] = root(int(owners[place]))
    return [root(item) for item in range(count)]


def _prove_disjoint(
    owners: NDArray[np.int64], hashes: NDArray[np.uint64], parts: Sequence[str]
) -> None:
    """Raise unless each window of words occurs in one part only."""
    codes = {"train": 0, "fresh": 1, "holdout": 2}
    part = np.array([codes[name] for name in parts])[owners]
    torn = int(np.count_nonzero((hashes[1:] == hashes[:-1]) & (part[1:] != part[:-1])))
    if torn:
        raise DataError(f"{torn} windows of {WINDOW} words occur in two parts of the split")


def _excerpts(documents: Sequence[Document]) -> list[Document]:
    """Cut documents into excerpts, ordered so that each prefix has the mix of the whole.

    Within a source the order is by hash; the k-th of n excerpts of a source stands at
    (k + 1/2) / n of the whole list.
    """
    pieces: defaultdict[str, list[Document]] = defaultdict(list)
    for item in documents:
        for number, text in enumerate(_cut(item.text)):
            pieces[item.source].append(replace(item, id=f"{item.id}#{number}", text=text))
    placed: list[tuple[float, str, Document]] = []
    for source, found in pieces.items():
        found.sort(key=lambda item: _digest(item.text))
        placed += [((number + 0.5) / len(found), source, item) for number, item in enumerate(found)]
    placed.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in placed]


def _cut(text: str) -> list[str]:
    """Cut a text at white space into pieces of half to a whole excerpt."""
    pieces: list[str] = []
    rest = text.strip()
    while len(rest) > EXCERPT_CHARACTERS:
        space = max(
            rest.rfind(mark, EXCERPT_CHARACTERS // 2, EXCERPT_CHARACTERS) for mark in (" ", "\n")
        )
        end = space if space > 0 else EXCERPT_CHARACTERS
        pieces.append(rest[:end].strip())
        rest = rest[end:].strip()
    if len(rest) >= EXCERPT_CHARACTERS // 2 or not pieces:
        pieces.append(rest)
    return pieces
