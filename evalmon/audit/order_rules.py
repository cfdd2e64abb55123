"""Rules of order: passes end before they begin again, and nothing hangs on the workers."""

from collections.abc import Iterator

from evalmon.audit.config_finding import ConfigFinding
from evalmon.audit.lanes import Lane, Step
from evalmon.audit.pipelines import (
    INFINITE,
    Batch,
    Elastic,
    Interleave,
    Limit,
    Mix,
    Repeat,
    Resume,
    Sampler,
    Shard,
    Shuffle,
    Slice,
    Stream,
    WindowShuffle,
    Workers,
    Wrap,
)

__all__ = [
    "dropped_tails",
    "elastic_over_batches",
    "local_shuffle_only",
    "mixture_repeats",
    "repeat_before_shuffle",
    "resume_position",
    "sampler_repeats",
    "sampler_without_length",
    "slice_after_shuffle",
    "worker_dependent_order",
]

_BY_WORKER = ("batch", "window_shuffle", "filter", "pack", "limit", "mix", "interleave")
"""Operations on a stream that come out otherwise when each worker has its own stream."""


def repeat_before_shuffle(lane: Lane) -> Iterator[ConfigFinding]:
    """Passes that are shuffled into each other."""
    for at, step in lane.find(Repeat):
        repeat = step.first
        assert isinstance(repeat, Repeat)
        later = [other for other, _ in lane.find(Shuffle) if other > at]
        if repeat.epochs == 1 or not later:
            continue
        endless = repeat.epochs is None
        yield ConfigFinding(
            "H2" if endless else "H",
            "repeat_before_shuffle",
            "error",
            lane.steps[later[0]].place,
            "the shuffle lies behind a repeat without end, longer than its 32 bits can permute: "
            "passes have no borders, unique fraction of the first N draws about 0.875"
            if endless
            else f"{repeat.epochs} passes are shuffled as one, so that instances return before "
            "all were read (unique fraction of the first N draws 0.76 for 2 passes)",
            "shuffle first, then repeat: each pass gets a shuffle of its own",
        )


def slice_after_shuffle(lane: Lane) -> Iterator[ConfigFinding]:
    """A cut of shuffled data that is repeated: later passes cut other instances away."""
    for at, step in lane.find(Slice):
        shuffled = any(other < at for other in _within(lane, at, Shuffle, WindowShuffle))
        repeated = any(
            isinstance(repeat := lane.steps[other].first, Repeat)
            and other > at
            and repeat.reseed
            and repeat.epochs != 1
            for other in _within(lane, at, Repeat)
        )
        if shuffled and repeated and _cuts(step):
            yield ConfigFinding(
                "F01",
                "slice_after_shuffle",
                "error",
                step.place,
                "shuffled, then cut, then repeated: each pass shuffles the whole source anew "
                "under the cut, so that instances that were cut away (a holdout) are read from "
                "the second pass on",
                "cut first, shuffle after",
            )


def sampler_without_length(lane: Lane) -> Iterator[ConfigFinding]:
    """A sampler whose length Grain has to search for."""
    for _, step in lane.find(Sampler):
        sampler = step.first
        assert isinstance(sampler, Sampler)
        if not sampler.has_length:
            yield ConfigFinding(
                "",
                "sampler_without_length",
                "warning",
                step.place,
                f"{sampler.name} has no __len__: Grain looks for its end by about 63 probes over "
                "2^63 positions, and a sampler that builds a permutation for each epoch it is "
                "asked about builds nearly as many, before the first batch",
                "give the sampler a __len__",
            )


def sampler_repeats(lane: Lane) -> Iterator[ConfigFinding]:
    """A sampler that draws a record again before the pass is complete."""
    for _, step in lane.find(Sampler):
        for host, sampler in zip(lane.looked_at, step.operations, strict=True):
            assert isinstance(sampler, Sampler)
            keys = sampler.keys or ()
            if len(set(keys)) < len(keys):
                yield ConfigFinding(
                    "",
                    "sampler_repeats",
                    "error",
                    step.place,
                    f"of the first {len(keys)} keys of {sampler.name} on host {host}, "
                    f"{len(keys) - len(set(keys))} had been drawn before",
                    "draw each record once a pass",
                )
                break


