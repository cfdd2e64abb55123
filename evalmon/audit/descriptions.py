"""Pipelines from files: a description in TOML or JSON, or a run directory of ours.

A description names the hosts and the operations in order, from source to batches. Each
operation is a table with its ``kind`` (``evalmon.audit.pipelines``) and that kind's values;
a whole number may be ``"host"`` or ``"hosts"``, which stand for h and S::

    hosts = 8                  # S
    instances = 4096           # N, of a source that does not say its own

    [[operations]]
    kind = "source"
    name = "tokens"

    [[operations]]
    kind = "shuffle"
    seed = 34521

    [[operations]]
    kind = "repeat"            # without end; epochs = 2 for two passes

    [[operations]]
    kind = "slice"             # or kind = "shard", which is part host of hosts by itself
    start = "host"
    step = "hosts"

    [[operations]]
    kind = "batch"
    size = 8
    drop_remainder = true

``mix`` comes first and has ``components``, each a list of operations. What follows a
``stream`` is no random access any more: a ``batch`` between it and ``workers`` is done in
each worker. ``resume`` says how a restart finds its position.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

from evalmon.audit.pipelines import (
    OPERATIONS,
    Batch,
    Mix,
    Operation,
    Pipeline,
    Repeat,
    Resume,
    Sampler,
    Shard,
    Shuffle,
    Source,
    Stream,
    Unknown,
    Workers,
)
from evalmon.errors import ConfigError
from evalmon.types import RunDescription

__all__ = ["Description", "read_description", "read_run"]

_CHOICES: Final = {
    ("shard", "form"): ("stride", "contiguous", "declared"),
    ("shard", "of"): ("instances", "files", "rows"),
    ("shard", "by"): ("", "loader", "sampler", "source"),
    ("mix", "form"): ("mix", "concatenate", "zip", "interleave"),
    ("resume", "position"): ("state", "global", "host", "start"),
}
"""Values of texts that are no names."""

_HIDDEN: Final = ("content", "keys")
_LEAST: Final = {"count": 1, "size": 1, "step": 1, "epochs": 1, "batch": 1, "cycle_length": 1}


@dataclass(frozen=True, slots=True)
class Description:
    """A pipeline that is the same on every host but for h.

    Attributes:
        path: where it is from, for messages.
        hosts: S that it is meant for, None where it does not say.
        instances: N, None where it does not say.
        operations: its operations, still with "host" and "hosts" in them.
    """

    path: Path
    hosts: int | None
    instances: int | None
    operations: list[Mapping[str, Any]]

    def pipeline(self, host: int, hosts: int) -> Pipeline:
        """Return the pipeline of one host.

        Args:
            host: h, 0-based.
            hosts: S.

        Raises:
            ConfigError: an operation that is none, or a value that cannot be one.
        """
        scope = {"host": host, "hosts": hosts}
        return Pipeline(host, hosts, self._read(self.operations, scope, "operations"))

    def _read(self, tables: Any, scope: dict[str, int], place: str) -> tuple[Operation, ...]:
        """Return a list of tables as operations."""
        if not isinstance(tables, list) or not tables:
            raise ConfigError(
                f"{self.path}: {place} must be a list of at least one table, got {tables!r}"
            )
        members = cast("list[Any]", tables)
        read = [self._one(own, scope, f"{place}[{n}]") for n, own in enumerate(members)]
        for n, operation in enumerate(read):
            if isinstance(operation, Source | Mix) != (n == 0):
                raise ConfigError(
                    f"{self.path}: {place}[{n}] is a {operation.kind}; begin with source or mix, "
                    "and have no other"
                )
        return tuple(read)

    def _one(self, table: Any, scope: dict[str, int], place: str) -> Operation:
        """Return a table as an operation."""
        where = f"{self.path}: {place}"
        if not isinstance(table, dict):
            raise ConfigError(f"{where} must be a table with a kind, got {table!r}")
        values = dict(cast("dict[str, Any]", table))
        kind = OPERATIONS[_nearest(values.pop("kind", ""), OPERATIONS, f"{where}: kind")]
        known = [item.name for item in fields(kind) if item.name not in _HIDDEN]
        hints = get_type_hints(kind)
        given: dict[str, Any] = {}
        for key, value in values.items():
            name = _nearest(key, known, f"{where}: key")
            if kind is Mix and name == "components":
                given[name] = self._components(value, scope, f"{place}.components")
            else:
                meant = scope.get(value, value) if isinstance(value, str) else value
                allowed = _CHOICES.get((kind.kind, name))
                given[name] = _checked(meant, hints[name], f"{where}.{name}", allowed)
        if kind is Shard:
            given = {"index": scope["host"], "count": scope["hosts"], **given}
        if kind is Source and given.get("instances") is None:
            given["instances"] = self.instances
        return kind(**given)

    def _components(
        self, value: Any, scope: dict[str, int], place: str
    ) -> tuple[tuple[Operation, ...], ...]:
        """Return the components of a mixture."""
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{self.path}: {place} must be a list of lists, got {value!r}")
        members = cast("list[Any]", value)
        return tuple(self._read(own, scope, f"{place}[{n}]") for n, own in enumerate(members))


def read_description(path: Path) -> Description:
    """Read a pipeline description.

    Args:
        path: a .toml or .json file.

    Raises:
        ConfigError: it cannot be read, or holds a key that is not known.
    """
    try:
        text = path.read_text(encoding="utf-8")
        loaded: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name an existing .toml or .json file"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {path.suffix[1:].upper()} ({error})") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: must be a table with operations, got {str(loaded)[:60]!r}")
    record = cast("dict[str, Any]", loaded)
    for key in record:
        _nearest(key, ("hosts", "instances", "operations"), f"{path}: key")
    for key in ("hosts", "instances"):
        if record.get(key) is not None:
            _checked(record[key], int, f"{path}: {key}", None)
            if record[key] < 1:
                raise ConfigError(f"{path}: {key} must be >= 1, got {record[key]}")
    description = Description(
        path, record.get("hosts"), record.get("instances"), record.get("operations", [])
    )
    description.pipeline(0, description.hosts or 2)
    return description


def read_run(run: RunDescription, host: int, hosts: int) -> Pipeline:
    """Describe the loader of a run of our trainer by its name.

    Args:
        run: what its run.json says.
        host: h, 0-based.
        hosts: S.

    Returns:
        The pipeline; a loader that is not known is an unknown operation.
    """
    settings = cast("dict[str, Any]", run.extra.get("settings", {}))
    workers = int(settings.get("workers", 0))
    source = (Source(run.data, run.source_instances), Shuffle(run.seed))
    share = Batch(max(run.batch_instances // hosts, 1), drop_remainder=True)
    loader = Shard(host, hosts, by="loader", drop_remainder=True)
    sampler = Sampler("SlicedSampler")
    match run.loader:
        case "batch_strided":
            operations: tuple[Operation, ...] = (
                *source,
                Batch(run.batch_instances, drop_remainder=True),
                Repeat(),
                Shard(host, hosts, of="rows"),
                Stream(),
                *((Workers(workers),) if workers else ()),
            )
        case "double_shard":
            cut = Shard(host, hosts, by="sampler")
            operations = (*source, sampler, cut, Repeat(reseed=False), loader, Stream(), share)
        case "double_shard_resume":
            cut = Shard(host, hosts, "contiguous", by="sampler", drop_remainder=True)
            resume = Resume("host", batches_early=1)
            operations = (*source, sampler, cut, Repeat(), resume, loader, Stream(), share)
        case _:
            operations = (*source, Unknown(f"loader {run.loader!r}"))
    return Pipeline(host, hosts, operations)


def _nearest(name: Any, known: Any, place: str) -> str:
    """Return a name that is known; refuse any other and name the nearest."""
    if name in known:
        return str(name)
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.0)
    raise ConfigError(
        f"{place} {name!r}: not known; nearest is {near[0]!r} of {', '.join(known)}"
        if near
        else f"{place} {name!r}: not known; this kind has no values"
    )


def _checked(value: Any, hint: Any, place: str, allowed: tuple[str, ...] | None) -> Any:
    """Return a value of the type an operation has for it."""
    types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    origin: Any = get_origin(hint)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{place} must be a list, got {value!r}")
        member = get_args(hint)[0]
        members = cast("list[Any]", value)
        return tuple(_checked(own, member, f"{place}[{n}]", None) for n, own in enumerate(members))
    if float in types and type(value) is int:
        value = float(value)
    if type(value) not in types:
        wanted = " or ".join(item.__name__ for item in types if item is not type(None))
        raise ConfigError(f"{place} must be {wanted}, got {value!r}")
    least = _LEAST.get(place.rpartition(".")[2], 0)
    if isinstance(value, int) and value < least:
        raise ConfigError(f"{place} must be at least {least}, got {value}")
    if allowed is not None and value not in allowed:
        _nearest(value, allowed, place)
    return value
