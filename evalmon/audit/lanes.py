"""The pipelines of several hosts laid side by side, and how they split the data.

A lane is one way from a source to the batches, the same for every host; a mixture has a lane
for each component. Only what differs between hosts can split the data between them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from evalmon.audit.pipelines import (
    INFINITE,
    Batch,
    Divide,
    Elastic,
    Limit,
    Mix,
    Operation,
    Pipeline,
    Repeat,
    Sampler,
    Shard,
    Slice,
    Source,
    Unknown,
)

__all__ = ["Lane", "Split", "Step", "lanes"]

_ENDLESS = 2**40
"""Positions that no source has: a part of what never ends."""

_EXPECTED_COMMON = 5.0
"""Keys that unsplit orders would have in common before their having none tells a slice."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a lane.

    Attributes:
        place: where it stands, for messages.
        operations: what it is on each host that was looked at.
        before: positions before it in one pass, on host 0; None where that is not known.
        level: 0 in the shared part, else how deep inside a mixture.
    """

    place: str
    operations: tuple[Operation, ...]
    before: int | None = None

    @property
    def first(self) -> Operation:
        """The operation of host 0."""
        return self.operations[0]

    @property
    def differs(self) -> bool:
        """Whether it is another on another host."""
        return any(operation != self.first for operation in self.operations)


@dataclass(frozen=True, slots=True)
class Split:
    """A step that gives hosts different parts.

    Attributes:
        at: index of the step in its lane.
        place: where it stands.
        form: ``stride``, ``contiguous``, ``declared``, ``sampler`` or ``source``.
        indices: which part each host that was looked at takes.
        count: parts, None where that is not known.
        certain: whether the parts are known to be apart.
        doubtful: whether it may be no split at all.
    """

    at: int
    place: str
    form: str
    indices: tuple[int, ...]
    count: int | None
    certain: bool = True
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One way from a source to the batches.

    Attributes:
        hosts: S.
        looked_at: hosts whose pipelines were looked at.
        steps: its operations in order.
    """

    hosts: int
    looked_at: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def understood(self) -> bool:
        """Whether it holds nothing unknown."""
        return not any(isinstance(step.first, Unknown) for step in self.steps)

    def find(self, *kinds: type[Operation]) -> list[tuple[int, Step]]:
        """Return the steps of these kinds with their indices."""
        return [(at, step) for at, step in enumerate(self.steps) if isinstance(step.first, kinds)]

    def cancelled(self) -> set[int]:
        """Return the shards that only take back a division, by index of the step."""
        return {
            at
            for at, step in self.find(Shard)
            if at
            and isinstance(divided := self.steps[at - 1].first, Divide)
            and divided.count == getattr(step.first, "count", None)
        }

    def splits(self) -> list[Split]:
        """Return the steps that give hosts different parts, and those that mean to."""
        taken_back = self.cancelled()
        found = [
            _split(at, step, self)
            for at, step in enumerate(self.steps)
            if at not in taken_back and not (at and isinstance(self.steps[at - 1].first, Divide))
        ]
        return [split for split in found if split is not None]


def lanes(pipelines: Sequence[Pipeline]) -> tuple[list[Lane], list[str]]:
    """Lay the pipelines of several hosts side by side.

    Args:
        pipelines: one a host, host 0 first; at least one.

    Returns:
        The lanes, and what could not be laid side by side.
    """
    problems: list[str] = []
    ways = _ways([pipeline.operations for pipeline in pipelines], "", problems)
    looked_at = tuple(pipeline.host for pipeline in pipelines)
    hosts = pipelines[0].hosts
    return [Lane(hosts, looked_at, _measured(way)) for way in ways], problems


def _ways(
    hosts: Sequence[tuple[Operation, ...]], prefix: str, problems: list[str]
) -> list[list[Step]]:
    """Return the ways through the operations of all hosts."""
    kinds = [[operation.kind for operation in operations] for operations in hosts]
    if any(other != kinds[0] for other in kinds):
        shown = " | ".join(sorted({" > ".join(own) or "nothing" for own in kinds}))
        problems.append(f"{prefix or 'pipeline '}differs between hosts in its operations: {shown}")
        return []
    rest = [
        Step(f"{prefix}operation {n + 1} ({_named(column[0])})", tuple(column))
        for n, column in enumerate(zip(*hosts, strict=True))
    ]
    if not rest or not isinstance(rest[0].first, Mix):
        return [rest]
    mixes = [mix for mix in rest[0].operations if isinstance(mix, Mix)]
    if len({len(mix.components) for mix in mixes}) > 1:
        problems.append(f"{rest[0].place} has another number of components on another host")
        return []
    bare = replace(rest[0], operations=tuple(replace(mix, components=()) for mix in mixes))
    ways: list[list[Step]] = []
    for n in range(len(mixes[0].components)):
        inner = [mix.components[n] for mix in mixes]
        own = _ways(inner, f"{prefix}component {n + 1}, ", problems)
        ways += [[*way, bare, *rest[1:]] for way in own]
    return ways


