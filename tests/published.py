"""Random OLMo 3 models made by transformers, published as a folder and as our parameter tree.

Nothing of evalmon or the trainer is used to make them, so that agreement means something.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalmon.types import ModelDescription

THETA = 500_000.0


@dataclass(frozen=True)
class Shape:
    """What to make."""

    layers: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 384
    window: int = 16
    yarn: tuple[float, int] | None = None
    """Factor and original length."""

    def record(self) -> dict[str, Any]:
        """Return the model's settings as the trainer's adapter reads them."""
        yarn = None
        if self.yarn:
            factor, length = self.yarn
            yarn = {"factor": factor, "original_length": length}
        return {
            "vocab_size": self.vocab, "width": self.width, "layers": self.layers,
            "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "ffn": self.ffn, "window": self.window, "rope_theta": THETA, "yarn": yarn,
            "norm_eps": 1e-6, "init_std": 0.02, "dtype": "float32",
        }  # fmt: skip

    def config(self) -> Any:
        """Return transformers' config, every field that matters written out."""
        import transformers

        make: Any = transformers.Olmo3Config  # takes more than its annotations say
        plain: dict[str, Any] = {"rope_type": "default", "rope_theta": THETA}
        full = plain
        if self.yarn:
            full = {
                **plain, "rope_type": "yarn", "factor": self.yarn[0],
                "original_max_position_embeddings": self.yarn[1],
            }  # fmt: skip
        kinds = ["sliding_attention"] * self.layers
        kinds[3::4] = ["full_attention"] * len(kinds[3::4])
        kinds[-1] = "full_attention"
        return make(
            vocab_size=self.vocab,
            hidden_size=self.width,
            intermediate_size=self.ffn,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=1e-6,
            max_position_embeddings=int(self.yarn[0] * self.yarn[1]) if self.yarn else 128,
            rope_parameters={"sliding_attention": plain, "full_attention": full},
            sliding_window=self.window,
            layer_types=kinds,
            tie_word_embeddings=False,
            pad_token_id=None,
            eos_token_id=0,
        )


def random_model(shape: Shape, seed: int = 0) -> Any:
    """Return a model whose norms are N(1, 0.1) and matrices N(0, 0.15).

    A default initialization predicts nearly uniformly, and hides every error.
    """
    import torch
    import transformers

    model = transformers.Olmo3ForCausalLM(shape.config()).eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            mean, deviation = (1.0, 0.1) if tensor.ndim == 1 else (0.0, 0.15)
            drawn = rng.normal(mean, deviation, tuple(tensor.shape)).astype(np.float32)
            tensor.copy_(torch.from_numpy(drawn))
    return model


def parameter_tree(model: Any) -> dict[str, Any]:
    """Return its weights as our tree: names as published, matrices [inputs, outputs]."""
    tree: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        *path, last = name.removeprefix("model.").split(".")[:-1]
        value = tensor.detach().float().numpy().copy()
        leaf = "scale" if value.ndim == 1 else "embedding" if last == "embed_tokens" else "kernel"
        node = tree
        for part in (*path, last):
            node = node.setdefault(part, {})
        node[leaf] = np.ascontiguousarray(value.T) if leaf == "kernel" else value
    return tree


def write_weights(folder: Path, shape: Shape, tree: dict[str, Any], **record: Any) -> Path:
    """Write a weights folder."""
    import orbax.checkpoint as ocp

    folder.mkdir(parents=True)
    with ocp.PyTreeCheckpointer() as writer:
        writer.save((folder / "params").absolute(), tree)
    settings = {**shape.record(), **record}
    ModelDescription(folder / "model.json", "olmo3", settings, shape.vocab, 64).save()
    return folder
