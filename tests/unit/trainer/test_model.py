from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalmon.types import RopeParameters, Yarn
from trainer.architecture import REMAT_POLICIES, Execution, Olmo3Config
from trainer.data.documents import segments
from trainer.initialize import initialize
from trainer.layout import stack_layers, unstack_layers
from trainer.model import RMSNorm, bind, parameter_shapes
from trainer.rotary import rotate

SMALL = Olmo3Config(
    vocab_size=50, width=16, layers=5, heads=4, kv_heads=2, head_dim=8, ffn=24, window=3
)


def test_query_norm_runs_over_all_heads_at_once() -> None:
    norm = RMSNorm(8, replace(SMALL, norm_eps=0.0))
    normed = norm(jnp.array([1.0, 2, 3, 4, 10, 20, 30, 40]))
    expected = [0.0514, 0.1028, 0.1542, 0.2055, 0.5138, 1.0277, 1.5415, 2.0553]
    assert normed.tolist() == pytest.approx(expected, abs=5e-5)
    norm.scale = nnx.Param(jnp.arange(8.0))
    weighted = norm(jnp.array([1.0, 2, 3, 4, 10, 20, 30, 40]))
    assert weighted.tolist() == pytest.approx([e * i for i, e in enumerate(expected)], abs=5e-4)


def test_query_and_key_norms_are_as_wide_as_their_projections() -> None:
    attention = parameter_shapes(SMALL)["layers"]["0"]["self_attn"]
    assert attention["q_norm"]["scale"].shape == (32,)
    assert attention["k_norm"]["scale"].shape == (16,)


