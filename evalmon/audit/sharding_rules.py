"""Rules of sharding: every instance goes to one host, and only one.

Parts multiply: a lane that is split by counts c1, c2 … gives a host 1/(c1 c2 …) of the data.
It is sound when the product is the number of hosts and no two hosts take the same parts.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

from evalmon.audit.config_finding import ConfigFinding
from evalmon.audit.lanes import Lane, Split
from evalmon.audit.pipelines import (
    Divide,
    Elastic,
    Repeat,
    Sampler,
    Shard,
    Shuffle,
    Slice,
    Source,
    WindowShuffle,
)

__all__ = [
    "contiguous_slices",
    "different_order_before_a_split",
    "double_sharding",
    "files_and_hosts",
    "sampler_sharded_loader_not",
    "uncovered_or_shared_parts",
    "unsharded",
]

_SHARD_ONCE = (
    "shard in one place: leave the slice out, or give the loader ShardOptions(0, 1); the slice "
    "[host::hosts] of one global order is the one that survives a change of hosts"
)


def double_sharding(lane: Lane) -> Iterator[ConfigFinding]:
    """Two splits by host: each host reads 1/S of its 1/S."""
    splits = [split for split in lane.splits() if not split.doubtful]
    if len(splits) < 2 or _is_partition(splits, lane.hosts):
        return
    forms = {split.form for split in splits}
    reshuffled = _reshuffled(lane)
    kinds = {lane.steps[split.at].first.kind for split in splits}
    if "sampler" in forms or any(_by(lane, split) == "sampler" for split in splits):
        letter = "K"
    elif "elastic" in kinds:
        letter = "I2"
    elif any(_by(lane, split) == "loader" for split in splits):
        letter = "E" if reshuffled else "E'"
    else:
        letter = "F2" if reshuffled else "F4"
    places = " and again at ".join(split.place for split in splits)
    probed = (
        "; that the sampler slices by host is told by its first keys" if "sampler" in forms else ""
    )
    unsure = (
        ""
        if all(split.certain for split in splits)
        else (
            "; whether the parts of the first are apart was not seen, but a second split is wrong "
            "with either"
        )
    )
    yield ConfigFinding(
        letter,
        "double_sharding",
        "error",
        splits[-1].place,
        f"split by host at {places}: {_consequence(lane, reshuffled)}{probed}{unsure}",
        _SHARD_ONCE,
    )


def sampler_sharded_loader_not(lane: Lane) -> Iterator[ConfigFinding]:
    """The sampler divides the position by its shard count, but the loader does not stride."""
    taken_back = lane.cancelled()
    for at, step in lane.find(Divide):
        count = getattr(step.first, "count", 1)
        if count == 1 or at + 1 in taken_back:
            continue
        follows = lane.steps[at + 1].first if at + 1 < len(lane.steps) else None
        loader = follows.count if isinstance(follows, Shard) else 1
        yield ConfigFinding(
            "C2",
            "sampler_sharded_loader_not",
            "error",
            step.place,
            f"the sampler is sharded by {count}, the loader by {loader}: each record comes "
            f"{count / loader:g} times in a row on the same host, unique fraction "
            f"{min(loader / count, 1):.3g}",
            "give the loader no shard options of its own (it takes the sampler's), or the same",
        )


def unsharded(lane: Lane) -> Iterator[ConfigFinding]:
    """No split by host at all, with one order for all hosts."""
    if lane.hosts == 1 or lane.splits() or not lane.understood or _differing(lane):
        return
    if any(getattr(step.first, "count", 1) > 1 for _, step in lane.find(Divide)):
        return
    alone = [step for _, step in lane.find(Shard, Elastic)]
    yield ConfigFinding(
        "D",
        "unsharded_same_seed",
        "error",
        alone[-1].place if alone else lane.steps[-1].place,
        f"no operation gives hosts different instances: all {lane.hosts} read the same instance "
        f"in the same step, unique fraction 1/{lane.hosts} = {1 / lane.hosts:.3g}",
        "shard once: [host::hosts] after the shuffle, or ShardOptions(host, hosts) for the loader"
        + ("; ShardByJaxProcess is (0, 1) in a single process" if alone else ""),
    )


def different_order_before_a_split(lane: Lane) -> Iterator[ConfigFinding]:
    """Hosts that shuffle differently before they split, or without splitting."""
    splits = lane.splits()
    if lane.hosts == 1 or (len(splits) > 1 and not _is_partition(splits, lane.hosts)):
        return
    for at in _differing(lane):
        if splits and at > splits[-1].at:
            continue
        step = lane.steps[at]
        then = "then slice it" if splits else "and do not slice it"
        yield ConfigFinding(
            "G",
            "unsharded_per_host_seed",
            "error",
            step.place,
            f"hosts draw from the same instances in an order of their own each, {then}: the same "
            f"instance comes on different hosts in different steps, unique fraction of a pass "
            f"{_with_replacement(lane.hosts):.3g}",
            "shuffle with one seed on all hosts, then slice by host"
            if splits
            else "shuffle with one seed on all hosts and slice [host::hosts] after it",
        )


def uncovered_or_shared_parts(lane: Lane) -> Iterator[ConfigFinding]:
    """One split whose parts leave instances to nobody, or to two hosts."""
    splits = [split for split in lane.splits() if not split.doubtful]
    if lane.hosts == 1 or len(splits) != 1:
        return
    split = splits[0]
    before = lane.steps[split.at].before
    if before is not None and split.count is not None and before < split.count:
        return  # said by the rule of files and hosts
    if split.form == "contiguous" and isinstance(lane.steps[split.at].first, Slice):
        yield from _ranges(lane, split)
        return
    if split.form == "files" and not split.certain:
        yield _overlap(split, "some files are read by two hosts")
        return
    if len(split.indices) > 1 and len(set(split.indices)) == 1:
        count = split.count or lane.hosts
        yield ConfigFinding(
            "D",
            "unsharded_same_seed",
            "error",
            split.place,
            f"all {lane.hosts} hosts take part {split.indices[0]} of {count}: they read the same "
            f"instance in the same step, and {1 - 1 / count:.3g} of the data is never read",
            "build the shard of host h from h, not from a constant",
        )
    elif len(set(split.indices)) < len(split.indices):
        yield _overlap(
            split,
            f"hosts {list(lane.looked_at)} take parts {list(split.indices)} of {split.count}: "
            "those that take the same part read the same instances",
        )
    elif split.count is not None and split.count < lane.hosts:
        yield _overlap(
            split,
            f"{split.count} parts for {lane.hosts} hosts: some hosts read the same instances",
        )
    elif split.count is not None and split.count > lane.hosts:
        left = 1 - lane.hosts / split.count
        yield _unread(split, f"{split.count} parts for {lane.hosts} hosts: {left:.3g} of the data")


def contiguous_slices(lane: Lane) -> Iterator[ConfigFinding]:
    """Blocks instead of a stride: sound until the number of hosts changes."""
    splits = lane.splits()
    if lane.hosts == 1 or len(splits) != 1 or splits[0].form != "contiguous":
        return
    if getattr(lane.steps[splits[0].at].first, "of", "") == "files":
        return
    yield ConfigFinding(
        "J",
        "contiguous_slices_host_change",
        "warning",
        splits[0].place,
        "each host owns one block of the order: going on with another number of hosts moves the "
        "blocks, so that some instances are read twice and as many never (8 to 4 hosts at a "
        "quarter of a pass: 12.5 % each)",
        "slice [host::hosts] of one global order and keep a position counted over all hosts",
    )


def files_and_hosts(lane: Lane) -> Iterator[ConfigFinding]:
    """A split whose parts are too few, or do not come out even."""
    for split in lane.splits():
        step = lane.steps[split.at]
        first = step.first
        total = step.before
        if isinstance(first, Source):
            paths = [len(item.paths) for item in step.operations if isinstance(item, Source)]
            if split.form != "files" or len(set(paths)) == 1:
                continue
            total = sum(paths) if len(paths) == lane.hosts else None
            few = min(paths) == 0
        else:
            few = total is not None and split.count is not None and total < split.count
            if not few and getattr(first, "of", "") != "files":
                continue
        what = f"{total} files or instances" if total is not None else "files"
        uneven = bool(total is not None and total % lane.hosts) or isinstance(first, Source)
        if few or uneven:
            yield ConfigFinding(
                "U",
                "file_sharding",
                "error" if few else "warning",
                step.place,
                f"{what} for {lane.hosts} hosts: "
                + ("some hosts have nothing to read" if few else "hosts get unequal shares"),
                "shard rows instead of files, or cut the data into more files than hosts",
            )


def _is_partition(splits: list[Split], hosts: int) -> bool:
    """Return whether splits together give each host its own part and leave none."""
    parts = list(zip(*(split.indices for split in splits), strict=True))
    counts = math.prod(split.count or hosts for split in splits)
    return counts == hosts and len(set(parts)) == len(parts)


def _differing(lane: Lane) -> list[int]:
    """Return the steps whose order hangs on the host, though the host's group is one."""
    splits = {split.at: split for split in lane.splits()}
    group: list[tuple[int, ...]] = [()] * len(lane.looked_at)
    found: list[int] = []
    for at, step in enumerate(lane.steps):
        if at in splits:
            pairs = zip(group, splits[at].indices, strict=True)
            group = [(*before, index) for before, index in pairs]
        elif isinstance(step.first, Shuffle | WindowShuffle | Sampler):
            orders = {
                (own, operation) for own, operation in zip(group, step.operations, strict=True)
            }
            if len(orders) > len(set(group)):
                found.append(at)
    return found


