"""Bits per byte of one text, whichever tokens it was cut into."""

from dataclasses import replace

import numpy as np
import pytest

from evalmon.across_tokenizers import in_nats, same_text
from evalmon.types import Series
from tests.synthetic_store import identity

C4 = "eval/lm/c4_en-validation/ce_nats"
BITS = C4.replace("ce_nats", "bpb")


def series(metric: str, steps: list[int], values: list[float]) -> Series:
    return Series(metric, np.array(steps), np.array(steps) * 10, np.array(values))


def test_f26_the_reference_is_told_in_the_runs_tokens() -> None:
    """100 bytes: the run cuts them into 20 tokens at 2.5 nats, the reference into 25 at 2.0."""
    bits = 50 / (np.log(2) * 100)
    own = series(BITS, [1, 2], [bits, bits])
    found = in_nats(series(BITS, [1, 2], [bits, bits]), own, series(C4, [1, 2], [2.5, 2.5]))
    assert found is not None
    assert found.metric == C4
    assert found.values == pytest.approx([2.5, 2.5])  # no gap, where nats a token show 0.5
    assert in_nats(own, own, series(C4, [3], [2.5])) is None


def test_one_odd_point_moves_no_factor() -> None:
    own, nats = series(BITS, [1, 2, 3], [1.0, 1.0, 1.0]), series(C4, [1, 2, 3], [3.0, 3.0, 7.0])
    found = in_nats(series(BITS, [5], [0.5]), own, nats)
    assert found is not None
    assert (found.tokens.tolist(), found.values.tolist()) == ([50], [1.5])


def test_only_whole_texts_in_bytes_are_one() -> None:
    mine = replace(identity("c4", "bpb"), normalization="UTF-8 bytes")
    assert same_text(mine, replace(mine, tokenizer="b", prefix_token=7, max_length=9))
    assert not same_text(mine, replace(mine, tokenizer="b", data="other"))
    assert not same_text(mine, replace(mine, tokenizer="b", item_limit=3))
    partial = replace(mine, normalization="UTF-8 bytes of the tokens scored")
    assert not same_text(partial, replace(partial, tokenizer="b"))
