"""OLMo 3 in Flax NNX.

A layer normalizes what its sublayers put out, not what they read::

    h = x + RMSNorm(Attention(x))
    y = h + RMSNorm(SwiGLU(h))

Attention normalizes the whole query and the whole key projection (all heads at
once) before the heads are split and rotated. Three of four layers see a sliding
window, every fourth and the last see all earlier tokens, and only those stretch
their rotary frequencies by YaRN. No biases, no dropout, embedding and head untied.

Source: OLMo-core ``nn/transformer/block.py`` (ReorderedNormTransformerBlock) and
``nn/transformer/init.py``; transformers ``models/olmo3``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from trainer.architecture import BLOCK, Execution, Olmo3Config
from trainer.attention import attend
from trainer.layout import require_scannable
from trainer.rotary import rotate
from trainer.sharding import BATCH, constrain

__all__ = ["Olmo3", "ParameterTree", "bind", "parameter_shapes"]

ParameterTree: TypeAlias = dict[str, Any]
"""Nested dictionary of arrays, as checkpoints hold it: layer numbers are strings."""

_NARROW: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj")
"""Projections that put out no more than the model's width."""


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) x scale, in at least float32, cast back afterwards."""

    def __init__(self, width: int, config: Olmo3Config) -> None:
        self.scale = nnx.Param(jnp.ones((width,), config.master_dtype))
        self.eps = config.norm_eps

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * inverse * self.scale[...].astype(wide.dtype)).astype(x.dtype)


class Linear(nnx.Module):
    """x @ kernel, kernel [inputs, outputs]; factors are of the compute dtype."""

    def __init__(self, name: str, inputs: int, outputs: int, config: Olmo3Config) -> None:
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs), config.master_dtype))
        self.name, self.dtype = name, jnp.dtype(config.dtype)

    def __call__(
        self, x: Float[Array, "... I"], result: jnp.dtype | None = None
    ) -> Float[Array, "... O"]:
        """Return the product, rounded to ``result`` or else to the compute dtype."""
        # One matrix product of rank 2: XLA's CPU backend is twice as slow at the gradient
        # of a product with two leading axes.
        rows = x.astype(self.dtype).reshape(-1, x.shape[-1])
        kernel = self.kernel[...].astype(self.dtype)
        product = jnp.matmul(rows, kernel, preferred_element_type=result)
        return checkpoint_name(product.reshape(*x.shape[:-1], -1), self.name)


class Attention(nnx.Module):
    """Grouped-query attention with whole-projection query and key norms."""

    def __init__(self, config: Olmo3Config, layer: int, query_block: int) -> None:
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear("q_proj", config.width, queries, config)
        self.k_proj = Linear("k_proj", config.width, keys, config)
        self.v_proj = Linear("v_proj", config.width, keys, config)
        self.o_proj = Linear("o_proj", queries, config.width, config)
        self.q_norm = RMSNorm(queries, config)
        self.k_norm = RMSNorm(keys, config)
        self.head_dim, self.rope = config.head_dim, config.rope(layer)
        self.window = None if config.sees_all(layer) else config.window
        self.query_block = query_block

    def __call__(
        self, x: Float[Array, "B T d"], segments: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T d"]:
        # Positions go on from one document to the next: rotation tells distances only.
        q = rotate(self._heads(self.q_norm(self.q_proj(x))), self.rope)
        k = rotate(self._heads(self.k_norm(self.k_proj(x))), self.rope)
        v = self._heads(self.v_proj(x))
        mixed = attend(q, k, v, self.window, self.query_block, segments)
        return self.o_proj(mixed.reshape(*x.shape[:-1], -1))

    def _heads(self, x: Float[Array, "B T H"]) -> Float[Array, "B T N D"]:
        """Split a projection into heads, which the tensor axis shares out."""
        split = x.reshape(*x.shape[:-1], -1, self.head_dim)
        return constrain(split, BATCH, None, "tensor", None)


class FeedForward(nnx.Module):
    """SwiGLU: down(silu(gate(x)) x up(x)). Source: Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, config: Olmo3Config) -> None:
        self.gate_proj = Linear("gate_proj", config.width, config.ffn, config)
        self.up_proj = Linear("up_proj", config.width, config.ffn, config)
        self.down_proj = Linear("down_proj", config.ffn, config.width, config)

    def __call__(self, x: Float[Array, "B T d"]) -> Float[Array, "B T d"]:
        inner = nnx.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(constrain(inner, BATCH, None, "tensor"))


