"""MaxText's tree of an OLMo 3 <-> published names.

Unscanned, layer i stands in ``decoder/layers_i``. Scanned, four layers stand in
``decoder/layers/layers_c``, and slice j of their second axis is layer 4j + c. Query, key,
value and output matrices have an axis of heads.

Source: MaxText ``checkpoint_conversion/utils/param_mapping.py`` (OLMO3), ``base.yml``
(``param_scan_axis`` 1), ``models/olmo3.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from evalmon.errors import CheckpointError
from trainer.architecture import BLOCK, Olmo3Config
from trainer.weights.casting import Array
from trainer.weights.names import EMBEDDING, HEAD, axes_of, is_transposed, published_axes

__all__ = ["Layout", "infer_config", "is_maxtext", "is_scanned"]

Key = tuple[str, ...]

_TOP: Final[dict[str, Key]] = {
    EMBEDDING: ("token_embedder", "embedding"),
    HEAD: ("decoder", "logits_dense", "kernel"),
    "model.norm.weight": ("decoder", "decoder_norm", "scale"),
}
_LAYER: Final[dict[str, Key]] = {
    "self_attn.q_proj": ("attention", "query", "kernel"),
    "self_attn.k_proj": ("attention", "key", "kernel"),
    "self_attn.v_proj": ("attention", "value", "kernel"),
    "self_attn.o_proj": ("attention", "out", "kernel"),
    "self_attn.q_norm": ("attention", "query_norm", "scale"),
    "self_attn.k_norm": ("attention", "key_norm", "scale"),
    "mlp.gate_proj": ("mlp", "wi_0", "kernel"),
    "mlp.up_proj": ("mlp", "wi_1", "kernel"),
    "mlp.down_proj": ("mlp", "wo", "kernel"),
    "post_attention_layernorm": ("post_self_attention_layer_norm", "scale"),
    "post_feedforward_layernorm": ("post_mlp_layer_norm", "scale"),
}
_SPLIT: Final = {"queries": ("heads", "head_dim"), "keys": ("kv_heads", "head_dim")}
"""Axes that a matrix has in two, and a norm in one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a published tensor stands: the leaf, and the slice of its second axis."""

    key: Key
    slice: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """MaxText's tree of one model.

    Attributes:
        config: shapes.
        scanned: whether groups of four layers are stacked.
    """

    config: Olmo3Config
    scanned: bool

    def place(self, name: str) -> Place:
        """Return where a published tensor stands.

        Example:
            >>> config = Olmo3Config(8, 4, 8, 1, 1, 4, 8)
            >>> Layout(config, True).place("model.layers.6.mlp.up_proj.weight")
            Place(key=('decoder', 'layers', 'layers_2', 'mlp', 'wi_1', 'kernel'), slice=1)
        """
        if name in _TOP:
            return Place(_TOP[name])
        layer, part = _layer_and_part(name)
        if self.scanned:
            group, slice_ = layer % BLOCK, layer // BLOCK
            return Place(("decoder", "layers", f"layers_{group}", *_LAYER[part]), slice_)
        return Place(("decoder", f"layers_{layer}", *_LAYER[part]))

    def leaves(self) -> dict[Key, list[str]]:
        """Return the published tensors in each leaf, in the order of their slices."""
        leaves: dict[Key, list[str]] = {}
        for name in published_axes(self.config.layers):
            leaves.setdefault(self.place(name).key, []).append(name)
        return leaves

    def axes(self, name: str) -> tuple[str, ...]:
        """Return the axes of the leaf that a published tensor stands in."""
        if name in _TOP:
            top = published_axes(0)[name]
            return top[::-1] if is_transposed(name) else top
        axes = axes_of(_layer_and_part(name)[1])
        if len(axes) > 1:
            axes = tuple(part for axis in axes[::-1] for part in _SPLIT.get(axis, (axis,)))
        return (*axes[:1], "blocks", *axes[1:]) if self.scanned else axes

    def sizes(self) -> dict[str, int]:
        """Return the length of each axis."""
        config = self.config
        return {
            "vocab_size": config.vocab_size,
            "width": config.width,
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "queries": config.heads * config.head_dim,
            "keys": config.kv_heads * config.head_dim,
            "ffn": config.ffn,
            "blocks": config.layers // BLOCK,
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the leaf that a published tensor stands in."""
        sizes = self.sizes()
        return tuple(sizes[axis] for axis in self.axes(name))

    def to_published(self, name: str, leaf: Array) -> Array:
        """Return the published tensor in a leaf: a view, except output matrices of a stack."""
        slice_ = self.place(name).slice
        own = leaf if slice_ is None else leaf[:, slice_]
        if not is_transposed(name):
            return own
        rows = len(own) * own.shape[1] if name.endswith("o_proj.weight") else len(own)
        return own.reshape(rows, -1).T

    def from_published(self, names: list[str], read: Callable[[str], Array]) -> Array:
        """Return the leaf that holds these published tensors, one or a stack."""
        shape = self.shape(names[0])
        if not self.scanned or names[0] in _TOP:
            array = read(names[0])
            return (array.T if is_transposed(names[0]) else array).reshape(shape)
        stack: Array | None = None
        for slice_, name in enumerate(names):
            array = read(name)
            if stack is None:
                stack = np.empty(shape, array.dtype)
            own = array.T if is_transposed(name) else array
            stack[:, slice_] = own.reshape(shape[0], *shape[2:])
        assert stack is not None
        return stack


