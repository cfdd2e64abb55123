"""The settings of a training run."""

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self, get_args, get_type_hints

from evalmon.errors import ConfigError
from trainer.data.loaders import find_loader
from trainer.presets import preset

__all__ = ["TrainSettings"]

_WITHOUT_EFFECT: Final = {"seed", "loader", "hosts", "checkpoint_every"}
"""Settings that leave the recipe the same: what is learned per token should not hang on them."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What decides how a run goes; paths and names are the run directory's.

    Attributes:
        preset: model size, a key of ``PRESETS``.
        steps: optimizer updates.
        batch_instances: instances of an update, over all hosts.
        sequence_length: tokens an instance, at least 2.
        hosts: simulated data-parallel hosts, a divisor of ``batch_instances``.
        loader: a key of ``LOADERS``.
        seed: seed of initial values and data order, at least 0.
        checkpoint_every: steps from one checkpoint to the next.
        learning_rate: peak, above 0.
        warmup_steps: steps of warm-up, below ``steps``.
        instances: instances the run reads, evenly spaced over the data; None for all.

    Raises:
        ConfigError: a value outside its range, or an unknown preset or loader.
    """

    preset: str
    steps: int
    batch_instances: int
    sequence_length: int
    hosts: int
    loader: str
    seed: int
    checkpoint_every: int
    learning_rate: float
    warmup_steps: int
    instances: int | None = None

    def __post_init__(self) -> None:
        preset(self.preset, 1)
        find_loader(self.loader)
        lowest = {
            "steps": 1,
            "batch_instances": 1,
            "sequence_length": 2,
            "hosts": 1,
            "seed": 0,
            "checkpoint_every": 1,
            "warmup_steps": 0,
        }
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{_option(name)} {getattr(self, name)}: at least {least}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"--learning-rate {self.learning_rate}: must be finite and above 0")
        if self.warmup_steps >= self.steps:
            raise ConfigError(
                f"--warmup-steps {self.warmup_steps}: must be below --steps {self.steps}"
            )
        if self.batch_instances % self.hosts:
            raise ConfigError(
                f"--hosts {self.hosts}: must divide --batch {self.batch_instances}, so that "
                "every host reads the same number of instances a step"
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one update."""
        return self.batch_instances * self.sequence_length

    def recipe(self, data_fingerprint: str) -> str:
        """Return a hash of everything that changes what is learned, but seed and loader.

        The number of hosts and the distance of checkpoints are left out too: with a sound
        loader neither changes a batch.

        Args:
            data_fingerprint: of the instances.
        """
        kept = {k: v for k, v in asdict(self).items() if k not in _WITHOUT_EFFECT}
        text = json.dumps([kept, data_fingerprint], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @classmethod
    def from_record(cls, record: Mapping[str, Any], place: str) -> Self:
        """Build settings from a stored record.

        Args:
            record: setting name to value.
            place: file they are from, for messages.

        Raises:
            ConfigError: a setting is unknown (the nearest name is suggested), missing, or of
                another type.
        """
        names = [item.name for item in fields(cls)]
        for name in record:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
                raise ConfigError(f"{place}: unknown setting {name!r}; nearest is {near!r}")
        missing = sorted(set(names) - set(record) - {"instances"})
        if missing:
            raise ConfigError(f"{place}: settings {missing} are missing; was it made by a trainer?")
        hints = get_type_hints(cls)
        for name, value in record.items():
            allowed = get_args(hints[name]) or (hints[name],)
            if type(value) not in allowed:
                wanted = " or ".join(kind.__name__ for kind in allowed)
                raise ConfigError(
                    f"{place}: setting {name!r} must be {wanted}, got {value!r}; restore the file"
                )
        return cls(**record)


def _option(name: str) -> str:
    """Return the command-line spelling of a setting."""
    return "--batch" if name == "batch_instances" else f"--{name.replace('_', '-')}"
