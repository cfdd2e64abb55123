from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from evalmon.errors import ConfigError
from trainer.config import TrainSettings

SETTINGS = TrainSettings(
    preset="tiny",
    steps=10,
    batch_instances=8,
    sequence_length=16,
    hosts=4,
    loader="batch_strided",
    seed=0,
    checkpoint_every=5,
    learning_rate=0.01,
    warmup_steps=2,
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 0}, "--steps 0"),
        ({"batch_instances": 0}, "--batch 0"),
        ({"sequence_length": 1}, "--sequence-length 1"),
        ({"hosts": 0}, "--hosts 0"),
        ({"hosts": 3}, "--hosts 3: must divide --batch 8"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 2**31}, "--seed 2147483648: at most 2147483647"),
        ({"steps": 10**12}, "--steps 1000000000000: at most"),
        ({"checkpoint_every": 0}, "--checkpoint-every 0"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0"),
        ({"learning_rate": float("nan")}, "--learning-rate nan"),
        ({"learning_rate": float("inf")}, "--learning-rate inf: must be finite"),
        ({"warmup_steps": 10}, "must be below --steps 10"),
        ({"preset": "big"}, "no such preset"),
        ({"loader": "sound"}, "no such loader"),
        ({"schedule": "cosin"}, r"--schedule 'cosin': .* nearest is 'cosine'"),
        ({"schedule_steps": 0}, "--schedule-steps 0"),
        ({"schedule_steps": 2}, "--warmup-steps 2: must be below --schedule-steps 2"),
        ({"skip_step": "olmo"}, "--skip-step 'olmo'"),
        ({"loss_normalization": "mean"}, "--loss-normalization 'mean'"),
        ({"accumulate": 0}, "--accumulate 0"),
        ({"accumulate": 3}, "--accumulate 3: must divide --batch 8"),
        ({"dtype": "float16"}, "--dtype: 'dtype' is 'float16'"),
        ({"remat": "all"}, r"--remat 'all': .* nearest is"),
        ({"heads": 3}, "--preset tiny: 'kv_heads' 2 does not divide 'heads' 3"),
        ({"head_dim": 7}, "'head_dim' is 7, must be even"),
        ({"mesh": "data=2,rows=2"}, "--mesh .*'rows=2'"),
        ({"beta1": 1.0}, "--beta1 1.0"),
        ({"eps": 0.0}, "--eps 0.0"),
        ({"max_norm": float("inf")}, "--max-norm inf"),
        ({"z_weight": float("nan")}, "--z-weight nan"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_option(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(SETTINGS, **change)


def test_the_recipe_leaves_out_what_a_sound_loader_is_free_of() -> None:
    recipe = SETTINGS.recipe("data")
    for change in (
        {"seed": 9},
        {"order": "maxtext"},
        {"workers": 2},
        {"loader": "double_shard"},
        {"hosts": 8},
        {"checkpoint_every": 1},
        {"accumulate": 2},
        {"remat": "full"},
        {"scan_layers": True},
        {"mesh": "data=2"},
        {"recipe_name": "olmo3-7b-stage1"},
    ):
        assert replace(SETTINGS, **change).recipe("data") == recipe
    for change in (
        {"steps": 11},
        {"batch_instances": 16},
        {"sequence_length": 8},
        {"learning_rate": 0.02},
        {"warmup_steps": 3},
        {"instances": 80},
        {"preset": "olmo3-1m"},
        {"heads": 8},
        {"head_dim": 16},
        {"dtype": "bfloat16"},
        {"schedule": "linear"},
        {"schedule_steps": 100},
        {"beta2": 0.99},
        {"eps": 1e-6},
        {"weight_decay": 0.0},
        {"max_norm": 2.0},
        {"z_weight": 0.0},
        {"skip_step": "olmo_core"},
        {"loss_normalization": "maxtext"},
        {"instance_filter": "repetition"},
        {"document_masking": True},
        {"ratios": "web=1.0"},
        {"max_repeats": 2},
    ):
        assert replace(SETTINGS, **change).recipe("data") != recipe
    assert SETTINGS.recipe("other data") != recipe


def test_what_a_run_starts_from_is_part_of_its_recipe() -> None:
    fresh = SETTINGS.recipe("data")
    started = replace(SETTINGS, init_from="../run/checkpoints/3")
    assert started.recipe("data", "weights") != fresh
    assert started.recipe("data", "weights") != started.recipe("data", "other weights")
    alone = replace(started, init_optimizer=False)
    assert alone.recipe("data", "weights") != started.recipe("data", "weights")
    moved = replace(started, init_from="../moved/checkpoints/3")
    assert moved.recipe("data", "weights") == started.recipe("data", "weights")


def test_every_setting_is_known_to_change_what_is_learned_or_not_to() -> None:
    with_effect = {
        *("preset", "steps", "batch_instances", "sequence_length", "instances"),
        *("learning_rate", "warmup_steps", "schedule", "schedule_steps"),
        *("beta1", "beta2", "eps", "weight_decay", "max_norm", "z_weight"),
        *("instance_filter", "document_masking", "ratios", "max_repeats"),
        *("skip_step", "loss_normalization", "dtype", "heads", "kv_heads", "head_dim"),
    }
    without = {
        *("seed", "loader", "hosts", "checkpoint_every", "recipe_name"),
        *("order", "workers"),
        *("accumulate", "remat", "scan_layers", "mesh", "init_from", "init_optimizer"),
    }
    assert {item.name for item in fields(TrainSettings)} == with_effect | without


def test_the_schedule_may_be_longer_than_the_run() -> None:
    assert SETTINGS.horizon == 10
    longer = replace(SETTINGS, schedule_steps=1000, warmup_steps=100)
    assert longer.horizon == 1000


def test_the_model_has_the_heads_and_the_dtype_that_were_asked_for() -> None:
    config = replace(SETTINGS, heads=8, kv_heads=4, head_dim=16, dtype="bfloat16").model(256)
    assert (config.heads, config.kv_heads, config.head_dim) == (8, 4, 16)
    assert (config.vocab_size, config.dtype) == (256, "bfloat16")
    assert SETTINGS.model(256).dtype == "float32"


def test_settings_survive_a_record() -> None:
    assert TrainSettings.from_record(asdict(SETTINGS), "run.json") == SETTINGS


def test_a_record_with_unknown_or_missing_settings_is_refused() -> None:
    record = asdict(SETTINGS)
    with pytest.raises(ConfigError, match=r"run\.json: unknown setting 'stepz'.*'steps'"):
        TrainSettings.from_record({**record, "stepz": 1}, "run.json")
    # A run of before these settings has their defaults.
    older = {k: v for k, v in record.items() if k not in ("schedule", "mesh", "eps")}
    assert TrainSettings.from_record(older, "run.json") == SETTINGS
    del record["steps"]
    with pytest.raises(ConfigError, match=r"\['steps'\] are missing"):
        TrainSettings.from_record(record, "run.json")


@pytest.mark.parametrize(("name", "value"), [("steps", "four"), ("seed", None), ("hosts", True)])
def test_a_stored_setting_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    record = {**asdict(SETTINGS), name: value}
    with pytest.raises(ConfigError, match=rf"run\.json: setting '{name}' must be int, got"):
        TrainSettings.from_record(record, "run.json")
