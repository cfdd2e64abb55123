"""One optimizer update: pure, and compiled once for a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from trainer.architecture import Execution, Olmo3Config
from trainer.config import TrainSettings
from trainer.initialize import initialize
from trainer.layout import stack_layers
from trainer.model import ParameterTree, bind, parameter_shapes
from trainer.objective import Losses, Objective, losses, target_divisor
from trainer.optimizer import AdamW, clip_by_global_norm
from trainer.rundir import Run
from trainer.schedule import Schedule, find_schedule
from trainer.sharding import place_batch
from trainer.skip_step import SkipRule, SpikeHistory, fresh_history, judge, skip_rule

__all__ = [
    "Measures",
    "OptimizerState",
    "TrainState",
    "Update",
    "UpdateRule",
    "abstract_state",
    "compile_update",
    "fresh_state",
    "make_update",
    "update_rule",
]


class OptimizerState(NamedTuple):
    """Adam's moments with their count of updates, and what spikes are judged by.

    The moments are trees like the parameters. Skipped updates do not count.
    """

    adam: optax.ScaleByAdamState
    history: SpikeHistory


class TrainState(NamedTuple):
    """What an update changes: parameters, and what the optimizer remembers."""

    params: ParameterTree
    optimizer: OptimizerState


class Measures(NamedTuple):
    """What an update measured before it changed anything.

    Attributes:
        ce_nats: cross-entropy a target.
        z_nats: weighted z-loss a target.
        grad_norm: global norm of the gradient.
        grad_norm_clipped: the same after clipping.
        skipped: whether the update was left out as a spike.
        kept_instances: instances that no filter masks; without any the losses mean nothing.
    """

    ce_nats: Float[Array, ""]
    z_nats: Float[Array, ""]
    grad_norm: Float[Array, ""]
    grad_norm_clipped: Float[Array, ""]
    skipped: Bool[Array, ""]
    kept_instances: Int[Array, ""]


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How an update is made.

    Attributes:
        schedule: learning rate of each step.
        optimizer: AdamW with its clipping norm.
        objective: what is minimized.
        skip: what is judged as a spike, None for nothing.
        accumulate: micro-batches whose gradients are summed for one update.
    """

    schedule: Schedule
    optimizer: AdamW
    objective: Objective
    skip: SkipRule | None = None
    accumulate: int = 1


PureUpdate: TypeAlias = Callable[..., tuple[TrainState, Measures]]
Update: TypeAlias = Callable[..., tuple[TrainState, Measures]]


def update_rule(settings: TrainSettings, eos_id: int | None = None) -> UpdateRule:
    """Return the rule that the settings of a run ask for.

    Args:
        settings: how to train.
        eos_id: id that ends documents in the run's data, needed where attention is to stay
            within them.
    """
    assert eos_id is not None or not settings.document_masking
    schedule = find_schedule(settings.schedule)
    return UpdateRule(
        schedule(settings.learning_rate, settings.warmup_steps, settings.horizon),
        AdamW(
            settings.beta1, settings.beta2, settings.eps, settings.weight_decay, settings.max_norm
        ),
        Objective(
            settings.z_weight,
            settings.loss_normalization,
            eos_id=eos_id if settings.document_masking else None,
        ),
        skip_rule(settings.skip_step),
        settings.accumulate,
    )


def fresh_state(config: Olmo3Config, execution: Execution, seed: int) -> TrainState:
    """Return the state before the first update, on the host."""
    params = initialize(config, seed)
    if execution.scan_layers:
        params = stack_layers(params, config)
    return TrainState(params, _fresh_optimizer(config, params))


def abstract_state(config: Olmo3Config, execution: Execution) -> TrainState:
    """Return the shapes of ``fresh_state`` without allocating it."""
    params = parameter_shapes(config)
    if execution.scan_layers:
        params = stack_layers(params, config)
    return jax.eval_shape(lambda p: TrainState(p, _fresh_optimizer(config, p)), params)


