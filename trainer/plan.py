"""What a run would need of its devices, said without them.

Shapes, their split and what is kept for the backward pass come from abstract evaluation; the
rest from compiling the trainer's own update for as many simulated devices as the mesh has.
"""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evalmon.errors import ConfigError
from trainer.architecture import Olmo3Config
from trainer.config import TrainSettings
from trainer.flops import published_flops_per_token
from trainer.model import bind
from trainer.objective import losses
from trainer.presets import OLMO3_VOCAB, parameter_count
from trainer.recipes import recipe
from trainer.sharding import (
    BATCH,
    MeshShape,
    make_mesh,
    parse_mesh,
    placed_shapes,
    require_fits,
)
from trainer.update import TrainState, abstract_state, make_update, update_rule

__all__ = ["Plan", "plan_run", "planned", "summary"]

_XLA_FLAGS: Final = (
    # The order of a device with little memory; the CPU's own starts all it can at once.
    "--xla_cpu_enable_concurrency_optimized_scheduler=false",
    # Nothing will be run, so machine code need not be quick.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)

_MOST_DEVICES: Final = 2048
"""Devices that JAX simulates in one process."""

_EOS: Final = 0
"""Stands for the id that ends documents: sizes do not hang on which it is."""

_KEPT_NOTE: Final = (
    "activation_bytes_per_device is what the remat policy keeps from the forward to the backward "
    "pass; what is in memory for a moment is only in compiled.temporary_bytes, with the gradients"
)
_MOMENTS_NOTE: Final = "the two moments of a tensor have its dtype and are split as it is"
_CPU_NOTE: Final = (
    "compiled for simulated CPU devices: they hold bfloat16 products in float32, so "
    "temporary_bytes is more than an accelerator would need"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it exists.

    Attributes:
        settings: how it trains; data, hosts and steps do not matter.
        mesh: devices along each axis.
    """

    settings: TrainSettings
    mesh: MeshShape

    @property
    def model(self) -> Olmo3Config:
        """Shapes of its model, with the vocabulary of OLMo 3."""
        return self.settings.model(OLMO3_VOCAB)

    def require_fits(self) -> None:
        """Refuse a mesh that would split something unevenly.

        Raises:
            ConfigError: it does not divide a micro-batch, or the model.
        """
        rows = self.settings.batch_instances // self.settings.accumulate
        require_fits(self.mesh, self.model, rows)


def planned(mesh: str, options: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Plan what the options of ``plan`` ask for; JAX must not have started.

    Args:
        mesh: as ``parse_mesh`` reads it.
        options: settings by name; None for the recipe's.
        say: told of each part that takes a while.

    Raises:
        ConfigError: a setting or mesh that cannot be.
    """
    shape, given = parse_mesh(mesh), {k: v for k, v in options.items() if v is not None}
    if shape.devices > _MOST_DEVICES:
        raise ConfigError(
            f"--mesh {shape}: {shape.devices} devices, but at most {_MOST_DEVICES} are simulated; "
            "lower data, and --batch with it: the share of a device stays the same"
        )
    defaults: dict[str, Any] = {"hosts": 1, "loader": "batch_strided"}
    defaults |= recipe(options["recipe_name"]).settings
    settings = TrainSettings(**{**defaults, **given})
    plan = Plan(settings, shape)
    plan.require_fits()
    jax.config.update("jax_enable_x64", settings.dtype == "float64")
    # Read when JAX makes its devices; of two the last holds.
    devices = f"--xla_force_host_platform_device_count={shape.devices}"
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_XLA_FLAGS, devices])
    return plan_run(plan, say)


def summary(facts: dict[str, Any]) -> list[str]:
    """Return a plan as lines for a reader."""
    compiled = facts["compiled"]
    memory = {
        "parameters": facts["parameter_bytes_per_device"],
        "optimizer": facts["optimizer_bytes_per_device"],
        "gradients": facts["gradient_bytes_per_device"],
        "kept activations": facts["activation_bytes_per_device"],
        "temporaries, as compiled": compiled["temporary_bytes"],
        "all, as compiled": compiled["total_bytes"],
    }
    flops = ", ".join(f"{name} {value:.4e}" for name, value in facts["flops_per_step"].items())
    return [
        f"{facts['preset']}: {facts['parameters']:,} parameters on {facts['devices']} devices",
        *(f"  {name:26}{size / 2**30:10.3f} GiB a device" for name, size in memory.items()),
        f"  FLOPs a step: {flops}",
        *(f"  {t['name']:44}{t['dtype']} {t['shape']} split {t['spec']}" for t in facts["tensors"]),
        *(f"  note: {note}" for note in facts["notes"]),
    ]


