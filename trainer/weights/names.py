"""Published tensor names of OLMo 3, their axes, and where our tree has them.

Source: transformers ``models/olmo3/modeling_olmo3.py``.
"""

from typing import Final, TypeAlias

from trainer.architecture import Olmo3Config

__all__ = [
    "EMBEDDING",
    "HEAD",
    "Axes",
    "axes_of",
    "axis_sizes",
    "is_transposed",
    "published_axes",
    "published_shapes",
    "tree_path",
]

Axes: TypeAlias = tuple[str, ...]
"""Names of a tensor's axes: what decides their lengths."""

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"

_LAYER: Final[dict[str, Axes]] = {
    "self_attn.q_proj": ("queries", "width"),
    "self_attn.k_proj": ("keys", "width"),
    "self_attn.v_proj": ("keys", "width"),
    "self_attn.o_proj": ("width", "queries"),
    "self_attn.q_norm": ("queries",),
    "self_attn.k_norm": ("keys",),
    "mlp.gate_proj": ("ffn", "width"),
    "mlp.up_proj": ("ffn", "width"),
    "mlp.down_proj": ("width", "ffn"),
    "post_attention_layernorm": ("width",),
    "post_feedforward_layernorm": ("width",),
}
_ROWS: Final[Axes] = ("vocab_size", "width")


def axes_of(part: str) -> Axes:
    """Return the axes of a layer's tensor in published orientation.

    Example:
        >>> axes_of("mlp.down_proj")
        ('width', 'ffn')
    """
    return _LAYER[part]


def published_axes(layers: int) -> dict[str, Axes]:
    """Return the axes of every tensor by published name, in the order of the model.

    Example:
        >>> published_axes(1)["model.layers.0.self_attn.k_norm.weight"]
        ('keys',)
        >>> len(published_axes(32))
        355
    """
    names: dict[str, Axes] = {EMBEDDING: _ROWS}
    for layer in range(layers):
        names |= {f"model.layers.{layer}.{part}.weight": axes for part, axes in _LAYER.items()}
    return names | {"model.norm.weight": ("width",), HEAD: _ROWS}


def axis_sizes(config: Olmo3Config) -> dict[str, int]:
    """Return the length of each axis."""
    return {
        "vocab_size": config.vocab_size,
        "width": config.width,
        "queries": config.heads * config.head_dim,
        "keys": config.kv_heads * config.head_dim,
        "ffn": config.ffn,
    }


def published_shapes(config: Olmo3Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by published name."""
    sizes = axis_sizes(config)
    return {
        name: tuple(sizes[axis] for axis in axes)
        for name, axes in published_axes(config.layers).items()
    }


def is_transposed(name: str) -> bool:
    """Tell whether our tree holds a published tensor transposed: all matrices but one.

    Example:
        >>> [is_transposed(n) for n in (EMBEDDING, HEAD, "model.norm.weight")]
        [False, True, False]
    """
    return name == HEAD or name.endswith("_proj.weight")


def tree_path(name: str) -> tuple[str, ...]:
    """Return where our tree of parameters has a published tensor.

    Example:
        >>> tree_path("model.layers.11.mlp.up_proj.weight")
        ('layers', '11', 'mlp', 'up_proj', 'kernel')
    """
    *parents, _ = name.removeprefix("model.").split(".")
    leaf = "kernel" if is_transposed(name) else "embedding" if name == EMBEDDING else "scale"
    return (*parents, leaf)
