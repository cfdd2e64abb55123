import jax
import numpy as np
import pytest

from trainer.sharding import data_mesh, place_batch, place_copies


@pytest.mark.parametrize(("batch", "size"), [(1, 1), (3, 3), (8, 2), (12, 6)])
def test_the_mesh_splits_the_batch_evenly(
    batch: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    six = jax.devices() * 6
    monkeypatch.setattr(jax, "devices", lambda: six)
    assert data_mesh(batch).size == size


def test_placing_keeps_values() -> None:
    mesh = data_mesh(4)
    tokens = np.arange(8, dtype=np.uint32).reshape(4, 2)
    placed = place_batch(tokens, mesh)
    assert placed.tolist() == tokens.tolist()
    assert str(placed.dtype) == "int32"
    assert place_copies({"a": np.ones(3)}, mesh)["a"].tolist() == [1, 1, 1]
