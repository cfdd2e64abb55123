from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from tests.unit.trainer.loop_runs import SETTINGS
from trainer.data.index import TokenFolder
from trainer.flops import Peak
from trainer.meter import Meter
from trainer.rundir import Run, create_run
from trainer.schedule import Linear
from trainer.update import Measures


@pytest.fixture
def meter(make_folder: Callable[..., TokenFolder], tmp_path: Path) -> Meter:
    run: Run = create_run(tmp_path / "run", "run", SETTINGS, make_folder(8 * 24).path)
    return Meter(run, Linear(0.1, 0, 10), Peak(1e9, "a test"), 2)


def _measures(**changes: Any) -> Measures:
    values = {"ce_nats": 2.5, "z_nats": 1e-3, "grad_norm": 4.0, "grad_norm_clipped": 1.0}
    arrays: dict[str, Any] = {name: jnp.float32(value) for name, value in values.items()}
    arrays |= {"skipped": jnp.array(False), "kept_instances": jnp.int32(4)}
    return Measures(**{**arrays, **changes})


def test_norms_before_and_after_the_clip_are_both_told(meter: Meter) -> None:
    values = meter.read(5, _measures())
    assert values["optim/grad_norm"] == 4.0
    assert values["optim/grad_norm_clipped"] == 1.0
    assert values["optim/step_skipped"] == 0.0
    assert values["optim/lr"] == 0.05
    assert "data/masked_instances" not in values
    assert values["throughput/mfu"] > 0


def test_a_skipped_step_is_told_with_its_finite_values(meter: Meter) -> None:
    values = meter.read(5, _measures(skipped=jnp.array(True)))
    assert values["optim/step_skipped"] == 1.0
    assert values["train/ce_nats"] == 2.5


def test_masked_instances_are_counted_and_a_batch_without_any_has_no_loss(meter: Meter) -> None:
    some = meter.read(5, _measures(kept_instances=jnp.int32(3)))
    assert (some["data/masked_instances"], some["train/ce_nats"]) == (1.0, 2.5)
    none = meter.read(6, _measures(kept_instances=jnp.int32(0)))
    assert none["data/masked_instances"] == 4.0
    assert not {"train/ce_nats", "train/z_nats"} & set(none)


def test_mfu_says_what_it_means(meter: Meter) -> None:
    facts = meter.facts
    assert facts["peak_flops_per_second"] == 2e9
    assert (facts["devices"], facts["peak_source"]) == (2, "a test")
    assert facts["mfu_convention"]