def _reshuffled(lane: Lane) -> bool | None:
    """Return whether passes are shuffled anew; None where there is only one pass."""
    repeats = [step.first for _, step in lane.find(Repeat) if getattr(step.first, "epochs", 0) != 1]
    sampler = any(getattr(step.first, "custom", False) for _, step in lane.find(Sampler))
    if not repeats and not sampler:
        return None
    again = sampler or any(isinstance(item, Repeat) and item.reseed for item in repeats)
    return again and (sampler or bool(lane.find(Shuffle)))


def _consequence(lane: Lane, reshuffled: bool | None) -> str:
    """Say what reading 1/S of 1/S does."""
    S = lane.hosts
    start = f"each host reads 1/{S} of its 1/{S}"
    if reshuffled is None:
        return f"{start}; {1 - 1 / S:.3g} of the instances are never read"
    if reshuffled:
        return (
            f"{start} and turns to the next shuffle {S} times too fast, so that instances return "
            f"after N/{S} draws; unique fraction of a pass {_with_replacement(S):.3g}"
        )
    return (
        f"{start} over and over; unique fraction of a pass 1/{S} = {1 / S:.3g}, each instance "
        f"{S} times"
    )


def _with_replacement(hosts: int) -> float:
    """Return the unique fraction of S independent draws of 1/S each: 1 - (1 - 1/S)^S."""
    return 1 - (1 - 1 / hosts) ** hosts


