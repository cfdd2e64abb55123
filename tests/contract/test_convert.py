"""Agreement of converted weights with transformers and safetensors as installed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.types import RopeParameters, Yarn, inverse_frequencies
from trainer.weights.convert import Options, convert
from trainer.weights.safetensors_files import open_tensors
from trainer.weights.shard_writer import ShardWriter

# torch and transformers warn about their own future.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("default")]

SLIDING, FULL = "sliding_attention", "full_attention"
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
SCALING = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16,
    "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.2079441541679836,
}  # fmt: skip
YARN = {"rope_theta": 10_000.0, **SCALING}


@pytest.fixture
def make() -> Callable[..., Any]:
    """Build a random model of transformers': 6 layers, the last forced full."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    def build(layers: int = 6, *, yarn: bool = True, **fields: Any) -> Any:
        torch.manual_seed(0)
        kinds = [FULL if i % 4 == 3 or i == layers - 1 else SLIDING for i in range(layers)]
        shape: dict[str, Any] = {
            "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
            "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 16,
        }  # fmt: skip
        config = transformers.Olmo3Config(
            **{**shape, **fields},
            num_hidden_layers=layers,
            layer_types=kinds,
            rms_norm_eps=1e-6,
            max_position_embeddings=128,
            eos_token_id=5,
            pad_token_id=7,
            tie_word_embeddings=False,
            rope_parameters={SLIDING: dict(PLAIN), FULL: dict(YARN if yarn else PLAIN)},
        )
        model = transformers.Olmo3ForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            spread = 0.1 if "norm" in name else 0.15
            torch.nn.init.normal_(parameter, float("norm" in name), spread)
        return model

    return build


def _load(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    model, notes = transformers.Olmo3ForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    assert not any(notes.values()), notes
    return model.eval()


def _assert_same(one: Any, other: Any) -> None:
    """Assert that two models have the same weights, frequencies and logits, bit for bit."""
    torch = pytest.importorskip("torch")
    ours, theirs = one.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name
    for kind in (SLIDING, FULL):
        mine, their = _frequencies(one, kind), _frequencies(other, kind)
        np.testing.assert_array_equal(mine[0], their[0])
        assert mine[1] == their[1]
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 96, (2, 80)))
    with torch.no_grad():
        assert torch.equal(one(tokens).logits, other(tokens).logits)


def _frequencies(model: Any, kind: str) -> tuple[Any, float]:
    """Return what a model's rotary embedding uses in layers of one type."""
    rotary = model.model.rotary_emb
    frequencies = getattr(rotary, f"{kind}_inv_freq").detach().numpy()
    return frequencies, getattr(rotary, f"{kind}_attention_scaling")


def _assert_olmo3_rope(model: Any, head_dim: int) -> None:
    """Assert that YaRN is in full layers alone, as the oracle computes it."""
    yarn = Yarn(8.0, 16, 32.0, 1.0, 1.2079441541679836)
    for kind, rope in (
        (SLIDING, RopeParameters(10_000.0)),
        (FULL, RopeParameters(10_000.0, yarn)),
    ):
        frequencies, scale = _frequencies(model, kind)
        expected, expected_scale = inverse_frequencies(head_dim, rope)
        np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
        assert scale == pytest.approx(expected_scale, rel=1e-12)


