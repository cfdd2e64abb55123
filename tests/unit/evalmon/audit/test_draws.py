"""Draws: their columns, and the hash that the trainer logs too."""

import hashlib

import numpy as np
import pytest

from evalmon.audit.draws import DrawLog, single_token
from evalmon.types import text_hashes


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64])
def test_a_text_has_one_hash_whatever_integers_hold_it(dtype: type):
    rows = np.array([[3, 70_000], [5, 0]], dtype)
    first = hashlib.blake2b(bytes([3, 0, 0, 0, 112, 17, 1, 0]), digest_size=8).digest()
    assert text_hashes(rows)[0] == int.from_bytes(first, "little")
    assert text_hashes(rows[1:]).tolist() == text_hashes(rows).tolist()[1:]


def test_columns_grow_and_keep_order():
    log = DrawLog()
    for step in range(1, 1201):
        for host in range(2):
            ids = np.array([10 * step + host])
            log.append(step, host, np.array([[step, host, 1]]), ids)
    draws = log.draws()
    assert (len(draws), len(log)) == (2400, 2400)
    assert draws.step.tolist() == np.repeat(np.arange(1, 1201), 2).tolist()
    assert draws.host.tolist() == [0, 1] * 1200
    assert draws.instance.tolist() == [10 * s + h for s in range(1, 1201) for h in (0, 1)]
    assert draws.text_hash[0] == text_hashes(np.array([[1, 0, 1]]))[0]


def test_a_loader_may_use_its_memory_again():
    log, memory = DrawLog(), np.zeros((2, 3), np.int32)
    for step in (1, 2):
        memory[:] = step
        log.append(step, 0, memory, None)
    assert log.draws().text_hash[0] != log.draws().text_hash[2]
    assert log.draws().slot.tolist() == [0, 1, 0, 1]


def test_batches_of_other_lengths_follow_each_other():
    log = DrawLog()
    log.append(1, 0, np.array([[1, 2]]), None)
    log.append(2, 0, np.array([[1, 2, 3]]), None)
    assert log.draws().text_hash.tolist() == [
        *text_hashes(np.array([[1, 2]])).tolist(),
        *text_hashes(np.array([[1, 2, 3]])).tolist(),
    ]


def test_rows_of_one_token_are_marked_but_not_texts_of_length_one():
    assert single_token(np.array([[3, 3], [3, 4]])).tolist() == [True, False]
    assert single_token(np.array([[3], [3]])).tolist() == [False, False]
