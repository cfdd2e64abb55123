"""Published weights: each one of them or none, and a library that gets OLMo 3 wrong is refused."""

import builtins
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import CheckpointError, ConfigError, EvaluationError
from evalmon.parity import huggingface
from evalmon.parity.huggingface import open_huggingface
from tests.published import Shape, random_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch and transformers warn about their own future
]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPE = Shape(layers=2, width=16, heads=2, kv_heads=1, head_dim=8, ffn=16, vocab=40, window=4)
MODEL = "transformers.models.olmo3.modeling_olmo3"


def silent(_: str) -> None: ...


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model in three shards."""
    folder = tmp_path_factory.mktemp("published") / "hf"
    random_model(SHAPE).save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("model-*.safetensors"))) >= 2
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "hf")
    return tmp_path / "hf"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write all tensors again into one file, changed."""
    from safetensors.torch import load_file, save_file

    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def configure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    record = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in record.items() if v != "absent"}))


def test_log_probabilities_are_transformers_own_in_float32(folder: Path) -> None:
    reference = open_huggingface(folder, silent)
    ids = np.random.default_rng(0).integers(0, 40, 24).tolist()
    between = reference.read(0, ids)
    positions = np.concatenate([between(0, 10)[0], between(10, 99)[0]])
    rows = np.concatenate([between(0, 10)[1], between(10, 99)[1]])
    assert positions.tolist() == list(range(24))
    assert rows.dtype == np.float32
    with torch.no_grad():
        logits = random_model(SHAPE)(torch.tensor([ids])).logits[0]
    assert np.abs(rows - torch.log_softmax(logits.double(), -1).numpy()).max() < 1e-5
    facts = reference.facts
    assert (facts.form, facts.vocab_size, facts.window) == ("huggingface", 40, 4)
    assert facts.stored_dtype == "float32"
    assert set(facts.versions) == {"transformers", "torch"}
    assert len(facts.config_hash) == len(reference.weights_hash()) == 64


def test_weights_stored_in_bfloat16_are_said_and_run_in_float32(folder: Path) -> None:
    rewrite(folder, lambda ts: {n: t.to(torch.bfloat16) for n, t in ts.items()})
    reference = open_huggingface(folder, silent)
    assert reference.facts.stored_dtype == "bfloat16"
    rows = reference.read(0, [1, 2, 3])(0, 3)[1]
    exact = random_model(SHAPE)
    with torch.no_grad():
        for tensor in exact.parameters():
            tensor.copy_(tensor.to(torch.bfloat16))
        expected = torch.log_softmax(exact(torch.tensor([[1, 2, 3]])).logits[0], -1).numpy()
    assert np.abs(rows - expected).max() < 1e-5


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": "absent", "rope_theta": 500000.0, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"layer_types": "absent"},
    ],
)
def test_settings_the_library_would_misread_are_written_out_for_it(
    folder: Path, rope: dict[str, Any]
) -> None:
    ids = list(range(24))
    before = open_huggingface(folder, silent).read(0, ids)(0, 24)[1]
    configure(folder, **rope)
    after = open_huggingface(folder, silent).read(0, ids)(0, 24)[1]
    np.testing.assert_array_equal(before, after)


