"""FAULTY loaders, kept for demonstrations and tests. Never train with them.

Both shard twice: the sampler already holds one host's slice, and Grain then takes
every S-th index of it again, so that a host reads 1/S of its 1/S.
"""

import grain

from evalmon.errors import DataError
from trainer.data.order import epoch_order
from trainer.data.pipeline import ReadPlan, sampled_loader

__all__ = ["build_double_shard", "build_double_shard_resume", "first_repeat_step"]


class SlicedSampler:
    """FAULT: one host's slice of the first epoch's order, from the start over and over.

    Args:
        plan: what is read.
        host: h, whose slice is positions h, h + S, h + 2S … of the order.
    """

    def __init__(self, plan: ReadPlan, host: int) -> None:
        order = epoch_order(plan.seed, 1, len(plan.source))[host :: plan.hosts]
        # Cut to whole shards, so that each turn of the slice meets Grain's stride alike.
        usable = len(plan.source) // plan.hosts // plan.hosts * plan.hosts
        self._slice = order[:usable]
        self._consumed = plan.position
        self._length = plan.batches * plan.batch_instances

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        position = (self._consumed + index) % len(self._slice)
        return grain.RecordMetadata(index=index, record_key=int(self._slice[position]))

    def __repr__(self) -> str:
        return f"SlicedSampler(FAULT, {len(self._slice)} from {self._consumed})"


def build_double_shard(plan: ReadPlan, host: int) -> grain.DataLoader:
    """FAULT: sliced by host, then sharded by Grain again.

    Every host reads the same 1/S of its 1/S over and over: all hosts together see N/S of
    N instances, each S times in what should be one pass.

    Args:
        plan: what is read; N/S^2 is at least B/S.
        host: h, 0-based.

    Raises:
        DataError: so few instances that a host's part does not fill one batch.
    """
    _check_size(plan, len(plan.source) // plan.hosts // plan.hosts)
    shard = grain.sharding.ShardOptions(host, plan.hosts, drop_remainder=True)
    return sampled_loader(plan, SlicedSampler(plan, host), shard)


def first_repeat_step(instances: int, batch_instances: int, hosts: int) -> int:
    """Return the step in which ``double_shard`` first reads an instance again.

    Each host owns N/S^2 instances and reads B/S a step: N/(S B) steps without a repeat.

    Args:
        instances: N.
        batch_instances: B, a multiple of S.
        hosts: S, at least 2.

    Example:
        >>> first_repeat_step(instances=3200, batch_instances=16, hosts=8)
        26
    """
    return instances // hosts // hosts // (batch_instances // hosts) + 1


class ContiguousSampler:
    """FAULT: one host's contiguous slice of each epoch's order, plus a resume offset.

    Args:
        plan: what is read.
        host: h, whose slice is [h n, (h + 1) n) of every epoch's order, n = N // S.
    """

    def __init__(self, plan: ReadPlan, host: int) -> None:
        self._seed, self._total, self._host = plan.seed, len(plan.source), host
        self._per_host = self._total // plan.hosts
        # Two faults in one number. It counts this host's instances, but is added after Grain
        # has multiplied the index by S, so a restart goes back to step r/S. And it counts
        # from the checkpoint's 0-based name, one batch too few.
        resumed_step = plan.position // plan.batch_instances
        self._offset = max(resumed_step - 1, 0) * plan.per_host
        self._length = plan.batches * plan.batch_instances

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        epoch, inside = divmod(index + self._offset, self._per_host)
        order = epoch_order(self._seed, epoch + 1, self._total, "maxtext")
        key = int(order[self._host * self._per_host + inside])
        return grain.RecordMetadata(index=index, record_key=key)

    def __repr__(self) -> str:
        return f"ContiguousSampler(FAULT, host {self._host}, offset {self._offset})"


def build_double_shard_resume(plan: ReadPlan, host: int) -> grain.DataLoader:
    """FAULT: MaxText's form of the double shard, with its resume offset.

    Epochs turn S times too fast, so that instances return after N/S draws; every resume
    goes back to about step r/S and reads one batch more than it should.

    Args:
        plan: what is read; N/S is at least B/S.
        host: h, 0-based.

    Raises:
        DataError: so few instances that a host's part does not fill one batch.

    Source: MaxText ``input_pipeline/olmo_data_grain.py`` at e591f30c.
    """
    _check_size(plan, len(plan.source) // plan.hosts)
    shard = grain.sharding.ShardOptions(host, plan.hosts, drop_remainder=True)
    return sampled_loader(plan, ContiguousSampler(plan, host), shard)


def _check_size(plan: ReadPlan, per_host: int) -> None:
    """Raise when a host's part does not fill its share of one batch."""
    if per_host < plan.per_host:
        raise DataError(
            f"{plan.source}: each of {plan.hosts} hosts would own {per_host} instances, fewer than "
            f"the {plan.per_host} it reads a step; give more instances or fewer hosts"
        )
