"""Ten training steps of the recipe against the same recipe in torch on transformers' model."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from trainer import optimizer as optimizer_module
from trainer.architecture import Execution, Olmo3Config
from trainer.initialize import initialize
from trainer.objective import Objective
from trainer.optimizer import AdamW, decayed
from trainer.schedule import CosineWithWarmup
from trainer.skip_step import SKIP_RULES
from trainer.update import OptimizerState, TrainState, UpdateRule, fresh_state, make_update

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch and transformers warn about their own future
]

# The first layer is sliding, the second full; key and value heads are grouped.
CONFIG = Olmo3Config(
    vocab_size=48, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=24, window=5
)
STEPS, PEAK = 10, 3e-3
RULE = UpdateRule(CosineWithWarmup(PEAK, 0, 40), AdamW(), Objective(), skip=SKIP_RULES["olmo_core"])
TOKENS = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (STEPS, 4, 16))

LIMITS = {"float64": (1e-9, 1e-6), "float32": (1e-5, 1e-2)}
"""Dtype -> largest difference of a loss in nats, and of a tensor's update, relative L2."""

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Trained:
    """Losses and gradient norms of ten steps, and what they added to each tensor."""

    ce: list[float]
    z: list[float]
    norms: list[float]
    added: Tensors


def _start(dtype: str) -> dict[str, Any]:
    """Return values with gradients that the clip acts on, and norms that are not constant."""
    rng = np.random.default_rng(0)

    def draw(p: NDArray[Any]) -> NDArray[Any]:
        centre, width = (1.0, 0.1) if p.ndim == 1 else (0.0, 0.3)
        return (centre + width * rng.standard_normal(p.shape)).astype(dtype)

    return jax.tree.map(draw, initialize(CONFIG, 0))


def _published(parameters: Any) -> Tensors:
    """Rename to the published tensors; matrices there are [outputs, inputs]."""
    names: Tensors = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        parts = [entry.key for entry in path]
        name = ".".join([*parts[:-1], "weight"])
        values = np.asarray(leaf)
        names[name if name.startswith("lm_head") else f"model.{name}"] = (
            values.T if parts[-1] == "kernel" else values
        )
    return names