@pytest.mark.parametrize("shard", ["10GB", "20KB"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_of_transformers_comes_back_the_same(
    tmp_path: Path, make: Callable[..., Any], shard: str, dtype: str
) -> None:
    torch = pytest.importorskip("torch")
    make().to(getattr(torch, dtype)).save_pretrained(tmp_path / "hf", max_shard_size=shard)
    model = _load(tmp_path / "hf")  # in memory, a cast takes the frequencies with it
    convert(tmp_path / "hf", tmp_path / "weights", Options())
    convert(tmp_path / "weights", tmp_path / "back", Options(max_shard_size=shard))
    many = len(list((tmp_path / "back").glob("*.safetensors"))) > 1
    assert many is (shard == "20KB")
    back = _load(tmp_path / "back")
    _assert_same(back, model)
    _assert_olmo3_rope(back, 8)
    settings = ("eos_token_id", "pad_token_id", "sliding_window", "layer_types", "rms_norm_eps")
    for name in (*settings, "rope_parameters", "max_position_embeddings", "dtype"):
        assert getattr(back.config, name) == getattr(model.config, name), name
    assert back.generation_config.eos_token_id == model.generation_config.eos_token_id


@pytest.mark.parametrize("scan", [True, False])
def test_through_maxtext_it_comes_back_the_same(
    tmp_path: Path, make: Callable[..., Any], *, scan: bool
) -> None:
    model = make(8, yarn=False)
    model.save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "mt", Options(to="maxtext", scan=scan))
    convert(tmp_path / "mt", tmp_path / "weights", Options())
    convert(tmp_path / "weights", tmp_path / "back", Options())
    _assert_same(_load(tmp_path / "back"), model)


def test_heads_wider_than_the_model_are_loaded(tmp_path: Path, make: Callable[..., Any]) -> None:
    """As in olmo3-1m, where ``head_dim`` does not follow from the other fields."""
    model = make(4, hidden_size=12, head_dim=4)
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (16, 12)
    model.save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "back", Options(to="hf"))
    back = _load(tmp_path / "back")
    _assert_same(back, model)
    _assert_olmo3_rope(back, 4)


@pytest.mark.parametrize("form", ["legacy", "flat"])
def test_older_rotary_settings_are_exported_so_that_transformers_reads_them(
    tmp_path: Path, make: Callable[..., Any], form: str
) -> None:
    """transformers 5.24 takes flat YaRN for none, and a legacy theta for full layers alone."""
    model = make()
    model.save_pretrained(tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    record = json.loads(file.read_text())
    del record["rope_parameters"]
    if form == "legacy":
        record |= {"rope_theta": 10_000.0, "rope_scaling": SCALING}
    else:
        record["rope_parameters"] = YARN
    file.write_text(json.dumps(record))
    convert(tmp_path / "hf", tmp_path / "back", Options(to="hf"))
    back = _load(tmp_path / "back")
    _assert_same(back, model)
    _assert_olmo3_rope(back, 8)


def test_a_tied_model_of_transformers_becomes_untied_and_computes_the_same(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    torch = pytest.importorskip("torch")
    model = make()
    model.lm_head.weight = model.model.embed_tokens.weight
    model.config.tie_word_embeddings = True
    model.save_pretrained(tmp_path / "hf")
    facts = convert(tmp_path / "hf", tmp_path / "back", Options(to="hf"))
    back = _load(tmp_path / "back")
    assert back.config.tie_word_embeddings is False
    assert torch.equal(back.lm_head.weight, model.model.embed_tokens.weight)
    _assert_same(back, model)
    assert facts["assumed"]


def test_the_safetensors_library_reads_what_we_write_and_we_what_it_writes(tmp_path: Path) -> None:
    safetensors_torch = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "odd": torch.randn(3, generator=generator).to(torch.bfloat16),
        "half": torch.randn(5, generator=generator).to(torch.float16),
        "wide": torch.randn(4, 6, generator=generator),
        "double": torch.randn(2, 2, generator=generator).to(torch.float64),
    }
    safetensors_torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    theirs = {name: stored.read() for name, stored in open_tensors(tmp_path)[0].items()}
    out = tmp_path / "ours"
    out.mkdir()
    writer = ShardWriter(out, {n: (a.dtype, a.shape) for n, a in theirs.items()}, 10**9)
    for name, array in theirs.items():
        writer.write(name, array)
    ours = safetensors_torch.load_file(out / "model.safetensors")
    assert sorted(ours) == sorted(tensors)
    for name, tensor in tensors.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor)
