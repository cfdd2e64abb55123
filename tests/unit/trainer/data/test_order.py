import numpy as np
import pytest

from trainer.data.order import GlobalOrder, epoch_order


@pytest.mark.parametrize("seed", [0, 7, 34521])
@pytest.mark.parametrize("epoch", [1, 2, 5])
def test_an_epoch_is_the_reference_shuffle(seed: int, epoch: int) -> None:
    expected = np.arange(97, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(expected)
    assert epoch_order(seed, epoch, 97).tolist() == expected.tolist()


def test_an_epoch_order_cannot_be_overwritten() -> None:
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(0, 1, 5)[0] = 3


@pytest.mark.parametrize("seed", [0, 11])
def test_batches_are_rows_of_each_epochs_order_cut_to_whole_batches(seed: int) -> None:
    order = GlobalOrder(seed, instances=23, batch_instances=4)
    rows: list[list[int]] = []
    for epoch in (1, 2, 3):
        shuffled = np.arange(23, dtype=np.uint32)
        np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(shuffled)
        rows += shuffled[:20].reshape(5, 4).tolist()
    assert [order.batch(step).tolist() for step in range(1, 16)] == rows
    flat = [order.instance_at(p) for p in range(60)]
    assert flat == [i for row in rows for i in row]


def test_no_instance_comes_twice_within_an_epoch() -> None:
    order = GlobalOrder(3, instances=23, batch_instances=4)
    first = [order.instance_at(p) for p in range(order.per_epoch)]
    assert len(set(first)) == order.per_epoch == 20
