"""What a host's data pipeline does, as values: operations in order, from source to batches.

An operation says what it does to *positions* (which instance comes when), never what it does
to tokens. A pipeline is one host's; two hosts of one training differ in the numbers of their
operations, never in their kinds.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

__all__ = [
    "INFINITE",
    "OPERATIONS",
    "Batch",
    "Divide",
    "Elastic",
    "Filter",
    "Interleave",
    "Limit",
    "Map",
    "Mix",
    "Operation",
    "Pack",
    "Pipeline",
    "Repeat",
    "Resume",
    "Sampler",
    "Shard",
    "Shuffle",
    "Slice",
    "Source",
    "Stream",
    "Unknown",
    "WindowShuffle",
    "Workers",
    "Wrap",
]

INFINITE: Final = 2**63 - 1
"""Length of what never ends, as Grain has it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a pipeline."""

    kind: ClassVar[str] = ""

    def record(self) -> dict[str, Any]:
        """Return the kind and every value that is not the default, as JSON values."""
        shown: dict[str, Any] = {"kind": self.kind}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.repr and value != item.default:
                shown[item.name] = _plain(value)
        return shown


@dataclass(frozen=True, slots=True)
class Source(Operation):
    """Where instances come from.

    Attributes:
        name: what it is.
        instances: how many, None where that is not known.
        paths: files, where it reads some.
        content: tells two hosts' sources apart, "" where nothing does; begins with ``data:``
            where it is of the instances, with ``object:`` where of whatever holds them.
    """

    kind: ClassVar[str] = "source"
    name: str = ""
    instances: int | None = None
    paths: tuple[str, ...] = ()
    content: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Slice(Operation):
    """Positions start, start + step … below stop of each pass."""

    kind: ClassVar[str] = "slice"
    start: int = 0
    stop: int | None = None
    step: int = 1


@dataclass(frozen=True, slots=True)
class Shuffle(Operation):
    """A permutation of everything before it, another one each pass."""

    kind: ClassVar[str] = "shuffle"
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class WindowShuffle(Operation):
    """A permutation within consecutive windows."""

    kind: ClassVar[str] = "window_shuffle"
    window: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Repeat(Operation):
    """Pass after pass.

    Attributes:
        epochs: passes, None for no end.
        reseed: whether what lies before it is drawn anew in each pass.
    """

    kind: ClassVar[str] = "repeat"
    epochs: int | None = None
    reseed: bool = True


@dataclass(frozen=True, slots=True)
class Shard(Operation):
    """Part ``index`` of ``count``.

    Attributes:
        index: which part, 0-based.
        count: parts.
        form: ``stride`` (every count-th), ``contiguous`` (one block), or ``declared`` by the
            source or sampler itself.
        of: what is dealt out: ``instances``, ``files``, or ``rows`` of a batch.
        by: who does it: ``loader``, ``sampler``, ``source`` or "".
        drop_remainder: whether parts are cut to equal length.
        length: positions before it, where that is not what the operations before it say.
        taken: positions after it, where that is known.
    """

    kind: ClassVar[str] = "shard"
    index: int = 0
    count: int = 1
    form: str = "stride"
    of: str = "instances"
    by: str = ""
    drop_remainder: bool = False
    length: int | None = None
    taken: int | None = None


@dataclass(frozen=True, slots=True)
class Divide(Operation):
    """Position i stands for i // count, so that each comes ``count`` times in a row."""

    kind: ClassVar[str] = "divide"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Sampler(Operation):
    """Chooses the record of each position.

    Attributes:
        name: its class.
        has_length: whether it knows its length.
        length: how many positions, None where that is not known.
        custom: whether its keys decide the order, not the operations after it.
        keys: its first keys, None where it was not asked.
    """

    kind: ClassVar[str] = "sampler"
    name: str = ""
    has_length: bool = True
    length: int | None = None
    custom: bool = False
    keys: tuple[int, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Batch(Operation):
    """``size`` in a row become one."""

    kind: ClassVar[str] = "batch"
    size: int = 1
    drop_remainder: bool = False


@dataclass(frozen=True, slots=True)
class Filter(Operation):
    """Leaves out some by their content."""

    kind: ClassVar[str] = "filter"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Map(Operation):
    """Changes each by itself; which instances come is left alone."""

    kind: ClassVar[str] = "map"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Pack(Operation):
    """Makes others out of several, so that what is read together matters."""

    kind: ClassVar[str] = "pack"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stream(Operation):
    """From random access to one after another; what follows keeps no index."""

    kind: ClassVar[str] = "stream"


@dataclass(frozen=True, slots=True)
class Workers(Operation):
    """``count`` processes, worker w reading every count-th position from w before the stream."""

    kind: ClassVar[str] = "workers"
    count: int = 0


@dataclass(frozen=True, slots=True)
class Limit(Operation):
    """Ends after ``count``."""

    kind: ClassVar[str] = "limit"
    count: int = 0


@dataclass(frozen=True, slots=True)
class Interleave(Operation):
    """Reads ``cycle_length`` sources in turn."""

    kind: ClassVar[str] = "interleave"
    cycle_length: int = 1


@dataclass(frozen=True, slots=True)
class Elastic(Operation):
    """Part ``index`` of ``count`` and its share of a global batch, with a global position."""

    kind: ClassVar[str] = "elastic"
    index: int = 0
    count: int = 1
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Wrap(Operation):
    """A dataset read as a source: later passes repeat its first, with no new shuffle."""

    kind: ClassVar[str] = "wrap"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Resume(Operation):
    """How a restart finds its position.

    Attributes:
        position: ``state`` (the loader's own), ``global`` (counted over all hosts), ``host``
            (this host's count) or ``start`` (none).
        batches_early: batches it goes back too far.
    """

    kind: ClassVar[str] = "resume"
    position: str = "state"
    batches_early: int = 0


@dataclass(frozen=True, slots=True)
class Unknown(Operation):
    """Something that is not understood."""

    kind: ClassVar[str] = "unknown"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Mix(Operation):
    """Several pipelines become one; always the first operation.

    Attributes:
        components: the operations of each.
        weights: shares they are drawn with, empty for none.
        form: ``mix``, ``concatenate``, ``zip`` or ``interleave``.
        length: positions of one pass, None where that is not known.
    """

    kind: ClassVar[str] = "mix"
    components: tuple[tuple[Operation, ...], ...] = ()
    weights: tuple[float, ...] = ()
    form: str = "mix"
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline of one host.

    Attributes:
        host: h, 0-based.
        hosts: S.
        operations: from source to batches.
    """

    host: int
    hosts: int
    operations: tuple[Operation, ...]

    def record(self) -> list[dict[str, Any]]:
        """Return the operations as JSON values."""
        return [operation.record() for operation in self.operations]


OPERATIONS: Final[dict[str, type[Operation]]] = {
    kind.kind: kind
    for kind in (
        *(Source, Slice, Shuffle, WindowShuffle, Repeat, Shard, Divide, Sampler, Batch, Filter),
        *(Map, Pack, Stream, Workers, Limit, Interleave, Elastic, Wrap, Resume, Unknown, Mix),
    )
}
"""Kinds of operation by their name."""


def _plain(value: Any) -> Any:
    """Return a field's value as JSON values."""
    if isinstance(value, Operation):
        return value.record()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
