"""From a Grain pipeline object to operations, without importing Grain or reading a record.

Classes are known by name, and only where nobody has overridden what they do. What is not
known becomes an ``Unknown`` operation, so that it is said. Attributes are those of Grain
0.2.18; one that is missing is said too.

A source or sampler that shards by itself says so by ``evalmon_sharding = (host, hosts)``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, TypeAlias, cast

from evalmon.audit.grain_sources import read_source
from evalmon.audit.pipelines import (
    INFINITE,
    Batch,
    Divide,
    Elastic,
    Filter,
    Interleave,
    Limit,
    Map,
    Mix,
    Operation,
    Pack,
    Pipeline,
    Repeat,
    Sampler,
    Shard,
    Shuffle,
    Slice,
    Source,
    Stream,
    Unknown,
    WindowShuffle,
    Workers,
    Wrap,
)
from evalmon.audit.sampler_probe import probe

__all__ = ["read_pipeline"]

_Operations: TypeAlias = tuple[Operation, ...]

_TRANSPARENT: Final = frozenset(
    {
        *("_WithSeedMapDataset", "_WithSeedIterDataset", "WithOptionsIterDataset"),
        *("_DataLoaderPipelineMarkerIterDataset", "_DataLoaderStateIterDataset"),
        *("_MpContextIterDataset", "_LazyWorkerSliceIterDataset", "ProcessPrefetchIterDataset"),
        *("ThreadPrefetchIterDataset", "CacheIterDataset", "_OutputIterDataset"),
    }
)
"""Datasets that hand on what they get."""

_MAPS: Final = frozenset(
    {
        *("MapMapDataset", "RandomMapMapDataset", "MapWithIndexMapDataset"),
        *("MapIterDataset", "RandomMapIterDataset", "MapWithIndexIterDataset"),
    }
)
_PACKS: Final = frozenset(
    {
        *("FlatMapMapDataset", "FlatMapIterDataset", "RebatchIterDataset", "PackIterDataset"),
        *("FirstFitPackIterDataset", "BestFitPackIterDataset", "ConcatThenSplitIterDataset"),
    }
)
_MIXES: Final = {
    "MixedMapDataset": "mix",
    "MixedIterDataset": "mix",
    "ConcatenateMapDataset": "concatenate",
    "ZipMapDataset": "zip",
    "ZipIterDataset": "zip",
}


class _MissingAttributeError(Exception):
    """An attribute that this Grain does not have."""


def read_pipeline(found: Any, host: int, hosts: int) -> tuple[Pipeline, list[str]]:
    """Describe a Grain DataLoader, MapDataset or IterDataset.

    Args:
        found: what a callable returned for this host.
        host: h, 0-based.
        hosts: S.

    Returns:
        The pipeline, and what was not understood.
    """
    reader = _Reader(hosts)
    return Pipeline(host, hosts, reader.read(found)), reader.problems


class _Reader:
    """Reads one host's object, from its end to its source."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self.problems: list[str] = []

    def read(self, node: Any) -> _Operations:
        """Return the operations of a node and all before it."""
        name = _known_name(node)
        try:
            return self._read(node, name)
        except _MissingAttributeError as error:
            self.problems.append(f"{type(node).__name__}: has no {error} in this Grain")
            return (*self._parents(node), Unknown(type(node).__name__))

    def _read(self, node: Any, name: str) -> _Operations:
        """Return the operations of a node by the name of its class."""
        declared = _declared(node)
        if declared is not None and name not in _HEADS:
            return (*(self._parents(node) or (Source(type(node).__name__),)), declared)
        if name in ("DataLoader", "DataLoaderIterator"):
            inner = "_dataset" if name == "DataLoader" else "_data_loader"
            return self.read(_get(node, inner))
        if name in _HEADS:
            return _HEADS[name](self, node)
        if name in _MIXES:
            return (self._mix(node, _MIXES[name]),)
        return (*self._parents(node), *self._step(node, name))

    def _step(self, node: Any, name: str) -> _Operations:
        """Return what a node with one parent does by itself."""
        if name in _TRANSPARENT:
            return ()
        if name in _STEPS:
            return _STEPS[name](node)
        own = type(node).__name__
        if not hasattr(node, "_parents"):
            self.problems.append(
                f"{own}: not a Grain DataLoader, MapDataset or IterDataset; return the dataset "
                "itself, not an iterator over it"
            )
        return (Unknown(own),)

    def _parents(self, node: Any) -> _Operations:
        """Return the operations before a node; several parents become a mixture."""
        parents: Sequence[Any] = tuple(getattr(node, "_parents", ()) or ())
        if len(parents) > 1:
            return (self._mix(node, "mix"),)
        return self.read(parents[0]) if parents else ()

    def _mix(self, node: Any, form: str) -> Mix:
        """Return several parents as one operation."""
        parents = tuple(_get(node, "_parents"))
        proportions = getattr(node, "_proportions", None) or getattr(
            getattr(node, "_selection_map", None), "_proportions", ()
        )
        weights = tuple(float(weight) for weight in proportions)
        total = sum(weights) or 1.0
        return Mix(
            tuple(self.read(parent) for parent in parents),
            tuple(round(weight / total, 6) for weight in weights),
            form,
            _length(node),
        )

    def source(self, node: Any) -> _Operations:
        """Return a source, or the dataset that is wrapped as one."""
        source = _get(node, "_source")
        if hasattr(source, "_parents"):
            return (*self.read(source), Wrap(type(source).__name__))
        declared = _declared(source)
        operations, problem = read_source(source)
        if problem:
            self.problems.append(problem)
        return operations if declared is None else (*operations, declared)

    def sampled(self, node: Any) -> _Operations:
        """Return source, sampler and the loader's shard."""
        before = self._parents(node)
        sampler, options = _get(node, "_sampler"), _get(node, "_shard_options")
        instances = _length(_get(node, "_parents")[0])
        shard = Shard(
            int(_get(options, "shard_index")),
            int(_get(options, "shard_count")),
            by="loader",
            drop_remainder=bool(_get(options, "drop_remainder")),
            length=_length(sampler),
            taken=_length(node),
        )
        return (*before, *self._sampler(sampler, instances), shard)

    def _sampler(self, sampler: Any, instances: int | None) -> _Operations:
        """Return what a sampler does."""
        name, own, length = _known_name(sampler), type(sampler).__name__, _length(sampler)
        if name == "SequentialSampler":
            return (Sampler(own, length=length),)
        if name == "IndexSampler":
            return (Sampler(own, length=length), *_index_sampler(sampler))
        has_length = hasattr(sampler, "__len__")
        declared = _declared(sampler)
        if declared is not None:
            by_itself = replace(declared, by="sampler")
            return (Sampler(own, has_length, length, custom=True), by_itself)
        found = probe(sampler, instances, self._hosts)
        if found.problem:
            self.problems.append(f"sampler {own}: asked for its first keys, it {found.problem}")
            return (Sampler(own, has_length, length, custom=True), Unknown(own))
        return (Sampler(own, has_length, length, custom=True, keys=found.keys),) + (
            (Divide(found.divides),) if found.divides > 1 else ()
        )

    def interleaved(self, node: Any) -> _Operations:
        """Return files read in turn, or the worker processes that Grain makes of it."""
        datasets = _get(node, "_datasets")
        if hasattr(datasets, "_parents"):
            return (*self.read(datasets), _interleave(node))
        members = list(datasets)
        inner = [_behind_process(member) for member in members]
        if inner and all(item is not None and item is inner[0] for item in inner):
            return (*self.read(inner[0]), Workers(len(inner)))
        components = tuple(self.read(member) for member in members)
        sources = [own[0] for own in components if isinstance(own[0], Source) and len(own) == 2]
        if len(sources) == len(components):
            paths = tuple(chain.from_iterable(item.paths for item in sources))
            return (Source("files", paths=paths), Stream(), _interleave(node))
        return (Mix(components, form="interleave"),)

    def elastic(self, node: Any) -> _Operations:
        """Return an elastic iterator: shard, batch, stream and workers in one."""
        options = _get(node, "_shard_options")
        index, count = int(_get(options, "shard_index")), int(_get(options, "shard_count"))
        workers = getattr(getattr(node, "_multiprocessing_options", None), "num_workers", 0)
        return (
            *self.read(_get(node, "_ds")),
            Elastic(index, count, int(_get(node, "_global_batch_size"))),
            Stream(),
            *((Workers(int(workers)),) if workers else ()),
        )


