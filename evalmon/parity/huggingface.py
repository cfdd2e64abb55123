"""A published OLMo 3 run by transformers in float32; the one file that owns torch and transformers.

Weights are loaded under settings that are all written out, tensor names are held against the
files' own lists, and one prompt's states are in memory at a time, its head in parts.
"""

import json
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import CheckpointError, ConfigError
from evalmon.parity.published import PublishedConfig
from evalmon.parity.reference import Reference, ReferenceFacts, Rows, file_hash
from evalmon.parity.soundness import YARN_PROBE, LayerBehavior, require_sound, small_twin

__all__ = ["observe", "open_huggingface"]

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_EAGER_BYTES: Final = 4 << 30
"""Scores of one layer above which attention is not run eagerly: it holds three such arrays."""

_PROBE_TOKENS: Final = 24
"""Tokens of a probe: more than its window, which is at most 8."""


def open_huggingface(folder: Path, progress: Callable[[str], None]) -> Reference:
    """Load published weights in float32, after the library has been found to get OLMo 3 right.

    Args:
        folder: ``config.json`` and safetensors files.
        progress: told what is done next.

    Raises:
        ConfigError: torch or transformers is not installed.
        CheckpointError: a file is missing, torn or misshaped; a tensor is missing, left over,
            misshaped, or tied and different. Nothing is ever left at random values.
        EvaluationError: a layer does not do what its settings say.
    """
    torch, transformers = _libraries()
    config = PublishedConfig.load(folder)
    files, dtypes = _inventory(folder)
    config = replace(config, tied=_is_tied(folder, files, config))
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    progress(f"probing {versions}")
    for name, probed in (("YaRN probe", YARN_PROBE), ("its small twin", small_twin(config))):
        for attention in ("eager", "sdpa"):
            behavior = observe(_build(probed, attention), _PROBE_TOKENS)
            require_sound(behavior, probed, f"{versions}: {name}, {attention} attention")
    progress(f"loading {folder} in float32")
    model = _load(folder, config)
    require_sound(observe(model, 2), config, f"{folder} in {versions}")
    facts = ReferenceFacts(
        path=str(folder),
        form="huggingface",
        vocab_size=config.vocab_size,
        window=config.window,
        stored_dtype=" and ".join(sorted(dtypes)),
        config_hash=file_hash([folder / "config.json"]),
        versions={"transformers": transformers.__version__, "torch": torch.__version__},
    )
    return Reference(
        facts,
        lambda _, ids: _rows(model, ids, progress),
        weights_hash=lambda: file_hash(files),
    )


def observe(model: Any, length: int) -> list[LayerBehavior]:
    """Return what each layer of a transformers OLMo 3 does on a text of ``length`` tokens.

    Attention is called as the model calls it, then again with one token changed, so that what
    a query sees is found whatever computes it. Up to 2 tokens that is left out.
    """
    torch, _ = _libraries()
    calls: dict[int, dict[str, Any]] = {}
    layers = list(model.model.layers)
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs, i=i: calls.__setitem__(
                i, {"hidden_states": args[0] if args else None, **kwargs}
            ),
            with_kwargs=True,
        )
        for i, layer in enumerate(layers)
    ]
    try:
        with torch.inference_mode():
            ids = torch.arange(length)[None] % model.config.vocab_size
            model.model(input_ids=ids, use_cache=False)
            return [_behavior(layer, calls[i], length) for i, layer in enumerate(layers)]
    finally:
        for hook in hooks:
            hook.remove()


def _behavior(layer: Any, call: dict[str, Any], length: int) -> LayerBehavior:
    """Return what one layer received and what its attention and norms do."""
    cos, sin = (part[0].double().numpy() for part in call["position_embeddings"])
    half = cos.shape[-1] // 2
    norms = {
        name: _norm_eps(module)
        for name, module in layer.named_modules()
        if type(module).__name__.endswith("RMSNorm")
    }
    seen = _seen(layer.self_attn, call, length) if length > 2 else np.zeros((0, 0), bool)
    return LayerBehavior(cos[:, :half], sin[:, :half], norms, seen)


def _seen(attention: Any, call: dict[str, Any], length: int) -> NDArray[np.bool_]:
    """Return which queries (rows) change when the token at a key (column) does."""
    torch, _ = _libraries()
    # Text 0 is as it was; in text j + 1 token j is another.
    states = call["hidden_states"].repeat(length + 1, 1, 1)
    states[1:][torch.arange(length), torch.arange(length)] += 1.0
    out = attention(**{**call, "hidden_states": states})[0]
    change = (out[1:] - out[0]).abs().amax(-1)
    return (change > 1e-5 * change.max()).numpy().T


def _norm_eps(norm: Any) -> float:
    """Return what a norm adds to the mean square: y = w c / sqrt(c^2 + eps) of a constant c."""
    torch, _ = _libraries()
    constant = 1e-3
    at = int(norm.weight.abs().argmax())
    y = norm(torch.full_like(norm.weight, constant))[at].item() / norm.weight[at].item()
    return (constant / y) ** 2 - constant**2 if y else float("nan")


