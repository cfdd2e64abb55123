"""What RUN and its reference can be, each opened as one thing: a run with its curves.

A file is recognized by its content, never by its name alone. Libraries that open a kind
are imported where that kind is met, so that a table is compared without a database.
"""

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from evalmon.errors import ConfigError, DataError
from evalmon.types import RunCurves, RunDescription

__all__ = ["POSSIBLE", "Kind", "Reading", "Source", "open_pair"]

POSSIBLE = (
    "it may be a run directory (run.json), a run of a store (--store STORE with its name, or "
    "an SQLite store with --run NAME), a MaxText log, a W&B CSV export, a table "
    "run,metric,step,tokens,value (CSV, .csv.gz, Parquet; TABLE:NAME or --run picks a run), or "
    "a reference curve (evalmon reference list)"
)
"""Everything that can be named, for messages."""

_BEGINNING = 4096  # bytes that tell what a file is
_EXCERPT = 60
_SHOWN = 30  # names of a long list
_SQLITE, _PARQUET, _GZIP = b"SQLite format 3\x00", b"PAR1", b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_PATH_MARKS = ("/", "\\", ".csv", ".parquet", ".sqlite", ".log", ".txt", ".gz")
_TABLE_COLUMNS = frozenset({"metric", "step", "value"})


class Kind(StrEnum):
    """What a source was recognized as."""

    DIRECTORY = "run directory"
    STORED = "run of a store"
    MAXTEXT = "MaxText log"
    WANDB = "W&B export"
    TABLE = "table"
    REFERENCE = "reference curve"


_FILES = frozenset({Kind.MAXTEXT, Kind.WANDB, Kind.TABLE})
"""Kinds of files that hold one run or several."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read.

    Attributes:
        run: name of the run in a file or store of several, None for the only one.
        store: results store of a run directory or of a run's name, "" = beside the directory.
        thinned: the train history was thinned by a declared rule.
        tokens_per_step: tokens of one step where the source does not say them, else None.
    """

    run: str | None = None
    store: str = ""
    thinned: bool = False
    tokens_per_step: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A run that was opened.

    Attributes:
        kind: what it was recognized as.
        place: file, folder, store or reference it is from.
        curves: its curves.
        description: what the run is, where a run directory or a store says so.
        store: place of its results store, "" without one.
        picked: it was named among the runs of its file.
    """

    kind: Kind
    place: str
    curves: RunCurves
    description: RunDescription | None = None
    store: str = ""
    picked: bool = False

    @property
    def name(self) -> str:
        """The run's name."""
        return self.curves.name

    @property
    def named(self) -> str:
        """The run's name and where it is from, for messages."""
        if self.kind is Kind.REFERENCE:
            return self.name
        return f"{self.name} ({self.kind} {self.place})"


def open_pair(run: str, reference: str, reading: Reading) -> tuple[Source, Source | None]:
    """Open what is to be judged, and what it is judged against.

    A reference that is a file of its own is read while the run is. A plain name is looked for
    among the runs beside RUN (in its file or store), then among the reference curves.

    Args:
        run: path, ``TABLE:NAME``, name of a run in ``reading.store``, or of a reference curve.
        reference: the same; "" without a reference.
        reading: how RUN is read; its ``run`` is not used for the reference.

    Returns:
        The run, and the reference or None, each with its curves.

    Raises:
        ConfigError: nothing of that name, the message says what is possible; or a reference that
            is RUN itself.
        DataError: a file that is none of the kinds, or one that cannot be used.
        StoreError: a store that cannot be read or has no such run.
    """
    if not run.strip():
        raise ConfigError(f"the name of RUN is empty; {POSSIBLE}")
    if not reference:
        return _open_run(run, reading), None
    plain = replace(reading, run=None)
    file = Path(reference)
    with ThreadPoolExecutor(1) as pool:
        ahead = None
        if file.is_file() and not (Path(run).exists() and file.samefile(run)):
            ahead = pool.submit(_open_other, reference, plain, None)
        opened = _open_run(run, reading)
        other = ahead.result() if ahead else _open_reference(reference, opened, plain)
    if other.name == opened.name and _home(other) == _home(opened):
        raise ConfigError(f"--reference {reference!r} is RUN itself; name another run")
    return opened, other


