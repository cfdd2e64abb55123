"""Parity as users run it: published weights, converted, compared, stored, compared again."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evalmon.checkpoints import open_weights
from tests.published import Shape, parameter_tree, random_model, write_weights

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch and transformers warn about their own future
]
pytest.importorskip("torch")
pytest.importorskip("transformers")

SHAPE = Shape(layers=6, kv_heads=2, yarn=(8.0, 16))
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}

NO_TORCH = """
import sys
from evalmon.cli import main
try:
    main()
except SystemExit as ended:
    loaded = {"torch", "transformers"} & set(sys.modules)
    sys.exit(f"{loaded} were imported" if loaded else ended.code)
"""

FROM_EIGHT = """
import sys, jax, numpy as np, orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
assert jax.device_count() == 8
mesh = Mesh(np.array(jax.devices()), ("d",))
tree = {}
for name, value in np.load(sys.argv[1]).items():
    *path, last = name.split("/")
    node = tree
    for part in path:
        node = node.setdefault(part, {})
    split = PartitionSpec("d") if value.shape[0] % 8 == 0 else PartitionSpec()
    node[last] = jax.device_put(value, NamedSharding(mesh, split))
with ocp.PyTreeCheckpointer() as writer:
    writer.save(sys.argv[2], tree)
"""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


def run(*command: object, env: dict[str, str] | None = None) -> Ended:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        check=False,
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **(env or {})},
        timeout=300,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def parity(reference: Path, model: Path, *options: object) -> Ended:
    return run("-m", "evalmon", "parity", "--reference", reference, "--model", model, *options)


@dataclass(frozen=True)
class Place:
    """A published model, what became of it, and the outcome of the first comparison."""

    published: Path
    converted: Path
    stored: Path
    tree: dict[str, Any]
    first: Ended


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("parity")
    model = random_model(SHAPE)
    model.save_pretrained(root / "hf")
    converted = run("-m", "trainer", "convert", root / "hf", root / "weights")
    assert converted.code == 0, converted.err
    stored = root / "golden.npz"
    first = parity(root / "hf", root / "weights", "--json", "--save-reference", stored)
    return Place(root / "hf", root / "weights", stored, parameter_tree(model), first)


def test_converted_weights_pass_against_the_published_ones(place: Place) -> None:
    assert place.first.code == 0, place.first.err
    assert len(place.first.out.splitlines()) == 1
    record = place.first.record
    assert record["passed"] is True
    assert (record["criterion"], record["threshold"]) == ("max_kl", 1e-6)
    assert 0 <= record["mean_kl"] <= record["max_kl"] <= 1e-8
    assert record["max_logprob_diff"] <= 1e-4
    assert record["topk_agreement"] == 1.0
    assert (record["positions"], record["window"], record["top_k"]) == (128, 16, 10)
    assert record["prompts"] == {"source": "random", "count": 2, "tokens": [64, 64], "seed": 0}
    assert (record["dtype"], record["stored_dtype"]) == ("float32", "float32")
    assert record["casts"] == {"model": None, "reference": None}
    assert record["vocabulary"] == {"compared": 384, "model": 384, "reference": 384}
    assert record["warnings"] == []
    assert record["saved_reference"] == {
        "path": str(place.stored), "positions": 128, "of_positions": 128,
    }  # fmt: skip
    reference = record["reference"]
    assert (reference["form"], reference["dtype"]) == ("huggingface", "float32")
    assert set(reference["versions"]) == {"transformers", "torch"}
    assert "parity passed" in place.first.err


def test_a_stored_reference_is_checked_again_without_torch(place: Place) -> None:
    again = run(
        "-c", NO_TORCH, "parity", "--reference", place.stored, "--model", place.converted, "--json"
    )
    assert again.code == 0, again.err
    for name in ("max_kl", "mean_kl", "max_logprob_diff", "topk_agreement", "worst", "window"):
        assert again.record[name] == place.first.record[name]
    reference = again.record["reference"]
    assert (reference["form"], reference["stored_in"]) == ("stored", str(place.stored))
    assert reference["path"] == str(place.published)
    assert len(reference["weights_hash"]) == 64
    assert reference["config_hash"] == place.first.record["reference"]["config_hash"]


def test_one_perturbed_weight_is_found_and_where_to_look_is_said(
    place: Place, tmp_path: Path
) -> None:
    tree = jax.tree.map(np.copy, place.tree)
    tree["layers"]["2"]["self_attn"]["q_proj"]["kernel"][3, 5] += 0.05
    wrong = write_weights(tmp_path / "wrong", SHAPE, tree)
    for reference in (place.published, place.stored):
        ended = parity(reference, wrong)
        assert ended.code == 1, ended.err
        assert ended.out.startswith("parity FAILED: max KL ")
        assert "next: the first position agrees, later ones inside the window do not" in ended.out
    ended = parity(place.stored, wrong, "--json", "--max-kl", "10")
    assert (ended.code, ended.record["threshold"]) == (0, 10.0)
    assert ended.record["max_kl"] > 1e-6


def test_weights_saved_from_eight_devices_are_the_same_and_their_cast_is_said(
    place: Place, tmp_path: Path
) -> None:
    """Bit for bit on one device; in bfloat16 1.001 would be 1, so that is said."""
    tree = jax.tree.map(np.copy, place.tree)
    tree["norm"]["scale"][:] = np.float32(1.001)
    named = {
        "/".join(str(part.key) for part in path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    np.savez(tmp_path / "tree.npz", allow_pickle=False, **named)
    folder = tmp_path / "weights"
    folder.mkdir()
    shutil.copy(place.converted / "model.json", folder)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    saved = run("-c", FROM_EIGHT, tmp_path / "tree.npz", folder / "params", env=flags)
    assert saved.code == 0, saved.err
    assert jax.device_count() == 1
    found = open_weights(folder)[1].tree
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found))
    jax.tree.map(np.testing.assert_array_equal, dict(found), tree)
    assert found["norm"]["scale"].dtype == np.float32
    assert (found["norm"]["scale"] == np.float32(1.001)).all()
    ended = parity(place.stored, folder, "--dtype", "bfloat16", "--mean-kl", "1", "--json")
    assert ended.code == 0, ended.err
    assert ended.record["casts"]["model"] == "float32 -> bfloat16"
    assert (ended.record["dtype"], ended.record["stored_dtype"]) == ("bfloat16", "float32")


def test_bfloat16_passes_by_its_mean(place: Place) -> None:
    ended = parity(place.stored, place.converted, "--dtype", "bfloat16")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("parity passed: mean KL ")
    assert "at most 0.0015" in ended.out
    assert "cast, model: float32 -> bfloat16" in ended.out


def test_prompts_within_the_window_leave_a_warning(place: Place, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text('{"tokens": [1, 2, 3]}\n{"tokens": [4, 5]}\n')
    ended = parity(
        place.published, place.converted, "--prompts", tmp_path / "prompts", "--json"
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.record["prompts"]["tokens"] == [3, 2]
    assert "warning: sliding attention is untested" in ended.err
    assert len(ended.record["warnings"]) == 1


def damaged(place: Place, folder: Path, **changes: Any) -> Path:
    """Copy the published model; change its settings, or cut its weights."""
    shutil.copytree(place.published, folder)
    if changes:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    else:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
    return folder


@pytest.mark.parametrize(
    "bad", ["no folder", "no model", "cut", "another model", "id outside", "empty", "text"]
)
def test_bad_input_is_one_line(place: Place, tmp_path: Path, bad: str) -> None:
    reference, model, lines = place.published, place.converted, ""
    match bad:
        case "no folder":
            reference, says = tmp_path / "absent", "absent: no such folder or file"
        case "no model":
            model, says = place.published, "published weights; make a weights folder of them first"
        case "cut":
            reference = damaged(place, tmp_path / "hf")
            says = "model.safetensors: cannot be read"
        case "another model":
            reference = damaged(place, tmp_path / "hf", architectures=["Olmo2ForCausalLM"])
            says = "architecture ['Olmo2ForCausalLM']"
        case "id outside":
            lines, says = '{"tokens": [5, 384]}', "prompt 0 has token id 384 at position 1"
        case "empty":
            lines, says = '{"tokens": []}', "prompts:1: an empty prompt"
        case _:
            lines, says = "hello", "prompts:1: a text needs a tokenizer"
    options: list[object] = []
    if lines:
        (tmp_path / "prompts").write_text(lines)
        options = ["--prompts", tmp_path / "prompts"]
    ended = parity(reference, model, *options, "--json")
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert "Traceback" not in ended.err
    assert [line for line in ended.err.splitlines() if line.startswith("Error: ")] == (
        ended.err.splitlines()[-1:]
    )
    assert says in ended.err.splitlines()[-1]
