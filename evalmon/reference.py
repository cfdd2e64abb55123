"""Reference curves: published series with provenance, found by name.

They lie in folders of one form (:mod:`evalmon.reference_index`): the project's own, which
is installed with it, and the user's, where `evalmon reference add` puts what it is given.
"""

import difflib
import hashlib
import io
import os
import stat
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from evalmon import reference_index
from evalmon.errors import ConfigError, DataError
from evalmon.reference_index import INDEX_NAME, CurveEntry, Entry
from evalmon.types import Curve, RunCurves, Series

__all__ = [
    "FOLDER_VARIABLE",
    "HEADER",
    "CurveEntry",
    "Entry",
    "Fault",
    "entries",
    "find",
    "folders",
    "load",
    "missing_folder",
    "names",
    "readable",
    "user_folder",
    "verify",
]

FOLDER_VARIABLE = "EVALMON_REFERENCE_CURVES"
"""Names the user's folder of reference curves in place of the usual one."""
HEADER = b"step,tokens,value\n"
"""First line of a curve's file."""

_ROW = np.dtype([("step", np.int64), ("tokens", np.int64), ("value", np.float64)])
_VERIFY = "see all that is wrong with: evalmon reference verify"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a folder of reference curves.

    Attributes:
        reference: name of the reference, "" where it is the folder itself.
        file: the file.
        message: what is wrong, and what to do.
    """

    reference: str
    file: Path
    message: str


def user_folder() -> Path:
    """Return the user's own folder, which need not be there.

    Raises:
        ConfigError: the variable names a file.
    """
    import platformdirs

    named = os.environ.get(FOLDER_VARIABLE)
    if named and Path(named).exists() and not Path(named).is_dir():
        raise ConfigError(
            f"{FOLDER_VARIABLE}={named}: a file, where the folder of your reference curves is "
            "named; name its folder, or unset the variable"
        )
    return Path(named) if named else platformdirs.user_data_path("evalmon") / "reference_curves"


def missing_folder() -> str:
    """Say that the folder which the variable names is not there, or ""."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named or Path(named).is_dir():
        return ""
    return (
        f"{FOLDER_VARIABLE}={named}: no such folder; correct or unset the variable (`evalmon "
        "reference add` makes the folder with its first reference)"
    )


def folders() -> tuple[Path, ...]:
    """Return the folders that references are looked for in: the project's, then the user's.

    Raises:
        ConfigError: the variable names a file.
        DataError: the project's own are not there: the installation is broken.
    """
    try:
        shipped = Path(str(resources.files("reference_curves")))
    except ModuleNotFoundError:  # an editable install from before they were a package
        shipped = Path(__file__).resolve().parent.parent / "reference_curves"
    if not (shipped / INDEX_NAME).is_file():
        raise DataError(f"{shipped}: no {INDEX_NAME}; install evalmon again")
    user = user_folder()
    return (shipped, user) if _is_there(user / INDEX_NAME) else (shipped,)


