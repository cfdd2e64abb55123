"""One OLMo 3 twice: as our language model, and as lm-eval's own class over transformers.

Both read one tokenizer file and have equal weights, so that any difference is scoring's.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from evalmon.models import LanguageModel, find_model
from evalmon.types import RunDescription
from tests.published import Shape
from trainer.architecture import Execution, Olmo3Config
from trainer.model import ParameterTree, parameter_shapes
from trainer.objective import Objective
from trainer.optimizer import AdamW
from trainer.schedule import CosineWithWarmup
from trainer.update import UpdateRule, fresh_state, make_update

if TYPE_CHECKING:
    from evalmon.evaluators.harness_tasks import FixedTask

__all__ = [
    "EOS",
    "Compilations",
    "Twin",
    "random_parameters",
    "suite_tasks",
    "train_tokenizer",
    "trained_parameters",
]

EOS = "<|endoftext|>"


class Compilations:
    """What JAX compiles in this process after this is made.

    Attributes:
        times: when each ended, by ``time.perf_counter``.
        seconds: what they took in all.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.times.append(time.perf_counter())
            self.seconds += duration_secs


@dataclass(frozen=True)
class Twin:
    """A model that two scorers compute.

    Attributes:
        config: shapes; no YaRN.
        parameters: our tree, float32.
        tokenizer: a ``tokenizers`` JSON file.
        eos_id: the id of ``EOS`` in it.
        max_length: longest input, in tokens.
    """

    config: Olmo3Config
    parameters: ParameterTree
    tokenizer: Path
    eos_id: int
    max_length: int

    def run(self, folder: Path) -> RunDescription:
        """Describe a run that trained it."""
        return RunDescription(
            name="twin", path=folder, adapter="olmo3", model=asdict(self.config),
            tokenizer=str(self.tokenizer), vocab_size=self.config.vocab_size, eos_id=self.eos_id,
            sequence_length=self.max_length, batch_instances=1, planned_steps=10,
            planned_passes=1, source_instances=10, hosts=1, loader="batch_strided", seed=0,
            warmup_steps=0, recipe="", loss={}, data="",
        )  # fmt: skip

    def ours(self, folder: Path, dtype: str | None = None, mesh: str = "") -> LanguageModel:
        """Return our model with its weights."""
        model = find_model(self.run(folder).model_description, dtype, mesh)
        model.load(self.parameters)
        return model

    def theirs(self, batch_size: int) -> Any:
        """Return lm-eval's Hugging Face class around the same weights in torch, in float32."""
        from lm_eval.models.huggingface import HFLM
        from transformers import PreTrainedTokenizerFast

        from evalmon.evaluators.harness import quiet

        fast = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_file(str(self.tokenizer)), eos_token=EOS
        )
        make: Any = HFLM  # its signature is hidden behind a registering decorator
        with quiet():
            return make(
                pretrained=self.torch_model(),
                tokenizer=fast,
                batch_size=batch_size,
                max_length=self.max_length,
                device="cpu",
            )

    def torch_model(self) -> Any:
        """Return the same weights in transformers' model."""
        import torch
        import transformers

        c = self.config
        shape = Shape(
            c.layers, c.width, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab_size, c.window
        )
        model = transformers.Olmo3ForCausalLM(shape.config()).eval()
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                tensor.copy_(torch.from_numpy(_published(self.parameters, name)))
        return model


def suite_tasks(suite: str, items: int, root: Path) -> "dict[str, FixedTask]":
    """Return a suite's tasks by name, the first items of each.

    Args:
        suite: its name.
        items: items a task.
        root: the package's data.
    """
    from evalmon.evaluators.harness_tasks import load_task
    from evalmon.evaluators.suites import expand

    return {choice.name: load_task(choice, items, root) for choice in expand([suite], 0, tuple)}


def random_parameters(config: Olmo3Config, seed: int = 0, deviation: float = 0.15) -> ParameterTree:
    """Return norms from N(1, 0.1) and matrices from N(0, deviation).

    A default initialization predicts nearly uniformly, and hides every error.
    """
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> NDArray[np.float32]:
        mean, spread = (1.0, 0.1) if len(leaf.shape) == 1 else (0.0, deviation)
        values = rng.standard_normal(leaf.shape, np.float32)
        return np.float32(mean) + np.float32(spread) * values

    return jax.tree.map(draw, parameter_shapes(config))


def trained_parameters(
    config: Olmo3Config, tokens: NDArray[np.integer[Any]], steps: int, seed: int = 0
) -> ParameterTree:
    """Return what the trainer's own update makes of a fresh model.

    Args:
        config: shapes.
        tokens: [N, T] instances, taken in turn.
        steps: updates, of 8 instances each.
        seed: of the fresh model.
    """
    rule = UpdateRule(CosineWithWarmup(3e-3, 10, steps), AdamW(), Objective())
    update = jax.jit(make_update(config, Execution(), rule), donate_argnums=0)
    state = jax.tree.map(jax.numpy.asarray, fresh_state(config, Execution(), seed))
    for step in range(1, steps + 1):
        rows = np.arange(8 * step, 8 * step + 8) % len(tokens)
        state, _ = update(state, tokens[rows].astype(np.int32), np.int32(step))
    return jax.tree.map(np.array, state.params)


def train_tokenizer(path: Path, texts: Iterable[str], size: int) -> Path:
    """Write a byte-level BPE tokenizer trained on texts; id 0 ends documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]  # a property its stub calls read-only
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return path


def _published(parameters: Mapping[str, Any], name: str) -> NDArray[np.float32]:
    """Return the tensor that transformers calls so; matrices there are [outputs, inputs]."""
    node: Any = parameters
    for part in name.removeprefix("model.").split(".")[:-1]:
        node = node[part]
    ((kind, values),) = node.items()
    return np.ascontiguousarray(values.T) if kind == "kernel" else values
