"""The settings of a training run."""

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Final, Self, get_args, get_type_hints

from evalmon.errors import ConfigError
from trainer.architecture import Execution, Olmo3Config
from trainer.data.loaders import find_loader
from trainer.data.order import find_order
from trainer.data.repetition import find_filter
from trainer.data.selection import parse_ratios
from trainer.objective import Z_WEIGHT, Objective
from trainer.presets import preset
from trainer.schedule import find_schedule
from trainer.sharding import parse_mesh
from trainer.skip_step import skip_rule

__all__ = ["TrainSettings", "option"]

_WITHOUT_EFFECT: Final = {
    *("seed", "order", "loader", "hosts", "checkpoint_every"),
    *("accumulate", "remat", "scan_layers", "mesh", "workers"),
    *("recipe_name", "init_from", "init_optimizer"),
}
"""Settings that leave the recipe the same: what is learned per token should not hang on them
(what a run starts from is told by its fingerprint)."""

_LEAST: Final = {
    "steps": 1,
    "batch_instances": 1,
    "sequence_length": 2,
    "hosts": 1,
    "seed": 0,
    "checkpoint_every": 1,
    "warmup_steps": 0,
    "schedule_steps": 1,
    "accumulate": 1,
    "workers": 0,
    "max_repeats": 1,
    "z_weight": 0,
    "weight_decay": 0,
}

_MOST: Final = 2**31 - 1
"""Largest whole number."""

_OPTIONS: Final = {"batch_instances": "--batch", "recipe_name": "--recipe"}
"""Settings whose option is not spelled like them."""


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
        warmup_steps: steps of warm-up, below the schedule's length.
        instances: instances the run reads, evenly spaced over the data; None for all.
        recipe_name: recipe that the settings were taken from, None for none.
        schedule: a key of ``SCHEDULES``.
        schedule_steps: length of the schedule; None for ``steps``.
        beta1: decay of Adam's first moment, in [0, 1).
        beta2: decay of Adam's second moment, in [0, 1).
        eps: added to the root of the second moment, above 0.
        weight_decay: on everything but the embedding.
        max_norm: global norm that gradients are clipped to, above 0.
        z_weight: weight of the z-loss.
        skip_step: a key of ``SKIP_RULES``.
        loss_normalization: a key of ``NORMALIZATIONS``.
        accumulate: micro-batches of an update, a divisor of ``batch_instances``.
        dtype: compute dtype: float32, bfloat16, or float64 where JAX has it turned on.
        remat: a key of ``REMAT_POLICIES``.
        scan_layers: compile a block of four layers once and loop over the blocks.
        heads: query heads instead of the preset's.
        kv_heads: key and value heads instead of the preset's.
        head_dim: width of a head instead of the preset's.
        mesh: devices along each axis, as ``parse_mesh`` reads it; None for as many on
            ``data`` as split the batch.
        order: a key of ``ORDERS``.
        workers: processes a host reads ahead with, 0 for none.
        instance_filter: a key of ``INSTANCE_FILTERS``: what masks instances.
        document_masking: attention stays within a document.
        ratios: share of each source, as ``parse_ratios`` reads it; None for all instances.
        max_repeats: times a source may be read a pass to fill its share.
        init_from: checkpoint or weights folder to start from, None for fresh values.
        init_optimizer: take the optimizer's moments from there too.

    Raises:
        ConfigError: a value outside its range, or an unknown name.
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
    recipe_name: str | None = None
    schedule: str = "cosine"
    schedule_steps: int | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0
    z_weight: float = Z_WEIGHT
    skip_step: str = "none"
    loss_normalization: str = "olmo_core"
    accumulate: int = 1
    dtype: str = "float32"
    remat: str = "none"
    scan_layers: bool = False
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    mesh: str | None = None
    order: str = "olmo_core"
    workers: int = 0
    instance_filter: str = "none"
    document_masking: bool = False
    ratios: str | None = None
    max_repeats: int = 1
    init_from: str | None = None
    init_optimizer: bool = True

    def __post_init__(self) -> None:
        self._require_names()
        self._require_ranges()
        if self.warmup_steps >= self.horizon:
            length = "steps" if self.schedule_steps is None else "schedule_steps"
            raise ConfigError(
                f"--warmup-steps {self.warmup_steps}: must be below {option(length)} {self.horizon}"
            )
        for name, why in (
            ("hosts", "every host reads the same number of instances a step"),
            ("accumulate", "every micro-batch has the same number of instances"),
        ):
            if self.batch_instances % getattr(self, name):
                raise ConfigError(
                    f"{option(name)} {getattr(self, name)}: must divide --batch "
                    f"{self.batch_instances}, so that {why}"
                )

    @property
    def horizon(self) -> int:
        """Steps of the schedule, which a run may end before."""
        return self.steps if self.schedule_steps is None else self.schedule_steps

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one update."""
        return self.batch_instances * self.sequence_length

    @property
    def execution(self) -> Execution:
        """How layers are run."""
        return Execution(scan_layers=self.scan_layers, remat=self.remat)

    def model(self, vocab_size: int) -> Olmo3Config:
        """Return the shapes of the model.

        Args:
            vocab_size: embedding rows.

        Raises:
            ConfigError: heads or a dtype that no OLMo 3 can have.
        """
        shapes = preset(
            self.preset,
            vocab_size,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        )
        config = replace(shapes, dtype=self.dtype)
        config.require_valid("--dtype")
        return config

    def recipe(self, data_fingerprint: str, start_fingerprint: str | None = None) -> str:
        """Return a hash of everything that changes what is learned, but seed and loader.

        The number of hosts and the distance of checkpoints are left out too: with a sound
        loader neither changes a batch; and so is how the work is split, which changes results
        by rounding alone.

        Args:
            data_fingerprint: of the instances.
            start_fingerprint: of the weights it starts from, None for fresh ones.
        """
        kept = {k: v for k, v in asdict(self).items() if k not in _WITHOUT_EFFECT}
        kept["start"] = start_fingerprint and [start_fingerprint, self.init_optimizer]
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
        needed = {item.name for item in fields(cls) if item.default is MISSING}
        missing = sorted(needed - set(record))
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

    def _require_names(self) -> None:
        """Look every name up, so that an unknown one is refused here."""
        self.model(vocab_size=1)
        find_loader(self.loader)
        find_order(self.order)
        find_filter(self.instance_filter)
        if self.ratios is not None:
            parse_ratios(self.ratios)
        find_schedule(self.schedule)
        skip_rule(self.skip_step)
        Objective(normalization=self.loss_normalization)
        _ = self.execution
        if self.mesh is not None:
            parse_mesh(self.mesh)

    def _require_ranges(self) -> None:
        """Refuse numbers that cannot be meant."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ConfigError(f"{option(name)} {value}: at least {least}")
            if isinstance(value, int) and value > _MOST:
                # JAX would quietly cut a seed to 32 bits; steps and ids are int32.
                raise ConfigError(f"{option(name)} {value}: at most {_MOST}")
        for name in ("learning_rate", "eps", "max_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{option(name)} {getattr(self, name)}: must be finite and above 0"
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{option(name)} {getattr(self, name)}: must be in [0, 1)")


def option(name: str) -> str:
    """Return the command-line spelling of a setting.

    Example:
        >>> option("batch_instances"), option("learning_rate")
        ('--batch', '--learning-rate')
    """
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")
