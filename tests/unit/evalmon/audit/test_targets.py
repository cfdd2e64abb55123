"""MODULE:CALLABLE: found, refused by name, and its arguments."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalmon.audit.targets import Target, load_target, parse_arguments, user_frame
from evalmon.errors import ConfigError, DataError

SOURCE = """
value = 3
def train(host, hosts, step=0): return [host, hosts, step]
class Loaders:
    @staticmethod
    def eval(host, hosts): return []
"""


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_current_folder_is_found(tmp_path: Path):
    (tmp_path / "my_loaders.py").write_text(SOURCE)
    assert load_target("my_loaders:train").function(1, 2) == [1, 2, 0]
    assert load_target("my_loaders:Loaders.eval").function(1, 2) == []


def test_a_file_is_found_wherever_it_lies(tmp_path: Path):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "far_loaders.py").write_text(SOURCE)
    assert load_target("deep/far_loaders.py:train").function(0, 1) == [0, 1, 0]
    # Worker processes import it by this name.
    assert sys.modules["far_loaders"].__file__ == str(folder / "far_loaders.py")


def test_a_file_with_the_name_of_a_known_module_is_still_the_file(tmp_path: Path):
    (tmp_path / "json.py").write_text(SOURCE)
    assert load_target(f"{tmp_path}/json.py:train").function(0, 1) == [0, 1, 0]
    assert not hasattr(sys.modules["json"], "train")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loaders", "expected MODULE:CALLABLE"),
        (":train", "expected MODULE:CALLABLE"),
        ("loaders:", "expected MODULE:CALLABLE"),
        ("no_such_module:train", "no module 'no_such_module' in .*start in the folder"),
        ("no/such.py:train", "no file .*such.py"),
        ("some_loaders:tain", "some_loaders has no 'tain'; it has Loaders, train, value"),
        ("some_loaders:value", "is a int, not callable"),
    ],
)
def test_what_is_not_there_is_refused_by_name(tmp_path: Path, name: str, message: str):
    (tmp_path / "some_loaders.py").write_text(SOURCE)
    with pytest.raises(ConfigError, match=message):
        load_target(name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package", "imports 'no_such_package', which is not installed"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(.*bad_loaders\.py:1\)"),
    ],
)
def test_a_module_that_cannot_be_imported_says_where(tmp_path: Path, source: str, message: str):
    (tmp_path / "bad_loaders.py").write_text(source)
    with pytest.raises(DataError, match=message):
        load_target("bad_loaders:train")


def test_arguments_are_json_or_text():
    read = parse_arguments(["a=1", "b=true", 'c=[1, "x"]', "d=data/a=b", "e=", 'f="3"'])
    assert read == {"a": 1, "b": True, "c": [1, "x"], "d": "data/a=b", "e": "", "f": "3"}


@pytest.mark.parametrize("pair", ["batch", "=3", "1a=3", "a b=3"])
def test_a_malformed_argument_is_refused(pair: str):
    with pytest.raises(ConfigError, match="expected NAME=VALUE"):
        parse_arguments([pair])


def test_an_argument_given_twice_is_refused():
    with pytest.raises(ConfigError, match="--arg a: given twice"):
        parse_arguments(["a=1", "a=2"])


def test_a_target_knows_its_parameters():
    target = Target("t", lambda host, hosts, /, *, step, **rest: (host, hosts, step, rest))
    assert (target.names("step"), target.requires("step"), target.names("host")) == (
        True,
        True,
        False,
    )
    assert (target.accepts("anything"), target.names("anything")) == (True, False)
    assert (target.positions(), Target("p", print).positions()) == (2, 2)


def test_the_frame_of_an_error_is_the_users_own():
    with pytest.raises(ConfigError) as caught:
        load_target("no colon")
    assert user_frame(caught.value).startswith(__file__)
