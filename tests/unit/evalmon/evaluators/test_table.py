"""The table of evaluators: built in order, unknown names refused before anything is scored."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evalmon.config import EvaluationSettings, HoldoutSettings
from evalmon.errors import ConfigError, DataError
from evalmon.evaluators import EVALUATORS, build, harness_tasks
from evalmon.types import RunDescription


@pytest.fixture
def settings(tmp_path: Path) -> EvaluationSettings:
    path = tmp_path / "holdout.jsonl"
    path.write_text(json.dumps({"text": "the fox"}) + "\n")
    return EvaluationSettings(
        holdouts=(HoldoutSettings("mine", str(path)),),
        tasks=("piqa", "boolq"),
        task_data=str(tmp_path),
    )


def test_evaluators_come_in_the_order_of_the_settings(
    settings: EvaluationSettings, run: RunDescription
):
    names = ["self_check", "holdout_loss:mine", "downstream_tasks:piqa", "downstream_tasks:boolq"]
    names.append("memorization_probe")
    assert [item.name for item in build(settings, run)] == names
    swapped = replace(settings, evaluators=("memorization_probe", "holdout_loss"))
    assert [item.name for item in build(swapped, run)] == [names[4], names[1]]


def test_names_and_versions_are_unique(settings: EvaluationSettings, run: RunDescription):
    found = build(settings, run)
    assert len({item.name for item in found}) == len(found)
    assert len({item.version for item in found}) == len(found)


def test_the_default_evaluators_are_all_there_are():
    assert tuple(EVALUATORS) == EvaluationSettings().evaluators


def test_an_unknown_evaluator_is_refused_with_the_nearest_name(
    settings: EvaluationSettings, run: RunDescription
):
    with pytest.raises(ConfigError, match="unknown evaluator 'holdout'; did you mean 'holdout_l"):
        build(replace(settings, evaluators=("holdout",)), run)


def test_an_unknown_task_is_refused_with_the_nearest_name(
    settings: EvaluationSettings, run: RunDescription
):
    with pytest.raises(ConfigError, match="suite 'arc_eazy'; did you mean 'arc_easy'"):
        build(replace(settings, tasks=("arc_eazy",)), run)


def test_without_a_data_folder_every_task_of_lm_eval_is_known(
    settings: EvaluationSettings, run: RunDescription, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(harness_tasks, "known_tasks", lambda: ["lambada_openai", "piqa"])
    fetching = replace(settings, task_data="")
    assert build(replace(fetching, tasks=("lambada_openai",)), run)
    with pytest.raises(ConfigError, match="did you mean 'lambada_openai'"):
        build(replace(fetching, tasks=("lambada_openia",)), run)


def test_tasks_are_not_looked_at_where_they_are_not_asked_for(
    settings: EvaluationSettings, run: RunDescription
):
    assert build(replace(settings, evaluators=("holdout_loss",), tasks=("none",)), run)


def test_a_holdout_that_cannot_be_read_stops_before_anything_is_scored(
    settings: EvaluationSettings, run: RunDescription
):
    missing = replace(settings, holdouts=(HoldoutSettings("mine", "none.jsonl"),))
    with pytest.raises(DataError, match=r"none\.jsonl"):
        build(missing, run)