def _index_sampler(sampler: Any) -> _Operations:
    """Return what Grain's own sampler does: shard, shuffle, repeat, divide by the shards."""
    options = _get(sampler, "_shard_options")
    index, count = int(_get(options, "shard_index")), int(_get(options, "shard_count"))
    drop = bool(_get(options, "drop_remainder"))
    seed = _get(sampler, "_seed")
    return (
        Shard(index, count, "contiguous", by="sampler", drop_remainder=drop),
        *((Shuffle(int(seed)),) if _get(sampler, "_shuffle") else ()),
        Repeat(_get(sampler, "_num_epochs")),
        *((Divide(count),) if count > 1 else ()),
    )


def _slice(node: Any) -> _Operations:
    """Return a slice, with no stop where it goes to the end."""
    start, stop, step = (int(_get(node, f"_{name}")) for name in ("start", "stop", "step"))
    whole = stop >= int(_get(node, "_parent_length"))
    return (Slice(start, None if whole else stop, step),)


def _range(_: _Reader, node: Any) -> _Operations:
    """Return a range as a source and the slice of whole numbers it is."""
    start, stop, step = (int(_get(node, name)) for name in ("start", "stop", "step"))
    return (Source("range"), Slice(start, stop, step))


def _batch(node: Any) -> _Operations:
    """Return a batch."""
    return (Batch(int(_get(node, "_batch_size")), bool(_get(node, "_drop_remainder"))),)