def _open_run(name: str, reading: Reading) -> Source:
    """Open what is to be judged."""
    if reading.store and not Path(name).exists() and _table_and_run(name) is None:
        if reading.run not in (None, name):
            raise ConfigError(f"two runs are named, {name!r} and --run {reading.run!r}; name one")
        return _stored(reading.store, name)
    opened = _open(name, reading)
    if reading.store and opened.store != reading.store:
        raise ConfigError(
            f"--store {reading.store!r}: {name} is a {opened.kind} and is read without it; leave "
            "out --store, or name a run of that store"
        )
    return opened


def _open_reference(name: str, run: Source, reading: Reading) -> Source:
    """Open what a run is judged against."""
    found = None if Path(name).exists() else _beside(name, run, reading)
    return found or _open_other(name, reading, run)


def _open_other(name: str, reading: Reading, beside: Source | None) -> Source:
    """Open a reference; of a file of several runs the message says how one is named."""
    try:
        return _open(name, reading, beside)
    except (ConfigError, DataError) as error:
        path = Path(name)
        if not path.is_file() or len(names := _names_in(path)) < 2:
            raise
        there = ", ".join(names[:_SHOWN]) + (", …" if names[_SHOWN:] else "")
        raise ConfigError(
            f"--reference {name}: {len(names)} runs and none named; name one as --reference "
            f"{name}:{names[0]}; there are {there}"
        ) from error


def _home(source: Source) -> str:
    """Return where a run lives, one name for one place."""
    place = source.store or source.place
    return place if source.kind is Kind.REFERENCE or "://" in place else str(Path(place).resolve())


def _beside(name: str, run: Source, reading: Reading) -> Source | None:
    """Return a run of the same file or store, None where there is none of that name."""
    if name not in _names_beside(run):
        return None
    if run.kind in _FILES:
        return _file(Path(run.place), replace(reading, run=name))
    return _stored(run.store, name)


def _open(name: str, reading: Reading, beside: Source | None = None) -> Source:
    """Open a path, TABLE:NAME or a reference curve."""
    path = Path(name)
    if path.is_dir():
        return _directory(path, reading)
    if path.is_file():
        return _file(path, reading)
    if path.exists():
        raise ConfigError(
            f"{name}: not a regular file, as a pipe or a device is; save what it gives to a file "
            "first, and name that"
        )
    split = _table_and_run(name)
    if split:
        if reading.run not in (None, split[1]):
            raise ConfigError(f"two runs are named, {name!r} and --run {reading.run!r}; name one")
        return _file(split[0], replace(reading, run=split[1]))
    return _reference(name, reading, beside)


def _table_and_run(name: str) -> tuple[Path, str] | None:
    """Split TABLE:NAME where what stands before a colon is a file."""
    for at, letter in enumerate(name):
        if letter == ":" and name[at + 1 :] and Path(name[:at]).is_file():
            return Path(name[:at]), name[at + 1 :]
    return None


def _reference(name: str, reading: Reading, beside: Source | None) -> Source:
    """Open a reference curve by name."""
    others = _names_beside(beside)
    there = f"; beside RUN are {', '.join(others)}" if others else ""
    if any(mark in name for mark in _PATH_MARKS):
        raise ConfigError(f"{name}: no such file or folder{there}; {POSSIBLE}")
    from evalmon import reference

    try:
        curves = reference.load(name)
    except ConfigError as error:
        possible = "" if beside else f"; {POSSIBLE}"
        raise ConfigError(f"{name}: no such file, and {error}{there}{possible}") from error
    if reading.run not in (None, curves.name):
        raise ConfigError(f"{name} is one reference curve; leave out --run {reading.run!r}")
    return Source(Kind.REFERENCE, curves.name, curves)


def _names_beside(run: Source | None) -> tuple[str, ...]:
    """Return the names of the runs in the same file or store, none where there is neither."""
    if run is None or (run.kind is Kind.MAXTEXT and not run.picked):  # it would be read again
        return ()
    if run.kind in _FILES:
        names: tuple[str, ...] = _reader(run.kind).runs(Path(run.place))
        return names
    return _stored_names(run.store) if run.store else ()


def _names_in(path: Path) -> tuple[str, ...]:
    """Return the names of the runs in a file."""
    beginning = _beginning(path)
    if beginning.startswith(_SQLITE):
        return _stored_names(str(path))
    names: tuple[str, ...] = _reader(_kind(path, beginning)).runs(path)
    return names


