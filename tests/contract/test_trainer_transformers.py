"""Agreement of the model with transformers' Olmo3ForCausalLM in float32."""

from typing import Any

import jax
import numpy as np
import pytest

from trainer.model import Olmo3Config, bind, initialize

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CONFIG = Olmo3Config(
    vocab_size=96, width=32, layers=5, heads=4, kv_heads=2, head_dim=8, ffn=48, window=6
)


def _published_names(parameters: dict[str, Any]) -> dict[str, np.ndarray]:
    """Rename to the published tensors; matrices there are [outputs, inputs]."""
    names: dict[str, np.ndarray] = {}

    def walk(tree: dict[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            elif key == "kernel":
                names[f"{prefix}weight"] = np.asarray(value).T
            else:
                names[f"{prefix}weight"] = np.asarray(value)

    walk(parameters, "")
    return {n if n.startswith("lm_head") else f"model.{n}": v for n, v in names.items()}


@pytest.fixture(scope="module")
def parameters() -> dict[str, Any]:
    """Weights large enough for sharp attention, and norm weights that are not constant."""
    rng = np.random.default_rng(0)
    drawn = jax.tree.map(lambda p: np.asarray(p) * 15, initialize(CONFIG, 0))
    return jax.tree.map(
        lambda p: p if p.ndim == 2 else rng.uniform(0.5, 1.5, p.shape).astype(np.float32), drawn
    )


@pytest.mark.filterwarnings("default")  # torch and transformers warn about their own future
def test_log_probabilities_agree_beyond_the_window(parameters: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    rope = {"rope_type": "default", "rope_theta": CONFIG.rope_theta}
    kinds = ["full_attention" if CONFIG.sees_all(i) else "sliding_attention" for i in range(5)]
    peer = transformers.Olmo3ForCausalLM(
        transformers.Olmo3Config(
            vocab_size=CONFIG.vocab_size,
            hidden_size=CONFIG.width,
            intermediate_size=CONFIG.ffn,
            num_hidden_layers=CONFIG.layers,
            num_attention_heads=CONFIG.heads,
            num_key_value_heads=CONFIG.kv_heads,
            rms_norm_eps=CONFIG.norm_eps,
            max_position_embeddings=64,
            rope_parameters={"sliding_attention": rope, "full_attention": rope},
            sliding_window=CONFIG.window,
            layer_types=kinds,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    ).eval()
    state = {n: torch.from_numpy(v.copy()) for n, v in _published_names(parameters).items()}
    peer.load_state_dict(state, strict=True)
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (2, 40))
    with torch.no_grad():
        theirs = torch.log_softmax(peer(torch.from_numpy(tokens)).logits.float(), -1).numpy()
    forward = jax.jit(lambda p, t: jax.nn.log_softmax(bind(CONFIG, p)(t)))
    ours = np.asarray(forward(parameters, tokens))
    assert np.abs(ours - theirs).max(axis=(0, 2)).max() < 1e-4
    assert theirs.std() > 0.5
