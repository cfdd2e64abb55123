"""The sound loader: one global order, sharded once."""

import grain

from trainer.data.pipeline import ReadPlan, batched_pipeline

__all__ = ["build"]


def build(plan: ReadPlan, host: int) -> grain.IterDataset:
    """Return the batches of ``host``: of each global batch its rows h, h + S and so on.

    They are cut once, by the plan itself. Reading may begin at any position, whatever the
    number of hosts and workers that read up to it.

    Args:
        plan: what is read.
        host: h, 0-based.
    """
    return batched_pipeline(plan, host)
