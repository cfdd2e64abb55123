r"""The trainer's own loaders, in the form that ``evalmon audit`` drives.

::

    evalmon audit replay trainer.data.audited:loader --hosts 8 --instances 4096 \
        --arg data=FOLDER --arg batch=64 --arg sequence_length=128
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainer.data.index import InstanceIndex, TokenFolder
from trainer.data.loaders import find_loader
from trainer.data.order import GlobalOrder
from trainer.data.pipeline import ReadPlan
from trainer.data.selection import Selection
from trainer.data.source import InstanceSource

__all__ = ["loader"]


def loader(  # noqa: PLR0913 - each is an --arg of the audit
    host: int,
    hosts: int,
    *,
    data: str,
    batch: int,
    sequence_length: int,
    loader: str = "batch_strided",
    order: str = "olmo_core",
    instances: int | None = None,
    epochs: int = 1,
    seed: int = 0,
    workers: int = 0,
    step: int = 0,
) -> Iterable[dict[str, NDArray[Any]]]:
    """Return the batches of one host.

    Args:
        host: h, 0-based.
        hosts: S, a divisor of ``batch``.
        data: token folder.
        batch: B, instances of a step over all hosts.
        sequence_length: tokens an instance.
        loader: a key of ``LOADERS``.
        order: a key of ``ORDERS``.
        instances: instances read, evenly spaced; None for all.
        epochs: passes over them.
        seed: seed of the order.
        workers: reading processes.
        step: steps done before, 0 for none.

    Raises:
        DataError: the folder cannot be used.
        ConfigError: an unknown loader or order, or more instances than there are.
    """
    source = _source(data, sequence_length, instances)
    plan = ReadPlan(
        source,
        seed,
        batch,
        hosts,
        position=GlobalOrder(seed, len(source)).after(0, step, batch),
        batches=max(epochs * (len(source) // batch) - step, 0),
        order=order,
        workers=workers,
    )
    return find_loader(loader).build(plan, host)


@lru_cache(maxsize=1)
def _source(data: str, sequence_length: int, instances: int | None) -> InstanceSource:
    """Open the instances that all hosts share."""
    index = InstanceIndex.build(TokenFolder.open(Path(data)), sequence_length)
    return InstanceSource(index, Selection.evenly(len(index), instances))
