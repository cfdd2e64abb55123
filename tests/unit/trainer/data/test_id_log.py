import os
from pathlib import Path

import numpy as np
import pytest

from evalmon.errors import DataError
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, text_hashes
from trainer.data.id_log import IdLogWriter, id_records
from trainer.data.pipeline import GlobalBatch

BATCH = GlobalBatch(
    tokens=np.array([[1, 2], [3, 70_000]], np.uint32),
    instances=np.array([7, 2**40]),
    hosts=np.array([0, 1]),
)


def _records(path: Path) -> np.ndarray:
    content = path.read_bytes()
    assert content[:16] == ID_LOG_MAGIC
    return np.frombuffer(content[16:], ID_LOG_RECORD)


def test_records_hold_step_host_instance_and_hash(tmp_path: Path) -> None:
    with IdLogWriter(tmp_path / "ids.bin") as log:
        log.append(id_records(3, BATCH))
    records = _records(tmp_path / "ids.bin")
    assert records["step"].tolist() == [3, 3]
    assert records["host"].tolist() == [0, 1]
    assert records["instance"].tolist() == [7, 2**40]
    assert records["text_hash"].tolist() == text_hashes(BATCH.tokens).tolist()


def test_records_are_on_disk_before_the_writer_is_closed(tmp_path: Path) -> None:
    with IdLogWriter(tmp_path / "ids.bin") as log:
        log.append(id_records(1, BATCH))
        assert len(_records(tmp_path / "ids.bin")) == 2


@pytest.mark.parametrize("torn", [1, 23])
def test_a_torn_tail_is_cut_before_more_is_appended(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "ids.bin"
    with IdLogWriter(path) as log:
        log.append(id_records(1, BATCH))
    with path.open("ab") as stream:
        stream.write(b"x" * torn)
    with IdLogWriter(path) as log:
        log.append(id_records(2, BATCH))
    assert _records(path)["step"].tolist() == [1, 1, 2, 2]


def test_a_torn_magic_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    path.write_bytes(ID_LOG_MAGIC[:5])
    with IdLogWriter(path) as log:
        log.append(id_records(1, BATCH))
    assert len(_records(path)) == 2


@pytest.mark.parametrize("content", [b"something else entirely", b"short"])
def test_another_file_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ids.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not an id log"):
        IdLogWriter(path)
    assert path.read_bytes() == content


def test_a_log_that_keeps_nothing_takes_records() -> None:
    with IdLogWriter(Path(os.devnull)) as log:
        log.append(id_records(1, BATCH))
