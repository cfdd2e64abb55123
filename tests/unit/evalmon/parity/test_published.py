"""A published config.json: nothing left to class defaults, nothing that contradicts OLMo 3."""

import json
from pathlib import Path
from typing import Any

import pytest

from evalmon.errors import CheckpointError, EvalmonError
from evalmon.parity.published import PublishedConfig
from evalmon.types import FULL, SLIDING

RECORD: dict[str, Any] = {
    "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "vocab_size": 100278,
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 6,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "sliding_window": 4096, "rope_theta": 500000, "max_position_embeddings": 8192,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
    },
    "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False,
    "transformers_version": "4.57.0", "eos_token_id": 100257,
}  # fmt: skip


def load(tmp_path: Path, **changes: Any) -> PublishedConfig:
    record = {k: v for k, v in {**RECORD, **changes}.items() if v != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(record))
    return PublishedConfig.load(tmp_path)


def test_a_legacy_file_becomes_the_one_form_that_is_read_right(tmp_path: Path):
    config = load(tmp_path)
    assert (config.width, config.heads, config.kv_heads, config.head_dim) == (4096, 32, 8, 128)
    written = config.record()
    assert written["layer_types"] == [SLIDING, SLIDING, SLIDING, FULL, SLIDING, FULL]
    assert written["rope_parameters"][SLIDING] == {
        "rope_type": "default", "rope_theta": 500000.0,
    }  # fmt: skip
    full = written["rope_parameters"][FULL]
    assert (full["rope_type"], full["factor"], full["beta_fast"]) == ("yarn", 8.0, 32.0)
    assert full["attention_factor"] == pytest.approx(1.2079441541679836)
    assert {"rope_theta", "rope_scaling"}.isdisjoint(written)
    assert json.loads(json.dumps(written)) == written


def test_what_may_be_left_out_follows_from_the_rest(tmp_path: Path):
    config = load(tmp_path, num_key_value_heads=None, architectures="absent")
    assert (config.kv_heads, config.head_dim, config.tied) == (32, 128, False)
    assert load(tmp_path, head_dim=64, hidden_size=100).head_dim == 64


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["Olmo2ForCausalLM"]}, r"architecture \['Olmo2ForCausalLM'\]"),
        ({"model_type": "llama"}, "of model type 'llama'"),
        ({"rms_norm_eps": "absent"}, r"'rms_norm_eps' is None; write it \(OLMo 3's is 1e-06"),
        ({"sliding_window": None}, "'sliding_window' is None; write a whole number"),
        ({"vocab_size": "absent"}, "'vocab_size' is None"),
        ({"hidden_size": 12.5}, "'hidden_size' is 12.5"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' is True"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; OLMo 3's is 'silu'"),
        ({"attention_bias": True}, "'attention_bias' is True"),
        ({"hidden_size": 100}, "'head_dim' is missing, and heads do not divide width"),
        ({"rope_theta": "absent"}, "rope_theta is None"),
        ({"hidden_size": 100, "head_dim": None}, "'head_dim' is missing, and heads do not"),
        ({"num_key_value_heads": 7}, "'num_key_value_heads' 7 does not divide"),
        ({"head_dim": 7}, "'head_dim' 7 must be even"),
        ({"sliding_window": 2**31}, "'sliding_window' is 2147483648; write a whole number"),
        ({"rms_norm_eps": float("inf")}, "'rms_norm_eps' is inf"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' is 'false', expected true"),
        ({"quantization_config": {"quant_method": "fp8"}}, "'quantization_config' is"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
        ({"layer_types": [SLIDING] * 6}, r"layer_types\[3\] is 'sliding_attention'"),
    ],
)
def test_what_is_missing_or_is_not_olmo_3_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
):
    with pytest.raises(EvalmonError, match=says) as caught:
        load(tmp_path, **changes)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_folder_without_a_readable_file_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no config.json in it"):
        PublishedConfig.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        PublishedConfig.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="of model type None"):
        PublishedConfig.load(tmp_path)
