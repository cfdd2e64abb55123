"""MODULE:CALLABLE on a command line: a stranger's function, found and imported."""

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from evalmon.errors import ConfigError, DataError

__all__ = ["Target", "load_target", "parse_arguments", "user_frame"]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


_OWN_FOLDER = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Target:
    """A callable named on the command line.

    Attributes:
        name: MODULE:CALLABLE as it was given.
        function: what it names.
    """

    name: str
    function: Callable[..., Any]

    def names(self, keyword: str) -> bool:
        """Return whether the callable has a parameter of this name that a keyword can set."""
        found = self._parameters().get(keyword)
        return found is not None and found.kind in _BY_NAME

    def accepts(self, keyword: str) -> bool:
        """Return whether the callable takes this keyword, by name or by ``**``."""
        kinds = [parameter.kind for parameter in self._parameters().values()]
        return self.names(keyword) or inspect.Parameter.VAR_KEYWORD in kinds

    def requires(self, keyword: str) -> bool:
        """Return whether the callable cannot be called without this keyword."""
        return self.names(keyword) and (
            self._parameters()[keyword].default is inspect.Parameter.empty
        )

    def positions(self) -> int:
        """Return how many arguments it takes by position; ``*args`` counts as two."""
        kinds = [parameter.kind for parameter in self._parameters().values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            return 2
        return sum(kind in _BY_POSITION for kind in kinds)

    def _parameters(self) -> dict[str, inspect.Parameter]:
        """Return the parameters; a callable that cannot be inspected has none."""
        try:
            return dict(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):
            return {}


def load_target(name: str) -> Target:
    """Import MODULE:CALLABLE from the current folder, or PATH/FILE.py:CALLABLE.

    Args:
        name: what was given; CALLABLE may be an attribute of an attribute (``Class.method``).

    Raises:
        ConfigError: not of this form, no such module, no such attribute, or not callable.
        DataError: the module raises while it is imported.
    """
    place, colon, attribute = name.rpartition(":")
    if not (colon and place and attribute):
        raise ConfigError(
            f"{name!r}: expected MODULE:CALLABLE or PATH/FILE.py:CALLABLE, as in loaders:train"
        )
    module = _import(place, name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = ", ".join(sorted(key for key in vars(module) if not key.startswith("_"))[:8])
            raise ConfigError(f"{name}: {place} has no {attribute!r}; it has {public or 'nothing'}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(
            f"{name}: is a {type(found).__name__}, not callable; "
            "name a function that is called as callable(host, hosts)"
        )
    return Target(name, found)


def parse_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the keyword arguments of ``--arg K=V`` options.

    Args:
        pairs: each K=V; V is read as JSON, and is text where it is none.

    Raises:
        ConfigError: a pair without ``=``, a name that is no identifier, or one given twice.

    Example:
        >>> parse_arguments(["batch=8", "path=data/a", "shuffle=true"])
        {'batch': 8, 'path': 'data/a', 'shuffle': True}
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (equals and key.isidentifier()):
            raise ConfigError(f"--arg {pair}: expected NAME=VALUE, as in --arg batch=8")
        if key in arguments:
            raise ConfigError(f"--arg {key}: given twice; leave one")
        try:
            arguments[key] = json.loads(value)
        except json.JSONDecodeError:
            arguments[key] = value
    return arguments


def user_frame(error: BaseException) -> str:
    """Return FILE:LINE of the innermost frame outside installed packages, "" without one."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        own = file.startswith(_OWN_FOLDER)
        if not own and "site-packages" not in Path(file).parts and not file.startswith("<frozen"):
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _import(place: str, name: str) -> ModuleType:
    """Import a module by its dotted name or by its file."""
    by_file = place.endswith(".py")
    path = Path(place).resolve()
    if by_file and not path.is_file():
        raise ConfigError(f"{name}: no file {path}; give PATH/FILE.py:CALLABLE")
    # Worker processes import the module again by its name, from the same search path.
    folder = str(path.parent if by_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _import_file(path) if by_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{name}: no module {place!r} in {folder} or among the installed packages; "
                "start in the folder that holds it, or give PATH/FILE.py:CALLABLE"
            ) from error
        raise DataError(
            f"{name}: {place} imports {error.name!r}, which is not installed "
            f"({user_frame(error)}); install it"
        ) from error
    except Exception as error:
        raise DataError(
            f"{name}: {place} cannot be imported: {type(error).__name__}: {error} "
            f"({user_frame(error) or 'no frame of its own'}); correct the module"
        ) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file under its own name, or another where that name is taken."""
    known = sys.modules.get(path.stem)
    if known is None and path.stem.isidentifier():
        found = importlib.util.find_spec(path.stem)
        if found is not None and found.origin == str(path):
            return importlib.import_module(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    title = f"audited_{path.stem}"
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[title]
        raise
    return module
