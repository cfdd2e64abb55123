"""What names in ``evaluation.tasks`` stand for."""

from pathlib import Path

import pytest
import yaml

from evalmon.errors import ConfigError
from evalmon.evaluators import suites
from evalmon.evaluators.suites import LABELS, SUITES, expand, primary_metric
from evalmon.package_data import TASK_FILES

YAML = Path(suites.__file__).parent / "tasks"


def never() -> list[str]:
    raise AssertionError("lm-eval's names were listed")


def test_a_suite_stands_for_its_eight_tasks():
    zero, five = (expand((name,), 3, never) for name in SUITES)
    assert [choice.stem for choice in zero] == [f"{task}_0shot" for task in TASK_FILES]
    assert [choice.name for choice in five] == [*SUITES["olmes-core8-5shot"]]
    assert [choice.shots for choice in five] == [5] * 6 + [0, 5]
    assert {choice.suite for choice in zero} == {"olmo-core8-0shot"}
    assert all(choice.packaged and choice.stem == choice.name for choice in (*zero, *five))


def test_a_label_is_one_task_and_a_plain_name_is_lm_evals_own():
    label, own = expand(("boolq_val_rc_5shot", "boolq"), 2, never)
    assert (label.task, label.shots, label.packaged) == ("boolq_val_rc", 5, True)
    assert (own.task, own.shots, own.stem, own.packaged) == ("boolq", 2, "boolq_2shot", False)


def test_a_task_named_twice_is_scored_once():
    found = expand(("olmo-core8-0shot", "piqa_0shot", "olmo-core8-0shot"), 0, never)
    assert [choice.name for choice in found] == [*SUITES["olmo-core8-0shot"]]


@pytest.mark.parametrize(
    "names", [("olmo-core8-0shot", "arc_easy"), ("arc_easy", "arc_easy_0shot")]
)
def test_two_tasks_never_write_one_metric(names: tuple[str, ...]):
    with pytest.raises(ConfigError, match=r"'arc_easy_0shot'.* and 'arc_easy' with 0 shots"):
        expand(names, 0, never)
    assert "arc_easy_5shot" in [choice.stem for choice in expand(names, 5, never)]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'olmo-core8-0shot'"):
        expand(("olmo-core8-0shots",), 0, never)
    with pytest.raises(ConfigError, match="'lambada_openai'"):
        expand(("lambada_openia",), 0, lambda: ["lambada_openai"])
    with pytest.raises(ConfigError, match="task_data holds rows of these only"):
        expand(("lambada_openai",), 0, never, TASK_FILES)


def test_a_name_of_lm_evals_that_is_like_a_label_is_no_typing_error():
    (found,) = expand(("arc_challenge_chat",), 0, lambda: ["arc_challenge_chat"])
    assert not found.packaged


def test_a_name_of_lm_evals_is_looked_up_last():
    (found,) = expand(("lambada_openai",), 1, lambda: ["lambada_openai"])
    assert (found.stem, found.suite) == ("lambada_openai_1shot", "")


def test_primary_metrics_are_ai2s():
    normalized = {label for label in LABELS if primary_metric(label) == "len_norm"}
    zero = {"arc_challenge", "hellaswag", "openbookqa", "piqa"}
    assert {name.removesuffix("_0shot") for name in normalized if "_rc_" not in name} == zero
    five = normalized & set(SUITES["olmes-core8-5shot"])
    assert five == {f"{task}_rc_5shot" for task in zero}
    assert normalized >= {"arc_easy_val_rc_5shot", "arc_easy_test_rc_5shot"}
    assert "boolq_val_rc_5shot" not in normalized


def test_every_label_is_one_yaml_file_of_lm_evals_form():
    class Loader(yaml.SafeLoader): ...

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))  # pyright: ignore
    files = {path.stem: path for path in YAML.glob("[!_]*.yaml")}
    assert set(files) == LABELS
    for name, path in files.items():
        config = yaml.load(path.read_text(encoding="utf-8"), Loader)
        assert config["task"] == name
        assert config["metadata"]["source"] in (name, name.removesuffix("_0shot"))
