"""The sound loader: one global order, sharded once."""

import grain

from trainer.data.order import GlobalOrder
from trainer.data.pipeline import ReadPlan, host_loader

__all__ = ["build"]


class GlobalSampler:
    """All positions of a run from ``consumed`` on; knows nothing of hosts.

    Args:
        order: the global order.
        consumed: first position.
        planned: end of the positions.
    """

    def __init__(self, order: GlobalOrder, consumed: int, planned: int) -> None:
        self._order = order
        self._consumed = consumed
        self._planned = planned

    def __len__(self) -> int:
        return self._planned - self._consumed

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        position = self._consumed + index
        return grain.RecordMetadata(index=index, record_key=self._order.instance_at(position))

    def __repr__(self) -> str:
        return f"GlobalSampler({self._order}, {self._consumed}, {self._planned})"


def build(plan: ReadPlan, host: int) -> grain.DataLoader:
    """Return the loader of ``host``: Grain hands it positions h, h + S and so on.

    Because S divides B, these are, in batch t, the positions tB + j with j = h modulo S,
    and the start may be any number of consumed instances, whatever the number of hosts
    that consumed them.

    Args:
        plan: what is read.
        host: h, 0-based.
    """
    order = GlobalOrder(plan.seed, len(plan.source), plan.batch_instances)
    sampler = GlobalSampler(order, plan.consumed, plan.planned)
    return host_loader(plan, sampler, grain.sharding.ShardOptions(host, plan.hosts))
