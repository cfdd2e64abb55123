import json
import math
import os
import subprocess
import sys
from typing import Any

import jax
import pytest

from evalmon.errors import ConfigError
from trainer.config import TrainSettings
from trainer.model import parameter_shapes
from trainer.plan import Plan, plan_run, planned, summary
from trainer.presets import OLMO3_VOCAB, PRESETS, parameter_count, preset
from trainer.recipes import recipe
from trainer.sharding import MeshShape, parse_mesh

COUNT = parameter_count(preset("tiny", OLMO3_VOCAB))


def _settings(**changes: Any) -> TrainSettings:
    sizes = {"preset": "tiny", "batch_instances": 8, "sequence_length": 64, "dtype": "float32"}
    read = {"hosts": 1, "loader": "batch_strided"}
    values: dict[str, Any] = {**recipe("olmo3-7b-stage1").settings, **read, **sizes}
    return TrainSettings(**{**values, **changes})


def _kept(mesh: str = "data=1", **changes: Any) -> int:
    from trainer.plan import _saved_bytes  # pyright: ignore[reportPrivateUsage]  shown alone

    # Long enough that logits are never kept, whatever the rows.
    return _saved_bytes(Plan(_settings(sequence_length=512, **changes), parse_mesh(mesh)))


def _plan(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    command = [sys.executable, "-m", "trainer", "plan", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def on_one_device() -> dict[str, Any]:
    told: list[str] = []
    facts = plan_run(Plan(_settings(), MeshShape()), told.append)
    assert told[-1] == "compilation for 1 devices"
    return facts


@pytest.mark.slow
def test_one_device_holds_everything(on_one_device: dict[str, Any]) -> None:
    facts = on_one_device
    assert facts["parameters"] == COUNT
    assert facts["parameter_bytes_per_device"] == facts["gradient_bytes_per_device"] == 4 * COUNT
    rest = facts["optimizer_bytes_per_device"] - 8 * COUNT
    assert 0 < rest < 10_000
    assert sum(tensor["bytes_per_device"] for tensor in facts["tensors"]) == 4 * COUNT
    batch = 8 * 64 * 4
    arguments = facts["compiled"]["argument_bytes"]
    assert arguments == pytest.approx(12 * COUNT + rest + batch, abs=64)
    assert facts["compiled"]["temporary_bytes"] > facts["activation_bytes_per_device"]
    assert not [note for note in facts["notes"] if "CPU" in note]


@pytest.mark.slow
def test_the_flops_are_those_of_the_conventions(on_one_device: dict[str, Any]) -> None:
    assert set(on_one_device["flops_per_step"]) == {"maxtext", "swa_aware", "olmo_core"}
    for name, flops in on_one_device["flops_per_step"].items():
        assert flops == on_one_device["flops_per_token"][name] * 8 * 64


@pytest.mark.slow
def test_every_tensor_is_described(on_one_device: dict[str, Any]) -> None:
    shapes = parameter_shapes(preset("tiny", OLMO3_VOCAB))
    names = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(shapes)
    }
    assert {tensor["name"] for tensor in on_one_device["tensors"]} == names
    assert all(len(t["spec"]) == len(t["shape"]) for t in on_one_device["tensors"])
    assert all(t["dtype"] == "float32" for t in on_one_device["tensors"])


@pytest.mark.slow
def test_a_plan_is_plain_values_and_has_a_summary(on_one_device: dict[str, Any]) -> None:
    assert json.loads(json.dumps(on_one_device)) == on_one_device
    lines = summary(on_one_device)
    assert lines[0] == f"tiny: {COUNT:,} parameters on 1 devices"
    assert len(lines) == 8 + len(on_one_device["tensors"]) + len(on_one_device["notes"])


def test_a_policy_that_keeps_less_needs_less() -> None:
    kept = [_kept(remat=policy) for policy in ("none", "dots", "projections", "full")]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == len(kept)
    # What enters each of 4 layers, the final norm and the head: 8 instances of 512 by 128.
    assert 4 < kept[-1] / (8 * 512 * 128 * 4) < 12


def test_rows_and_heads_are_shared_out_and_bfloat16_takes_less() -> None:
    whole = _kept(remat="dots")
    assert _kept("data=2,fsdp=2", remat="dots") == pytest.approx(whole / 4, rel=0.1)
    assert _kept(remat="dots", accumulate=4) == pytest.approx(whole / 4, rel=0.1)
    assert whole / 2 < _kept("tensor=2", remat="dots") < whole
    assert whole / 2 < _kept(remat="dots", dtype="bfloat16") < whole


@pytest.mark.parametrize(
    ("mesh", "options", "says"),
    [
        ("data=3", {}, "data x fsdp = 3 does not divide the (micro-)batch of 512; the nearest"),
        ("data=8", {"accumulate": 128}, "data x fsdp = 8 does not divide"),
        ("tensor=64", {"preset": "olmo3-32b"}, "tensor=64 does not divide the model's heads 40"),
        ("tensor=16", {"preset": "olmo3-32b", "heads": 48, "kv_heads": 8}, "kv_heads 8"),
        ("data=4096", {}, "4096 devices, but at most 2048 are simulated; lower data"),
        ("date=2", {}, "'date=2' is not AXIS=SIZE"),
        ("data=2", {"preset": "olmo3-7"}, "nearest is 'olmo3-7b'"),
        ("data=2", {"remat": "ful"}, "nearest is 'full'"),
        ("data=2", {"dtype": "float23"}, "'float23'"),
        ("data=2", {"recipe_name": "olmo3-7b-stage3"}, "no such recipe"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_anything_is_compiled(
    mesh: str, options: dict[str, Any], says: str
) -> None:
    told: list[str] = []
    given = {"preset": "olmo3-7b", "recipe_name": "olmo3-7b-stage1", **options}
    with pytest.raises(ConfigError) as error:
        planned(mesh, given, told.append)
    assert says in str(error.value)
    assert not told


@pytest.mark.slow
def test_eight_devices_share_out_what_one_holds(on_one_device: dict[str, Any]) -> None:
    words = ["--preset", "tiny", "--batch", "8", "--sequence-length", "64", "--dtype", "float32"]
    done = _plan(*words, "--mesh", "data=2,fsdp=2,tensor=2", "--scan", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert "compilation for 8 devices" in done.stderr
    assert (facts["devices"], facts["parameters"]) == (8, COUNT)
    for tensor in facts["tensors"]:
        parts = 4 if "scale" not in tensor["name"] else 1
        assert tensor["bytes_per_device"] == 4 * math.prod(tensor["shape"]) / parts
    one = on_one_device
    for name in ("parameter", "optimizer"):
        share = facts[f"{name}_bytes_per_device"] / one[f"{name}_bytes_per_device"]
        assert 0.25 <= share < 0.26
    assert facts["flops_per_step"] == one["flops_per_step"]
    assert facts["compiled"]["argument_bytes"] < 0.26 * one["compiled"]["argument_bytes"]


@pytest.mark.slow
def test_7b_on_512_devices_is_planned_here() -> None:
    done = _plan("--preset", "olmo3-7b", "--mesh", "data=64,fsdp=8", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["devices"], facts["tokens_per_step"]) == (512, 4_194_304)
    assert facts["parameters"] == parameter_count(PRESETS["olmo3-7b"](OLMO3_VOCAB))
    assert facts["parameter_bytes_per_device"] == pytest.approx(
        facts["parameters"] * 4 / 8, rel=1e-3
    )
    assert round(facts["flops_per_step"]["swa_aware"] / 4_194_304 / 1e9, 3) == 46.555
    # What enters each of the 32 layers, in bfloat16, and a little around them.
    kept = facts["activation_bytes_per_device"]
    assert 1 <= kept / (32 * 8192 * 4096 * 2) < 1.5
    assert any("float32" in note and "CPU" in note for note in facts["notes"])


@pytest.mark.slow
def test_a_mesh_that_does_not_fit_ends_with_2() -> None:
    done = _plan("--preset", "tiny", "--mesh", "tensor=8", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --mesh: tensor=8 does not divide the model's heads 4")
