"""What several processes do to store a state; on one device the values are the same."""

from typing import Any

import jax
import numpy as np

from trainer import canonical
from trainer.architecture import Execution, Olmo3Config
from trainer.layout import unstack_layers
from trainer.sharding import MeshShape, make_mesh, place
from trainer.update import fresh_state

CONFIG = Olmo3Config(16, width=8, layers=8, heads=2, kv_heads=1, head_dim=4, ffn=8, window=4)


def test_a_copy_on_devices_is_in_other_memory_and_compiled_once() -> None:
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    state = place(fresh_state(CONFIG, Execution(scan_layers=True), 0), mesh)
    copied: Any = canonical._copied  # pyright: ignore[reportPrivateUsage]  needs no second process
    before = copied._cache_size()
    copies = [copied(state, CONFIG, mesh) for _ in range(2)]
    assert copied._cache_size() == before + 1
    expected = unstack_layers(state.params, CONFIG)
    jax.tree.map(np.testing.assert_array_equal, copies[0].params, expected)
    assert list(copies[0].optimizer.adam.mu["layers"]) == [str(i) for i in range(8)]
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((state, *copies))]
    assert len(set(places)) == len(places)
