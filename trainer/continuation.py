"""What changes in a run's description when it goes on with another batch or other data."""

from dataclasses import replace

from evalmon.errors import DataError
from evalmon.types import RunDescription
from trainer.config import TrainSettings
from trainer.data.index import differences
from trainer.data.order import GlobalOrder
from trainer.data.source import InstanceSource
from trainer.progress import Progress, last_committed, progress_of

__all__ = ["progress_at", "with_batch", "with_data"]

_NOTHING: Progress = {"step": 0, "tokens": 0, "position": 0}


def progress_at(description: RunDescription) -> Progress:
    """Return how far the checkpoint is that a run goes on from, nothing without any.

    Raises:
        CheckpointError: its record cannot be read.
    """
    last = last_committed(description.path / "checkpoints")
    if last is None:
        return _NOTHING.copy()
    return progress_of(last, "remove this directory to resume from the checkpoint before it")


def with_batch(
    description: RunDescription, settings: TrainSettings, instances: int, done: Progress
) -> RunDescription:
    """Return the description of a run that goes on with its settings' batch.

    Segments after the checkpoint it goes on from are forgotten: their steps are made again.

    Args:
        description: what ``run.json`` says.
        settings: the settings it goes on with.
        instances: N.
        done: how far it is.
    """
    new = settings.batch_instances
    batches = [entry for entry in description.earlier_batches if entry[0] < done["step"]]
    before = description.draws_at(done["step"]) - description.draws_at(done["step"] - 1)
    if done["step"] and before != new:
        batches.append([done["step"], before])
    order = GlobalOrder(settings.seed, instances)
    # Other data is read from its beginning.
    position = 0 if done["step"] in description.data_changes else done["position"]
    end = order.after(position, settings.steps - done["step"], new)
    passes = max(1, -(-end // instances))
    if description.data_changes:
        # The data before the change was perhaps smaller, and its passes were planned as well.
        passes = max(passes, description.planned_passes)
    return replace(description, batch_instances=new, earlier_batches=batches, planned_passes=passes)


def with_data(
    description: RunDescription, source: InstanceSource, done: Progress, *, accepted: bool
) -> RunDescription:
    """Check the data a run goes on with, and note where it was changed on request.

    Args:
        description: what ``run.json`` says.
        source: the instances there are now.
        done: how far the run is.
        accepted: whether other data was asked for.

    Raises:
        DataError: it is other data, and that was not asked for; what differs is named.
    """
    identity = source.index.identity()
    differing = differences(description.extra["data"], identity)
    if not differing and all(step <= done["step"] for step in description.data_changes):
        return description
    if differing and not accepted:
        raise DataError(
            f"{source.index.folder.path}: not the data the run was started on: "
            f"{'; '.join(differing)}. Give it its own data back, or go on with "
            "--accept-changed-data, which marks the run: no verdict is given across the change"
        )
    changes = [step for step in description.data_changes if step < done["step"]]
    return replace(
        description,
        data_changes=[*changes, done["step"]] if done["step"] else changes,
        source_instances=len(source),
        upsampled=source.selection.upsampled,
        extra={**description.extra, "data": identity, "index_instances": len(source.index)},
    )
