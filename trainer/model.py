"""OLMo 3 in Flax NNX.

A layer normalizes what its sublayers put out, not what they read::

    h = x + RMSNorm(Attention(x))
    y = h + RMSNorm(SwiGLU(h))

Attention normalizes the whole query and the whole key projection (all heads at
once) before the heads are split and rotated. Three of four layers see a sliding
window, every fourth and the last see all earlier tokens. No biases, no dropout,
embedding and head untied.

Source: OLMo-core ``nn/transformer/block.py`` (ReorderedNormTransformerBlock) and
``nn/transformer/init.py``; transformers ``models/olmo3``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

__all__ = ["Olmo3", "Olmo3Config", "ParameterTree", "bind", "initialize", "parameter_shapes"]

ParameterTree: TypeAlias = dict[str, Any]
"""Nested dictionary of arrays, as checkpoints hold it: layer numbers are strings."""

_CUT: Final = 3.0
"""Deviations at which the initial normal is cut off."""


@dataclass(frozen=True, slots=True)
class Olmo3Config:
    """Shapes and constants of one OLMo 3.

    Attributes:
        vocab_size: rows of embedding and head, padded.
        width: model width d.
        layers: number of layers.
        heads: query heads.
        kv_heads: key and value heads, a divisor of ``heads``.
        head_dim: width of a head, even.
        ffn: inner width of the feed-forward part.
        window: tokens a sliding layer sees, the current one included.
        rope_theta: base of the rotary frequencies.
        norm_eps: added to the mean square in every norm.
        init_std: standard deviation of the truncated normal (cut at 3 of them).
        dtype: compute dtype; parameters, norms, rotation and logits stay float32.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    window: int = 4096
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-6
    init_std: float = 0.02
    dtype: str = "float32"

    def sees_all(self, layer: int) -> bool:
        """Return whether ``layer`` (0-based) has full attention.

        Example:
            >>> config = Olmo3Config(8, 4, 6, 1, 1, 4, 8)
            >>> [config.sees_all(i) for i in range(6)]
            [False, False, False, True, False, True]
        """
        return (layer + 1) % 4 == 0 or layer == self.layers - 1


def attention_mask(length: int, window: int | None) -> Bool[Array, "T T"]:
    """Return which keys (columns) each query (row) sees.

    Args:
        length: T, tokens.
        window: keys seen at most, the current token included; None for all earlier.

    Example:
        >>> attention_mask(3, 2).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    row = jnp.arange(length)[:, None]
    column = jnp.arange(length)[None, :]
    causal = column <= row
    return causal if window is None else causal & (column > row - window)


def rotate(x: Float[Array, "B T N D"], theta: float) -> Float[Array, "B T N D"]:
    """Rotate the halves of each head by its position (rotary embedding, float32).

    Args:
        x: heads; the pair of component i is component i + D/2.
        theta: base; pair i turns by position x theta^(-2i/D).

    Source: Su et al. 2021, arXiv:2104.09864; half-split layout as in transformers.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) x scale, in float32, cast back afterwards."""

    def __init__(self, width: int, eps: float) -> None:
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))
        self.eps = eps

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * inverse * self.scale[...]).astype(x.dtype)


class Linear(nnx.Module):
    """x @ kernel, kernel [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, config: Olmo3Config) -> None:
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs), jnp.float32))
        self.dtype = jnp.dtype(config.dtype)

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        # One matrix product of rank 2: XLA's CPU backend is twice as slow at the gradient
        # of a product with two leading axes.
        rows = x.astype(self.dtype).reshape(-1, x.shape[-1])
        return (rows @ self.kernel[...].astype(self.dtype)).reshape(*x.shape[:-1], -1)


