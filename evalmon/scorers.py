"""Makes the scorer that an evaluator is given, bound to the weights it scores."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from evalmon.config import EvaluationSettings
from evalmon.errors import ConfigError
from evalmon.evaluators.header import versions
from evalmon.models import LanguageModel
from evalmon.scoring import Scorer
from evalmon.store import ResponseFile
from evalmon.types import RunDescription

__all__ = ["response_file", "scorer"]

_CODE_VERSION: Final = 1  # raise it when a model's answers to unchanged requests change
_LIBRARIES: Final = ("evalmon", "flax", "jax", "numpy")


def response_file(
    settings: EvaluationSettings, store: Path | None, clock: Callable[[], float] = time.time
) -> ResponseFile | None:
    """Return where answers are kept while a checkpoint is scored; None where nothing is set.

    Args:
        settings: may name the file.
        store: file of the store, beside which it lies otherwise; None for a database elsewhere.
        clock: returns Unix seconds.

    Raises:
        ConfigError: the settings name the store itself.
    """
    if settings.response_cache:
        path = Path(settings.response_cache)
        if store is not None and path.absolute() == store.absolute():
            raise ConfigError(
                f"evaluation.response_cache: {path} is the results store; name another file, or "
                "none to have one beside the store"
            )
        return ResponseFile(path, clock)
    if store is None:
        return None
    return ResponseFile(store.with_name(f"{store.name}.responses.sqlite"), clock)


def scorer(
    model: LanguageModel,
    run: RunDescription,
    settings: EvaluationSettings,
    weights: str,
    responses: ResponseFile | None,
    description: str,
) -> Scorer:
    """Return a scorer of the weights that the model has loaded.

    Tokenizer and prefix token are in the token ids of a request; all else that answers depend
    on is bound here.

    Args:
        model: the model, its weights loaded.
        run: the run they are of.
        settings: how they are scored.
        weights: their fingerprint.
        responses: where answers are kept, None for nowhere.
        description: text before the progress bar.
    """
    cache = responses and responses.bind(
        weights,
        adapter=run.adapter,
        settings=run.model,
        vocab_size=run.vocab_size,
        max_length=model.max_length,
        dtype=model.dtype,
        code=_CODE_VERSION,
        versions={name: versions().get(name, "") for name in _LIBRARIES},
    )
    return Scorer(
        model=model,
        batch_size=settings.batch_size,
        share_prefixes=settings.share_prefixes,
        cache=cache,
        description=description,
    )