def _rows(model: Any, ids: list[int], progress: Callable[[str], None]) -> Rows:
    """Run one text; return a function from a range of positions to their log-probabilities."""
    torch, _ = _libraries()
    scores = 4 * len(ids) ** 2 * model.config.num_attention_heads
    attention = "eager" if scores <= _EAGER_BYTES else "sdpa"
    if attention != "eager":
        progress(f"reference attention by {attention}: eager scores would take {scores:.1e} bytes")
    model.set_attn_implementation(attention)
    with torch.inference_mode():
        states = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]

    def between(start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        with torch.inference_mode():
            rows = torch.log_softmax(model.lm_head(states[start:stop]).float(), dim=-1)
        return np.arange(start, min(stop, len(ids))), rows.numpy()

    return between


def _build(config: PublishedConfig, attention: str) -> Any:
    """Return a model of these settings with random weights, for probing alone."""
    torch, transformers = _libraries()
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(0)
        settings = transformers.Olmo3Config(**config.record(), attn_implementation=attention)
        return transformers.Olmo3ForCausalLM(settings).eval()


def _load(folder: Path, config: PublishedConfig) -> Any:
    """Return the model with the weights of the folder, every one of them."""
    torch, transformers = _libraries()
    try:
        with _quiet():
            model, report = transformers.Olmo3ForCausalLM.from_pretrained(
                folder,
                config=transformers.Olmo3Config(**config.record(), attn_implementation="eager"),
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that they are listed, and refused below
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(
            f"{folder}: cannot be loaded ({type(error).__name__}: {reason[:300]})"
        ) from error
    wrong = {
        "missing": report["missing_keys"],
        "unknown": report["unexpected_keys"],
        "misshaped": report["mismatched_keys"],
    }
    if any(wrong.values()):
        named = "; ".join(
            f"{kind} {sorted(map(str, names))}" for kind, names in wrong.items() if names
        )
        raise CheckpointError(
            f"{folder}: its tensors are not those of its config.json: {named[:1500]}; "
            "copy the weights again"
        )
    return model.eval()


def _inventory(folder: Path) -> tuple[list[Path], set[str]]:
    """Return the weight files, each whole and none missing, and the dtypes stored in them."""
    from safetensors import SafetensorError, safe_open

    index, single = folder / _INDEX, folder / _SINGLE
    if index.exists() == single.exists():
        raise CheckpointError(
            f"{folder}: holds both {_SINGLE} and {_INDEX}; remove one of them"
            if single.exists()
            else f"{folder}: neither {_SINGLE} nor {_INDEX} in it; copy the weights"
        )
    listed: dict[str, str] = {}
    if index.exists():
        try:
            listed = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            inside = all(Path(name).name == name for name in listed.values())
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{index}: not a list of weights ({error!r}); copy it again"
            ) from error
        if not listed or not inside:
            raise CheckpointError(
                f"{index}: not a list of weights (weight_map must name a file beside it for each "
                "tensor); copy it again"
            )
        if not inside:
            raise CheckpointError(
                f"{index}: not a list of weights (weight_map must name a file beside it for each "
                "tensor); copy it again"
            )
    files = [folder / name for name in sorted(set(listed.values()))] or [single]
    dtypes: set[str] = set()
    for file in files:
        try:
            with safe_open(file, framework="np") as tensors:
                names = set(tensors.keys())
                stored = {name: tensors.get_slice(name).get_dtype() for name in names}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{file}: cannot be read ({str(error)[:200]}); it is cut off or missing, "
                "copy it again"
            ) from error
        if other := sorted(name for name, dtype in stored.items() if dtype not in _DTYPES):
            raise CheckpointError(
                f"{file}: {other[0]} has dtype {stored[other[0]]}; expected one of "
                f"{', '.join(_DTYPES)}: export the weights unquantized"
            )
        dtypes |= {_DTYPES[dtype] for dtype in stored.values()}
        lacking = sorted(name for name, place in listed.items() if place == file.name)
        if missing := sorted(set(lacking) - names):
            raise CheckpointError(f"{file}: lacks {missing}, which {_INDEX} puts there")
    return files, dtypes


_DTYPES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Names of the safetensors format."""


def _is_tied(folder: Path, files: list[Path], config: PublishedConfig) -> bool:
    """Return whether the embedding serves as the head, which no second tensor may contradict."""
    from safetensors import safe_open

    if not config.tied:
        return False
    found: dict[str, Any] = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in {"lm_head.weight", "model.embed_tokens.weight"} & set(tensors.keys()):
                found[name] = tensors.get_tensor(name)
    if len(found) < 2:
        return True
    head, embedding = found["lm_head.weight"], found["model.embed_tokens.weight"]
    if head.shape != embedding.shape or not bool((head == embedding).all()):
        raise CheckpointError(
            f"{folder}: config.json ties lm_head.weight to model.embed_tokens.weight, but both are "
            "stored and differ; set tie_word_embeddings to false if the head is meant"
        )
    return False


def _libraries() -> tuple[Any, Any]:
    """Return torch and transformers."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"a published reference needs torch and transformers ({error}); "
            "pip install 'evalmon[parity]', or give a stored reference (.npz)"
        ) from error
    return torch, transformers


@contextmanager
def _quiet() -> Generator[None]:
    """Keep transformers from reporting on standard error what is checked here anyway."""
    _, transformers = _libraries()
    logger = logging.getLogger("transformers")
    level, bars = logger.level, transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()
