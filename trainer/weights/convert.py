"""Weights from one form into another, whole or not at all."""

import difflib
import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from evalmon.errors import ConfigError, WriteError
from trainer.architecture import BLOCK
from trainer.weights.casting import DTYPES, Array, Changes, Counts
from trainer.weights.huggingface import PublishedModel
from trainer.weights.names import published_shapes
from trainer.weights.progress import progress
from trainer.weights.provenance import Conversion, hash_files
from trainer.weights.shard_writer import parse_size
from trainer.weights.source import Given, Source
from trainer.weights.sources import open_source
from trainer.weights.targets import Result, write_huggingface, write_maxtext, write_weights
from trainer.weights.verify import digest, fingerprint, require_recorded, verified_fingerprint

__all__ = ["Options", "convert"]

_FORMS: Final = ("hf", "orbax", "maxtext")
_DTYPES: Final = ("float32", "bfloat16", "float16")
_SHARD_SIZE: Final = "5GB"
_REMOVALS: Final = 50
"""Tries to remove an interrupted result, a tenth of a second apart."""
_MOST_ROWS: Final = 2**31 - 1
"""Ids are int32."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        to: form of the result; by default Orbax of published weights and of MaxText's,
            published weights of ours.
        dtype: dtype of the result; by default each tensor keeps its own.
        vocab_size: rows of embedding and head; by default as many as the source has.
        given: what the source is, where it does not say.
        scan: whether MaxText's layers are stacked; by default they are.
        max_shard_size: bytes of a published file at most; by default 5GB.
    """

    to: str | None = None
    dtype: str | None = None
    vocab_size: int | None = None
    given: Given = field(default_factory=Given)
    scan: bool | None = None
    max_shard_size: str | None = None


def convert(src: Path, dst: Path, options: Options) -> dict[str, Any]:
    """Convert weights, and write beside them where they are from.

    The result is written into a hidden folder beside ``dst``, read back, compared with what
    was written, and only then renamed.

    Args:
        src: weights in any form that ``open_source`` knows.
        dst: folder to make.
        options: what to make of them.

    Returns:
        The content of ``provenance.json``.

    Raises:
        ConfigError: an option is not valid or does not fit the source.
        CheckpointError: the source is not, or not wholly, the weights of an OLMo 3.
        WriteError: the result cannot be written.
    """
    _require_valid(options)
    source = open_source(src, options.given)
    form = options.to or {"huggingface": "orbax", "maxtext": "orbax"}.get(source.form, "hf")
    _require_fitting(source, dst, form, options)
    rows = source.model.config.vocab_size if options.vocab_size is None else options.vocab_size
    changes = Changes(None if options.dtype is None else DTYPES[options.dtype], rows)
    altered = _alters(changes, source)
    counts, digests = Counts(), dict[str, bytes]()

    def read(name: str) -> Array:
        array = changes.apply(name, source.read(name), counts)
        digests[name] = digest(array)
        return array

    def read_again(name: str) -> Array:
        return changes.apply(name, source.read(name))

    scanned = options.scan is not False if form == "maxtext" else None
    result = _result(source, changes, read, scanned)
    files = hash_files(source)
    if altered and source.fingerprint is not None and source.any_order:
        require_recorded(source, fingerprint(source.dtypes, source.read))
    _require_space(dst, _nbytes(result))
    with _whole(dst) as folder:
        with progress("write", _nbytes(result)) as on_written:
            _write(folder, form, replace(result, on_written=on_written), options)
        _refuse_overflow(counts, changes)
        with progress("check", _nbytes(result)) as on_read:
            found = verified_fingerprint(open_source(folder), digests, read_again, on_read)
        if not altered:
            require_recorded(source, found)
        conversion = Conversion(source, result, changes, counts, files, found)
        facts = conversion.facts(dst, form, scanned, _spelled(options))
        conversion.save(folder, facts)
    return facts


def _require_valid(options: Options) -> None:
    """Refuse values that no source could make valid."""
    for flag, value, allowed in (
        ("--to", options.to, _FORMS),
        ("--dtype", options.dtype, _DTYPES),
    ):
        if value is not None and value not in allowed:
            near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"{flag} {value!r}: expected one of {', '.join(allowed)}; nearest is {near!r}"
            )
    if options.vocab_size is not None and not 1 <= options.vocab_size <= _MOST_ROWS:
        raise ConfigError(
            f"--vocab-size {options.vocab_size}: expected a whole number from 1 to {_MOST_ROWS}"
        )
    parse_size(options.max_shard_size or _SHARD_SIZE)


def _require_fitting(source: Source, dst: Path, form: str, options: Options) -> None:
    """Refuse a place for the result, and options that mean nothing for this conversion."""
    if os.path.lexists(dst):
        raise ConfigError(f"{dst}: exists already; give a folder that does not")
    if dst.resolve().is_relative_to(source.path.resolve()):
        raise ConfigError(f"{dst}: lies in the source {source.path}; give a folder outside")
    if form == "maxtext" and source.form == "maxtext":
        raise ConfigError(f"{source.path}: MaxText's already; convert it --to orbax first")
    if options.scan is not None and form != "maxtext":
        flag = "--scan" if options.scan else "--no-scan"
        raise ConfigError(f"{flag}: only for --to maxtext, the result is {form}; leave it out")
    if options.max_shard_size is not None and form != "hf":
        raise ConfigError(f"--max-shard-size: only for --to hf, the result is {form}; leave it out")
    layers = source.model.config.layers
    if form == "maxtext" and options.scan is not False and layers % BLOCK:
        raise ConfigError(
            f"{source.path}: {layers} layers cannot be stacked in blocks of {BLOCK}; give --no-scan"
        )


