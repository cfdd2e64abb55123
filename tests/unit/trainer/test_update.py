import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.architecture import Execution, Olmo3Config
from trainer.config import TrainSettings
from trainer.layout import unstack_layers
from trainer.objective import Objective
from trainer.optimizer import AdamW
from trainer.schedule import Linear, two_stages
from trainer.sharding import MeshShape, make_mesh, place, place_batch
from trainer.skip_step import SKIP_RULES, SpikeHistory
from trainer.update import (
    OptimizerState,
    TrainState,
    UpdateRule,
    abstract_state,
    compile_update,
    fresh_state,
    make_update,
    update_rule,
)

CONFIG = Olmo3Config(
    vocab_size=16, width=8, layers=1, heads=2, kv_heads=1, head_dim=4, ffn=8, window=4
)
BLOCK = replace(CONFIG, layers=4)
ONE_BY_ONE = Execution()
TOKENS = np.random.default_rng(0).integers(0, 16, (4, 6)).astype(np.int32)
RULE = UpdateRule(Linear(0.1, 0, 10), AdamW(), Objective())
GUARDED = replace(RULE, skip=SKIP_RULES["olmo_core"])
ALL = np.ones(4, bool)
EOS = 10
"""In the middle of some instances."""


@cache
def _update(
    rule: UpdateRule, config: Olmo3Config = CONFIG, execution: Execution = ONE_BY_ONE
) -> Any:
    return jax.jit(make_update(config, execution, rule))


def _apply(rule: UpdateRule, state: TrainState, step: int = 1, kept: Any = ALL) -> Any:
    return _update(rule)(state, TOKENS, np.int32(step), kept)


def _fresh() -> TrainState:
    """Return a state large enough for gradients that clipping acts on."""
    state = fresh_state(CONFIG, Execution(), 0)
    params = jax.tree.map(lambda p: p * 20 if p.ndim == 2 else p, state.params)
    return TrainState(params, state.optimizer)


def _seen(count: int, loss: float, norm: float) -> SpikeHistory:
    """Return a history of values close to a loss and a norm."""
    waves = np.where(np.arange(128) % 2, 1.001, 0.999).astype(np.float32)
    values: list[Any] = [waves * np.float32(loss), waves * np.float32(norm), np.int32(count)]
    return SpikeHistory(*values)


