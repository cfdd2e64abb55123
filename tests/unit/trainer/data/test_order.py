import hashlib
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from evalmon.errors import ConfigError, WriteError
from trainer.data import order as order_module
from trainer.data import order_file
from trainer.data.order import GlobalOrder, epoch_order, find_order


@pytest.mark.parametrize("seed", [0, 7, 34521])
@pytest.mark.parametrize("epoch", [1, 2, 5])
def test_an_epoch_is_the_reference_shuffle(seed: int, epoch: int) -> None:
    expected = np.arange(97, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(expected)
    assert epoch_order(seed, epoch, 97).tolist() == expected.tolist()


@pytest.mark.parametrize("epoch", [1, 3])
def test_maxtexts_epoch_is_its_permutation_with_epochs_from_zero(epoch: int) -> None:
    digest = hashlib.sha256(f"olmo-shuffle:42:{epoch - 1}".encode()).digest()
    expected = np.random.default_rng(int.from_bytes(digest[:8], "little")).permutation(97)
    assert epoch_order(42, epoch, 97, "maxtext").tolist() == expected.tolist()


def test_an_unknown_order_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"--order 'olmo-core'.*nearest is 'olmo_core'"):
        find_order("olmo-core")


def test_an_epoch_order_cannot_be_overwritten() -> None:
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(0, 1, 5)[0] = 3


@pytest.mark.parametrize("seed", [0, 11])
def test_batches_are_rows_of_each_epochs_order_cut_to_whole_batches(seed: int) -> None:
    order = GlobalOrder(seed, instances=23)
    rows: list[list[int]] = []
    for epoch in (1, 2, 3):
        shuffled = np.arange(23, dtype=np.uint32)
        np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(shuffled)
        rows += shuffled[:20].reshape(5, 4).tolist()
    assert [order.batch(step, 4).tolist() for step in range(1, 16)] == rows


def test_a_position_leads_to_the_same_batches_however_it_was_reached() -> None:
    order = GlobalOrder(3, instances=23)
    for done in range(12):
        position = order.after(0, done, 4)
        starts = [order.batch_start(position, t, 4) for t in range(8)]
        assert starts == [order.batch_start(0, done + t, 4) for t in range(8)]


def test_another_batch_goes_on_at_the_next_instance() -> None:
    order = GlobalOrder(3, instances=23)
    position = order.after(0, 3, 4)
    assert position == 12
    assert order.batch_start(position, 0, 5) == 12
    assert order.batch_start(position, 1, 5) == 17
    # 22 of 23 are read: no batch of 5 is left, and the next begins the second epoch.
    assert order.batch_start(position, 2, 5) == 23


class TestFiledOrders:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order_module, "FILED", 100)

    def test_a_long_shuffle_is_a_file_with_the_same_order(self, tmp_path: Path) -> None:
        order = GlobalOrder(5, 100, directory=tmp_path / "order", fingerprint="abc")
        assert order.batch(2, 30).tolist() == GlobalOrder(5, 100).batch(2, 30).tolist()
        (file,) = (tmp_path / "order").glob("*.u4")
        assert file.stat().st_size == 400

    def test_neither_data_nor_seed_nor_epoch_share_a_file(self, tmp_path: Path) -> None:
        for fingerprint, seed, position in (("a", 1, 0), ("b", 1, 0), ("a", 2, 0), ("a", 1, 100)):
            GlobalOrder(seed, 100, "olmo_core", tmp_path, fingerprint).at(position, 1)
        GlobalOrder(1, 100, "maxtext", tmp_path, "a").at(0, 1)
        assert len(list(tmp_path.glob("*.u4"))) == 5

    def test_a_file_that_is_cut_off_is_built_again(self, tmp_path: Path) -> None:
        built: list[int] = []

        def build() -> np.ndarray:
            built.append(1)
            return np.arange(10, dtype=np.uint32)

        path = tmp_path / "x.u4"
        assert order_file.stored(path, 10, build).tolist() == list(range(10))
        assert order_file.stored(path, 10, build).tolist() == list(range(10))
        assert len(built) == 1
        path.write_bytes(path.read_bytes()[:20])
        assert order_file.stored(path, 10, build).tolist() == list(range(10))
        assert len(built) == 2

    def test_a_directory_that_cannot_be_written_is_named_with_what_is_needed(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "order").write_text("a file")
        with pytest.raises(WriteError, match=r"order/.*it needs 400 bytes"):
            GlobalOrder(5, 100, directory=tmp_path / "order").at(0, 1)


def _build_noted(path: Path, notes: Path) -> None:
    def build() -> np.ndarray:
        with notes.open("a") as stream:
            stream.write("built\n")
        return np.arange(1 << 16, dtype=np.uint32)

    order_file.stored(path, 1 << 16, build)


@pytest.mark.slow
def test_of_many_processes_one_builds(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "x.u4", tmp_path / "notes")
    processes = [spawn.Process(target=_build_noted, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "notes").read_text() == "built\n"