def worker_dependent_order(lane: Lane) -> Iterator[ConfigFinding]:
    """Operations that each worker does on a part of its own."""
    for at, step in lane.find(Workers):
        count = getattr(step.first, "count", 0)
        streams = [other for other, _ in lane.find(Stream) if other < at]
        if count < 2 or not streams:
            continue
        inside = lane.steps[streams[-1] + 1 : at]
        affected = [other for other in inside if other.first.kind in _BY_WORKER]
        if affected:
            yield ConfigFinding(
                "M",
                "worker_offset",
                "warning",
                affected[0].place,
                f"done in each of {count} workers on its own part: what comes together, and in "
                f"which order, hangs on the number of workers; going on from a count of batches "
                f"is exact only where that is a multiple of {count}, else some are read again "
                "and as many passed over",
                "batch by random access (on the MapDataset, before to_iter_dataset), or restore "
                "the loader's own state with the same number of workers",
            )
        for other in affected:
            yield from _by_worker(other, count)


def dropped_tails(lane: Lane) -> Iterator[ConfigFinding]:
    """What is left over when parts or batches are cut to equal size."""
    for _, step in lane.find(Shard, Slice, Elastic):
        yield from _uneven_parts(lane, step)
    for _, step in lane.find(Batch):
        batch, before = step.first, step.before
        assert isinstance(batch, Batch)
        if before is None or before >= INFINITE or not batch.drop_remainder:
            continue
        if before % batch.size:
            yield _tail(
                step,
                f"each pass of {before} positions ends with {before % batch.size} that fill no "
                f"batch of {batch.size}: dropped",
            )


def mixture_repeats(lane: Lane) -> Iterator[ConfigFinding]:
    """Mixtures whose components end at different times."""
    for _, step in lane.find(Mix):
        mix = step.first
        assert isinstance(mix, Mix)
        if mix.form == "mix":
            yield ConfigFinding(
                "T",
                "mixture_repeats",
                "warning",
                step.place,
                "components are drawn by weight and each ends or repeats by itself: a small one "
                "is read several times before a large one is read once (planned, but it counts "
                "as repeats), or the mixture ends when its first component does",
                "plan how often each component is read, and tell the audit the planned passes",
            )


def local_shuffle_only(lane: Lane) -> Iterator[ConfigFinding]:
    """A window or an interleave in place of a shuffle of everything."""
    local = lane.find(WindowShuffle, Interleave)
    local += [(at, step) for at, step in lane.find(Mix) if _form(step) == "interleave"]
    if local and not lane.find(Shuffle) and not _custom_sampler(lane):
        yield ConfigFinding(
            "V",
            "local_shuffle_only",
            "warning",
            local[0][1].place,
            "instances are shuffled among their neighbors only, so that the order of the files "
            "stays; and the window is part of the position: a restart needs the loader's state",
            "shuffle the whole index once, before the hosts' slice",
        )


def resume_position(lane: Lane) -> Iterator[ConfigFinding]:
    """Restarts that go back to where another run of positions was."""
    for _, step in lane.find(Resume):
        resume = step.first
        assert isinstance(resume, Resume)
        if resume.position == "start":
            yield ConfigFinding(
                "Q",
                "restart_from_start",
                "error",
                step.place,
                "a restart begins at the first position again: the whole prefix is read twice",
                "store and restore the position",
            )
        elif resume.position == "host" and lane.hosts > 1:
            yield ConfigFinding(
                "L",
                "resume_offset",
                "error",
                step.place,
                f"the offset counts one host's instances, but is added to a position that counts "
                f"all {lane.hosts} hosts': a restart after step r goes back to about step "
                f"r/{lane.hosts}",
                "count the position over all hosts: steps x global batch",
            )
        if resume.batches_early:
            yield ConfigFinding(
                "N",
                "batch_read_again",
                "error",
                step.place,
                f"each restart reads {resume.batches_early} batch(es) again: the checkpoint of "
                "step n holds the state after it",
                "go on at step n + 1",
            )


