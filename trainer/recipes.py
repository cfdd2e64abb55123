"""Published training recipes as data, each value with where it is from.

A recipe is the defaults of ``train --recipe NAME``; every option given beside it wins.

Source: OLMo-core ``src/scripts/official/OLMo3``; MaxText's reproduction of OLMo 3 7B,
``configs/models/olmo3-7b-pt.yml`` with its launch script, ``optimizers.py`` and ``train.py``.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from trainer.names import require_known
from trainer.objective import Z_WEIGHT
from trainer.schedule import Schedule, find_schedule

__all__ = ["RECIPES", "Recipe", "recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a published model was trained.

    Attributes:
        name: what ``--recipe`` takes.
        source: where the values are from.
        starts_from: weights it goes on from, None for fresh ones.
        differs: what its authors did otherwise than this trainer does with these settings.
        preset: model size.
        steps: optimizer updates.
        batch_instances: instances of an update.
        sequence_length: tokens an instance.
        learning_rate: peak.
        warmup_steps: steps of linear warm-up.
        schedule: a key of ``SCHEDULES``.
        schedule_steps: length that the schedule is built for.
        seed: of the data order.
        skip_step: a key of ``SKIP_RULES``.
        loss_normalization: a key of ``NORMALIZATIONS``.
        beta1: decay of Adam's first moment.
        beta2: decay of Adam's second moment.
        eps: added to the root of the second moment.
        weight_decay: on everything but the embedding.
        max_norm: global norm that gradients are clipped to.
        z_weight: weight of the z-loss.
        dtype: compute dtype.
        checkpoint_every: steps from one checkpoint to the next.
    """

    name: str
    source: str
    starts_from: str | None
    differs: tuple[str, ...]
    preset: str
    steps: int
    batch_instances: int
    sequence_length: int
    learning_rate: float
    warmup_steps: int
    schedule: str
    schedule_steps: int
    seed: int
    skip_step: str
    loss_normalization: str
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0
    z_weight: float = Z_WEIGHT
    dtype: str = "bfloat16"
    checkpoint_every: int = 1000

    @property
    def settings(self) -> dict[str, Any]:
        """Values by the names of ``TrainSettings``."""
        said = ("name", "source", "starts_from", "differs")
        values = {name: value for name, value in asdict(self).items() if name not in said}
        return {**values, "recipe_name": self.name}

    @property
    def learning_rates(self) -> Schedule:
        """Learning rate of each step."""
        build = find_schedule(self.schedule)
        return build(self.learning_rate, self.warmup_steps, self.schedule_steps)


_ORDER: Final = (
    "initial values are drawn with the seed of the data order, its own seed for them was 0",
    "parameters were bfloat16 beside a float32 optimizer; here they are float32",
)

_STAGE1: Final = Recipe(
    name="olmo3-7b-stage1",
    source="OLMo-core official scripts OLMo-3-1025-7B-pretrain-1 and -2",
    starts_from=None,
    differs=(
        *_ORDER,
        "its second part took over at step 596,047, 999 steps before the middle of the first",
        "whether its Adam corrected the bias of its moments is not known",
    ),
    preset="olmo3-7b",
    # One pass over the data. The first part's schedule was built for 5e12 tokens.
    steps=1_413_814,
    batch_instances=512,
    sequence_length=8192,
    learning_rate=3e-4,
    warmup_steps=2000,
    schedule="two_stages",
    schedule_steps=1_192_093,
    seed=34_521,
    skip_step="olmo_core",
    loss_normalization="olmo_core",
)

_MAXTEXT: Final = Recipe(
    name="olmo3-7b-stage1-maxtext",
    source="MaxText olmo3-7b-pt and its launch script",
    starts_from=None,
    differs=(
        "its initial values are scaled by fan-in; here every matrix has a deviation of 0.02",
        "it masks repetitive instances; here none are masked",
        "its data order is another permutation",
        "it clips by the bare norm, without 1e-6 in the divisor",
        "the losses it logs include the z-loss; here they are apart",
    ),
    preset="olmo3-7b",
    steps=1_414_078,
    batch_instances=512,
    sequence_length=8192,
    learning_rate=3e-4,
    warmup_steps=2000,
    schedule="maxtext",
    schedule_steps=1_414_078,
    seed=42,
    skip_step="maxtext",
    loss_normalization="maxtext",
)

_STAGE2: Final = Recipe(
    name="olmo3-7b-stage2",
    source="OLMo-core official script OLMo-3-1025-7B-midtrain",
    starts_from="stage 1 at step 1,413,814: parameters and optimizer, not its step or schedule",
    differs=(_ORDER[1],),
    preset="olmo3-7b",
    # 1e11 tokens.
    steps=47_684,
    batch_instances=256,
    sequence_length=8192,
    learning_rate=2.0712352850360292e-4,
    warmup_steps=0,
    schedule="linear",
    schedule_steps=47_684,
    seed=1337,
    skip_step="olmo_core",
    loss_normalization="olmo_core",
)

RECIPES: Final[dict[str, Recipe]] = {each.name: each for each in (_STAGE1, _MAXTEXT, _STAGE2)}
"""Recipes by name."""


def recipe(name: str) -> Recipe:
    """Return the recipe called ``name``.

    Raises:
        ConfigError: no such recipe; the nearest name is suggested.

    Example:
        >>> recipe("olmo3-7b-stage2").steps
        47684
    """
    require_known("--recipe", "recipe", name, RECIPES)
    return RECIPES[name]
