from dataclasses import asdict, replace
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
        ({"checkpoint_every": 0}, "--checkpoint-every 0"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0"),
        ({"learning_rate": float("nan")}, "--learning-rate nan"),
        ({"learning_rate": float("inf")}, "--learning-rate inf: must be finite"),
        ({"warmup_steps": 10}, "must be below --steps 10"),
        ({"preset": "big"}, "no such preset"),
        ({"loader": "sound"}, "no such loader"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_option(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(SETTINGS, **change)


def test_the_recipe_leaves_out_what_a_sound_loader_is_free_of() -> None:
    recipe = SETTINGS.recipe("data")
    for change in (
        {"seed": 9},
        {"loader": "double_shard"},
        {"hosts": 8},
        {"checkpoint_every": 1},
    ):
        assert replace(SETTINGS, **change).recipe("data") == recipe
    for change in (
        {"steps": 11},
        {"batch_instances": 16},
        {"sequence_length": 8},
        {"learning_rate": 0.02},
        {"warmup_steps": 3},
        {"instances": 80},
        {"preset": "1M"},
    ):
        assert replace(SETTINGS, **change).recipe("data") != recipe
    assert SETTINGS.recipe("other data") != recipe


def test_settings_survive_a_record() -> None:
    assert TrainSettings.from_record(asdict(SETTINGS), "run.json") == SETTINGS


def test_a_record_with_unknown_or_missing_settings_is_refused() -> None:
    record = asdict(SETTINGS)
    with pytest.raises(ConfigError, match=r"run\.json: unknown setting 'stepz'.*'steps'"):
        TrainSettings.from_record({**record, "stepz": 1}, "run.json")
    del record["steps"]
    with pytest.raises(ConfigError, match=r"\['steps'\] are missing"):
        TrainSettings.from_record(record, "run.json")


@pytest.mark.parametrize(("name", "value"), [("steps", "four"), ("seed", None), ("hosts", True)])
def test_a_stored_setting_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    record = {**asdict(SETTINGS), name: value}
    with pytest.raises(ConfigError, match=rf"run\.json: setting '{name}' must be int, got"):
        TrainSettings.from_record(record, "run.json")