class Attention(nnx.Module):
    """Grouped-query attention with whole-projection query and key norms."""

    def __init__(self, config: Olmo3Config, layer: int) -> None:
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.width, queries, config)
        self.k_proj = Linear(config.width, keys, config)
        self.v_proj = Linear(config.width, keys, config)
        self.o_proj = Linear(queries, config.width, config)
        self.q_norm = RMSNorm(queries, config.norm_eps)
        self.k_norm = RMSNorm(keys, config.norm_eps)
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        self.window = None if config.sees_all(layer) else config.window

    def __call__(self, x: Float[Array, "B T d"]) -> Float[Array, "B T d"]:
        B, T, _ = x.shape
        group, D = self.heads // self.kv_heads, self.head_dim
        q = self.q_norm(self.q_proj(x)).reshape(B, T, self.heads, D)
        k = self.k_norm(self.k_proj(x)).reshape(B, T, self.kv_heads, D)
        v = self.v_proj(x).reshape(B, T, self.kv_heads, D)
        q = rotate(q, self.theta).reshape(B, T, self.kv_heads, group, D) * D**-0.5
        k = rotate(k, self.theta)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32)
        scores = jnp.where(attention_mask(T, self.window), scores, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        mixed = jnp.einsum("bkgts,bskd->btkgd", weights, v)
        return self.o_proj(mixed.reshape(B, T, self.heads * D))


class FeedForward(nnx.Module):
    """SwiGLU: down(silu(gate(x)) x up(x)). Source: Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, config: Olmo3Config) -> None:
        self.gate_proj = Linear(config.width, config.ffn, config)
        self.up_proj = Linear(config.width, config.ffn, config)
        self.down_proj = Linear(config.ffn, config.width, config)

    def __call__(self, x: Float[Array, "B T d"]) -> Float[Array, "B T d"]:
        return self.down_proj(nnx.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nnx.Module):
    """One layer with reordered norms."""

    def __init__(self, config: Olmo3Config, layer: int) -> None:
        self.self_attn = Attention(config, layer)
        self.mlp = FeedForward(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)
        self.post_feedforward_layernorm = RMSNorm(config.width, config.norm_eps)

    def __call__(self, x: Float[Array, "B T d"]) -> Float[Array, "B T d"]:
        h = x + self.post_attention_layernorm(self.self_attn(x))
        return h + self.post_feedforward_layernorm(self.mlp(h))


class Embedding(nnx.Module):
    """Row look-up, one row a token id."""

    def __init__(self, config: Olmo3Config) -> None:
        self.embedding = nnx.Param(jnp.zeros((config.vocab_size, config.width), jnp.float32))
        self.dtype = jnp.dtype(config.dtype)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T d"]:
        return self.embedding[...].astype(self.dtype)[tokens]


class Olmo3(nnx.Module):
    """The whole model; submodules carry the names of the published tensors.

    Its matrices are zero: ``bind`` gives it the values of ``initialize`` or a checkpoint.

    Args:
        config: shapes.
    """

    def __init__(self, config: Olmo3Config) -> None:
        self.embed_tokens = Embedding(config)
        self.layers = nnx.List([Layer(config, i) for i in range(config.layers)])
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = Linear(config.width, config.vocab_size, config)

    def hidden(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T d"]:
        """Return the normalized states that the head reads."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def unembed(self, hidden: Float[Array, "... d"]) -> Float[Array, "... V"]:
        """Return float32 logits of hidden states."""
        return self.lm_head(hidden).astype(jnp.float32)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Return float32 logits of the token after each position."""
        return self.unembed(self.hidden(tokens))


def initialize(config: Olmo3Config, seed: int) -> ParameterTree:
    """Return fresh parameters, the same for the same seed on every kind of device.

    Args:
        config: shapes.
        seed: at least 0.

    Source: OLMo-core ``InitMethod.normal``: every matrix from a normal of mean 0,
    deviation 0.02, cut at 3 deviations, whatever its depth; norms 1.
    """
    # NumPy draws without compiling a kernel for each shape, which JAX needs seconds for.
    rng = np.random.Generator(np.random.PCG64(seed))

    def draw(shape: tuple[int, ...]) -> NDArray[np.float32]:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        values = rng.standard_normal(shape, np.float32)
        while (outside := np.abs(values) > _CUT).any():
            values[outside] = rng.standard_normal(int(outside.sum()), np.float32)
        return values * np.float32(config.init_std)

    return jax.tree.map(lambda leaf: jnp.asarray(draw(leaf.shape)), parameter_shapes(config))


def parameter_shapes(config: Olmo3Config) -> ParameterTree:
    """Return the parameter tree as shapes, without allocating it."""
    return _to_tree(nnx.state(_abstract(config), nnx.Param))


def bind(config: Olmo3Config, parameters: Mapping[str, Any]) -> Olmo3:
    """Return the model with these parameters; cheap inside ``jax.jit``.

    Args:
        config: shapes.
        parameters: tree as ``initialize`` returns it.
    """
    return nnx.merge(nnx.graphdef(_abstract(config)), nnx.State(_integer_layers(parameters)))


def _abstract(config: Olmo3Config) -> Olmo3:
    """Build the module with shapes in place of arrays."""
    return nnx.eval_shape(lambda: Olmo3(config))


def _to_tree(state: nnx.State) -> ParameterTree:
    """Turn an NNX state into nested dictionaries with string keys."""
    pure = nnx.to_pure_dict(state)
    return {**pure, "layers": {str(i): layer for i, layer in pure["layers"].items()}}


def _integer_layers(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the layer keys back into the integers that NNX lists have."""
    return {**parameters, "layers": {int(i): layer for i, layer in parameters["layers"].items()}}
