"""What stands over every result: how it was computed, in JSON values."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from evalmon.packing import BATCH_TOKENS
from evalmon.scoring import Scorer
from evalmon.types import RunDescription

__all__ = ["header", "versions"]

_LIBRARIES: Final = ("evalmon", "jax", "flax", "lm-eval", "tokenizers", "numpy")


def header(scorer: Scorer, run: RunDescription, **facts: Any) -> dict[str, Any]:
    """Return the header of a result.

    Args:
        scorer: what scored it.
        run: the run scored.
        facts: what the evaluator adds, as counts of merged boundaries.
    """
    model, accounting = scorer.model, scorer.accounting
    return {
        "adapter": run.adapter,
        "dtype": model.dtype,
        "stored_dtype": model.stored_dtype,
        "batch_size": scorer.batch_size or f"{BATCH_TOKENS} tokens",
        "share_prefixes": scorer.share_prefixes,
        "prefix_token": run.prefix_id,
        "max_length": model.max_length,
        "versions": dict(versions()),
        "requests": accounting.requests,
        "tokens_computed": accounting.tokens_computed,
        "tokens_distinct": accounting.tokens_distinct,
        "tokens_padded": accounting.tokens_padded,
        **facts,
    }


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of the libraries that numbers come from, those installed."""
    found: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
