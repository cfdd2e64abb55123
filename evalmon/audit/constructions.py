"""The catalogue of constructions that read a source wrongly."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CATALOGUE", "Construction", "find_construction"]

CATALOGUE: dict[str, tuple[str, str]] = {
    "C2": (
        "sampler_sharded_loader_not",
        (
            "the sampler is sharded and the loader is not: each host reads every record of its "
            "shard S times in a row; give the loader the sampler's shard options"
        ),
    ),
    "D": (
        "unsharded_same_seed",
        (
            "no host is given a shard and all use one seed: hosts read the same records in the "
            "same step; shard the loader by host"
        ),
    ),
    "E": (
        "double_sharding",
        (
            "each host's own slice of the source is shuffled and sharded again: passes end S times "
            "too early, and copies keep to one host; shard once"
        ),
    ),
    "E'": (
        "double_sharding",
        (
            "each host's own slice is sharded again without a new shuffle: hosts read the same "
            "1/S of the source with a period of N/S draws; shard once"
        ),
    ),
    "K": (
        "double_sharding",
        (
            "a sampler slices each pass by host and the loader takes every S-th index of it: "
            "passes end S times too early; leave the loader unsharded, or give the sampler one "
            "global order"
        ),
    ),
    "L": (
        "double_sharding_with_resume_fault",
        (
            "sharded twice, and a resume adds its offset after the loader's stride: it returns to "
            "about step r/S; shard once and count positions over all hosts"
        ),
    ),
    "G": (
        "unsharded_per_host_seed",
        (
            "no host is given a shard and each has its own seed: hosts read the same records in "
            "different steps; use one seed and shard by host"
        ),
    ),
    "H": (
        "repeat_before_shuffle",
        (
            "passes are laid end to end before they are shuffled: records of several passes mix; "
            "shuffle first, then repeat"
        ),
    ),
    "H2": (
        "repeat_before_shuffle",
        (
            "an endless repeat is shuffled: draws follow no passes at all; "
            "shuffle first, then repeat"
        ),
    ),
    "J": (
        "contiguous_slices_host_change",
        (
            "each host reads a contiguous slice, and another number of hosts cuts others: part "
            "is read twice and as much never; stride a global order by host instead"
        ),
    ),
    "M": (
        "worker_offset",
        (
            "a resume counts batches as if workers read them in order: it re-reads some of the "
            "last ones and skips as many; stop at a multiple of the workers, or save their state"
        ),
    ),
    "N": (
        "resume_off_by_one",
        (
            "a resume re-reads the last step before the stop: a checkpoint of step n holds n, "
            "and step n + 1 is next"
        ),
    ),
    "O": (
        "dropped_tails",
        (
            "each worker drops the end of its share that does not fill a batch; harmless where the "
            "order differs in each pass"
        ),
    ),
    "P": (
        "dropped_tails",
        (
            "what does not divide into shards and batches is dropped; harmless where the order "
            "differs in each pass"
        ),
    ),
    "Q": (
        "restart_from_beginning",
        (
            "after the stop the stream starts again, no position kept; save the iterators' state "
            "or start at the step that is next"
        ),
    ),
    "R": (
        "holdout_is_training_data",
        "texts of the holdout are in the training stream; split before shuffling, by document",
    ),
}
"""Name and description of each construction that draws can tell apart."""

_FITS = {"E": ("F2", "I2"), "E'": ("F4",), "K": ("F3",), "H": ("H2",), "H2": ("H",), "O": ("P",)}


@dataclass(frozen=True, slots=True)
class Construction:
    """A construction that makes such a stream.

    Attributes:
        code: its place in the catalogue.
        fits: others whose draws look the same.
    """

    code: str
    fits: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """Its name."""
        return CATALOGUE[self.code][0]

    def record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        name, description = CATALOGUE[self.code]
        return {"id": self.code, "name": name, "description": description, "fits": [*self.fits]}


def find_construction(code: str) -> Construction:
    """Return a construction with those whose draws look the same.

    Args:
        code: a key of ``CATALOGUE``.

    Example:
        >>> find_construction("K").name
        'double_sharding'
    """
    return Construction(code, _FITS.get(code, ()))
