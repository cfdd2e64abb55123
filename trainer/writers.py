"""Other places that a run's values go to beside its log: TensorBoard and W&B.

Both are optional packages. Metrics keep our names. The run log stays the record: what a
writer loses can be read from there again.
"""

import time
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from evalmon.errors import ConfigError, WriteError

__all__ = ["TensorBoard", "WeightsAndBiases", "Writer", "open_writers", "require_installed"]


class Writer(Protocol):
    """Somewhere that takes the values of each step."""

    def start(self, step: int) -> None:
        """Begin after ``step`` updates; later values of earlier segments are abandoned."""
        ...

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Take the values of update ``step`` (1-based), after ``tokens`` trained on."""
        ...

    def close(self) -> None:
        """Hand over what is still in memory."""
        ...


class TensorBoard:
    """Event files that ``tensorboard --logdir`` reads.

    Args:
        directory: where they are made.
    """

    def __init__(self, directory: Path) -> None:
        from tensorboardX import SummaryWriter

        self._open = partial(SummaryWriter, str(directory))
        self._events: Any = None

    def start(self, step: int) -> None:
        # Files are named by the second, and a segment may be shorter than that.
        self._events = self._open(purge_step=step + 1, filename_suffix=f".{time.time_ns()}")

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        assert self._events is not None
        for name, value in {**values, "tokens": float(tokens)}.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


class WeightsAndBiases:
    """A W&B run for each segment, in a group with the run's name.

    WANDB_MODE=offline keeps it on this machine.

    Args:
        project: W&B project.
        directory: run directory; W&B's files go there too.
        name: name of the run.
        facts: settings to show beside it.

    Raises:
        ConfigError: it refuses to start.
    """

    def __init__(self, project: str, directory: Path, name: str, facts: Mapping[str, Any]) -> None:
        import wandb

        self._error = wandb.Error
        try:
            self._run = wandb.init(
                project=project,
                dir=str(directory),
                name=name,
                group=name,
                config=dict(facts),
                # Standard output belongs to our own JSON line.
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.Error, OSError) as error:
            raise ConfigError(
                f"--wandb {project}: W&B did not start ({error}); log in with `wandb login`, or "
                "set WANDB_MODE=offline"
            ) from error
        self._run.define_metric("*", step_metric="step")

    def start(self, step: int) -> None:
        del step

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        try:
            self._run.log({**values, "step": step, "tokens": tokens})
        except self._error as error:
            raise WriteError(
                f"--wandb: W&B took no more values ({error}); go on with --resume, without --wandb"
            ) from error

    def close(self) -> None:
        self._run.finish()


def require_installed(*, tensorboard: bool, wandb: bool) -> None:
    """Refuse a writer whose package is missing, before anything is made.

    Raises:
        ConfigError: it is missing.
    """
    for wanted, option, package in (
        (tensorboard, "--tensorboard", "tensorboardX"),
        (wandb, "--wandb", "wandb"),
    ):
        if wanted and find_spec(package) is None:
            raise ConfigError(
                f"{option}: needs {package}; install it with: pip install 'evalmon[writers]'"
            )


def open_writers(
    directory: Path,
    name: str,
    facts: Mapping[str, Any],
    tensorboard: Path | None,
    wandb: str | None,
) -> list[Writer]:
    """Open the writers that were asked for.

    Args:
        directory: run directory.
        name: name of the run.
        facts: settings to show beside it.
        tensorboard: folder for event files, None for none.
        wandb: W&B project, None for none.

    Raises:
        ConfigError: W&B refuses to start.
    """
    writers: list[Writer] = []
    if tensorboard is not None:
        writers.append(TensorBoard(tensorboard))
    if wandb is not None:
        writers.append(WeightsAndBiases(wandb, directory, name, facts))
    return writers
