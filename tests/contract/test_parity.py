"""The model is OLMo 3: it predicts what transformers predicts, and no near relative does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon.parity.divergence import Divergence, Meter
from evalmon.parity.huggingface import observe, open_huggingface
from evalmon.parity.reference import Reference
from evalmon.types import RopeParameters
from tests.published import THETA, Shape, parameter_tree, random_model
from trainer import model as trainer_model
from trainer.adapter import Olmo3LanguageModel
from trainer.architecture import Olmo3Config

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch and transformers warn about their own future
]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPES = {
    "plain": Shape(),
    "grouped heads": Shape(heads=8, kv_heads=2, head_dim=8),
    "six layers": Shape(layers=6),
    "yarn": Shape(width=96, heads=6, kv_heads=3, vocab=512, yarn=(8.0, 16)),
}
LENGTHS = (72, 96, 128)
"""Tokens of the prompts: more than four windows each, and one compiled shape."""


@dataclass(frozen=True)
class Peer:
    """A random model of transformers: its folder, its predictions, its weights in our form."""

    shape: Shape
    folder: Path
    reference: Reference
    tree: dict[str, Any]
    texts: list[list[int]]

    def measure(self, predict: Callable[[list[int]], NDArray[np.float32]]) -> Divergence:
        """Hold predictions against the float32 reference."""
        meter = Meter(self.shape.vocab, 10, self.shape.window)
        for number, ids in enumerate(self.texts):
            positions, rows = self.reference.read(number, ids)(0, len(ids))
            meter.add(number, positions, rows, predict(ids))
        return meter.result()

    def measure_ours(self, config: Olmo3Config) -> Divergence:
        """Hold our model, perhaps changed, against the reference."""
        model = Olmo3LanguageModel(config, 64)
        model.load(self.tree)
        return self.measure(lambda ids: np.concatenate(list(model.log_probabilities(ids))))


def make_peer(shape: Shape, folder: Path) -> Peer:
    model = random_model(shape)
    model.save_pretrained(folder)
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, shape.vocab, length).tolist() for length in LENGTHS]
    reference = open_huggingface(folder, lambda _: None)
    return Peer(shape, folder, reference, parameter_tree(model), texts)


def config_of(shape: Shape, dtype: str = "float32") -> Olmo3Config:
    return Olmo3Config.from_record({**shape.record(), "dtype": dtype}, "test")


@pytest.fixture(scope="module", params=SHAPES)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return make_peer(SHAPES[request.param], tmp_path_factory.mktemp("peer") / "hf")


def test_float32_predicts_what_the_reference_predicts_at_every_position(peer: Peer) -> None:
    found = peer.measure_ours(config_of(peer.shape))
    assert found.positions == sum(LENGTHS)
    assert found.max_kl is not None
    assert found.max_kl <= 1e-8
    assert found.max_logprob_diff is not None
    assert found.max_logprob_diff <= 1e-4
    assert found.topk_agreement == pytest.approx(1.0, abs=1e-3)
    assert found.max_kl_beyond is not None


def test_predictions_are_sharp_enough_to_show_an_error(peer: Peer) -> None:
    rows = peer.reference.read(0, peer.texts[0])(0, 72)[1].astype(np.float64)
    entropy = -(np.exp(rows) * rows).sum(-1)
    assert entropy.mean() < np.log(peer.shape.vocab) - 0.5


def test_bfloat16_rounds_no_more_than_the_reference_does(peer: Peer) -> None:
    theirs = transformers.Olmo3ForCausalLM.from_pretrained(
        peer.folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()

    def predict(ids: list[int]) -> NDArray[np.float32]:
        with torch.no_grad():
            return torch.log_softmax(theirs(torch.tensor([ids])).logits[0].float(), -1).numpy()

    noise = peer.measure(predict).mean_kl
    ours = peer.measure_ours(config_of(peer.shape, "bfloat16")).mean_kl
    assert noise is not None
    assert ours is not None
    assert ours <= 1.5e-3
    assert ours <= 2 * noise
    assert noise > 1e-5


# Every property that can be got wrong at once; narrow, so that activations are small enough for
# eps to show.
ERRORS_SHAPE = Shape(
    layers=6, width=24, heads=4, kv_heads=2, head_dim=8, ffn=32, vocab=256, yarn=(8.0, 16)
)
CONFIG = config_of(ERRORS_SHAPE)
HEADS = (32, 16)
"""Widths of the query and the key projection, neither of them the model's."""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return make_peer(ERRORS_SHAPE, tmp_path_factory.mktemp("narrow") / "hf")


def per_head_norm(self: Any, x: Any) -> Any:
    """Norm of each head alone where queries and keys are normalized, as most models have it."""
    parts = x.reshape(*x.shape[:-1], -1, 8) if x.shape[-1] in HEADS else x
    inverse = jax.lax.rsqrt((parts * parts).mean(-1, keepdims=True) + self.eps)
    return (parts * inverse).reshape(x.shape) * self.scale[...]


def pre_norm(self: Any, x: Any, segments: Any = None) -> Any:
    """Norms on what the sublayers read, as most models have them."""
    h = x + self.self_attn(self.post_attention_layernorm(x), segments)
    return h + self.mlp(self.post_feedforward_layernorm(h))


def scaled_everywhere(self: Olmo3Config, layer: int) -> RopeParameters:
    return RopeParameters(self.rope_theta, self.yarn)


def last_slides(self: Olmo3Config, layer: int) -> bool:
    return (layer + 1) % 4 == 0


