import jax
import numpy as np
import pytest

from evalmon.errors import ConfigError
from trainer.architecture import Olmo3Config
from trainer.layout import stack_layers, unstack_layers
from trainer.model import parameter_shapes

CONFIG = Olmo3Config(8, 4, 12, 1, 1, 4, 4)


def _numbered() -> dict:
    """A tree whose layers hold their own number."""
    tree = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), parameter_shapes(CONFIG))
    for name, layer in tree["layers"].items():
        for leaf in jax.tree.leaves(layer):
            leaf[...] = int(name)
    return tree


def test_layer_4j_plus_c_is_row_j_of_key_c() -> None:
    stacked = stack_layers(_numbered(), CONFIG)
    for c in range(4):
        kernel = stacked["layers"][str(c)]["mlp"]["up_proj"]["kernel"]
        assert kernel.shape == (3, 4, 4)
        assert kernel[:, 0, 0].tolist() == [c, 4 + c, 8 + c]


def test_unstacking_undoes_stacking() -> None:
    tree = _numbered()
    back = unstack_layers(stack_layers(tree, CONFIG), CONFIG)
    assert list(back["layers"]) == [str(i) for i in range(12)]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), tree, back))


def test_shapes_are_stacked_like_arrays() -> None:
    shapes = stack_layers(parameter_shapes(CONFIG), CONFIG)
    arrays = stack_layers(_numbered(), CONFIG)
    assert jax.tree.map(lambda s: s.shape, shapes) == jax.tree.map(lambda a: a.shape, arrays)
    assert unstack_layers(shapes, CONFIG) == parameter_shapes(CONFIG)


def test_layers_that_are_no_whole_blocks_cannot_be_scanned() -> None:
    config = Olmo3Config(8, 4, 6, 1, 1, 4, 4)
    with pytest.raises(ConfigError, match="layers 6: not divisible by 4"):
        stack_layers(parameter_shapes(config), config)
