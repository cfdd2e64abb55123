import re
from typing import Any

import pytest

from evalmon.errors import CheckpointError
from trainer.architecture import Olmo3Config
from trainer.weights.huggingface import FIELDS
from trainer.weights.matching import grouped, require_tensors
from trainer.weights.names import axis_sizes, published_axes, published_shapes

CONFIG = Olmo3Config(12, 8, 4, 4, 2, 4, 6)
Shapes = dict[str, tuple[int, ...]]


def _check(found: Shapes, **changes: Any) -> None:
    values = {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}
    config = Olmo3Config(**{**values, **changes})
    require_tensors(found, published_axes(config.layers), axis_sizes(config), "SRC", FIELDS)


def test_the_models_own_tensors_pass() -> None:
    _check(published_shapes(CONFIG))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 13}, "vocab_size is 13, but the tensors have 12"),
        ({"width": 10}, "hidden_size is 10, but the tensors have 8"),
        ({"ffn": 7}, "intermediate_size is 7, but the tensors have 6"),
        ({"heads": 2}, "num_attention_heads x head_dim is 8, but the tensors have 16"),
        ({"kv_heads": 4}, "num_key_value_heads x head_dim is 16, but the tensors have 8"),
        ({"layers": 3}, "num_hidden_layers is 3, but the tensors have 4 layers"),
        ({"layers": 8}, "num_hidden_layers is 8, but the tensors have 4 layers"),
    ],
)
def test_a_field_that_all_tensors_contradict_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=f"SRC: {re.escape(said)}"):
        _check(published_shapes(CONFIG), **changes)


def test_one_misshaped_tensor_is_named_not_a_field() -> None:
    shapes = published_shapes(CONFIG) | {"lm_head.weight": (13, 8), "model.norm.weight": (8, 1)}
    with pytest.raises(CheckpointError) as error:
        _check(shapes)
    assert "lm_head.weight is [13, 8], expected [12, 8]" in str(error.value)
    assert "model.norm.weight is [8, 1], expected [8]" in str(error.value)


def test_missing_and_unknown_tensors_are_all_named() -> None:
    shapes = published_shapes(CONFIG)
    del shapes["model.layers.1.mlp.up_proj.weight"], shapes["model.layers.2.mlp.up_proj.weight"]
    del shapes["lm_head.weight"]
    shapes["model.layers.0.input_layernorm.weight"] = (8,)
    with pytest.raises(CheckpointError) as error:
        _check(shapes)
    said = str(error.value)
    assert "missing model.layers.{1-2}.mlp.up_proj.weight, lm_head.weight;" in said
    assert "unknown model.layers.0.input_layernorm.weight;" in said


def test_an_incomplete_extra_layer_is_unknown_not_another_depth() -> None:
    shapes = published_shapes(CONFIG) | {"model.layers.4.mlp.up_proj.weight": (6, 8)}
    with pytest.raises(CheckpointError, match=r"unknown model\.layers\.4\.mlp\.up_proj\.weight"):
        _check(shapes)


def test_a_long_list_is_cut_but_counted() -> None:
    assert grouped([f"t{'x' * n}" for n in range(40)]).endswith("and 16 more")