def _require_space(dst: Path, nbytes: int) -> None:
    """Refuse a result that the disk cannot hold, before anything is written."""
    beside = next(parent for parent in dst.absolute().parents if parent.exists())
    try:
        free = shutil.disk_usage(beside).free
    except OSError as error:
        raise WriteError(f"{beside}: cannot be written ({error}); give another DST") from error
    if nbytes > free:
        raise WriteError(
            f"{dst}: the weights take {nbytes} bytes, but {free} are free; free some space"
        )


def _alters(changes: Changes, source: Source) -> bool:
    """Tell whether any tensor of the result differs from the source's."""
    rows = source.model.config.vocab_size
    return changes.rows != rows or changes.dtypes(source.dtypes) != dict(source.dtypes)


def _result(
    source: Source, changes: Changes, read: Callable[[str], Array], scanned: bool | None
) -> Result:
    """Describe the result of a conversion."""
    model = _changed_model(source.model, changes)
    warnings = list(model.warnings)
    config = model.config
    if scanned is not None and config.yarn is not None:
        warnings.append(
            "MaxText applies YaRN to sliding layers too (its pull request 3832); it will not "
            "compute what this model does"
        )
    if scanned is False and config.layers % BLOCK:
        warnings.append(
            f"MaxText's last of {config.layers} layers slides; in OLMo 3 it sees all tokens"
        )
    return Result(
        model=replace(model, warnings=tuple(warnings)),
        dtypes=changes.dtypes(source.dtypes),
        read=read,
        companions=source.companions,
        on_written=lambda _: None,
    )


def _changed_model(model: PublishedModel, changes: Changes) -> PublishedModel:
    """Return the model with its new rows and dtype; ids that are cut off become unknown."""
    config = replace(model.config, vocab_size=changes.rows)
    if changes.dtype is not None:
        half = str(changes.dtype) == "bfloat16"
        config = replace(config, dtype="bfloat16" if half else "float32")
    cut = [i for i in (*model.eos_ids, model.pad_id) if i is not None and i >= changes.rows]
    warnings = [f"id {i} is outside the {changes.rows} rows kept; written as null" for i in cut]
    return replace(
        model,
        config=config,
        eos_ids=tuple(i for i in model.eos_ids if i not in cut),
        pad_id=None if model.pad_id in cut else model.pad_id,
        warnings=(*model.warnings, *warnings),
    )


def _write(folder: Path, form: str, result: Result, options: Options) -> None:
    """Write the result in its form."""
    if form == "hf":
        write_huggingface(folder, result, parse_size(options.max_shard_size or _SHARD_SIZE))
    elif form == "orbax":
        write_weights(folder, result)
    else:
        write_maxtext(folder, result, scanned=options.scan is not False)


def _refuse_overflow(counts: Counts, changes: Changes) -> None:
    """Raise when a cast made finite values infinite."""
    if counts.overflowed:
        listed = ", ".join(f"{name} ({number})" for name, number in counts.overflowed.items())
        raise ConfigError(
            f"--dtype {changes.dtype}: {sum(counts.overflowed.values())} values are too large for "
            f"it, in {listed}; keep a wider dtype"
        )


def _nbytes(result: Result) -> int:
    """Return the bytes of a result's tensors."""
    shapes = published_shapes(result.model.config)
    return sum(dtype.itemsize * math.prod(shapes[name]) for name, dtype in result.dtypes.items())


def _spelled(options: Options) -> Mapping[str, Any]:
    """Return options by their names on the command line."""
    return {
        "to": options.to,
        "dtype": options.dtype,
        "vocab_size": options.vocab_size,
        "config": None if options.given.config is None else str(options.given.config),
        "preset": options.given.preset,
        "scan": options.scan,
        "max_shard_size": options.max_shard_size,
    }


@contextmanager
def _whole(dst: Path) -> Generator[Path]:
    """Make a hidden folder beside ``dst`` that becomes ``dst``, or is gone if anything fails."""
    made = [parent for parent in dst.absolute().parents if not parent.exists()]
    partial = dst.absolute().parent / f".{dst.name}.partial-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(dst)
    except OSError as error:
        raise WriteError(f"{dst}: cannot be written ({error}); free some space") from error
    finally:
        if not os.path.lexists(dst):
            _remove(partial)
            with suppress(OSError):  # somebody else's file may be in it by now
                for parent in made:
                    parent.rmdir()


def _remove(folder: Path) -> None:
    """Remove a folder that threads of an interrupted write may still fill for a moment."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):  # False too for a name that cannot be
            return
        time.sleep(0.1)