def _largest_difference(one: Any, other: Any) -> float:
    return max(
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_an_update_measures_what_it_changes() -> None:
    before = _fresh()
    after, measures = _apply(RULE, before)
    assert float(measures.ce_nats) > 2.0
    assert 0 < float(measures.z_nats) < 0.01
    norm = float(measures.grad_norm)
    assert norm > 1.0
    assert float(measures.grad_norm_clipped) == pytest.approx(norm / (norm + 1e-6))
    assert not bool(measures.skipped)
    assert int(measures.kept_instances) == 4
    assert int(after.optimizer.adam.count) == 1
    # The first step of Adam moves each value by about the learning rate.
    moved = _largest_difference(after.params["embed_tokens"], before.params["embed_tokens"])
    assert moved == pytest.approx(0.09, rel=1e-3)


def test_the_learning_rate_is_of_the_step_and_not_of_the_count() -> None:
    before = _fresh()
    moved = [
        _largest_difference(
            _apply(RULE, before, step)[0].params["embed_tokens"], before.params["embed_tokens"]
        )
        for step in (1, 6, 10)
    ]
    assert moved == pytest.approx([0.09, 0.04, 0.0], rel=1e-3)


@pytest.mark.slow
def test_accumulated_micro_batches_give_the_same_update() -> None:
    rule = replace(RULE, objective=Objective(normalization="maxtext"))
    kept = np.array([True, False, True, True])
    whole, expected = _apply(rule, _fresh(), kept=kept)
    for parts in (2, 4):
        after, measures = _apply(replace(rule, accumulate=parts), _fresh(), kept=kept)
        assert _largest_difference(measures, expected) < 1e-6 * float(expected.grad_norm)
        assert _largest_difference(after.optimizer.adam.mu, whole.optimizer.adam.mu) < 1e-6
        # Adam's first step is the gradient's sign, which rounding decides where it is 0.
        agree = jax.tree.map(lambda a, b: np.abs(a - b) < 1e-5, after.params, whole.params)
        leaves = jax.tree.leaves(agree)
        assert sum(leaf.sum() for leaf in leaves) > 0.99 * sum(leaf.size for leaf in leaves)


def test_a_spike_changes_nothing_but_the_history() -> None:
    before, _ = _apply(GUARDED, _fresh())
    adam = before.optimizer.adam
    assert int(before.optimizer.history.seen) == 1
    for loss, norm, skipped in ((1e9, 1e9, False), (1e-3, 1e9, True), (1e9, 1e-3, True)):
        start = TrainState(before.params, OptimizerState(adam, _seen(63, loss, norm)))
        after, measures = _apply(GUARDED, start, step=2)
        assert bool(measures.skipped) is skipped
        changed = _largest_difference(after.params, before.params)
        counted = int(after.optimizer.adam.count)
        if skipped:
            assert changed == 0
            assert _largest_difference(after.optimizer.adam, adam) == 0
            assert counted == 1
        else:
            assert changed > 0
            assert counted == 2
        history = after.optimizer.history
        assert int(history.seen) == 64
        assert float(history.losses[63]) == float(measures.ce_nats)
        assert float(history.grad_norms[63]) == float(measures.grad_norm)


def test_before_64_values_a_spike_is_an_update_like_any_other() -> None:
    fresh = _fresh()
    start = TrainState(fresh.params, OptimizerState(fresh.optimizer.adam, _seen(62, 1e-3, 1e-3)))
    after, measures = _apply(GUARDED, start)
    assert not bool(measures.skipped)
    assert int(after.optimizer.adam.count) == 1


def test_maxtext_judges_the_clipped_norm_and_the_loss_with_z() -> None:
    rule, fresh = replace(RULE, skip=SKIP_RULES["maxtext"]), _fresh()
    start = TrainState(fresh.params, OptimizerState(fresh.optimizer.adam, _seen(100, 1e9, 1.0)))
    after, measures = _apply(rule, start)
    # A norm of 1 is usual after clipping, whatever it was before.
    assert float(measures.grad_norm) > 1.1
    assert not bool(measures.skipped)
    history = after.optimizer.history
    assert float(history.grad_norms[100]) == pytest.approx(1.0, rel=1e-5)
    with_z = float(measures.ce_nats) + float(measures.z_nats)
    assert float(history.losses[100]) == pytest.approx(with_z, rel=1e-6)
    assert float(history.losses[100]) != float(measures.ce_nats)


def test_without_a_rule_no_history_is_kept() -> None:
    after, _ = _apply(RULE, _fresh())
    assert int(after.optimizer.history.seen) == 0


def test_a_batch_masked_whole_is_told_and_never_nan() -> None:
    after, measures = _apply(RULE, _fresh(), kept=~ALL)
    assert int(measures.kept_instances) == 0
    assert float(measures.grad_norm) == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


@pytest.mark.slow
def test_scanned_layers_are_updated_alike() -> None:
    scanned = Execution(scan_layers=True, remat="full")
    results: list[Any] = [
        _update(RULE, BLOCK, execution)(fresh_state(BLOCK, execution, 0), TOKENS, np.int32(1), ALL)
        for execution in (scanned, ONE_BY_ONE)
    ]
    (after, measures), (expected, single) = results
    assert float(measures.ce_nats) == pytest.approx(float(single.ce_nats), abs=1e-6)
    assert float(measures.grad_norm) == pytest.approx(float(single.grad_norm), rel=1e-5)
    mu = unstack_layers(after.optimizer.adam.mu, BLOCK)
    assert _largest_difference(mu, expected.optimizer.adam.mu) < 1e-6


@pytest.mark.slow
def test_parameters_and_moments_stay_float32_beside_bfloat16() -> None:
    config = replace(CONFIG, dtype="bfloat16")
    after, measures = _update(RULE, config)(_fresh(), TOKENS, np.int32(1), ALL)
    _, exact = _apply(RULE, _fresh())
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves(after)}
    assert kinds == {"float32", "int32"}
    assert measures.ce_nats.dtype == jnp.float32
    assert float(measures.ce_nats) == pytest.approx(float(exact.ce_nats), rel=0.02)
    assert float(measures.ce_nats) != float(exact.ce_nats)


@pytest.mark.parametrize("execution", [Execution(), Execution(scan_layers=True)])
def test_shapes_are_known_without_values(execution: Execution) -> None:
    fresh, shapes = fresh_state(BLOCK, execution, 0), abstract_state(BLOCK, execution)
    assert jax.tree.structure(fresh) == jax.tree.structure(shapes)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), fresh, shapes)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_keeps_every_shape_and_dtype_also_in_64_bits(dtype: str) -> None:
    config = replace(CONFIG, dtype=dtype)
    with jax.enable_x64(True):
        state = abstract_state(config, Execution())
        tokens = jax.ShapeDtypeStruct((4, 6), np.int32)
        step = jax.ShapeDtypeStruct((), np.int32)
        after, _ = jax.eval_shape(make_update(config, Execution(), GUARDED), state, tokens, step)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), after, state)
    )


SETTINGS = TrainSettings(
    preset="tiny",
    steps=10,
    batch_instances=4,
    sequence_length=6,
    hosts=2,
    loader="batch_strided",
    seed=0,
    checkpoint_every=5,
    learning_rate=0.01,
    warmup_steps=2,
)


