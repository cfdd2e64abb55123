from typing import Any

import numpy as np
import pytest

from evalmon.errors import ConfigError
from evalmon.types import Yarn
from trainer.weights.huggingface import PublishedModel

F32 = np.dtype(np.float32)
S, F = "sliding_attention", "full_attention"
YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.2079441541679836,
}  # fmt: skip


def _read(record: dict[str, Any]) -> PublishedModel:
    return PublishedModel.from_record(record, "config.json")


def test_every_field_arrives(record: dict[str, Any]) -> None:
    model = _read({**record, "initializer_range": 0.03})
    config = model.config
    assert (config.vocab_size, config.width, config.layers) == (12, 8, 4)
    assert (config.heads, config.kv_heads, config.head_dim, config.ffn) == (4, 2, 4, 6)
    assert (config.window, config.rope_theta, config.norm_eps) == (3, 10_000.0, 1e-6)
    assert (config.init_std, config.yarn) == (0.03, None)
    assert (model.max_length, model.eos_id, model.pad_id, model.tied) == (64, 5, 7, False)
    assert model.warnings == ()


def test_all_three_forms_of_rotary_settings_are_one(record: dict[str, Any]) -> None:
    del record["rope_parameters"]
    theta = {"rope_theta": 500_000.0}
    forms = [
        {**theta, "rope_scaling": YARN},
        {"rope_parameters": {**theta, **YARN}},
        {"rope_parameters": {S: {"rope_type": "default", **theta}, F: {**theta, **YARN}}},
    ]
    models = [_read({**record, **form}) for form in forms]
    assert models[0] == models[1] == models[2]
    assert models[0].config.yarn == Yarn(8.0, 8192, 32.0, 1.0, 1.2079441541679836)


def test_what_is_written_reads_back_and_leaves_no_class_default(record: dict[str, Any]) -> None:
    for yarn in (None, Yarn(8.0, 16)):
        record["rope_parameters"][F] = {
            "rope_theta": 10_000.0,
            **({} if yarn is None else {**YARN, "original_max_position_embeddings": 16}),
        }
        record["num_hidden_layers"] = 6
        written = _read(record).to_record(F32)
        assert _read(written) == _read(record)
        assert written["layer_types"] == [S, S, S, F, S, F]
        assert set(written["rope_parameters"]) == {S, F}
        assert written["rope_parameters"][S] == {"rope_type": "default", "rope_theta": 10_000.0}
        assert {
            "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "hidden_act", "max_position_embeddings",
            "rms_norm_eps", "rope_parameters", "sliding_window", "layer_types", "vocab_size",
            "tie_word_embeddings", "attention_bias", "attention_dropout", "pad_token_id",
            "eos_token_id", "use_cache", "dtype",
        } <= set(written)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "olmo2"}, "model_type is 'olmo2', expected 'olmo3'"),
        ({"architectures": ["Olmo2ForCausalLM"]}, "architectures is ['Olmo2ForCausalLM']"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, the class default"),
        ({"rms_norm_eps": None}, "no rms_norm_eps, for which transformers would take 1e-05"),
        ({"vocab_size": None}, "no vocab_size, for which transformers would take 50304"),
        ({"max_position_embeddings": None}, "no max_position_embeddings, for which"),
        ({"hidden_size": None}, "no hidden_size, for which transformers would take 4096"),
        ({"intermediate_size": None}, "no intermediate_size"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"num_attention_heads": None}, "no num_attention_heads"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; OLMo 3 has 'silu'"),
        ({"attention_bias": True}, "attention_bias is True; OLMo 3 has False"),
        ({"sliding_window": None}, "sliding_window is null"),
        ({"hidden_size": "8"}, "hidden_size is '8', expected a whole number"),
        ({"vocab_size": True}, "vocab_size is True, expected a whole number"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6', expected a number"),
        ({"num_key_value_heads": 3}, "'kv_heads' 3 does not divide 'heads' 4"),
        ({"head_dim": None, "hidden_size": 9}, "num_attention_heads 4 does not divide hidden_size"),
        ({"layer_types": "full"}, "layer_types is 'full', expected a JSON array"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', expected a JSON object"),
        ({"initializer_range": 10**400}, "initializer_range is 1000"),
        ({"sliding_window": 2**31}, "sliding_window is 2147483648, expected a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', expected true or"),
        ({"quantization_config": {"a": 1}}, "quantization_config is {'a': 1}; OLMo 3 has None"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"layer_types": [S, S, S, S]}, "layer_types[3] is 'sliding_attention'"),
        ({"rope_parameters": {S: {"rope_theta": 1e4}}}, "rope_parameters lacks 'full_attention'"),
    ],
)
def test_what_is_no_olmo_3_is_one_clear_error(
    record: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    # A missing field and a null one are the same to transformers.
    for dropped in (False, True):
        changed = {**record, **changes}
        if dropped:
            if None not in changes.values() or "sliding_window" in changes:
                continue
            changed = {k: v for k, v in changed.items() if v is not None}
        with pytest.raises(ConfigError) as error:
            _read(changed)
        assert str(error.value).startswith("config.json: ")
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_ids_outside_the_vocabulary_are_warned_of_and_written_as_null(
    record: dict[str, Any],
) -> None:
    model = _read({**record, "eos_token_id": 50279, "pad_token_id": 12})
    assert (model.eos_id, model.pad_id) == (None, None)
    assert [w for w in model.warnings if "50279" in w and "outside the vocabulary of 12" in w]
    assert len(model.warnings) == 2
    written = model.to_record(F32)
    assert (written["eos_token_id"], written["pad_token_id"]) == (None, None)


def test_ids_that_are_not_written_stay_unknown(record: dict[str, Any]) -> None:
    del record["eos_token_id"], record["pad_token_id"]
    model = _read(record)
    assert (model.eos_id, model.pad_id) == (None, None)
    assert len(model.warnings) == 2


def test_several_ends_of_text_are_kept(record: dict[str, Any]) -> None:
    model = _read({**record, "eos_token_id": [5, 2]})
    assert model.eos_id == 5
    assert model.to_record(F32)["eos_token_id"] == [5, 2]


def test_missing_key_value_heads_are_as_many_as_heads(record: dict[str, Any]) -> None:
    del record["num_key_value_heads"]
    assert _read(record).config.kv_heads == 4


def test_head_width_is_written_only_where_it_does_not_follow(record: dict[str, Any]) -> None:
    assert _read(record).to_record(F32)["head_dim"] == 4
    assert "head_dim" not in _read({**record, "hidden_size": 16}).to_record(F32)
