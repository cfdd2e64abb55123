"""The loaders by name."""

from dataclasses import dataclass
from typing import Final

from trainer.data import batch_strided, faulty
from trainer.data.pipeline import Builder
from trainer.names import require_known

__all__ = ["LOADERS", "Loader", "find_loader"]


@dataclass(frozen=True, slots=True)
class Loader:
    """One way to read instances.

    Attributes:
        build: makes the Grain loader of one host.
        fault: what is wrong with it, "" for a sound loader.
    """

    build: Builder
    fault: str = ""


LOADERS: Final[dict[str, Loader]] = {
    "batch_strided": Loader(batch_strided.build),
    "double_shard": Loader(
        faulty.build_double_shard, fault="sliced by host, then sharded again: repeats 1/S of 1/S"
    ),
    "double_shard_resume": Loader(
        faulty.build_double_shard_resume,
        fault="sharded twice, and a resume goes back to about step r/S",
    ),
}


def find_loader(name: str) -> Loader:
    """Return the loader called ``name``.

    Raises:
        ConfigError: no such loader; the nearest name is suggested.
    """
    require_known("--loader", "loader", name, LOADERS)
    return LOADERS[name]