def plan_run(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Return parameters, memory of a device, FLOPs a step and the split of each tensor.

    Args:
        plan: what to look at.
        say: told of each part that takes a while.

    Returns:
        A record of plain values; ``*_bytes_per_device`` are of the fullest device.

    Raises:
        ConfigError: the mesh splits something unevenly, or needs more devices than JAX was
            started with.
    """
    settings, config = plan.settings, plan.model
    plan.require_fits()
    mesh = make_mesh(plan.mesh)
    say("shapes and their split")
    state = placed_shapes(abstract_state(config, settings.execution), mesh)
    tensors = _tensors(state.params)
    say("what is kept for the backward pass")
    activations = _saved_bytes(plan)
    say(f"compilation for {plan.mesh.devices} devices")
    compiled = _compiled_bytes(plan, state, mesh)
    flops = published_flops_per_token(settings.model, settings.sequence_length)
    tokens = settings.tokens_per_step
    return {
        "preset": settings.preset,
        "recipe": settings.recipe_name,
        "mesh": asdict(plan.mesh),
        "devices": plan.mesh.devices,
        "batch_instances": settings.batch_instances,
        "sequence_length": settings.sequence_length,
        "tokens_per_step": tokens,
        "dtype": config.dtype,
        "remat": settings.remat,
        "scan_layers": settings.scan_layers,
        "parameters": parameter_count(config),
        "parameter_bytes_per_device": _bytes(state.params),
        "optimizer_bytes_per_device": _bytes(state.optimizer),
        "gradient_bytes_per_device": _bytes(state.params),
        "activation_bytes_per_device": activations,
        "compiled": compiled,
        "flops_per_token": flops,
        "flops_per_step": {name: value * tokens for name, value in flops.items()},
        "tensors": tensors,
        "notes": [_KEPT_NOTE, _MOMENTS_NOTE, *([_CPU_NOTE] if config.dtype == "bfloat16" else [])],
    }


def _tensors(params: Any) -> list[dict[str, Any]]:
    """Describe each tensor; stacked layers are one tensor for every fourth layer."""
    return [
        {
            "name": jax.tree_util.keystr(path, simple=True, separator="."),
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "spec": [*leaf.sharding.spec, *(None,) * (leaf.ndim - len(leaf.sharding.spec))],
            "bytes_per_device": _bytes(leaf),
        }
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]


def _bytes(tree: Any) -> int:
    """Return what the arrays of a tree take on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _saved_bytes(plan: Plan) -> int:
    """Return what one device keeps for the backward pass, by abstract evaluation.

    One device's part is a model with fewer heads, inner columns and vocabulary. What grows
    with the instances is activations; the rest are parameters.
    """
    settings, config, parts = plan.settings, plan.model, plan.mesh.tensor
    own = replace(
        config,
        heads=config.heads // parts,
        kv_heads=config.kv_heads // parts,
        ffn=config.ffn // parts,
        vocab_size=config.vocab_size // parts,
    )
    params = abstract_state(own, settings.execution).params
    objective = update_rule(settings, _EOS).objective
    instances = settings.batch_instances // plan.mesh.rows // settings.accumulate

    def kept(times: int) -> int:
        # As many logits of each instance at a time, so that no other number changes.
        wider = replace(objective, logits_at_a_time=objective.logits_at_a_time * times)

        def loss(params: Any, tokens: jax.Array) -> jax.Array:
            found = losses(bind(own, params, settings.execution), tokens, wider)
            return found.ce_nats + found.z_nats

        shape = (instances * times, settings.sequence_length)
        backward = jax.eval_shape(
            lambda p, t: jax.vjp(lambda q: loss(q, t), p)[1],
            params,
            jax.ShapeDtypeStruct(shape, jnp.int32),
        )
        return sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward)
        )

    return kept(2) - kept(1)


def _compiled_bytes(plan: Plan, state: TrainState, mesh: Mesh) -> dict[str, int]:
    """Return what the compiled update takes on one device."""
    settings = plan.settings
    update = make_update(plan.model, settings.execution, update_rule(settings, _EOS))
    tokens = jax.ShapeDtypeStruct(
        (settings.batch_instances, settings.sequence_length),
        jnp.int32,
        sharding=NamedSharding(mesh, PartitionSpec(BATCH)),
    )
    where = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    with jax.set_mesh(mesh):
        jitted = jax.jit(update, donate_argnums=0, out_shardings=(where, None))
        compiled = jitted.lower(state, tokens, step).compile()
    memory = cast("Any", compiled.memory_analysis())
    sizes = {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "reused_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
    }
    total = sizes["argument_bytes"] + sizes["output_bytes"] - sizes["reused_bytes"]
    return {**sizes, "total_bytes": total + sizes["temporary_bytes"]}
