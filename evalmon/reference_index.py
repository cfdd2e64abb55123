"""The index of a folder of reference curves: what each file holds, and where it is from.

::

    [sources.olmo2-7b-stage1]              # where figures are from
    source = "who published them, and where"
    licence = "Apache-2.0"
    date = "2026-11-30"

    [measures."train.ce_nats"]             # what numbers mean
    unit = "nats per token"
    facts = { z_loss = "excluded", … }

    [references.olmo2-7b-stage1]
    model = "OLMo 2 7B"
    planned_tokens = 3900000000000
    known_faults = ["train/ce_nats: no point between steps 949 and 3,833."]
    source = "olmo2-7b-stage1"             # of its curves that name no other

    [[references.olmo2-7b-stage1.curves]]  # olmo2-7b-stage1/train.ce_nats.csv
    metric = "train/ce_nats"
    points = 356
    sha256 = "…"
    measure = "train.ce_nats"              # may be left out, being the file's name
    sampling = "thinned"                   # "full" where it is not said
    note = "by a regular rule that does not look at the values"

A curve's file is named by its metric, each ``/`` written as a dot. It has the columns
``step,tokens,value``, by rising step.
"""

import difflib
import functools
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from evalmon.errors import DataError
from evalmon.types.curves import Sampling
from evalmon.types.verdicts import Json

__all__ = [
    "INDEX_NAME",
    "CurveEntry",
    "Entry",
    "Measure",
    "Point",
    "Source",
    "file_name",
    "parse",
]

INDEX_NAME = "index.toml"

_NUMBERS = frozenset(
    {"parameters", "planned_tokens", "points", "tokens", "tokens_per_step", "warmup_tokens"}
)
_LARGEST = 2**63 - 1  # steps and tokens are 64-bit integers
_CALLED: dict[type[Any], str] = {str: "text", tuple: "list"}
_TEXTS = frozenset({"metric", "sha256"})
_HELD: dict[str, type[Any]] = {
    "aliases": str, "known_faults": str, "seams": int, "data_changes": int,
}  # fmt: skip