def _directory(path: Path, reading: Reading) -> Source:
    """Open a run directory with the results store beside it."""
    if not (path / "run.json").is_file():
        held = sorted(item.name for item in path.iterdir())
        shown = ", ".join(held[:5]) + (", …" if len(held) > 5 else "")
        raise DataError(f"{path}: a folder without run.json ({shown or 'empty'}); {POSSIBLE}")
    description = RunDescription.load(path.resolve())
    if reading.run not in (None, description.name):
        raise ConfigError(
            f"{path} holds the run {description.name!r}, not --run {reading.run!r}; leave out --run"
        )
    place = reading.store or str(description.path.parent / "evalmon.sqlite")
    stored = _stored(place, description.name, description)
    return replace(stored, kind=Kind.DIRECTORY, place=str(path))


def _stored(place: str, name: str, description: RunDescription | None = None) -> Source:
    """Open a run of a store, with its log where that is still there."""
    from evalmon import stored_runs

    described, curves = stored_runs.read(place, name, description)
    return Source(Kind.STORED, place, curves, described, place)


def _stored_names(place: str) -> tuple[str, ...]:
    """Return the runs of a store."""
    from evalmon import stored_runs

    return stored_runs.names(place)


def _file(path: Path, reading: Reading) -> Source:
    """Open a file by what it holds."""
    beginning = _beginning(path)
    if beginning.startswith(_SQLITE):
        names = _stored_names(str(path))
        if reading.run is None and len(names) != 1:
            raise ConfigError(f"{path}: a store of {len(names)} runs; --run one of {list(names)}")
        return _stored(str(path), reading.run or names[0])
    kind = _kind(path, beginning)
    curves = _reader(kind).read(
        path, reading.run, thinned=reading.thinned, tokens_per_step=reading.tokens_per_step
    )
    return Source(kind, str(path), curves, picked=reading.run is not None)


def _reader(kind: Kind) -> ModuleType:
    """Return what reads a kind of file, by its ``read`` and ``runs``; no other is imported."""
    if kind is Kind.MAXTEXT:
        from evalmon.logs import maxtext

        return maxtext
    if kind is Kind.WANDB:
        from evalmon.logs import wandb_export

        return wandb_export
    from evalmon.logs import tables

    return tables


def _kind(path: Path, beginning: bytes) -> Kind:
    """Return what a file is, by its content."""
    packed, wide = beginning.startswith(_PARQUET), beginning.startswith(_UTF16)
    if beginning.strip() and (packed or wide or b"\x00" not in beginning):
        from evalmon.logs import columns, tables

        names: set[str] = set()
        first = beginning.removeprefix(_UTF8_MARK).lstrip().partition(b"\n")[0]
        if packed or wide or b"," in first:
            names = {name.strip() for name in columns.header(path)}
        if names >= _TABLE_COLUMNS:
            return Kind.TABLE
        from evalmon.logs import maxtext, wandb_export

        if not packed and maxtext.recognizes(path):
            return Kind.MAXTEXT
        if wandb_export.recognizes(path):
            return Kind.WANDB
        if packed or len(names & _TABLE_COLUMNS) == len(_TABLE_COLUMNS) - 1:
            return Kind.TABLE  # which says what its columns lack
        if tables.meant(path):
            return Kind.TABLE  # which names the separator, or the capitals
    raise DataError(f"{path}: looks like {_look(beginning)}; {POSSIBLE}")


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked where it is gzip."""
    try:
        with path.open("rb") as file:
            first = file.read(_BEGINNING)
        if first.startswith(_GZIP):
            with gzip.open(path) as unpacked:
                first = unpacked.read(_BEGINNING)
    except (OSError, EOFError, zlib.error) as error:
        from evalmon.logs import table_files

        raise table_files.unreadable(path, error) from error
    return first


def _look(beginning: bytes) -> str:
    """Say what a file's first bytes look like."""
    if not beginning.strip():
        return "an empty file"
    if b"\x00" in beginning:
        return f"binary data ({beginning[:8].hex(' ')})"
    line = beginning.strip().partition(b"\n")[0].decode("utf-8", errors="replace").strip()
    if line.startswith("{"):
        return "JSON lines (of a run directory, name the folder)"
    shown = line[:_EXCERPT] + ("…" if len(line) > _EXCERPT else "")
    if "," in line:
        return f"a CSV file with the columns {shown!r}, where metric, step and value are needed"
    return f"text that begins with {shown!r}"