class Layer(nnx.Module):
    """One layer with reordered norms."""

    def __init__(self, config: Olmo3Config, layer: int, query_block: int) -> None:
        self.self_attn = Attention(config, layer, query_block)
        self.mlp = FeedForward(config)
        self.post_attention_layernorm = RMSNorm(config.width, config)
        self.post_feedforward_layernorm = RMSNorm(config.width, config)

    def __call__(
        self, x: Float[Array, "B T d"], segments: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T d"]:
        h = x + self.post_attention_layernorm(self.self_attn(x, segments))
        y = h + self.post_feedforward_layernorm(self.mlp(h))
        return constrain(y, BATCH, None, None)


class Embedding(nnx.Module):
    """Row look-up, one row a token id."""

    def __init__(self, config: Olmo3Config) -> None:
        shape = (config.vocab_size, config.width)
        self.embedding = nnx.Param(jnp.zeros(shape, config.master_dtype))
        self.dtype = jnp.dtype(config.dtype)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T d"]:
        # Gathered over fsdp before the look-up, which would else be done on every device whole.
        table = constrain(self.embedding[...].astype(self.dtype), "tensor", None)
        return constrain(table[tokens], BATCH, None, None)


class Olmo3(nnx.Module):
    """The whole model; submodules carry the names of the published tensors.

    Its matrices are zero: ``bind`` gives it the values of ``initialize`` or a checkpoint.

    Args:
        config: shapes.
        execution: how layers are run. Scanned, the four ``layers`` are those of a block,
            and their parameters have a leading axis over the blocks.

    Raises:
        ConfigError: layers are to be scanned and are not whole blocks.
    """

    def __init__(self, config: Olmo3Config, execution: Execution) -> None:
        if execution.scan_layers:
            require_scannable(config)
        count = BLOCK if execution.scan_layers else config.layers
        self.embed_tokens = Embedding(config)
        self.layers = nnx.List([Layer(config, i, execution.query_block) for i in range(count)])
        self.norm = RMSNorm(config.width, config)
        self.lm_head = Linear("lm_head", config.width, config.vocab_size, config)
        self.execution = execution

    def hidden(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T d"]:
        """Return the normalized states that the head reads.

        Args:
            tokens: ids in [0, vocab_size).
            segments: number of each token's document, as ``trainer.data.documents`` gives
                it, for attention within documents; None for attention over all tokens.
        """
        x = self.embed_tokens(tokens)
        parts = [nnx.split(layer) for layer in self.layers]
        runs = [_with_remat(graph, self.execution.remat) for graph, _ in parts]
        states = tuple(state for _, state in parts)

        def block(
            x: Float[Array, "B T d"], states: tuple[Any, ...]
        ) -> tuple[Float[Array, "B T d"], None]:
            for run, state in zip(runs, states, strict=True):
                x = run(state, x, segments)
            return x, None

        if self.execution.scan_layers:
            x, _ = jax.lax.scan(block, x, states)
        else:
            x, _ = block(x, states)
        return self.norm(x)

    def unembed(self, hidden: Float[Array, "... d"]) -> Float[Array, "... V"]:
        """Return logits of hidden states, summed and kept in at least float32."""
        logits = self.lm_head(hidden, jnp.promote_types(self.lm_head.dtype, jnp.float32))
        return constrain(logits, BATCH, *[None] * (logits.ndim - 2), "tensor")

    def __call__(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T V"]:
        """Return logits of the token after each position, in at least float32."""
        return self.unembed(self.hidden(tokens, segments))


def parameter_shapes(config: Olmo3Config) -> ParameterTree:
    """Return the canonical parameter tree as shapes, without allocating it."""
    pure = nnx.to_pure_dict(nnx.state(_abstract(config, Execution()), nnx.Param))
    return {**pure, "layers": {str(i): layer for i, layer in pure["layers"].items()}}


def bind(
    config: Olmo3Config, parameters: Mapping[str, Any], execution: Execution | None = None
) -> Olmo3:
    """Return the model with these parameters; cheap inside ``jax.jit``.

    Args:
        config: shapes.
        parameters: tree as ``initialize`` returns it, its layers stacked
            (``trainer.layout``) where they are scanned.
        execution: how layers are run; one by one, nothing computed again, by default.
    """
    graph = nnx.graphdef(_abstract(config, execution or Execution()))
    layers = {int(i): layer for i, layer in parameters["layers"].items()}
    return nnx.merge(graph, nnx.State({**parameters, "layers": layers}))


def _abstract(config: Olmo3Config, execution: Execution) -> Olmo3:
    """Build the module with shapes in place of arrays."""
    return nnx.eval_shape(lambda: Olmo3(config, execution))


def _with_remat(graph: Any, policy: str) -> Callable[..., Any]:
    """Return a layer as a function of its state and inputs, computed again as told."""

    def run(
        state: Any, x: Float[Array, "B T d"], segments: Int[Array, "B T"] | None
    ) -> Float[Array, "B T d"]:
        return nnx.merge(graph, state)(x, segments)

    if policy == "none":
        return run
    kept = {
        "projections": jax.checkpoint_policies.save_only_these_names(*_NARROW),
        "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "full": jax.checkpoint_policies.nothing_saveable,
    }
    return jax.checkpoint(run, policy=kept[policy])