def make_update(config: Olmo3Config, execution: Execution, rule: UpdateRule) -> PureUpdate:
    """Return the update as a pure function, not yet compiled.

    Args:
        config: shapes of the model.
        execution: how its layers are run.
        rule: how the update is made.

    Returns:
        ``update(state, tokens, step, kept=None)`` with tokens [B, L], the 1-based step that
        the learning rate is of, and the instances that count (by default all). Without any
        losses and gradient are 0; that is an update like others, as in OLMo-core and MaxText:
        moments and weights decay, and the loss of 0 joins the history of spikes.
    """

    def objective(
        params: ParameterTree, part: tuple[Array, Array], divisor: Array
    ) -> tuple[Float[Array, ""], Losses]:
        tokens, kept = part
        result = losses(bind(config, params, execution), tokens, rule.objective, kept, divisor)
        return result.ce_nats + result.z_nats, result

    def update(
        state: TrainState,
        tokens: Int[Array, "B L"],
        step: Int[Array, ""],
        kept: Bool[Array, " B"] | None = None,
    ) -> tuple[TrainState, Measures]:
        kept = jnp.ones(tokens.shape[0], bool) if kept is None else kept
        divisor = target_divisor(rule.objective, kept, tokens.shape[1] - 1)
        gradient, loss = _accumulated(
            jax.grad(objective, has_aux=True),
            state.params,
            (tokens, kept),
            divisor,
            rule.accumulate,
        )
        clipped, norm, clipped_norm = clip_by_global_norm(gradient, rule.optimizer.max_norm)
        rate = rule.schedule(step)
        adam, history = state.optimizer
        params, moments = rule.optimizer.step(state.params, clipped, adam, rate)
        skipped = jnp.zeros((), bool)
        if rule.skip is not None:
            judged = loss.ce_nats + loss.z_nats if rule.skip.z_in_loss else loss.ce_nats
            skipped, history = judge(
                history, judged, clipped_norm if rule.skip.clipped_norm else norm
            )
            params, moments = jax.tree.map(
                lambda old, new: jnp.where(skipped, old, new),
                (state.params, adam),
                (params, moments),
            )
        after = TrainState(params, OptimizerState(moments, history))
        return after, Measures(*loss, norm, clipped_norm, skipped, jnp.sum(kept))

    return update


def compile_update(run: Run, state: TrainState, mesh: Mesh) -> Update:
    """Return the compiled update; it takes its state's memory over.

    It is called as ``update(state, tokens, step)``; of a run that filters instances as
    ``update(state, tokens, step, kept)``. Tokens [B, L] and kept [B] are on the mesh as
    ``place_batch`` puts them.

    Args:
        run: shapes of model and batch, and the settings.
        state: the state it will first be given, on its devices.
        mesh: devices the batch is spread over.
    """
    settings = run.settings
    update = make_update(
        run.model, settings.execution, update_rule(settings, run.description.eos_id)
    )
    shape = (settings.batch_instances // jax.process_count(), settings.sequence_length)
    batch = [place_batch(np.zeros(shape, np.uint32), mesh), np.int32(1)]
    if settings.instance_filter != "none":
        batch.append(place_batch(np.ones(shape[:1], bool), mesh))
    where = jax.tree.map(lambda leaf: leaf.sharding, state)
    jitted = jax.jit(update, donate_argnums=0, out_shardings=(where, None))
    return jitted.lower(state, *batch).compile()


def _fresh_optimizer(config: Olmo3Config, params: ParameterTree) -> OptimizerState:
    """Return moments of zero and no history."""
    return OptimizerState(AdamW().init(params), fresh_history(config.master_dtype))


def _accumulated(
    gradient: Callable[..., tuple[ParameterTree, Losses]],
    params: ParameterTree,
    batch: tuple[Int[Array, "B L"], Bool[Array, " B"]],
    divisor: Float[Array, ""],
    parts: int,
) -> tuple[ParameterTree, Losses]:
    """Return gradient and losses of a batch, summed over ``parts`` micro-batches of it."""
    if parts == 1:
        return gradient(params, batch, divisor)

    # Every parts-th instance, because consecutive ones are on the same device.
    def split(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)

    def add(
        sums: tuple[ParameterTree, Losses], part: tuple[Array, Array]
    ) -> tuple[tuple[ParameterTree, Losses], None]:
        return jax.tree.map(jnp.add, sums, gradient(params, part, divisor)), None

    micro = jax.tree.map(split, batch)
    part = jax.tree.map(lambda x: x[0], micro)
    shapes = jax.eval_shape(gradient, params, part, divisor)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zeros, micro)[0]
