"""Puts a run into a folder of reference curves."""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from evalmon import curve_faults, reference, reference_index
from evalmon.errors import ConfigError, DataError, WriteError
from evalmon.reference_index import INDEX_NAME, CurveEntry, Entry, Measure, Source, file_name
from evalmon.types import RunCurves, Sampling, Series

__all__ = ["Added", "add", "refuse_name", "refuse_values"]

_T = TypeVar("_T")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RESERVED = ("index.",)
"""Beginnings of names that the folder itself uses, beside those that begin with a dot."""
_METRIC = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


@dataclass(frozen=True, slots=True)
class Added:
    """What `add` made.

    Attributes:
        entry: as it is in the index now.
        warnings: what is wrong or odd with its curves; the index holds it too.
    """

    entry: Entry
    warnings: tuple[str, ...] = ()


def add(curves: RunCurves, about: Entry, source: Source | Mapping[str, Source]) -> Added:
    """Store a run as a reference: one file a curve, then the index.

    Args:
        curves: the run.
        about: what it is called and what it is; its ``curves`` are ignored, and tokens and seams
            that it does not state are those of the run. Its ``folder`` is written to.
        source: where the figures are from, or where those of each metric are.

    Returns:
        The new entry, with a warning for each curve that looks broken or counts as sampled.

    Raises:
        ConfigError: the name is not usable, or taken, or a text is not UTF-8.
        DataError: there is no curve to store, or one that cannot be.
        WriteError: the folder cannot be written.
    """
    _check_names(about)
    _check_metrics(curves)
    refuse_values(curves)
    found = _faults(curves)
    folder = about.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            there = reference_index.parse(folder) if (folder / INDEX_NAME).exists() else {}
            _free(about, there)
            items = _write_curves(curves, folder / about.name, source)
            entry = replace(
                about,
                curves=items,
                tokens_per_step=about.tokens_per_step or curves.tokens_per_step,
                planned_tokens=about.planned_tokens or curves.planned_tokens,
                warmup_tokens=about.warmup_tokens or curves.warmup_tokens,
                seams=about.seams or curves.seams,
                data_changes=about.data_changes or curves.data_changes,
                known_faults=(*about.known_faults, *found),
            )
            try:
                _write_index(folder, [*there.values(), entry])
            except BaseException:  # curves that no index names would stand in a later add's way
                shutil.rmtree(folder / about.name, ignore_errors=True)
                raise
    except OSError as error:
        raise WriteError(
            f"{folder}: the reference cannot be written ({error}); name another --folder"
        ) from error
    return Added(entry, found)


def refuse_name(about: Entry) -> None:
    """Refuse a name or alias that `add` would refuse, before a run is read or scored.

    Args:
        about: name, aliases and folder are looked at.

    Raises:
        ConfigError: one of them is not usable, or taken.
        DataError: the folder's index is broken.
    """
    _check_names(about)
    there = (about.folder / INDEX_NAME).exists()
    _free(about, reference_index.parse(about.folder) if there else {})


def refuse_values(curves: RunCurves) -> None:
    """Refuse a run with a curve that holds no losses or shares of any model.

    Raises:
        DataError: the first such curve, with value and step.
    """
    for curve in curves.curves.values():
        said = curve_faults.no_measurement(curve.series) if len(curve.series) else ""
        if said:
            raise DataError(
                f"{curves.source}: {said} Nothing was added: export the column again, a loss in "
                "nats per token, or leave it out"
            )


def _check_names(about: Entry) -> None:
    """Refuse a name or aliases that cannot be kept."""
    if not _NAME.fullmatch(about.name):
        raise ConfigError(
            f"--name {about.name!r}: a name has up to 64 of a-z, 0-9, '.', '_' and '-', and begins "
            "with a letter or digit"
        )
    if about.name.startswith(_RESERVED):
        raise ConfigError(
            f"--name {about.name!r}: names that begin with {_RESERVED[0]!r} are kept for the "
            "folder's index; choose another name"
        )
    labels = {about.name.casefold()}
    for alias in about.aliases:
        if not alias.strip():
            raise ConfigError(f"--alias {alias!r} is empty; leave it out, or give a name")
        if alias.casefold() in labels:
            raise ConfigError(
                f"--alias {alias!r} is the name or another alias of this reference (upper and "
                "lower case are one); leave it out"
            )
        labels.add(alias.casefold())


def _check_metrics(curves: RunCurves) -> None:
    """Refuse a run without curves, or with metrics that cannot be the names of files."""
    if not any(len(curve.series) for curve in curves.curves.values()):
        raise DataError(f"{curves.source}: run {curves.name!r} has no points; name another run")
    stems: dict[str, str] = {}
    for metric in curves.curves:
        if not _METRIC.fullmatch(metric):
            raise DataError(
                f"{curves.source}: metric {metric!r} cannot be the name of a file; use a canonical "
                "name, of letters, digits, '_', '-', '+' and '/'"
            )
        other = stems.setdefault(file_name(metric).casefold(), metric)
        if other != metric:
            raise DataError(f"{curves.source}: {metric!r} and {other!r} are one name; drop one")


def _free(about: Entry, there: Mapping[str, Entry]) -> None:
    """Refuse a name or alias that is taken, here or in a folder that is looked through."""
    known = {
        label.casefold(): entry
        for entry in (*reference.readable()[0], *there.values())
        for label in (entry.name, *entry.aliases)
    }
    for label in (about.name, *about.aliases):
        if label.casefold() in known:
            entry = known[label.casefold()]
            raise ConfigError(
                f"reference {label!r} is there already, {entry.folder / entry.name}; choose "
                "another name, or remove that folder and its part of the index first"
            )
    if (about.folder / about.name).exists():
        raise ConfigError(
            f"{about.folder / about.name}: is there already and in no index, as after an add that "
            "was stopped; remove it and add again"
        )


