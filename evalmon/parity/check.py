"""One parity check, from options to result."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from evalmon import checkpoints
from evalmon.errors import CheckpointError, ConfigError, EvaluationError
from evalmon.models import LanguageModel, find_model
from evalmon.parity.divergence import Meter
from evalmon.parity.prompts import (
    Prompts,
    random_prompts,
    read_prompts,
    require_ids,
    tokenizer_encode,
)
from evalmon.parity.reference import Reference
from evalmon.parity.result import MAX_KL, MEAN_KL, ModelFacts, ParityResult, PromptFacts
from evalmon.parity.stored import Recorder, open_stored
from evalmon.types import ModelDescription

__all__ = ["ParityOptions", "check_parity", "compare"]

_DEFAULTS: Final = {"float32": (MAX_KL, 1e-6), "bfloat16": (MEAN_KL, 1.5e-3)}
"""Criterion and threshold in nats by compute dtype. Float32 on both sides differs by the order
of sums alone; bfloat16 rounds every activation to 8 bits."""

_WINDOWS: Final = 4
_LEAST_TOKENS: Final = 64
_COUNT: Final = 2
_MOST_TOKENS: Final = 10**8
"""Of random prompts: more would not be compared within a day."""

_Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """What to check against what, and how.

    Attributes:
        reference: folder of published weights, or a stored reference.
        model: ``RUN/checkpoints/STEP`` or a weights folder.
        prompts: file of prompts, None for random ones.
        dtype: what the model computes in, None for what it was described with.
        top_k: k of the agreement.
        seed: of random prompts, 0 by default.
        length: tokens of a random prompt, four windows and at least 64 by default.
        count: random prompts, 2 by default.
        max_kl: threshold of the largest KL, in nats.
        mean_kl: threshold of the mean KL, in nats.
        save_reference: file to store the reference's log-probabilities in.
    """

    reference: Path
    model: Path
    prompts: Path | None = None
    dtype: str | None = None
    top_k: int = 10
    seed: int | None = None
    length: int | None = None
    count: int | None = None
    max_kl: float | None = None
    mean_kl: float | None = None
    save_reference: Path | None = None

    def require_valid(self) -> None:
        """Refuse options that contradict each other or have no meaning.

        Raises:
            ConfigError: the option is named.
        """
        if self.dtype not in (None, *_DEFAULTS):
            raise ConfigError(f"--dtype {self.dtype!r}: expected one of {', '.join(_DEFAULTS)}")
        if self.max_kl is not None and self.mean_kl is not None:
            raise ConfigError("--max-kl and --mean-kl: one of them decides; give one")
        for name, value in (("--max-kl", self.max_kl), ("--mean-kl", self.mean_kl)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} {value}: must be a number of at least 0")
        least = {"--top-k": (self.top_k, 1), "--seed": (self.seed, 0)}
        least |= {"--length": (self.length, 1), "--count": (self.count, 1)}
        for name, (value, smallest) in least.items():
            if value is not None and value < smallest:
                raise ConfigError(f"{name} {value}: must be at least {smallest}")
        drawn_ids = (self.count or _COUNT) * (self.length or 1)
        if drawn_ids > _MOST_TOKENS:
            raise ConfigError(
                f"--count {self.count or _COUNT} x --length {self.length or 1}: {drawn_ids} "
                f"tokens, expected at most {_MOST_TOKENS}"
            )
        drawn = [n for n in ("seed", "length", "count") if getattr(self, n) is not None]
        if self.prompts is not None and drawn:
            raise ConfigError(f"--{drawn[0]} is for random prompts; leave it or --prompts out")
        if not self.reference.exists():
            raise CheckpointError(
                f"{self.reference}: no such folder or file; give published weights or a stored "
                "reference"
            )
        if not self.reference.is_dir():
            given = [f"--{n}" for n in ("prompts", *drawn) if n in drawn or self.prompts]
            if given or self.save_reference:
                raise ConfigError(
                    f"{[*given, '--save-reference'][0]}: a stored reference has its prompts; "
                    "leave it out"
                )


def check_parity(options: ParityOptions, progress: _Progress) -> ParityResult:
    """Hold a model against a reference.

    Args:
        options: what to check.
        progress: told what is done next.

    Raises:
        ConfigError: options that contradict each other; a library is missing.
        CheckpointError: weights of model or reference that cannot be used.
        DataError: prompts that cannot be used.
        EvaluationError: a reference that does not do what its settings say.
        WriteError: the reference cannot be stored.
    """
    options.require_valid()
    progress(f"opening {options.model}")
    description, parameters = checkpoints.open_weights(options.model)
    model = find_model(description, options.dtype)
    model.load(parameters.tree)
    del parameters
    given = _given_prompts(options, description)
    reference = _open_reference(options.reference, progress)
    vocabulary = min(model.vocab_size, reference.facts.vocab_size)
    prompts, facts = _prompts(options, given, reference, vocabulary)
    return compare(options, model, reference, (prompts, facts), progress)


def compare(
    options: ParityOptions,
    model: LanguageModel,
    reference: Reference,
    prompts: tuple[Prompts, PromptFacts],
    progress: _Progress,
) -> ParityResult:
    """Compare every position of every prompt that the reference has.

    Args:
        options: criterion, top-k, and where to store the reference.
        model: with its weights.
        reference: ready to be read.
        prompts: token ids, and what they are.
        progress: told what is done next.
    """
    texts, facts = prompts
    vocabulary = min(model.vocab_size, reference.facts.vocab_size)
    if options.top_k > vocabulary:
        raise ConfigError(f"--top-k {options.top_k}: more than the {vocabulary} entries compared")
    meter = Meter(vocabulary, options.top_k, reference.facts.window)
    recorder = None
    if options.save_reference is not None:
        recorder = Recorder(options.save_reference, texts, reference.facts.vocab_size)
    for number, ids in enumerate(texts):
        progress(f"prompt {number + 1} of {len(texts)}: {len(ids)} tokens")
        _compare_one(number, ids, model, reference, (meter, recorder))
    criterion, threshold = _criterion(options, model.dtype)
    result = ParityResult(
        divergence=meter.result(),
        criterion=criterion,
        threshold=threshold,
        top_k=options.top_k,
        model=ModelFacts(str(options.model), model.dtype, model.stored_dtype, model.vocab_size),
        reference=reference.facts,
        prompts=facts,
    )
    return (
        result
        if recorder is None
        else replace(result, saved=_save(recorder, result, reference, options))
    )


def _compare_one(
    number: int,
    ids: list[int],
    model: LanguageModel,
    reference: Reference,
    readers: tuple[Meter, Recorder | None],
) -> None:
    """Compare one prompt part by part."""
    meter, recorder = readers
    between, start = reference.read(number, ids), 0
    for part in model.log_probabilities(ids):
        stop = start + len(part)
        positions, rows = between(start, stop)
        if len(positions):
            meter.add(number, positions, rows, part[positions - start])
            if recorder is not None:
                recorder.add(number, positions, rows)
        start = stop
    if start != len(ids):
        raise EvaluationError(
            f"prompt {number}: the model gave {start} predictions for {len(ids)} tokens; "
            "its adapter is broken"
        )


def _save(
    recorder: Recorder, result: ParityResult, reference: Reference, options: ParityOptions
) -> dict[str, Any]:
    """Store the reference and say how much of it."""
    if result.divergence.nonfinite["reference"]:
        raise CheckpointError(
            f"{reference.facts.path}: its log-probabilities are not finite, so they were not "
            "stored; check its weights"
        )
    recorder.save(reference.facts, reference.weights_hash(), np.__version__)
    return {
        "path": str(options.save_reference),
        "positions": recorder.kept,
        "of_positions": recorder.positions,
    }


def _criterion(options: ParityOptions, dtype: str) -> tuple[str, float]:
    """Return what decides, and the largest value that passes."""
    if options.max_kl is not None:
        return MAX_KL, options.max_kl
    if options.mean_kl is not None:
        return MEAN_KL, options.mean_kl
    return _DEFAULTS.get(dtype, _DEFAULTS["float32"])


def _open_reference(path: Path, progress: _Progress) -> Reference:
    """Open published weights or a stored reference."""
    if not path.is_dir():
        return open_stored(path)
    from evalmon.parity.huggingface import open_huggingface

    return open_huggingface(path, progress)


def _given_prompts(options: ParityOptions, description: ModelDescription) -> Prompts | None:
    """Read the prompts file with the tokenizer beside the model, or else the reference."""
    if options.prompts is None:
        return None
    beside = [options.reference / "tokenizer.json"]
    if description.tokenizer is not None:
        beside.insert(0, description.path.parent / description.tokenizer)
    return read_prompts(options.prompts, tokenizer_encode(beside))


def _prompts(
    options: ParityOptions, given: Prompts | None, reference: Reference, vocabulary: int
) -> tuple[Prompts, PromptFacts]:
    """Return the texts to compare on, every id of which both sides have."""
    seed = None
    if reference.prompts is not None:
        prompts, source = reference.prompts, "stored"
    elif given is not None:
        prompts, source = given, str(options.prompts)
    else:
        length = options.length or max(_LEAST_TOKENS, _WINDOWS * reference.facts.window)
        seed, source = options.seed or 0, "random"
        prompts = random_prompts(seed, vocabulary, options.count or _COUNT, length)
    require_ids(prompts, vocabulary, str(options.prompts or options.reference))
    return prompts, PromptFacts(source, [len(ids) for ids in prompts], seed)