def test_long_texts_are_not_run_eagerly_and_agree(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(0).integers(0, 40, 64).tolist()
    said: list[str] = []
    eager = open_huggingface(folder, said.append).read(0, ids)(0, 64)[1]
    assert not [line for line in said if "sdpa" in line]
    monkeypatch.setattr(huggingface, "_EAGER_BYTES", 1000)
    fused = open_huggingface(folder, said.append).read(0, ids)(0, 64)[1]
    assert "reference attention by sdpa" in said[-1]
    assert np.abs(eager - fused).max() < 1e-5


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "all names prefixed wrongly": (
        lambda ts: {f"module.{n}": t for n, t in ts.items()},
        r"missing .*'lm_head.weight'.*unknown .*'module.lm_head.weight'",
    ),
    "no head": (
        lambda ts: {n: t for n, t in ts.items() if n != "lm_head.weight"},
        r"missing \['lm_head.weight'\]",
    ),
    "one layer's norm lost": (
        lambda ts: {n: t for n, t in ts.items() if "1.self_attn.q_norm" not in n},
        r"missing \['model.layers.1.self_attn.q_norm.weight'\]",
    ),
    "a bias": (
        lambda ts: {**ts, "model.layers.0.self_attn.q_proj.bias": torch.zeros(16)},
        r"unknown \['model.layers.0.self_attn.q_proj.bias'\]",
    ),
    "whole numbers": (
        lambda ts: {**ts, "lm_head.weight": torch.zeros(40, 16, dtype=torch.int32)},
        r"lm_head.weight has dtype I32; expected one of F64, F32",
    ),
    "a head of another size": (
        lambda ts: {**ts, "lm_head.weight": torch.zeros(41, 16)},
        r"misshaped \[.*'lm_head.weight'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_weight_is_ever_left_at_random_values(folder: Path, change: str) -> None:
    rewrite(folder, CHANGES[change][0])
    with pytest.raises(CheckpointError, match=CHANGES[change][1]):
        open_huggingface(folder, silent)


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(folder: Path) -> None:
    configure(folder, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="both are stored and differ"):
        open_huggingface(folder, silent)
    ids = [1, 2, 3]
    rewrite(folder, lambda ts: {**ts, "lm_head.weight": ts["model.embed_tokens.weight"].clone()})
    both = open_huggingface(folder, silent).read(0, ids)(0, 3)[1]
    rewrite(folder, lambda ts: {n: t for n, t in ts.items() if n != "lm_head.weight"})
    np.testing.assert_array_equal(both, open_huggingface(folder, silent).read(0, ids)(0, 3)[1])


FAULTS = (
    *("cut", "lost", "not listed", "no index", "index torn", "index elsewhere", "index of numbers"),
    *("index empty", "both forms", "generation settings"),
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_torn_or_lost_file_is_named(folder: Path, fault: str) -> None:
    first, last = (f := sorted(folder.glob("model-*.safetensors")))[0], f[-1]
    index = folder / "model.safetensors.index.json"
    match fault:
        case "cut":
            last.write_bytes(last.read_bytes()[:-64])
            says = last.name
        case "lost":
            last.unlink()
            says = last.name
        case "not listed":
            shutil.copy(first, last)
            says = f"{last.name}: lacks"
        case "index torn":
            index.write_text(index.read_text()[:40])
            says = f"{index.name}: not a list of weights"
        case "index elsewhere" | "index of numbers" | "index empty":
            named = {"index elsewhere": f"../{folder.name}/{last.name}", "index of numbers": 3}
            weight_map = {"a": named[fault]} if fault in named else {}
            index.write_text(json.dumps({"weight_map": weight_map}))
            says = f"{index.name}: not a list of weights"
        case "both forms":
            shutil.copy(first, folder / "model.safetensors")
            says = "holds both model.safetensors and"
        case "generation settings":
            (folder / "generation_config.json").write_text("[]")
            says = "cannot be loaded"
        case _:
            index.unlink()
            says = "neither model.safetensors nor"
    with pytest.raises(CheckpointError, match=says):
        open_huggingface(folder, silent)


def patched(monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Any], Any]) -> None:
    """Replace something of transformers' OLMo 3 by what ``make`` makes of it."""
    target, _, attribute = name.rpartition(".")
    owner: Any = sys.modules[MODEL]
    for part in target.split(".") if target else []:
        owner = getattr(owner, part)
    monkeypatch.setattr(owner, attribute, make(getattr(owner, attribute)))


def always(kind: str) -> Callable[[Any], Any]:
    """Rotate every layer as that type is rotated."""
    return lambda forward: lambda self, x, ids, layer_type=None: forward(self, x, ids, kind)


BAD: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "every layer scaled": (
        "Olmo3RotaryEmbedding.forward", always("full_attention"),
        r"eager attention: layer 0 .*: rotates by \[1, 0.0047.* \[1.20794\], right are \[1, 0.037",
    ),
    "no layer scaled": (
        "Olmo3RotaryEmbedding.forward", always("sliding_attention"),
        r"layer 3 \(full_attention\): rotates by \[1, 0.037606, .* right are \[1, 0.00470075, ",
    ),
    "no attention factor": (
        "Olmo3RotaryEmbedding.forward",
        lambda forward: lambda *a, **k: tuple(part.clamp(-1, 1) for part in forward(*a, **k)),
        r"layer 3 \(full_attention\): rotates by",
    ),
    "positions from 1": (
        "Olmo3RotaryEmbedding.forward",
        lambda forward: lambda self, x, ids, layer_type=None: forward(self, x, ids + 1, layer_type),
        r"layer 0 \(sliding_attention\): rotates by",
    ),
    "no window": (
        "create_sliding_window_causal_mask",
        lambda _: sys.modules[MODEL].create_causal_mask,
        r"layer 0 \(sliding_attention\): the query at 8 sees the token at 0; .* say 8 tokens",
    ),
    "full layers slide": (
        "create_causal_mask",
        lambda _: sys.modules[MODEL].create_sliding_window_causal_mask,
        r"layer 3 \(full_attention\): the query at 8 does not see the token at 0",
    ),
    "another eps": (
        "Olmo3RMSNorm.__init__",
        lambda init: lambda self, size, eps=1e-6: init(self, size, 1e-5),
        "adds eps 1e-05, its settings say 1e-06",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_library_that_gets_olmo_3_wrong_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    name, make, says = BAD[fault]
    patched(monkeypatch, name, make)
    with pytest.raises(EvaluationError, match=says) as caught:
        open_huggingface(folder, silent)
    assert f"transformers {transformers.__version__}" in str(caught.value)
    assert 'pip install --upgrade "transformers>=5.24"' in str(caught.value)


def test_the_last_layer_of_six_is_probed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that ignores the written layer types, but gets the four-layer probe right."""
    random_model(Shape(layers=6, width=16, heads=2, kv_heads=1, head_dim=8, ffn=16, vocab=40)
                 ).save_pretrained(tmp_path)  # fmt: skip

    def by_default(init: Any) -> Any:
        def with_default_types(self: Any, config: Any, *rest: Any) -> None:
            kinds = ["sliding_attention", "full_attention"]
            config.layer_types = [kinds[(i + 1) % 4 == 0] for i in range(config.num_hidden_layers)]
            init(self, config, *rest)

        return with_default_types

    patched(monkeypatch, "Olmo3Model.__init__", by_default)
    with pytest.raises(EvaluationError, match=r"small twin.*layer 5 \(full_attention\)"):
        open_huggingface(tmp_path, silent)


def test_without_the_libraries_the_install_command_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'evalmon\[parity\]'"):
        open_huggingface(folder, silent)
