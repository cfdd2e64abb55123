from dataclasses import fields
from typing import Any

import pytest

from evalmon.errors import ConfigError
from trainer.config import TrainSettings
from trainer.presets import PRESETS
from trainer.recipes import RECIPES, recipe


def _settings(name: str) -> TrainSettings:
    given: dict[str, Any] = {"hosts": 1, "loader": "batch_strided", "init_from": "stage1"}
    return TrainSettings(**recipe(name).settings, **given)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_settings_that_hold(name: str) -> None:
    settings = _settings(name)
    assert settings.recipe_name == name
    assert settings.preset in PRESETS
    names = {item.name for item in fields(TrainSettings)}
    assert set(recipe(name).settings) <= names


def test_the_recipes_are_as_published() -> None:
    stage1, maxtext, stage2 = (_settings(name) for name in RECIPES)
    assert list(RECIPES) == ["olmo3-7b-stage1", "olmo3-7b-stage1-maxtext", "olmo3-7b-stage2"]
    assert stage1.steps * stage1.tokens_per_step == 5_929_965_715_456
    assert [s.tokens_per_step for s in (stage1, maxtext, stage2)] == [4_194_304] * 2 + [2_097_152]
    assert [s.steps for s in (stage1, maxtext, stage2)] == [1_413_814, 1_414_078, 47_684]
    assert stage1.schedule_steps == -(-(5 * 10**12) // 4_194_304)
    assert stage2.steps == -(-(10**11) // 2_097_152)
    assert [s.learning_rate for s in (stage1, stage2)] == [3e-4, 2.0712352850360292e-4]
    assert [s.seed for s in (stage1, maxtext, stage2)] == [34_521, 42, 1337]
    assert [s.skip_step for s in (stage1, maxtext, stage2)] == ["olmo_core", "maxtext", "olmo_core"]
    assert maxtext.loss_normalization == "maxtext"
    for settings in (stage1, maxtext, stage2):
        assert (settings.beta1, settings.beta2, settings.eps) == (0.9, 0.95, 1e-8)
        assert (settings.weight_decay, settings.max_norm, settings.z_weight) == (0.1, 1.0, 1e-5)


def test_their_curves_are_the_published_ones() -> None:
    rates = [RECIPES[name].learning_rates for name in RECIPES]
    assert rates[0].at(1_413_814) == pytest.approx(3.9325e-5, rel=1e-5)
    assert rates[1].at(1_413_814) == pytest.approx(3.0e-5, rel=1e-5)
    assert rates[2].at(23_842) == pytest.approx(2.0712352850360292e-4 / 2, rel=1e-12)


def test_only_stage_2_starts_from_weights() -> None:
    assert [each.starts_from is None for each in RECIPES.values()] == [True, True, False]


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no such recipe; nearest is 'olmo3-7b-stage2'"):
        recipe("olmo3-7b-stage3")
