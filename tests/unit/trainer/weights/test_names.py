from typing import Any

import jax
import pytest

from trainer.architecture import Olmo3Config
from trainer.model import parameter_shapes
from trainer.weights.names import is_transposed, published_shapes, tree_path

CONFIGS = [
    Olmo3Config(12, 8, 4, 4, 2, 4, 6),
    Olmo3Config(10, 12, 3, 4, 4, 4, 6),  # heads wider than the model, as in olmo3-1m
    Olmo3Config(9, 4, 12, 1, 1, 4, 5),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_names_and_shapes_are_the_models_own(config: Olmo3Config) -> None:
    leaves = jax.tree_util.tree_flatten_with_path(parameter_shapes(config))[0]
    expected = {tuple(str(key.key) for key in path): leaf.shape for path, leaf in leaves}
    stated: dict[tuple[str, ...], Any] = {
        tree_path(name): shape[::-1] if is_transposed(name) else shape
        for name, shape in published_shapes(config).items()
    }
    assert stated == expected


def test_layers_stand_in_order_of_number_not_of_text() -> None:
    layers = [int(name.split(".")[2]) for name in published_shapes(CONFIGS[2]) if "q_proj" in name]
    assert layers == list(range(12))