def is_maxtext(keys: Mapping[Key, object]) -> bool:
    """Tell whether a tree of parameters is MaxText's."""
    return any(key[0] in {"token_embedder", "decoder"} for key in keys)


def is_scanned(keys: Mapping[Key, object]) -> bool:
    """Tell whether a MaxText tree has its layers stacked."""
    return any(key[:2] == ("decoder", "layers") for key in keys)


def infer_config(shapes: Mapping[Key, tuple[int, ...]], place: str) -> Olmo3Config:
    """Return the shapes that the tensors have; constants are OLMo 3's.

    Args:
        shapes: shapes of the leaves under ``params/params``.
        place: the source, for messages.

    Raises:
        CheckpointError: a tensor that tells a shape is missing or of another rank.
    """
    scanned = is_scanned(shapes)
    first = ("decoder", "layers", "layers_0") if scanned else ("decoder", "layers_0")

    def shape(key: Key, rank: int) -> tuple[int, ...]:
        found = shapes.get(key)
        if found is None or len(found) != rank:
            raise CheckpointError(
                f"{place}: {'/'.join(key)} is {'missing' if found is None else list(found)}, "
                f"expected {rank} axes, from which the model's shapes are told; is it an OLMo 3 "
                "of MaxText's?"
            )
        return found

    vocab_size, width = shape(_TOP[EMBEDDING], 2)
    query = shape((*first, *_LAYER["self_attn.q_proj"]), 3 + scanned)
    key = shape((*first, *_LAYER["self_attn.k_proj"]), 3 + scanned)
    gate = shape((*first, *_LAYER["mlp.gate_proj"]), 2 + scanned)
    layers = BLOCK * query[1] if scanned else _depth(shapes)
    config = Olmo3Config(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=query[-2],
        kv_heads=key[-2],
        head_dim=query[-1],
        ffn=gate[-1],
    )
    config.require_valid(place)
    return config


def _depth(shapes: Mapping[Key, object]) -> int:
    """Return one more than the highest layer number."""
    numbers = [
        int(key[1].removeprefix("layers_"))
        for key in shapes
        if len(key) > 1 and key[1].removeprefix("layers_").isdecimal()
    ]
    return max(numbers) + 1


def _layer_and_part(name: str) -> tuple[int, str]:
    """Return the layer and the part of a published tensor's name."""
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return int(layer), part