def _named(operation: Operation) -> str:
    """Return what an operation is called in messages."""
    name = str(getattr(operation, "name", "") or getattr(operation, "by", ""))
    return f"{operation.kind}, {name}" if name else operation.kind


def _measured(way: list[Step]) -> tuple[Step, ...]:
    """Say of each step how many positions come before it on host 0."""
    length: int | None = None
    steps: list[Step] = []
    for step in way:
        steps.append(replace(step, before=length))
        length = _after(step.first, length)
    return tuple(steps)


def _after(operation: Operation, before: int | None) -> int | None:  # noqa: C901, PLR0912 - one case a kind
    """Return how many positions come after an operation."""
    length: int | None = None
    match operation:
        case Source(instances=instances):
            length = instances
        case Mix(length=length):
            pass
        case Sampler(custom=custom, length=own):
            length = own if custom else before
        case Shard(taken=int(taken)):
            length = taken
        case Slice(start, int(stop), step) if before is None:
            length = len(range(start, stop, step))
        case _ if before is None:
            length = None
        case Slice(start, stop, step):
            length = len(range(*slice(start, stop, step).indices(before)))
        case Repeat(epochs=epochs):
            length = INFINITE if epochs is None else min(before * epochs, INFINITE)
        case Limit(count=count):
            length = min(before, count)
        case _ if before >= INFINITE:
            length = before
        case Shard(index=index, count=count):
            length = before // count + (not operation.drop_remainder and index < before % count)
        case Divide(count=count):
            length = before * count
        case Batch(size=size, drop_remainder=drop):
            length = before // size if drop else math.ceil(before / size)
        case Elastic(batch=batch, count=count):
            length = before // count // max(batch // count, 1)
        case _ if operation.kind in ("filter", "pack", "unknown"):
            length = None
        case _:
            length = before
    return INFINITE if length is not None and length >= _ENDLESS else length


def _split(at: int, step: Step, lane: Lane) -> Split | None:
    """Return how a step splits the data between hosts, None where it does not."""
    match step.first:
        case Shard(count=count, form=form) if count > 1 or step.differs:
            shards = [item for item in step.operations if isinstance(item, Shard)]
            return Split(at, step.place, form, tuple(item.index for item in shards), count)
        case Elastic(count=count) if count > 1 or step.differs:
            parts = [item for item in step.operations if isinstance(item, Elastic)]
            return Split(at, step.place, "stride", tuple(item.index for item in parts), count)
        case Slice() if step.differs:
            return _sliced(at, step, lane)
        case Sampler(custom=True) if step.differs:
            return _sampled(at, step, lane)
        case Source() if step.differs:
            return _sourced(at, step, lane)
        case _:
            return None


def _sliced(at: int, step: Step, lane: Lane) -> Split:
    """Return the split of slices that differ between hosts."""
    slices = [item for item in step.operations if isinstance(item, Slice)]
    starts = [item.start for item in slices]
    stride = slices[0].step
    if len({item.step for item in slices}) == 1 and stride > 1:
        # A head that all hosts pass over is no part of the split.
        base = 0 if max(starts) < stride else min(starts)
        indices = tuple((start - base) % stride for start in starts)
        return Split(at, step.place, "stride", indices, stride, max(starts) - base < stride)
    return Split(
        at, step.place, "contiguous", lane.looked_at, lane.hosts, {i.step for i in slices} == {1}
    )


def _sampled(at: int, step: Step, lane: Lane) -> Split | None:
    """Return the split of a sampler whose keys hang on the host, None where parts overlap."""
    keys = [set(item.keys or ()) for item in step.operations if isinstance(item, Sampler)]
    pairs = list(combinations(keys, 2))
    if any(a & b for a, b in pairs):
        return None
    chances = sum(len(a) * len(b) for a, b in pairs)
    certain = chances >= _EXPECTED_COMMON * (step.before or math.inf)
    return Split(at, step.place, "sampler", lane.looked_at, lane.hosts, certain)


def _sourced(at: int, step: Step, lane: Lane) -> Split | None:
    """Return the split of sources that differ between hosts."""
    sources = [item for item in step.operations if isinstance(item, Source)]
    apart = not any(set(a.paths) & set(b.paths) for a, b in combinations(sources, 2))
    declared = [item for _, item in lane.find(Shard) if getattr(item.first, "by", "") == "source"]
    if any(source.paths for source in sources):
        return Split(at, step.place, "files", lane.looked_at, lane.hosts, apart)
    if declared or len({source.content for source in sources}) == 1:
        return None
    # Of an object only attributes differ: a part of the data, or a folder for its cache.
    doubtful = not any(source.content.startswith("data:") for source in sources)
    return Split(at, step.place, "source", lane.looked_at, lane.hosts, False, doubtful)
