"""What Orbax writes under eight devices is what one device reads, bit for bit."""

import os
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

from evalmon import checkpoints
from evalmon.types import RunDescription

pytestmark = pytest.mark.slow

SAVE = """
import sys, jax, jax.numpy as jnp, numpy as np, orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
assert jax.device_count() == 8
rows = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
params = {
    "wide": jax.device_put(jnp.float32(1.001) * jnp.arange(64.0).reshape(16, 4), rows),
    "narrow": jax.device_put(jnp.full((8,), 1.001, jnp.bfloat16), rows),
}
with ocp.CheckpointManager(sys.argv[1]) as manager:
    for step in (0, 10):
        manager.save(step, args=ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            optimizer=ocp.args.StandardSave({"moment": params["wide"]}),
            progress=ocp.args.JsonSave({"step": step, "tokens": 2048 * step, "instances": 16}),
        ))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDescription:
    """A run whose checkpoints another process saved from eight devices."""
    path = tmp_path_factory.mktemp("eight") / "run"
    subprocess.run(
        [sys.executable, "-c", SAVE, str(path / "checkpoints")],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        check=True,
    )
    return RunDescription(
        name="run", path=path, adapter="none", model={}, tokenizer="t", vocab_size=3, eos_id=0,
        sequence_length=128, batch_instances=16, planned_steps=10, planned_passes=1,
        source_instances=20, hosts=8, loader="batch_strided", seed=0, warmup_steps=1, recipe="r",
        loss={}, data="d",
    )  # fmt: skip


def test_one_device_reads_what_eight_saved_in_its_stored_dtype(run: RunDescription):
    assert jax.device_count() == 1
    found = checkpoints.restore(checkpoints.find(run).committed[-1])
    wide, narrow = found.tree["wide"], found.tree["narrow"]
    expected = np.float32(1.001) * np.arange(64, dtype=np.float32).reshape(16, 4)
    assert isinstance(wide, np.ndarray)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, expected)
    assert narrow.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(narrow, np.full(8, 1.001).astype(ml_dtypes.bfloat16))


def test_its_steps_and_tokens_are_found(run: RunDescription):
    found = checkpoints.find(run)
    assert [(ref.step, ref.tokens) for ref in found.committed] == [(0, 0), (10, 20480)]
    assert found.unfinished == ()


def test_orbax_itself_would_take_an_empty_folder_for_a_checkpoint(run: RunDescription):
    """Why the listing asks for more than Orbax does."""
    from orbax.checkpoint.path import step

    empty = run.path / "checkpoints/20"
    empty.mkdir()
    assert step.is_path_finalized(empty)
    assert [path.name for path in checkpoints.find(run).unfinished] == ["20"]
    empty.rmdir()