ERRORS: dict[str, tuple[Olmo3Config, tuple[Any, str, Any] | None]] = {
    "no YaRN": (replace(CONFIG, yarn=None), None),
    "YaRN in all layers": (CONFIG, (Olmo3Config, "rope", scaled_everywhere)),
    "last layer slides": (CONFIG, (Olmo3Config, "sees_all", last_slides)),
    "window one less": (replace(CONFIG, window=15), None),
    "window one more": (replace(CONFIG, window=17), None),
    "no window": (replace(CONFIG, window=10_000), None),
    "eps 1e-5": (replace(CONFIG, norm_eps=1e-5), None),
    "norm of each head": (CONFIG, (trainer_model.RMSNorm, "__call__", per_head_norm)),
    "norms before": (CONFIG, (trainer_model.Layer, "__call__", pre_norm)),
}


@pytest.fixture
def planted(
    narrow: Peer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[str, Divergence]]:
    """Our model with one error."""
    config, patch = ERRORS[request.param]
    with monkeypatch.context() as patches:
        if patch is not None:
            patches.setattr(*patch)
        yield request.param, narrow.measure_ours(config)


FIRST_WRONG = {
    "no YaRN": 1, "YaRN in all layers": 1, "last layer slides": 1, "norm of each head": 1,
    "window one less": 15, "window one more": 16, "no window": 16, "eps 1e-5": 0,
    "norms before": 0,
}  # fmt: skip
"""First position whose prediction an error can change."""


@pytest.mark.parametrize("planted", ERRORS, indirect=True)
def test_each_planted_error_is_far_beyond_the_threshold_where_it_can_be(
    planted: tuple[str, Divergence],
) -> None:
    """A mean alone hides them: scaled sliding layers moved a published mean by 0.003 nats."""
    error, found = planted
    assert found.max_kl is not None
    assert found.mean_kl is not None
    assert found.max_kl > 1e-6
    if error != "eps 1e-5":
        assert found.mean_kl > 5e-3
    right, first = 1e-10, FIRST_WRONG[error]
    assert found.max_kl_first is not None
    assert found.max_kl_within is not None
    assert found.max_kl_beyond is not None
    assert (found.max_kl_first > right) == (first == 0)
    assert (found.max_kl_within > right) == (first < ERRORS_SHAPE.window)
    assert found.max_kl_beyond > right


def test_the_errors_model_itself_is_right(narrow: Peer) -> None:
    found = narrow.measure_ours(CONFIG)
    assert found.max_kl is not None
    assert found.max_kl <= 1e-8


def oracle(scaled: bool) -> tuple[list[float], float]:
    """Rotary frequencies of heads of 8, factor 8 over 16 tokens, worked out by hand.

    theta^(-i/4); pair 4 ln(16 / (2 pi n)) / ln(theta) makes n turns over 16 tokens: rounded
    outwards, -1 -> 0 for n = 32 and 1 for n = 1. So pair 0 stays, pairs 1 to 3 turn 8 times slower.
    """
    slower = [1.0, 8.0, 8.0, 8.0] if scaled else [1.0] * 4
    return [THETA ** (-i / 4) / slower[i] for i in range(4)], 1.2079441541679836 if scaled else 1.0


def test_the_installed_transformers_scales_full_layers_alone() -> None:
    shape = Shape(width=16, heads=2, kv_heads=1, head_dim=8, ffn=16, vocab=40, yarn=(8.0, 16))
    position = np.arange(64)[:, None]
    for layer, seen in enumerate(observe(random_model(shape), 64)):
        frequencies, scale = oracle(scaled=layer == 3)
        angle = position * np.array(frequencies)
        assert np.abs(seen.cos - scale * np.cos(angle)).max() < 1e-5
        assert np.abs(seen.sin - scale * np.sin(angle)).max() < 1e-5


def test_our_layers_rotate_by_the_same_frequencies() -> None:
    from trainer.rotary import rotate

    config = replace(CONFIG, layers=4)
    heads = np.random.default_rng(0).normal(size=(1, 64, 2, 8)).astype(np.float32)
    for layer in range(4):
        frequencies, scale = oracle(scaled=layer == 3)
        turn = np.exp(1j * np.arange(64)[:, None] * np.array(frequencies)) * scale
        turned = (heads[..., :4] + 1j * heads[..., 4:]) * turn[None, :, None]
        expected = np.concatenate([turned.real, turned.imag], axis=-1)
        found = np.asarray(rotate(jnp.asarray(heads), config.rope(layer)))
        assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 2, 3, 4, 10, 20, 30, 40], [1.0] * 8),
        ([1, 2, 3, 4, 10, 20, 30, 40], [0.5, 1, 2, 3, 1, 0.25, 1, 4]),
        ([1, 2, 3, 4], [1, 2, 3, 4]),
    ],
    ids=["queries", "weighted", "grouped keys"],
)
def test_queries_and_keys_are_normalized_over_all_their_heads(
    values: list[float], scale: list[float]
) -> None:
    from flax import nnx

    norm = trainer_model.RMSNorm(len(values), replace(CONFIG, norm_eps=1e-30))
    norm.scale = nnx.Param(jnp.asarray(scale, jnp.float32))
    found = np.asarray(norm(jnp.asarray(values, jnp.float32))) / scale
    of_eight = [0.0514, 0.1028, 0.1542, 0.2055, 0.5138, 1.0277, 1.5415, 2.0553]
    of_four = [0.3651, 0.7303, 1.0954, 1.4606]
    expected = of_eight if len(values) == 8 else of_four
    assert found.tolist() == pytest.approx(expected, abs=5e-5)


def test_attention_normalizes_whole_projections() -> None:
    """Widths of the weights that a checkpoint must have: heads times their width, not one head."""
    shapes = trainer_model.parameter_shapes(CONFIG)["layers"]["0"]["self_attn"]
    assert (shapes["q_norm"]["scale"].shape, shapes["k_norm"]["scale"].shape) == ((32,), (16,))
