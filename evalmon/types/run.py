"""The run directory: the only thing a trainer and the monitor share."""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Self, cast, get_args, get_origin, get_type_hints

import numpy as np

from evalmon.errors import CheckpointError

__all__ = [
    "ID_LOG_MAGIC",
    "ID_LOG_RECORD",
    "RUN_FORMAT",
    "CheckpointRef",
    "ModelDescription",
    "RunDescription",
]

RUN_FORMAT = 1
"""Version of the run directory's form; a reader refuses any other."""

MODEL_FORMAT = 1
"""Version of the form of ``model.json``."""

ID_LOG_MAGIC = b"EVALMON-IDS\x00\x01\x00\x00\x00"
"""First 16 bytes of ``ids.bin``."""

ID_LOG_RECORD = np.dtype(
    [("step", "<u4"), ("host", "<u4"), ("instance", "<u8"), ("text_hash", "<u8")]
)
"""One instance drawn: the step it is trained in, the host that read it, its global
index in the source, and 64 bits of BLAKE2b over its little-endian uint32 token ids.
24 bytes an instance, appended before the step runs."""

_LEAST: Final = {
    "vocab_size": 1,
    "max_length": 1,
    "sequence_length": 2,
    "batch_instances": 1,
    "planned_steps": 1,
    "planned_passes": 1,
    "source_instances": 1,
    "hosts": 1,
}
"""Smallest value of a whole number where that is not 0, in ``run.json`` and ``model.json``."""

_WIDTHS: Final = {"upsampled": 3, "earlier_batches": 2}
"""Numbers of each entry of a list of lists in ``run.json``."""


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What a run is, as its trainer wrote it into ``run.json``.

    Attributes:
        name: the run's name, unique in a store.
        path: the run directory.
        adapter: entry point of group ``evalmon.models`` that rebuilds the model.
        model: the adapter's own settings (preset, shapes), passed through unread.
        tokenizer: path of a ``tokenizers`` JSON file, relative to ``path`` or absolute.
        vocab_size: rows of the embedding (padded).
        eos_id: token id that ends documents.
        sequence_length: tokens an instance.
        batch_instances: instances a step, over all hosts.
        planned_steps: steps of the whole schedule.
        planned_passes: times each instance is meant to be read (1 = one epoch).
        source_instances: N, the instances in the source.
        hosts: data-parallel hosts, each with its own loader.
        loader: name of the loader (``batch_strided`` is the sound one).
        seed: seed of initial values and data order.
        warmup_steps: steps of learning-rate warm-up.
        recipe: hash of every setting that changes what is learned, so not seed, loader, hosts
            or checkpoint interval: equal recipes may be compared by level.
        loss: identity of ``train/ce_nats`` (divisor, whether z-loss is in it).
        data: folder of the token files.
        fresh_data: folder of never-consumed token files of the same mix, or None.
        upsampled: [first, stop, times] of global indices that a pass reads ``times`` times,
            all others being read once.
        earlier_batches: [last step, instances a step] of segments that had another batch than
            ``batch_instances``, by rising step.
        data_changes: steps after which the run went on with other data, on request.
        bos_id: token id that begins texts, None where the tokenizer has none.
        extra: further facts for a reader (versions, MFU convention).
    """

    name: str
    path: Path
    adapter: str
    model: dict[str, Any]
    tokenizer: str
    vocab_size: int
    eos_id: int
    sequence_length: int
    batch_instances: int
    planned_steps: int
    planned_passes: int
    source_instances: int
    hosts: int
    loader: str
    seed: int
    warmup_steps: int
    recipe: str
    loss: dict[str, Any]
    data: str
    fresh_data: str | None = None
    upsampled: list[list[int]] = field(default_factory=list[list[int]])
    earlier_batches: list[list[int]] = field(default_factory=list[list[int]])
    data_changes: list[int] = field(default_factory=list[int])
    bos_id: int | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def model_description(self) -> "ModelDescription":
        """What its model is, for whoever opens the weights."""
        return ModelDescription(
            path=self.path / "run.json",
            adapter=self.adapter,
            model=self.model,
            vocab_size=self.vocab_size,
            max_length=self.sequence_length,
            eos_id=self.eos_id,
            tokenizer=self.tokenizer,
        )

    @property
    def prefix_id(self) -> int:
        """Token id before scored text that has no context: the beginning, else the end."""
        return self.eos_id if self.bos_id is None else self.bos_id

    @property
    def tokens_per_step(self) -> int:
        """Tokens trained on by one optimizer update, of the present batch."""
        return self.batch_instances * self.sequence_length

    @property
    def planned_tokens(self) -> int:
        """Tokens of the whole schedule."""
        return self.tokens_at(self.planned_steps)

    def draws_at(self, step: int) -> int:
        """Instances drawn by all hosts up to and including ``step``."""
        draws, before = 0, 0
        for last, instances in [*self.earlier_batches, [step, self.batch_instances]]:
            draws += max(min(last, step) - before, 0) * instances
            before = max(before, last)
        return draws

    def tokens_at(self, step: int) -> int:
        """Tokens trained on up to and including ``step``."""
        return self.draws_at(step) * self.sequence_length

    def resolve(self, name: str) -> Path:
        """Return ``name`` as a path, relative names being relative to the run directory."""
        return self.path / name

    def save(self) -> None:
        """Write ``run.json`` whole or not at all."""
        _write(self.path / "run.json", RUN_FORMAT, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the description of the run in directory ``path``.

        Raises:
            CheckpointError: no such directory, no ``run.json``, another format, a
                field missing, unknown, of another type or out of range.
        """
        file = path / "run.json"
        if not path.is_dir():
            raise CheckpointError(
                f"{path}: no such run directory; give the folder that holds run.json"
            )
        absent = f"{path}: not a run directory (no run.json); give the folder a trainer wrote"
        run = cls(path=path, **_read(cls, file, RUN_FORMAT, absent))
        for name, token in (("eos_id", run.eos_id), ("bos_id", run.bos_id)):
            if token is not None and token >= run.vocab_size:
                raise CheckpointError(
                    f"{file}: {name} {token} is outside the vocabulary of {run.vocab_size}; "
                    "mend the file"
                )
        return run


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model is, apart from any run: the content of ``model.json``.

    Attributes:
        path: the file that says so (``model.json`` or ``run.json``), for messages.
        adapter: entry point of group ``evalmon.models`` that builds the model.
        model: the adapter's own settings (shapes), passed through unread.
        vocab_size: rows of the embedding.
        max_length: longest text it is meant for, in tokens.
        eos_id: token id that ends documents, None where it is not known.
        tokenizer: path of a ``tokenizers`` JSON file, relative to the file's folder or
            absolute, None where there is none.
    """

    path: Path
    adapter: str
    model: dict[str, Any]
    vocab_size: int
    max_length: int
    eos_id: int | None = None
    tokenizer: str | None = None

    def save(self) -> None:
        """Write ``path`` whole or not at all."""
        _write(self.path, MODEL_FORMAT, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read ``model.json`` of the weights folder ``path``.

        Raises:
            CheckpointError: no such file, another format, or a field missing, unknown or of
                another type.
        """
        file = path / "model.json"
        absent = (
            f"{path}: no weights folder (no model.json); give what `python -m trainer convert` "
            "wrote, or RUN/checkpoints/STEP"
        )
        return cls(path=file, **_read(cls, file, MODEL_FORMAT, absent))


