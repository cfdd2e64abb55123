"""Settings: one TOML file, every key known, every value of its type."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from evalmon.config import (
    ComparisonSettings,
    EvaluationSettings,
    HoldoutSettings,
    Settings,
    SinkSettings,
    load,
)
from evalmon.errors import ConfigError


def read(folder: Path, text: str) -> Settings:
    """Load settings from a text."""
    path = folder / "evalmon.toml"
    path.write_text(text)
    return load(path)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path, "")
    assert settings == Settings()
    assert settings.evaluation.tasks == ("olmo-core8-0shot",)
    assert settings.evaluation.holdouts == (HoldoutSettings("c4_en", limit=1000),)


def test_two_holdouts_of_one_name_are_refused(tmp_path: Path) -> None:
    text = """
        [evaluation]
        holdouts = [{name = "m", path = "a.jsonl"}, {name = "m", path = "b.jsonl"}]
        """
    with pytest.raises(ConfigError, match="two holdouts are called 'm'"):
        read(tmp_path, text)


def test_every_table_and_list_is_built(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        """
        store = "sqlite:///x.sqlite"
        poll_seconds = 1
        [evaluation]
        tasks = ["piqa"]
        holdouts = [{name = "a", path = "a.jsonl"}, {name = "b", limit = 5}]
        [comparison]
        reference = "clean"
        same_recipe = true
        [[alerts.sinks]]
        kind = "webhook"
        target = "https://hooks.example/x"
        [[alerts.sinks]]
        kind = "console"
        """,
    )
    assert settings.store == "sqlite:///x.sqlite"
    assert settings.poll_seconds == 1.0
    assert isinstance(settings.poll_seconds, float)
    holdouts = (HoldoutSettings("a", "a.jsonl"), HoldoutSettings("b", limit=5))
    assert settings.evaluation == EvaluationSettings(tasks=("piqa",), holdouts=holdouts)
    assert settings.comparison == ComparisonSettings(reference="clean", same_recipe=True)
    sinks = (SinkSettings("webhook", "https://hooks.example/x"), SinkSettings("console"))
    assert settings.alerts.sinks == sinks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stor = 'x'", "evalmon.toml: unknown setting 'stor'; did you mean 'store'?"),
        ("[evaluation]\ntask = []", "evaluation: unknown setting 'task'; did you mean 'tasks'?"),
        ("zzz = 1", "unknown setting 'zzz'; known are ['store',"),
        (
            "[[alerts.sinks]]\nkind = 'console'\nurl = 'x'",
            "alerts: sinks[0]: unknown setting 'url'",
        ),
        ("store = 1", "store must be str, got 1"),
        ("poll_seconds = true", "poll_seconds must be float, got True"),
        ("[evaluation]\nshots = 1.5", "shots must be int, got 1.5"),
        ("[evaluation]\ntasks = 'piqa'", "tasks must be a list, got 'piqa'"),
        ("[evaluation]\ntasks = [1]", "tasks[0] must be str, got 1"),
        ("[comparison]\nsame_recipe = 1", "same_recipe must be bool, got 1"),
        ("evaluation = 3", "evaluation must be a table, got 3"),
        ("[[evaluation.holdouts]]\nlimit = 3", "missing 1 required positional argument: 'name'"),
        ("store = ", "not valid TOML"),
        ("poll_seconds = -1", "poll_seconds must be a finite number >= 0, got -1.0"),
        ("poll_seconds = nan", "poll_seconds must be a finite number >= 0, got nan"),
        ("[evaluation]\nprobe_pairs = -4", "evaluation: probe_pairs must be a finite number >= 0"),
        ("[alerts]\nattempts = 0", "alerts: attempts must be a finite number >= 1, got 0"),
        ("[[evaluation.holdouts]]\nname = 'a b'", "name 'a b' must be letters, digits"),
    ],
)
def test_what_is_not_a_setting_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert "evalmon.toml" in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: cannot be read \(No such file"):
        load(tmp_path / "none.toml")


def test_there_are_at_most_forty_settings_and_each_is_described() -> None:
    def count(kind: Any) -> int:
        total = 0
        for item in fields(kind):
            hint = get_type_hints(kind)[item.name]
            inner = [part for part in (hint, *get_args(hint)) if is_dataclass(part)]
            assert f"{item.name}:" in (kind.__doc__ or ""), f"{kind.__name__}.{item.name}"
            total += sum(count(part) for part in inner) or 1
        return total

    assert count(Settings) <= 40