def _is_there(path: Path) -> bool:
    """Return whether there is anything at a path, also what cannot be read."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def readable() -> tuple[tuple[Entry, ...], tuple[Fault, ...]]:
    """Return the references of every index that can be read, and what is wrong with the others.

    Returns:
        The references, in the order of :func:`folders`, then of the index; and a fault for an
        index that is broken, or that is missing where curves lie.
    """
    found: list[Entry] = []
    faults: list[Fault] = []
    for folder in folders():
        try:
            found += reference_index.parse(folder).values()
        except DataError as error:
            faults.append(Fault("", folder / INDEX_NAME, str(error)))
    user = user_folder()
    if not _is_there(user / INDEX_NAME):
        bare = sorted({file.parent.name for file in user.glob("[!.]*/*.csv")})
        if bare:
            shown = ", ".join(bare[:5]) + (", …" if len(bare) > 5 else "")
            faults.append(
                Fault(
                    "",
                    user / INDEX_NAME,
                    f"{user}: curves ({shown}) and no {INDEX_NAME}; restore it, or remove them "
                    "and add them again",
                )
            )
    return tuple(found), tuple(faults)


def entries() -> tuple[Entry, ...]:
    """Return every reference, in the order of :func:`folders`, then of the index.

    Raises:
        DataError: an index is broken, or missing where curves lie.
    """
    found, faults = readable()
    if faults:
        raise DataError(faults[0].message)
    return found


def names() -> tuple[str, ...]:
    """Return the names of all references, without aliases."""
    return tuple(entry.name for entry in entries())


def find(name: str) -> Entry:
    """Return a reference by name or alias; upper and lower case are one.

    Raises:
        ConfigError: there is none; the nearest name is in the message.
        DataError: there is none in the indices that can be read, and another is broken.

    Example:
        >>> find("OLMo-2-1124-7B-stage1").name
        'olmo2-7b-stage1'
    """
    known: dict[str, Entry] = {}
    found, faults = readable()
    for entry in found:
        for label in (entry.name, *entry.aliases):
            known.setdefault(label.casefold(), entry)
    if name.casefold() in known:
        return known[name.casefold()]
    if faults:
        raise DataError(f"no reference {name!r} in what can be read; {faults[0].message}")
    asked = name.casefold()
    near = difflib.get_close_matches(asked, known, 1) or [
        label for label in known if asked and label.startswith(asked)
    ]
    meant = f"did you mean {known[near[0]].name!r}, or " if near else ""
    raise ConfigError(f"no reference {name!r}; {meant}see `evalmon reference list`")


def load(name: str, metrics: Collection[str] | None = None) -> RunCurves:
    """Read a reference.

    Args:
        name: its name or an alias.
        metrics: canonical names to read, None for all; those it lacks are left out. No other
            file is opened.

    Returns:
        Its curves; ``source`` is its folder.

    Raises:
        ConfigError: there is no such reference.
        DataError: an index or a file is broken, or a file is not the one that was indexed.
    """
    return _load(find(name), metrics)


def _load(entry: Entry, metrics: Collection[str] | None) -> RunCurves:
    """Read the curves of one entry."""
    curves = {
        metric: Curve(_read(entry, item), item.measure.facts, item.sampling, item.note)
        for metric, item in entry.curves.items()
        if metrics is None or metric in metrics
    }
    return RunCurves(
        name=entry.name,
        source=str(entry.folder / entry.name),
        curves=curves,
        tokens_per_step=entry.tokens_per_step,
        planned_tokens=entry.planned_tokens,
        warmup_tokens=entry.warmup_tokens,
        seams=entry.seams,
        data_changes=entry.data_changes,
    )


def _read(entry: Entry, item: CurveEntry) -> Series:
    """Read one file, refusing it when it is not the one that was indexed."""
    try:
        if not stat.S_ISREG(item.file.stat().st_mode):
            raise DataError(
                f"{item.file}: no file but a folder or a pipe; restore it, or add {entry.name} "
                f"again; {_VERIFY}"
            )
        content = item.file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{item.file}: cannot be read ({error.strerror}); restore it, or add {entry.name} "
            f"again; {_VERIFY}"
        ) from error
    if hashlib.sha256(content).hexdigest() != item.sha256:
        raise DataError(
            f"{item.file}: SHA-256 is not the one in {INDEX_NAME}, so it was changed since it was "
            f"added; restore it, or add {entry.name} again; {_VERIFY}"
        )
    return _parse(content, item)


def _parse(content: bytes, item: CurveEntry) -> Series:
    """Turn a file's bytes into a series."""
    if not content.startswith(HEADER):
        raise DataError(f"{item.file}: line 1 is not {HEADER.decode().strip()!r}; {_VERIFY}")
    lines = io.BytesIO(content[len(HEADER) :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of no rows, which are counted below
        try:
            rows = np.loadtxt(lines, delimiter=",", dtype=_ROW, ndmin=1, comments=None)
        except ValueError as error:
            raise DataError(f"{item.file}: {error}; {_VERIFY}") from error
    if len(rows) != item.points:
        raise DataError(
            f"{item.file}: {len(rows)} points where {INDEX_NAME} says {item.points}; {_VERIFY}"
        )
    for column in ("step", "tokens"):
        back = np.flatnonzero(np.diff(rows[column]) <= 0)
        if len(back):
            raise DataError(
                f"{item.file}: line {back[0] + 3}: {column} {rows[column][back[0] + 1]} after "
                f"{rows[column][back[0]]}; they have to rise; {_VERIFY}"
            )
    broken = np.flatnonzero(~np.isfinite(rows["value"]))
    if len(broken):
        raise DataError(
            f"{item.file}: line {broken[0] + 2}: value {rows['value'][broken[0]]} is not a finite "
            f"number; {_VERIFY}"
        )
    steps, tokens, values = (rows[name].copy() for name in _ROW.names or ())
    return Series(item.metric, steps, tokens, values)


def verify(wanted: Sequence[str] = ()) -> tuple[Fault, ...]:
    """Check indices and files: hashes, counts, rising steps and tokens, finite values.

    Args:
        wanted: names or aliases, none for every reference and for files that no index names.

    Returns:
        What is wrong, nothing when all is sound.

    Raises:
        ConfigError: there is no such reference, or no folder where the variable names one.
    """
    if wanted:
        return tuple(fault for name in wanted for fault in _verify_named(name))
    if missing := missing_folder():
        raise ConfigError(missing)
    there, broken = readable()
    found = list(broken)
    labels: dict[str, Entry] = {}
    for entry in there:
        found += _verify(entry)
        for label in (entry.name, *entry.aliases):
            first = labels.setdefault(label.casefold(), entry)
            if first is not entry:
                said = f"{label!r} is also {first.name} of {first.folder}; rename one"
                found.append(Fault(entry.name, entry.folder / INDEX_NAME, said))
    indexed = {item.file for entry in there for item in entry.curves.values()}
    unread = {fault.file.parent for fault in broken}
    found += [
        Fault("", file, f"{file}: in no index; remove it, or add it again")
        for folder in folders()
        if folder not in unread
        for file in sorted(folder.glob("*/*.csv"))
        if file not in indexed
    ]
    return tuple(found)


def _verify_named(name: str) -> list[Fault]:
    """Check one reference by its name, which may be in an index that cannot be read."""
    try:
        return _verify(find(name))
    except DataError as error:
        broken = readable()[1]
        return [replace(broken[0], reference=name, message=str(error))]


def _verify(entry: Entry) -> list[Fault]:
    """Check one reference."""
    found: list[Fault] = []
    for item in entry.curves.values():
        try:
            _read(entry, item)
        except DataError as error:
            found.append(Fault(entry.name, item.file, str(error)))
    return found
