"""The sinks' table: what a setting makes."""

import pytest

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import ConfigError
from evalmon.sinks import SINKS, build


def test_every_kind_of_the_table_can_be_configured() -> None:
    targets = {"webhook": "https://hooks.example/x", "command": "true"}
    settings = AlertSettings(
        sinks=tuple(SinkSettings(kind, targets.get(kind, "")) for kind in SINKS)
    )
    sinks = build(settings)
    assert len({sink.key for sink in sinks}) == len(SINKS)


def test_an_unknown_kind_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown kind 'webhok'; did you mean webhook\?"):
        build(AlertSettings(sinks=(SinkSettings("webhok"),)))


def test_a_receiver_named_twice_is_told_once() -> None:
    settings = AlertSettings(sinks=(SinkSettings("console"), SinkSettings("console")))
    assert [sink.key for sink in build(settings)] == ["console"]


def test_two_webhooks_of_one_host_are_two_receivers() -> None:
    urls = ("https://hooks.example/a", "https://hooks.example/b")
    settings = AlertSettings(sinks=tuple(SinkSettings("webhook", url) for url in urls))
    assert len(build(settings)) == 2