def _by(lane: Lane, split: Split) -> str:
    """Return who makes a split: loader, sampler, source or ""."""
    return str(getattr(lane.steps[split.at].first, "by", ""))


def _ranges(lane: Lane, split: Split) -> Iterator[ConfigFinding]:
    """Judge slices of one block a host by their borders."""
    step = lane.steps[split.at]
    slices = [item for item in step.operations if isinstance(item, Slice)]
    end = step.before
    blocks = sorted((item.start, end if item.stop is None else item.stop) for item in slices)
    if any(b is not None and b > c for (_, b), (c, _) in pairwise(blocks)):
        yield _overlap(split, f"blocks {blocks} of hosts {list(lane.looked_at)} overlap")
        return
    gaps = [
        (b, c)
        for (_, b), (c, _), h, k in zip(
            blocks, blocks[1:], lane.looked_at, lane.looked_at[1:], strict=False
        )
        if b is not None and b < c and k == h + 1
    ]
    last = blocks[-1][1]
    if end is not None and last is not None and end - last >= lane.hosts:
        gaps.append((last, end))
    if blocks[0][0] > 0 and len(blocks) == lane.hosts and end is not None:
        gaps.insert(0, (0, blocks[0][0]))
    if gaps:
        yield _unread(split, f"the instances {gaps} of the order")


def _overlap(split: Split, what: str) -> ConfigFinding:
    """Return the finding that two hosts share instances."""
    return ConfigFinding(
        "",
        "overlapping_slices",
        "error",
        split.place,
        what,
        "give host h of S part h of S",
    )


def _unread(split: Split, what: str) -> ConfigFinding:
    """Return the finding that some instances go to nobody."""
    return ConfigFinding(
        "",
        "unread_slices",
        "error",
        split.place,
        f"{what}: read by no host",
        "give host h of S part h of S",
    )