def _write(file: Path, form: int, values: dict[str, Any]) -> None:
    """Write a description whole or not at all; where it is stands in no file."""
    record = {"format": form, **values}
    del record["path"]
    partial = file.with_suffix(".json.partial")
    partial.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(file)


def _read(kind: type[Any], file: Path, form: int, absent: str) -> dict[str, Any]:
    """Read the fields of a description and check each; ``absent`` says that there is no file."""
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(absent) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({error})") from error
    record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    if record.pop("format", None) != form:
        raise CheckpointError(
            f"{file}: not {file.stem} format {form}; use the evalmon its trainer was built for"
        )
    known = [item for item in fields(kind) if item.name != "path"]
    needed = {i.name for i in known if i.default is MISSING and i.default_factory is MISSING}
    unknown = sorted(set(record) - {item.name for item in known})
    missing = sorted(needed - set(record))
    if unknown or missing:
        raise CheckpointError(f"{file}: unknown fields {unknown}, missing fields {missing}")
    _check_values(kind, record, file)
    return record


def _check_values(kind: type[Any], record: dict[str, Any], file: Path) -> None:
    """Refuse a value of another type, an empty name, or a number no trainer can have meant."""
    hints = get_type_hints(kind)
    for name, value in record.items():
        allowed = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        types = tuple(get_origin(hint) or hint for hint in allowed)
        least = _LEAST.get(name, 0)
        if type(value) not in types or (isinstance(value, int) and value < least):
            wanted = " or ".join("null" if item is NoneType else item.__name__ for item in types)
            bound = f" >= {least}" if types == (int,) else ""
            raise CheckpointError(
                f"{file}: {name!r} must be {wanted}{bound}, got {str(value)[:60]!r}; "
                "restore the file its trainer wrote"
            )
        if get_origin(hints[name]) is list:
            width = 0 if hints[name] == list[int] else _WIDTHS[name]
            _check_list(name, cast("list[Any]", value), width, file)
    if kind is RunDescription and not record["name"]:
        raise CheckpointError(f"{file}: 'name' is empty; a run needs one, unique in its store")


def _check_list(name: str, values: list[Any], width: int, file: Path) -> None:
    """Refuse what are no whole numbers, or no lists of ``width`` of them where that is not 0."""
    for value in values:
        numbers = cast("list[Any]", value if isinstance(value, list) else [value])
        if isinstance(value, list) != bool(width) or (width and len(numbers) != width):
            wanted = f"lists of {width} whole numbers" if width else "whole numbers"
        elif any(type(number) is not int or number < 0 for number in numbers):
            wanted = "whole numbers >= 0"
        else:
            continue
        raise CheckpointError(
            f"{file}: {name!r} must hold {wanted}, got {str(value)[:60]!r}; "
            "restore the file its trainer wrote"
        )


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A committed checkpoint.

    Attributes:
        run: the run's name.
        step: optimizer updates completed (0 = untrained).
        tokens: tokens trained on, from the checkpoint's own record.
        path: its step directory.
    """

    run: str
    step: int
    tokens: int
    path: Path
