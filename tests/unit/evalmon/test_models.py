"""A model is found by the name its description gives."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from evalmon import models
from evalmon.errors import ConfigError
from evalmon.types import ModelDescription

DESCRIPTION = ModelDescription(Path("w/model.json"), "other", {"layers": 2}, 8, 16)


class FakeEntryPoint(EntryPoint):
    """An entry point that is a function, installed nowhere."""

    def load(self) -> Callable[..., Any]:
        return lambda *arguments: arguments


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    point = FakeEntryPoint("other", "nowhere:nothing", models.ENTRY_POINT_GROUP)
    found = {models.ENTRY_POINT_GROUP: EntryPoints([point])}
    monkeypatch.setattr(models, "entry_points", lambda group: found[group])


def test_the_factory_is_handed_the_description_the_dtype_and_the_mesh() -> None:
    assert models.find_model(DESCRIPTION) == (DESCRIPTION, None, "")
    asked = models.find_model(DESCRIPTION, "bfloat16", "fsdp=2")
    assert asked == (DESCRIPTION, "bfloat16", "fsdp=2")


def test_an_adapter_that_is_not_installed_is_named_with_the_file_and_the_installed_ones() -> None:
    missing = ModelDescription(Path("w/model.json"), "absent", {}, 8, 16)
    with pytest.raises(ConfigError) as caught:
        models.find_model(missing)
    assert str(caught.value) == (
        "w/model.json: model adapter 'absent' is not installed; installed are ['other']. "
        "Install the trainer that wrote it."
    )
