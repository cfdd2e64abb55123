"""Draws: their columns, and the hash that the trainer logs too."""

import numpy as np
import pytest

from evalmon.audit.draws import DrawLog, single_token
from evalmon.audit.text_hash import text_hash, text_hashes
from trainer.data.id_log import text_hash as logged_hash


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64, np.uint16])
def test_the_hash_is_the_one_that_id_logs_hold(dtype: type):
    rows = np.random.default_rng(0).integers(0, 60000, (7, 5)).astype(dtype)
    expected = [logged_hash(row.astype(np.uint32)) for row in rows]
    assert text_hashes(rows).tolist() == expected
    assert [text_hash(row) for row in rows] == expected


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
    assert draws.text_hash[0] == text_hash(np.array([1, 0, 1]))


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
        text_hash(np.array([1, 2])),
        text_hash(np.arange(1, 4)),
    ]


def test_rows_of_one_token_are_marked_but_not_texts_of_length_one():
    assert single_token(np.array([[3, 3], [3, 4]])).tolist() == [True, False]
    assert single_token(np.array([[3], [3]])).tolist() == [False, False]
