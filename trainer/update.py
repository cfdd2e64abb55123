"""One optimizer update, compiled once."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from trainer.model import Olmo3Config, ParameterTree, bind, initialize
from trainer.objective import losses
from trainer.optimizer import adamw
from trainer.rundir import Run
from trainer.schedule import CosineWithWarmup
from trainer.sharding import place_batch

__all__ = ["Measures", "TrainState", "Update", "compile_update", "fresh_state"]


class TrainState(NamedTuple):
    """What an update changes: parameters, and moments with the update count."""

    params: ParameterTree
    optimizer: Any


class Measures(NamedTuple):
    """What an update measured before it changed anything."""

    ce_nats: Float[Array, ""]
    z_nats: Float[Array, ""]
    grad_norm: Float[Array, ""]


Update: TypeAlias = Callable[[TrainState, Int[Array, "B L"]], tuple[TrainState, Measures]]


def fresh_state(config: Olmo3Config, schedule: CosineWithWarmup, seed: int) -> TrainState:
    """Return the state before the first update."""
    params = initialize(config, seed)
    return TrainState(params, adamw(schedule).init(params))


def compile_update(run: Run, schedule: CosineWithWarmup, state: TrainState, mesh: Mesh) -> Update:
    """Return the compiled update; it takes its state's memory over.

    Args:
        run: shapes of model and batch.
        schedule: learning rate of each 1-based step; the count is in the optimizer state.
        state: the state it will first be given.
        mesh: devices the batch is spread over.
    """
    settings, config, optimizer = run.settings, run.model, adamw(schedule)

    def objective(
        params: ParameterTree, tokens: Int[Array, "B L"]
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
        ce, z = losses(bind(config, params), tokens)
        return ce + z, (ce, z)

    def update(state: TrainState, tokens: Int[Array, "B L"]) -> tuple[TrainState, Measures]:
        gradient, (ce, z) = jax.grad(objective, has_aux=True)(state.params, tokens)
        changes, moments = optimizer.update(gradient, state.optimizer, state.params)
        params = cast("ParameterTree", optax.apply_updates(state.params, changes))
        return TrainState(params, moments), Measures(ce, z, optax.tree.norm(gradient))

    shape = (settings.batch_instances, settings.sequence_length)
    example = place_batch(np.zeros(shape, np.uint32), mesh)
    return jax.jit(update, donate_argnums=0).lower(state, example).compile()