_T = TypeVar("_T")
_Keys = tuple[frozenset[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where figures are from.

    Attributes:
        source: who published them, and where.
        licence: what they may be used under, "not stated" where nobody says.
        date: day on which they were taken from there, as 2026-11-30.
    """

    source: str
    licence: str = "not stated"
    date: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the numbers of a curve mean.

    Attributes:
        unit: of the values.
        facts: metric identity, as far as it is known; see :class:`evalmon.types.Curve`.
    """

    unit: str = ""
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Point:
    """One published number, as that at the end of training.

    Attributes:
        metric: canonical name.
        value: the number.
        source: who published it, and where.
        tokens: tokens trained on, None where that is not said.
        note: what it is, and to how many digits it holds.
    """

    metric: str
    value: float
    source: str
    tokens: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CurveEntry:
    """One file of a reference.

    Attributes:
        metric: canonical name.
        file: its place.
        points: rows it holds.
        sha256: of its bytes.
        measure: what its numbers mean.
        source: where they are from.
        sampling: how the points were chosen from the steps of the run.
        note: the rule that thinned it, or why it counts as sampled.
    """

    metric: str
    file: Path
    points: int
    sha256: str
    measure: Measure
    source: Source
    sampling: Sampling = Sampling.FULL
    note: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One published run.

    Attributes:
        name: as it is named on the command line.
        folder: the folder whose index it is in.
        curves: canonical metric name -> file.
        aliases: other names it is found by.
        model: model and size.
        parameters: with embeddings, None where that is not known.
        stage: part of the training.
        tokenizer: name of the tokenizer, "" where it is not known.
        tokens_per_step: tokens of one step, None where steps differ.
        planned_tokens: of the whole schedule, None where nobody says.
        planned_tokens_source: where that number is from.
        warmup_tokens: of the learning rate's warm-up, 0 where it is not known.
        seams: steps from which a restart went on.
        data_changes: steps after which the run went on with other data.
        known_faults: what is wrong or odd, a sentence each, with its place.
        published: single published numbers.
    """

    name: str
    folder: Path
    curves: Mapping[str, CurveEntry]
    aliases: tuple[str, ...] = ()
    model: str = ""
    parameters: int | None = None
    stage: str = ""
    tokenizer: str = ""
    tokens_per_step: int | None = None
    planned_tokens: int | None = None
    planned_tokens_source: str = ""
    warmup_tokens: int = 0
    seams: tuple[int, ...] = ()
    data_changes: tuple[int, ...] = ()
    known_faults: tuple[str, ...] = ()
    published: tuple[Point, ...] = ()


def file_name(metric: str) -> str:
    """Return the name of a metric's file.

    Example:
        >>> file_name("eval/lm/c4_en-validation/ce_nats")
        'eval.lm.c4_en-validation.ce_nats.csv'
    """
    return f"{metric.replace('/', '.')}.csv"


def parse(folder: Path) -> dict[str, Entry]:
    """Read the index of a folder; no curve is opened.

    Args:
        folder: holds ``index.toml``.

    Returns:
        The references by name, in the order of the index.

    Raises:
        DataError: the index is missing or broken, or holds an unknown key.
    """
    path = folder / INDEX_NAME
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: no file but a folder or a pipe; {_remedy()}")
        return dict(_parse(path, status.st_mtime_ns, status.st_size))
    except (OSError, ValueError, RecursionError) as error:  # of a file that is no TOML too
        raise DataError(f"{path}: cannot be read ({error}); {_remedy()}") from error


@functools.lru_cache(maxsize=8)
def _parse(path: Path, changed: int, size: int) -> dict[str, Entry]:
    """Read an index once as long as it is unchanged."""
    del changed, size
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    _known(table, {"sources", "measures", "references"}, str(path))
    for name, part in table.items():
        _is_table(part, f"{path}: {name}")
    sources = _all(Source, table.get("sources", {}), f"{path}: sources")
    measures = _all(Measure, table.get("measures", {}), f"{path}: measures")
    return {
        name: _entry(name, body, path, (sources, measures))
        for name, body in table.get("references", {}).items()
    }


def _entry(
    name: str,
    body: Any,
    path: Path,
    shared: tuple[dict[str, Source], dict[str, Measure]],
) -> Entry:
    """Read one reference of an index."""
    where = f"{path}: references.{name}"
    _is_table(body, where)
    for key in ("curves", "published"):
        if type(body.get(key, [])) is not list:
            raise DataError(f"{where}: {key} = {body[key]!r} is no list; {_remedy()}")
    curves: dict[str, CurveEntry] = {}
    for number, item in enumerate(body.get("curves", []), start=1):
        at = f"{where}: curve {number}"
        _is_table(item, at)
        file = path.parent / name / file_name(str(item.get("metric", "")))
        given: dict[str, Any] = {"source": body.get("source", ""), "measure": file.stem, **item}
        given["file"] = file
        for key, known in zip(("source", "measure"), shared, strict=True):
            if type(given[key]) is not str or given[key] not in known:
                raise DataError(f"{at}: no {key} {given[key]!r} in the index; {_remedy()}")
            given[key] = known[given[key]]
        if given.get("sampling", "full") not in list(Sampling):
            raise DataError(
                f"{at}: sampling {given['sampling']!r} is none of {[*Sampling]}; {_remedy()}"
            )
        given["sampling"] = Sampling(given.get("sampling", "full"))
        curve = _make(CurveEntry, given, at)
        if curve.metric in curves:
            raise DataError(f"{at}: {curve.metric} a second time; {_remedy()}")
        curves[curve.metric] = curve
    points = [
        _make(Point, point, f"{where}: published number {number}")
        for number, point in enumerate(body.get("published", []), start=1)
    ]
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items() if k != "source"}
    given |= {"name": name, "folder": path.parent, "curves": curves, "published": tuple(points)}
    return _make(Entry, given, where)


def _all(kind: type[_T], table: Mapping[str, Any], where: str) -> dict[str, _T]:
    """Read the shared parts of one kind."""
    return {key: _make(kind, body, f"{where}.{key}") for key, body in table.items()}


def _make(kind: type[_T], body: Any, where: str) -> _T:
    """Build one part from its table, refusing keys that are unknown or missing."""
    _is_table(body, where)
    names, needed = _keys(kind)
    if not body.keys() <= names:
        _known(body, names, where)
    for key, value in body.items():
        if said := _wrong(kind, key, value):
            raise DataError(f"{where}: {said}; {_remedy()}")
    if not needed <= body.keys():
        raise DataError(f"{where}: {sorted(needed - body.keys())} missing; {_remedy()}")
    return kind(**body)


def _wrong(kind: type[Any], key: str, value: Any) -> str:
    """Say why a value cannot be one of its key, or ""."""
    if key in _NUMBERS and (type(value) is not int or not 0 <= value <= _LARGEST):
        return f"{key} = {value!r} is no count"
    if key == "value" and type(value) not in (int, float):
        return f"{key} = {value!r} is no number"
    if key == "facts" and type(value) is not dict:
        return f"{key} = {value!r} is no table"
    expected = str if key in _TEXTS else _types(kind).get(key)
    if expected is not None and type(value) is not expected:
        return f"{key} = {value!r} is no {_CALLED[expected]}"
    if key in _HELD:
        for item in cast("tuple[Any, ...]", value):
            if type(item) is not _HELD[key]:
                return f"{key} holds {item!r}"
    return ""


@functools.cache
def _keys(kind: type[Any]) -> _Keys:
    """Return the keys of a part, and those it cannot do without."""
    all_fields = fields(kind)
    needed = (f.name for f in all_fields if f.default is MISSING and f.default_factory is MISSING)
    return frozenset(f.name for f in all_fields), frozenset(needed)


@functools.cache
def _types(kind: type[Any]) -> dict[str, type[Any]]:
    """Return what a key that can be left out holds, where that is text or a list."""
    return {f.name: type(f.default) for f in fields(kind) if type(f.default) in _CALLED}


def _known(body: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Refuse a key that is none of the known ones."""
    names = sorted(names)
    for key in body:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            meant = f"did you mean {near[0]}?" if near else f"known are {names}"
            raise DataError(f"{where}: unknown key {key!r}; {meant} Then: evalmon reference verify")


def _is_table(body: Any, where: str) -> None:
    """Refuse what should be a table and is none."""
    if not isinstance(body, dict):
        raise DataError(f"{where}: {body!r} where a table was expected; {_remedy()}")


def _remedy() -> str:
    """Say what to do about an index that cannot be used."""
    return "repair or restore it, then check it with: evalmon reference verify"