def _ours(dtype: str, rule: UpdateRule = RULE) -> Trained:
    config = replace(CONFIG, dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        start = _start(dtype)
        fresh = fresh_state(config, Execution(), 0).optimizer
        state = TrainState(start, OptimizerState(rule.optimizer.init(start), fresh.history))
        update = jax.jit(make_update(config, Execution(), rule))
        measured: list[tuple[float, float, float]] = []
        for step, tokens in enumerate(TOKENS, 1):
            state, found = update(state, tokens.astype(np.int32), np.int32(step))
            assert not bool(found.skipped)
            measured.append((float(found.ce_nats), float(found.z_nats), float(found.grad_norm)))
        after = _published(jax.tree.map(np.asarray, state.params))
    ce, z, norms = (list(column) for column in zip(*measured, strict=True))
    return Trained(ce, z, norms, {n: after[n] - v for n, v in _published(start).items()})


@pytest.fixture(scope="module")
def peer() -> Callable[[str], Trained]:
    """Return ten steps in torch, computed once for each dtype."""
    done: dict[str, Trained] = {}

    def train(dtype: str) -> Trained:
        if dtype not in done:
            done[dtype] = _theirs(dtype)
        return done[dtype]

    return train


def _theirs(dtype: str) -> Trained:
    torch = pytest.importorskip("torch")
    model = _peer_model(dtype)
    start = _published(_start(dtype))
    model.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in start.items()}, strict=True)
    embedding = model.model.embed_tokens.weight
    others = [p for p in model.parameters() if p is not embedding]
    adam = torch.optim.AdamW(
        [{"params": [embedding], "weight_decay": 0.0}, {"params": others, "weight_decay": 0.1}],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    measured: list[tuple[float, float, float]] = []
    for step, tokens in enumerate(TOKENS, 1):
        for group in adam.param_groups:
            group["lr"] = 0.1 * PEAK + 0.9 * PEAK * (1 + math.cos(math.pi * step / 40)) / 2
        adam.zero_grad()
        ids = torch.from_numpy(tokens)
        logits = model(ids).logits[:, :-1].flatten(0, 1)
        ce = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
        z = 1e-5 * logits.logsumexp(-1).square().mean()
        (ce + z).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        measured.append((ce.item(), z.item(), norm.item()))
    after = {n: p.detach().numpy() for n, p in model.named_parameters()}
    ce, z, norms = (list(column) for column in zip(*measured, strict=True))
    return Trained(ce, z, norms, {n: after[n] - v for n, v in start.items()})


def _peer_model(dtype: str) -> Any:
    """Build transformers' model; in float64 without the places that compute in float32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    rope = {"rope_type": "default", "rope_theta": CONFIG.rope_theta}
    model = transformers.Olmo3ForCausalLM(
        transformers.Olmo3Config(
            vocab_size=CONFIG.vocab_size,
            hidden_size=CONFIG.width,
            intermediate_size=CONFIG.ffn,
            num_hidden_layers=CONFIG.layers,
            num_attention_heads=CONFIG.heads,
            num_key_value_heads=CONFIG.kv_heads,
            head_dim=CONFIG.head_dim,
            rms_norm_eps=CONFIG.norm_eps,
            max_position_embeddings=64,
            rope_parameters={"sliding_attention": rope, "full_attention": rope},
            sliding_window=CONFIG.window,
            layer_types=["sliding_attention", "full_attention"],
            tie_word_embeddings=False,
            pad_token_id=None,
            eos_token_id=0,
            attn_implementation="eager",
        )
    )
    if dtype == "float32":
        return model

    def norm(module: Any, x: Any) -> Any:
        variance = x.square().mean(-1, keepdim=True)
        return module.weight * (x * torch.rsqrt(variance + module.variance_epsilon))

    def rotation(x: Any, position_ids: Any, layer_type: str) -> tuple[Any, Any]:
        inverse = CONFIG.rope_theta ** -(np.arange(0, CONFIG.head_dim, 2) / CONFIG.head_dim)
        angles = position_ids[..., None].double() * torch.from_numpy(inverse)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **settings: Any) -> Any:
        groups = module.num_key_value_groups
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(2, 3) * settings["scaling"] + mask
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    model = model.double()
    for module in model.modules():
        if type(module).__name__ == "Olmo3RMSNorm":
            module.forward = norm.__get__(module)
    model.model.rotary_emb.forward = rotation
    transformers.AttentionInterface.register("float64_eager", attention)
    transformers.AttentionMaskInterface.register(
        "float64_eager", transformers.masking_utils.eager_mask
    )
    model.set_attn_implementation("float64_eager")
    return model


def _distances(one: Trained, other: Trained) -> tuple[float, float]:
    """Return the largest difference of a loss, and of a tensor's update relative to it."""
    loss = max(
        float(np.abs(np.subtract(a, b)).max()) for a, b in ((one.ce, other.ce), (one.z, other.z))
    )
    assert set(one.added) == set(other.added)
    update = max(
        float(np.linalg.norm(one.added[n] - v) / np.linalg.norm(v)) for n, v in other.added.items()
    )
    return loss, update


@pytest.mark.parametrize("dtype", LIMITS)
def test_ten_steps_are_the_same_recipe(dtype: str, peer: Callable[[str], Trained]) -> None:
    ours, theirs = _ours(dtype), peer(dtype)
    assert min(ours.norms) > 1.0  # so the clip acts in every step
    loss, update = _distances(ours, theirs)
    assert loss <= LIMITS[dtype][0]
    assert update <= LIMITS[dtype][1]
    assert ours.norms == pytest.approx(theirs.norms, rel=1e-9 if dtype == "float64" else 1e-4)
    assert ours.added["lm_head.weight"].dtype == dtype


def _decay_all_but_norms(parameters: Any) -> Any:
    marks = decayed(parameters)
    return jax.tree.map(lambda mark, p: mark and p.ndim > 1, marks, parameters)


_exact_adam = optax.scale_by_adam


def _adam_without_bias_correction(b1: float, b2: float, eps: float) -> Any:
    exact = _exact_adam(b1, b2, eps=eps)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        after: Any
        _, after = exact.update(updates, state, params)
        direction = jax.tree.map(lambda m, v: m / (v**0.5 + eps), after.mu, after.nu)
        return direction, after

    return optax.GradientTransformation(exact.init, update)


PLANTED: dict[str, tuple[UpdateRule, tuple[Any, str, Any] | None]] = {
    "no decay on norms": (RULE, (optimizer_module, "decayed", _decay_all_but_norms)),
    "decay on embeddings": (
        RULE,
        (optimizer_module, "decayed", lambda tree: jax.tree.map(lambda _: True, tree)),
    ),
    "no z-loss": (replace(RULE, objective=Objective(z_weight=0.0)), None),
    "clip off": (replace(RULE, optimizer=AdamW(max_norm=math.inf)), None),
    "no bias correction": (
        RULE,
        (optimizer_module.optax, "scale_by_adam", _adam_without_bias_correction),
    ),
    "eps 1e-6": (replace(RULE, optimizer=AdamW(eps=1e-6)), None),
}
"""Error -> rule that has it, or what is put in place of which name."""


@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_is_found(
    error: str, peer: Callable[[str], Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, patch = PLANTED[error]
    theirs = peer("float64")
    if patch is not None:
        monkeypatch.setattr(*patch)
    loss, update = _distances(_ours("float64", rule), theirs)
    assert loss > LIMITS["float64"][0]
    assert update > LIMITS["float64"][1]