def _rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotate pair (i, i + D/2) of each head as a complex number, in float64."""
    _, length, _, width = x.shape
    half = width // 2
    turn = np.exp(1j * np.outer(np.arange(length), theta ** (-2 * np.arange(half) / width)))
    pairs = (x[..., :half] + 1j * x[..., half:]) * turn[None, :, None, :]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def test_rotation_agrees_with_complex_numbers() -> None:
    x = np.random.default_rng(0).normal(size=(2, 40, 3, 8))
    ours = np.asarray(rotate(jnp.asarray(x, jnp.float32), RopeParameters(500_000.0)))
    assert np.abs(ours - _rotated(x, 500_000.0)).max() < 1e-5


def test_yarn_turns_slow_pairs_less_and_lengthens_what_it_turns() -> None:
    x = np.ones((1, 40, 1, 8), np.float32)
    rope = RopeParameters(500_000.0, Yarn(8.0, 16))
    turned = np.asarray(rotate(jnp.asarray(x), rope))
    length = np.linalg.norm(turned.reshape(40, 2, 4), axis=1)
    assert length == pytest.approx(1.2079441541679836 * np.sqrt(2.0), rel=1e-5)
    angle = np.arctan2(turned[0, 1, 0, 4:], turned[0, 1, 0, :4]) - np.pi / 4
    # 16 / (2 pi) turns = beta 1 at pair 0.28: pair 0 is kept, all later ones are slowed by 8.
    plain = 500_000.0 ** (-np.arange(4) / 4)
    assert angle == pytest.approx(plain / np.array([1.0, 8.0, 8.0, 8.0]), abs=1e-6)


def test_only_full_layers_are_stretched() -> None:
    config = replace(SMALL, yarn=Yarn(8.0, 16))
    scaled = [config.rope(i).yarn is not None for i in range(5)]
    assert scaled == [False, False, False, True, True]


def _reference_logits(parameters: dict, tokens: np.ndarray) -> np.ndarray:
    """The whole model in float64 NumPy, one head and one query at a time."""

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + SMALL.norm_eps) * scale

    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters)
    x = p["embed_tokens"]["embedding"][tokens]
    length, D = tokens.shape[1], SMALL.head_dim
    for number in range(SMALL.layers):
        layer = p["layers"][str(number)]
        a = layer["self_attn"]
        q = norm(x @ a["q_proj"]["kernel"], a["q_norm"]["scale"])
        k = norm(x @ a["k_proj"]["kernel"], a["k_norm"]["scale"])
        v = (x @ a["v_proj"]["kernel"]).reshape(*tokens.shape, SMALL.kv_heads, D)
        q = _rotated(q.reshape(*tokens.shape, SMALL.heads, D), SMALL.rope_theta)
        k = _rotated(k.reshape(*tokens.shape, SMALL.kv_heads, D), SMALL.rope_theta)
        out = np.zeros_like(q)
        for head in range(SMALL.heads):
            kv = head // (SMALL.heads // SMALL.kv_heads)
            for i in range(length):
                first = 0 if SMALL.sees_all(number) else max(0, i - SMALL.window + 1)
                s = (k[:, first : i + 1, kv] @ q[:, i, head, :, None])[..., 0] / np.sqrt(D)
                w = np.exp(s - s.max(-1, keepdims=True))
                w /= w.sum(-1, keepdims=True)
                out[:, i, head] = (w[..., None] * v[:, first : i + 1, kv]).sum(1)
        attended = out.reshape(*tokens.shape, -1) @ a["o_proj"]["kernel"]
        h = x + norm(attended, layer["post_attention_layernorm"]["scale"])
        gate, m = h @ layer["mlp"]["gate_proj"]["kernel"], layer["mlp"]
        inner = gate / (1 + np.exp(-gate)) * (h @ m["up_proj"]["kernel"])
        inner = inner @ m["down_proj"]["kernel"]
        x = h + norm(inner, layer["post_feedforward_layernorm"]["scale"])
    return norm(x, p["norm"]["scale"]) @ p["lm_head"]["kernel"]


def test_logits_agree_with_a_plain_implementation() -> None:
    rng = np.random.default_rng(1)
    shapes = parameter_shapes(SMALL)
    parameters = jax.tree.map(lambda s: rng.normal(0.5, 0.5, s.shape).astype(np.float32), shapes)
    tokens = rng.integers(0, 50, (2, 11))
    logits = np.asarray(jax.jit(lambda p, t: bind(SMALL, p)(t))(parameters, tokens))
    reference = _reference_logits(parameters, tokens)
    assert np.abs(logits - reference).max() < 1e-3 * np.abs(reference).max()


def test_a_sliding_layer_forgets_what_left_its_window() -> None:
    config = Olmo3Config(20, 8, 2, 1, 1, 8, 8, window=2)
    parameters = initialize(config, 0)
    attention = jax.jit(lambda p, x: bind(config, p).layers[0].self_attn(x))
    x = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
    moved = x.copy()
    moved[0, 0] += 1.0
    changed = np.abs(attention(parameters, moved) - attention(parameters, x)).max(-1)[0] > 1e-7
    assert changed.tolist() == [True, True, False, False, False, False]


def test_initial_matrices_are_normal_cut_at_three_deviations_and_norms_one() -> None:
    config = Olmo3Config(400, 64, 1, 2, 2, 32, 128)
    parameters = initialize(config, 3)
    kernel = np.asarray(parameters["lm_head"]["kernel"])
    assert np.abs(kernel).max() <= 0.06
    # A normal cut at 3 deviations has 0.98658 of its deviation left.
    assert kernel.std() == pytest.approx(0.02 * 0.98658, rel=0.01)
    assert np.all(np.asarray(parameters["norm"]["scale"]) == 1.0)


def test_the_seed_alone_decides_the_initial_values() -> None:
    config = Olmo3Config(30, 8, 1, 1, 1, 8, 8)
    one, same, other = (initialize(config, seed) for seed in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, same))
    assert (one["lm_head"]["kernel"] != other["lm_head"]["kernel"]).any()


def test_parameters_are_bound_by_layer_number_beyond_ten() -> None:
    config = Olmo3Config(8, 4, 12, 1, 1, 4, 4)
    tree = jax.tree.map(lambda s: np.zeros(s.shape, np.float32), parameter_shapes(config))
    for number in range(12):
        tree["layers"][str(number)]["mlp"]["up_proj"]["kernel"] += number
    model = bind(config, tree)
    held = [float(layer.mlp.up_proj.kernel[0, 0]) for layer in model.layers]
    assert held == list(range(12))


EIGHT = replace(SMALL, layers=8)


def _loss_and_gradient(execution: Execution, dtype: str = "float32") -> tuple[float, dict]:
    """Return a loss of the eight-layer model and its gradient, layers one by one."""
    config = replace(EIGHT, dtype=dtype)
    parameters = jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, initialize(config, 0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 50, (2, 12)))

    def loss(parameters: dict) -> jax.Array:
        return (bind(config, parameters, execution)(tokens) ** 2).mean()

    scanned = execution.scan_layers
    given = stack_layers(parameters, config) if scanned else parameters
    value, gradient = jax.jit(jax.value_and_grad(loss))(given)
    return float(value), unstack_layers(gradient, config) if scanned else gradient


@pytest.fixture(scope="module")
def plain() -> tuple[float, dict]:
    """Loss and gradient with layers one by one and nothing computed again."""
    return _loss_and_gradient(Execution())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "scanned"),
    [("none", True), ("projections", True), ("dots", True), ("full", True), ("full", False)],
)
def test_neither_scanning_nor_rematerialization_changes_a_gradient(
    policy: str, scanned: bool, plain: tuple[float, dict]
) -> None:
    value, gradient = _loss_and_gradient(Execution(scanned, policy))
    expected, without = plain
    assert value == pytest.approx(expected, rel=1e-6)
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(without), strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)


LENGTHS = (13, 1, 8, 18)
"""Of documents with their EOS; the last one of an instance is cut off before it."""

PACKED = replace(SMALL, layers=4, yarn=Yarn(8.0, 16))


def _documents() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an instance of packed documents, one a row, and which places of these are theirs."""
    rng = np.random.default_rng(0)
    own = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    rows = rng.integers(1, 50, own.shape)
    rows[np.arange(3), np.array(LENGTHS)[:3] - 1] = 0
    return rows[own][None], rows, own