def elastic_over_batches(lane: Lane) -> Iterator[ConfigFinding]:
    """An elastic iterator over what is batched already."""
    for at, step in lane.find(Elastic):
        if any(other < at for other, _ in lane.find(Batch)):
            yield ConfigFinding(
                "",
                "elastic_over_batches",
                "warning",
                step.place,
                "the elastic iterator batches by itself and expects single instances: it counts "
                "batches of batches",
                "leave out the batch before it",
            )


def _within(lane: Lane, at: int, *kinds: type) -> list[int]:
    """Return the steps of these kinds that share pass numbers with a step."""
    borders = [other for other, _ in lane.find(Sampler, Wrap, Stream)]
    low = max((other for other in borders if other < at), default=-1)
    high = min((other for other in borders if other > at), default=len(lane.steps))
    return [other for other, _ in lane.find(*kinds) if low < other < high]


def _cuts(step: Step) -> bool:
    """Return whether slices of all hosts together leave out more than an uneven end."""
    slices = [item for item in step.operations if isinstance(item, Slice)]
    stride, before = slices[0].step, step.before
    if stride > 1 and not step.differs:
        return True
    if min(item.start for item in slices) > 0:
        return True
    stops = [item.stop for item in slices]
    if any(stop is None for stop in stops):
        return False
    last = max(stop for stop in stops if stop is not None)
    uneven = len(slices) if step.differs else 1
    return before is None or before - last >= max(stride, uneven)


def _by_worker(step: Step, count: int) -> Iterator[ConfigFinding]:
    """Say what is lost or gained in each worker."""
    first = step.first
    if isinstance(first, Batch) and first.drop_remainder and (step.before or 0) < INFINITE:
        yield ConfigFinding(
            "O",
            "dropped_tails",
            "warning",
            step.place,
            f"each of {count} workers drops the tail of its own part, up to {first.size - 1} "
            "instances, at the end of the data",
            "batch by random access, before to_iter_dataset",
        )
    if isinstance(first, Limit):
        yield ConfigFinding(
            "",
            "limit_per_worker",
            "warning",
            step.place,
            f"each of {count} workers counts to {first.count} by itself: {count} times as many",
            "set the limit behind the workers",
        )


def _uneven_parts(lane: Lane, step: Step) -> Iterator[ConfigFinding]:
    """Say what N mod S does at a split."""
    first, before = step.first, step.before
    count, drops = 1, False
    if isinstance(first, Shard):
        before = first.length if first.length is not None else before
        count, drops = first.count, first.drop_remainder
    elif isinstance(first, Slice) and step.differs and first.step > 1:
        count = first.step
    elif isinstance(first, Elastic):
        count, drops = max(first.batch, 1), True
    if count < 2 or before is None or before >= INFINITE or not before % count:
        return
    left = before % count
    # The loader of Grain 0.2.18 cuts the parts whatever it is told.
    ignored = isinstance(first, Shard) and first.by == "loader" and not drops
    if ignored and isinstance(first, Shard) and first.taken not in (None, before // count):
        ignored = False
    if drops or ignored:
        note = " (drop_remainder=False is not honored by this Grain)" if ignored else ""
        yield _tail(step, f"{left} of {before} positions fill no whole round: dropped{note}")
    elif lane.hosts > 1:
        yield _tail(
            step,
            f"{before} positions for {count} parts: {left} parts are one longer, and their hosts "
            "read on when the others have ended",
        )


def _tail(step: Step, message: str) -> ConfigFinding:
    """Return the finding of a tail."""
    return ConfigFinding(
        "P",
        "dropped_tails",
        "warning",
        step.place,
        message,
        "harmless where each pass is shuffled anew before it is cut; else pad or trim the source",
    )


def _form(step: Step) -> str:
    """Return the form of a mixture."""
    return str(getattr(step.first, "form", ""))


def _custom_sampler(lane: Lane) -> bool:
    """Return whether a sampler of its own decides the order."""
    return any(getattr(step.first, "custom", False) for _, step in lane.find(Sampler))