def _write_curves(
    curves: RunCurves, folder: Path, source: Source | Mapping[str, Source]
) -> dict[str, CurveEntry]:
    """Write each curve into a folder that comes to be whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    items: dict[str, CurveEntry] = {}
    contents: dict[str, bytes] = {}
    for metric, curve in curves.curves.items():
        if not len(curve.series):
            continue
        content = contents[file_name(metric)] = _content(curve.series)
        items[metric] = CurveEntry(
            metric=metric,
            file=folder / file_name(metric),
            points=len(curve.series),
            sha256=hashlib.sha256(content).hexdigest(),
            measure=Measure(_unit(metric), dict(curve.facts)),
            source=source if isinstance(source, Source) else source[metric],
            sampling=curve.sampling,
            note=curve.note,
        )
    try:
        partial.mkdir()
        for name, content in contents.items():
            (partial / name).write_bytes(content)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return items


def _write_index(folder: Path, entries: Iterable[Entry]) -> None:
    """Replace the index of a folder, whole or not at all."""
    import tomli_w

    sources: dict[str, Source] = {}
    measures: dict[str, Measure] = {}
    references: dict[str, Any] = {}
    for entry in entries:
        body = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in _given(entry).items()
            if name not in {"name", "folder", "curves", "published"}
        }
        if entry.published:
            body["published"] = [_given(point) for point in entry.published]
        body["curves"] = []
        for curve in entry.curves.values():
            stem = curve.file.stem
            row = {name: value for name, value in _given(curve).items() if name != "file"}
            row["measure"] = _key(measures, curve.measure, stem, within=stem)
            row["source"] = _key(sources, curve.source, entry.name)
            body.setdefault("source", row["source"])
            body["curves"].append(
                {
                    name: value
                    for name, value in row.items()
                    if (name, value) not in {("measure", stem), ("source", body["source"])}
                }
            )
        references[entry.name] = body
    table = {
        "sources": {key: _given(item) for key, item in sources.items()},
        "measures": {key: _given(item) for key, item in measures.items()},
        "references": references,
    }
    head = (
        "# Reference curves: one file a curve, NAME/METRIC.csv. Written by `evalmon reference "
        "add`;\n# the keys are explained in docs/reference-curves.md.\n\n"
    )
    path = folder / INDEX_NAME
    partial = path.with_name(f".{INDEX_NAME}.partial")
    try:
        content = (head + tomli_w.dumps(table)).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{error.object[max(error.start - 20, 0) : error.end]!r} is no text in UTF-8, as the "
            "index is; write names and options in UTF-8"
        ) from error
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise WriteError(f"{path}: cannot be written ({error}); name another --folder") from error


def _given(part: Any) -> dict[str, Any]:
    """Return the fields of a part that differ from their defaults, as TOML has them."""
    found: dict[str, Any] = {}
    for item in fields(part):
        value = getattr(part, item.name)
        empty = value is None or value in ("", (), 0) or value == {} or value is Sampling.FULL
        if not empty or (item.default is MISSING and item.default_factory is MISSING):
            found[item.name] = str(value) if isinstance(value, Sampling) else value
    return found


def _key(known: dict[str, _T], item: _T, wish: str, within: str = "") -> str:
    """Return the key of a part, one that begins with ``within``, making one when it is new."""
    for key, other in known.items():
        if other == item and key.startswith(within):
            return key
    key, number = wish, 2
    while key in known:
        key, number = f"{wish}-{number}", number + 1
    known[key] = item
    return key


def _content(series: Series) -> bytes:
    """Return a curve's file: the shortest decimals that give back the very same numbers."""
    rows = zip(series.steps.tolist(), series.tokens.tolist(), series.values.tolist(), strict=True)
    text = "".join(f"{step},{tokens},{value!r}\n" for step, tokens, value in rows)
    return reference.HEADER + text.encode()


def _unit(metric: str) -> str:
    """Return the unit that a canonical name tells, "" where it tells none."""
    if metric.endswith(("/ce_nats", "/z_nats")):
        return "nats per token" if not metric.startswith("eval/downstream/") else "nats"
    if metric.endswith("/bpb"):
        return "bits per byte"
    if metric.startswith("eval/downstream/"):
        return "share of items"
    return ""


def _faults(curves: RunCurves) -> tuple[str, ...]:
    """Return what is wrong or odd with a run's curves, one sentence each."""
    found: list[str] = []
    for metric, curve in curves.curves.items():
        found += curve_faults.faults(curve.series)
        if curve.sampling is Sampling.SAMPLED:
            found.append(
                f"{metric}: sampled at random or by an unknown rule, so that no verdict rests on "
                f"it ({curve.note})."
            )
    if curves.nonfinite:
        step, metric = curves.nonfinite[0]
        found.append(
            f"{metric}: {len(curves.nonfinite)} values that are no finite numbers are left out "
            f"(all metrics together), the first at step {step:,}."
        )
    if curves.superseded:
        found.append(f"{curves.superseded} points that a restart logged again are left out.")
    return tuple(found)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Let one process at a time change an index."""
    with (folder / ".lock").open("w") as lock:
        # Let go by the system when a process dies, so that nobody waits for a dead one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