def _window(node: Any) -> _Operations:
    """Return a shuffle within windows."""
    return (WindowShuffle(int(_get(node, "_window_size")), int(_get(node, "_seed"))),)


def _repeat(node: Any) -> _Operations:
    """Return a repeat; that of a stream begins the same pass again."""
    reseed = bool(getattr(node, "_reseed_each_epoch", False))
    return (Repeat(_get(node, "_num_epochs"), reseed),)


def _files(_: _Reader, node: Any) -> _Operations:
    """Return a dataset that reads files."""
    paths = getattr(node, "_paths", None) or [_get(node, "_path")]
    return (Source(type(node).__name__, paths=tuple(str(path) for path in paths)), Stream())


def _interleave(node: Any) -> Interleave:
    """Return an interleave; a tuned cycle has its first value."""
    cycle = _get(node, "_cycle_length")
    return Interleave(int(getattr(cycle, "value", cycle)))


_HEADS: Final[dict[str, Callable[[_Reader, Any], _Operations]]] = {
    "SourceMapDataset": _Reader.source,
    "RangeMapDataset": _range,
    "_SamplerMapDataset": _Reader.sampled,
    "InterleaveIterDataset": _Reader.interleaved,
    "ElasticIterator": _Reader.elastic,
    "ParquetIterDataset": _files,
    "TFRecordIterDataset": _files,
}
"""Nodes that find what is before them in a way of their own."""

_STEPS: Final[dict[str, Callable[[Any], _Operations]]] = {
    "SliceMapDataset": _slice,
    "_ShardMapDataset": lambda node: (Slice(int(_get(node, "_start")), int(_get(node, "_end"))),),
    "ShuffleMapDataset": lambda node: (Shuffle(int(_get(node, "_seed"))),),
    "WindowShuffleMapDataset": _window,
    "WindowShuffleIterDataset": _window,
    "RepeatMapDataset": _repeat,
    "RepeatIterDataset": _repeat,
    "BatchMapDataset": _batch,
    "BatchIterDataset": _batch,
    "PrefetchIterDataset": lambda _: (Stream(),),
    "FilterMapDataset": lambda node: (Filter(str(getattr(node, "_transform_cls_name", "") or "")),),
    "FilterIterDataset": lambda node: (
        Filter(str(getattr(node, "_transform_cls_name", "") or "")),
    ),
    "LimitIterDataset": lambda node: (Limit(int(_get(node, "_count"))),),
    **{name: lambda node: (Map(_transform(node)),) for name in _MAPS},
    **{name: lambda node: (Pack(type(node).__name__),) for name in _PACKS},
}
"""Nodes with one parent."""


def _known_name(node: Any) -> str:
    """Return the class of Grain that a node is, "" where what it does was overridden."""
    for kind in type(node).__mro__:
        if kind.__module__.partition(".")[0] == "grain":
            return kind.__name__
        if {"__getitem__", "__iter__"} & set(vars(kind)):
            return ""
    return ""


def _get(node: Any, name: str) -> Any:
    """Return an attribute that must be there."""
    try:
        return getattr(node, name)
    except AttributeError:
        raise _MissingAttributeError(name) from None


def _length(node: Any) -> int | None:
    """Return a length, None where there is none."""
    try:
        return min(len(node), INFINITE)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _declared(node: Any) -> Shard | None:
    """Return the shard that a node says it is, None where it says none."""
    said = getattr(node, "evalmon_sharding", None)
    if said is None:
        return None
    host, hosts = cast("tuple[int, int]", said)
    return Shard(int(host), int(hosts), "declared", by="source")


def _transform(node: Any) -> str:
    """Return the name of what a map applies."""
    transform = getattr(node, "_transform", None)
    return str(getattr(transform, "__name__", type(transform).__name__))


def _behind_process(member: Any) -> Any:
    """Return the dataset that a worker process reads, None where there is no process."""
    if _known_name(member) != "ProcessPrefetchIterDataset":
        return None
    while _known_name(member) in (
        *("ProcessPrefetchIterDataset", "_MpContextIterDataset", "_LazyWorkerSliceIterDataset"),
    ):
        member = member._parents[0]  # Grain has no public name for it
    return member
