"""Greedy continuation of token ids, in few compiled shapes.

The texts still open are read again for each token: what is scored most is never generated,
so no keys and values are kept. Padding stands to the right, where causal attention never
looks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "Ids", "batches", "generate", "power_of_two"]

_ROWS: Final = 32
_LEAST_ROWS: Final = 4
_LEAST_LENGTH: Final = 32

Ids: TypeAlias = tuple[int, ...]
"""Token ids of one text."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of one compiled call: padded ids [R, T] and the text each row holds."""

    ids: NDArray[np.int32]
    texts: list[Ids]


def generate(
    likeliest: Callable[[Sequence[Ids]], list[int]],
    prompts: Sequence[Sequence[int]],
    stop_ids: Sequence[int],
    max_new_tokens: int,
    max_length: int,
) -> list[list[int]]:
    """Continue each prompt greedily until a stop id, ``max_new_tokens`` or ``max_length``.

    Args:
        likeliest: returns the likeliest next id of each text.
        prompts: token ids, each at least one and fewer than ``max_length``.
        stop_ids: ids that end a text; they stand at its end.
        max_new_tokens: tokens added at most.
        max_length: tokens of prompt and continuation at most.

    Returns:
        What was added to each prompt.
    """
    texts = [list(prompt) for prompt in prompts]
    open_rows = set(range(len(texts))) if max_new_tokens > 0 else set[int]()
    while open_rows:
        rows = sorted(open_rows)
        for row, token in zip(rows, likeliest([tuple(texts[r]) for r in rows]), strict=True):
            texts[row].append(token)
            new = len(texts[row]) - len(prompts[row])
            full = len(texts[row]) >= max_length or new >= max_new_tokens
            if token in stop_ids or full:
                open_rows.discard(row)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def batches(texts: Sequence[Ids], multiple: int) -> Iterator[Batch]:
    """Pad texts to compiled shapes, longest first, so that only the last batch is not full.

    Args:
        texts: token ids.
        multiple: rows of a batch are a multiple of it.
    """
    ordered = sorted(texts, key=len, reverse=True)
    for start in range(0, len(ordered), _ROWS):
        rows = ordered[start : start + _ROWS]
        count = power_of_two(len(rows), _LEAST_ROWS)
        shape = (-(-count // multiple) * multiple, power_of_two(len(rows[0]), _LEAST_LENGTH))
        ids = np.zeros(shape, np.int32)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
        yield Batch(ids, rows)


def power_of_two(number: int, least: int) -> int:
    """Return the least power of two at or above both."""
    return max(1 << (number - 1).bit_length(), least)