def test_the_rule_of_settings_is_what_they_say() -> None:
    settings = replace(
        SETTINGS,
        schedule="two_stages",
        schedule_steps=1000,
        eps=1e-6,
        z_weight=2e-5,
        skip_step="maxtext",
        loss_normalization="maxtext",
        accumulate=4,
    )
    assert update_rule(settings) == UpdateRule(
        two_stages(0.01, 2, 1000),
        AdamW(eps=1e-6),
        Objective(2e-5, "maxtext"),
        SKIP_RULES["maxtext"],
        4,
    )


def test_documents_are_masked_by_the_eos_of_the_data() -> None:
    masking = replace(SETTINGS, document_masking=True)
    assert update_rule(masking, 3).objective == Objective(eos_id=3)
    assert update_rule(SETTINGS, 3).objective == Objective()


def _compiled(**changes: Any) -> Any:
    """Return the compiled update of a run of these settings, on one device."""
    run: Any = SimpleNamespace(
        settings=replace(SETTINGS, **changes),
        model=CONFIG,
        description=SimpleNamespace(eos_id=EOS),
    )
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        compiled = compile_update(run, place(_fresh(), mesh), mesh)

    def apply(*kept: np.ndarray) -> tuple[TrainState, Any]:
        rows = [place_batch(values, mesh) for values in kept]
        tokens = place_batch(TOKENS.astype(np.uint32), mesh)
        return compiled(place(_fresh(), mesh), tokens, np.int32(2), *rows)

    return apply


@pytest.mark.slow
def test_what_a_filter_masks_is_an_input_of_the_compiled_update() -> None:
    apply = _compiled(
        instance_filter="repetition", document_masking=True, loss_normalization="maxtext"
    )
    objective = Objective(normalization="maxtext", eos_id=EOS)
    rule = replace(update_rule(SETTINGS), objective=objective)
    assert (TOKENS[:, 1] == EOS).any()
    for kept in (np.array([True, False, True, True]), np.zeros(4, bool)):
        after, measures = apply(kept)
        expected, expected_measures = _update(rule)(_fresh(), TOKENS, np.int32(2), kept)
        assert int(measures.kept_instances) == kept.sum()
        assert _largest_difference(measures, expected_measures) < 1e-5
        assert _largest_difference(after.optimizer.adam.mu, expected.optimizer.adam.mu) < 1e-6
    assert (float(measures.ce_nats), float(measures.z_nats)) == (0.0, 0.0)
    assert float(measures.grad_norm) == 0.0


ON_EIGHT_DEVICES = """
import sys
from dataclasses import replace
import jax, numpy as np
sys.path.insert(0, sys.argv[1])
import test_objective as o, test_update as u
from trainer.architecture import Execution
from trainer.objective import Objective, losses
from trainer.sharding import MeshShape, make_mesh, place, place_batch
assert jax.device_count() == 8
two = make_mesh(MeshShape(data=2))
kept = np.array([True, True, False, False])
for name, ce in (("olmo_core", 1.0), ("maxtext", 2.0)):
    for mask, value in ((kept, ce), (~kept, ce), (kept & False, 0.0)):
        with jax.set_mesh(two):
            rows = place_batch(np.zeros((4, 4), np.uint32), two), place_batch(mask, two)
            rule = Objective(normalization=name)
            found = jax.jit(lambda t, k: losses(o._losing(2.0), t, rule, k))(*rows)
        assert abs(float(found.ce_nats) - value) < 1e-5, (name, mask, found)
        assert np.isfinite(float(found.z_nats))
config, plain = replace(u.CONFIG, layers=2, kv_heads=2), Execution()
rule = replace(u.RULE, objective=Objective(normalization="maxtext", eos_id=3))
state = u.fresh_state(config, plain, 0)
tokens = np.random.default_rng(0).integers(0, 16, (8, 12)).astype(np.uint32)
kept = np.arange(8) < 5
mesh = make_mesh(MeshShape(2, 2, 2))
update = u.make_update(config, plain, rule)
with jax.set_mesh(mesh):
    given = place(state, mesh), place_batch(tokens, mesh), np.int32(1), place_batch(kept, mesh)
    after, measures = jax.jit(update)(*given)
expected, single = jax.jit(update)(state, tokens.astype(np.int32), np.int32(1), kept)
assert int(measures.kept_instances) == 5
assert abs(float(measures.ce_nats) - float(single.ce_nats)) < 1e-5
assert u._largest_difference(after.optimizer.adam.mu, expected.optimizer.adam.mu) < 1e-6
"""


@pytest.mark.slow
def test_masks_mean_the_same_on_eight_devices() -> None:
    """Also where one of them has masked instances alone, or all of them have."""
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    subprocess.run(
        [sys.executable, "-c", ON_EIGHT_DEVICES, str(Path(__file__).parent)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        check=True,
    )