def _weighted(logits: jax.Array) -> jax.Array:
    """Return some number that hangs on every logit."""
    weights = np.random.default_rng(1).normal(size=logits.shape).astype(np.float32)
    return (logits * weights).mean()


def _grown(config: Olmo3Config) -> dict:
    return jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, initialize(config, 0))


@pytest.fixture(scope="module")
def alone() -> tuple[jax.Array, dict]:
    """Logits of the packed documents and their gradient, each document read by itself."""
    _, rows, own = _documents()

    def loss(parameters: dict) -> tuple[jax.Array, jax.Array]:
        # What stands to the right of a document is not seen by it.
        logits = bind(PACKED, parameters)(jnp.asarray(rows))[np.nonzero(own)][None]
        return _weighted(logits), logits

    gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(_grown(PACKED))
    return logits, gradient


@pytest.mark.slow
@pytest.mark.parametrize("execution", [Execution(), Execution(True, "full", query_block=8)])
def test_packed_documents_are_read_as_if_alone(
    execution: Execution, alone: tuple[jax.Array, dict]
) -> None:
    """Documents are longer than the window of sliding layers and shorter."""
    tokens = jnp.asarray(_documents()[0])
    scanned = execution.scan_layers

    def loss(parameters: dict, documents: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = bind(PACKED, parameters, execution)(tokens, documents)
        return _weighted(logits), logits

    given = stack_layers(_grown(PACKED), PACKED) if scanned else _grown(PACKED)
    compiled = jax.jit(jax.grad(loss, has_aux=True))
    gradient, logits = compiled(given, segments(tokens, eos_id=0))
    expected_logits, expected = alone
    assert float(np.abs(expected_logits).max()) > 1
    assert np.abs(logits - expected_logits).max() < 1e-5
    ours = unstack_layers(gradient, PACKED) if scanned else gradient
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)
    # As one document they see each other, from the second on.
    _, joined = compiled(given, jnp.zeros_like(tokens))
    apart = np.abs(joined - expected_logits)[0].max(axis=-1)
    assert apart[: LENGTHS[0]].max() < 1e-5
    assert apart[LENGTHS[0]] > 1e-2


def _saved_bytes(policy: str) -> int:
    """Return the bytes a compiled gradient needs beside its inputs and outputs."""
    config = replace(EIGHT, width=64, ffn=512)
    execution = Execution(scan_layers=True, remat=policy)
    shapes = stack_layers(parameter_shapes(config), config)
    tokens = jax.ShapeDtypeStruct((8, 128), jnp.int32)

    def loss(parameters: dict, tokens: jax.Array) -> jax.Array:
        return bind(config, parameters, execution).hidden(tokens).sum()

    analysis = jax.jit(jax.grad(loss)).lower(shapes, tokens).compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.slow
def test_each_policy_keeps_its_share_for_the_backward_pass() -> None:
    none, projections, dots, full = (_saved_bytes(policy) for policy in REMAT_POLICIES)
    assert full < projections < dots < none


def test_bfloat16_computes_norms_and_logits_in_float32() -> None:
    config = replace(SMALL, dtype="bfloat16")
    model = bind(config, initialize(config, 0))
    hidden = model.hidden(jnp.zeros((1, 3), jnp.int32))
    assert hidden.dtype == jnp.bfloat16
    logits = model.unembed(hidden)
    assert logits.dtype == jnp.float32
    # A product in bfloat16 would have left them on its grid, widened or not.
    assert (logits != logits.astype(jnp.bfloat16).astype(jnp.float32)).mean() > 0.9
    norm = RMSNorm(2, replace(config, norm_eps=0.0))
    wide = norm(jnp.array([3.0, 4.0], jnp.bfloat16))
    assert wide.tolist() == pytest.approx([0.8485, 1.1314], rel=2**-8)
