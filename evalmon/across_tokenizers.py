"""Holdout losses of two tokenizers, laid over each other by bytes of text.

A loss a token says nothing across tokenizers, which cut one text into other tokens; bits per
byte do. They are shown in nats per token of the run's own tokenizer, in which every tolerance is
stated: on a fixed text both differ by a factor that never changes.

Source: ggml-org/llama.cpp issue 7111.
"""

from dataclasses import replace

import numpy as np

from evalmon.likeness import identity_differences
from evalmon.types import MetricIdentity, Series

__all__ = ["in_nats", "same_text"]

_BYTES = "UTF-8 bytes"
_OF_TOKENIZER = ("'tokenizer'", "'prefix_token'", "'max_length'")
"""Fields that depend on the tokenizer and may differ with it."""


def in_nats(bits: Series, own_bits: Series, own_nats: Series) -> Series | None:
    """Express bits per byte in nats per token of the run's tokenizer.

    Args:
        bits: bits per byte of run or reference.
        own_bits: those of the run.
        own_nats: nats per token of the run, on the same text.

    Returns:
        The series under the name of ``own_nats``; None where the run has no step with both.

    Example:
        >>> at = np.array([1, 2])
        >>> nats, own = Series("n", at, at, np.array([4.0, 3.0])), np.array([1.0, 0.75])
        >>> theirs = Series("b", at, at, np.array([0.875, 0.75]))
        >>> in_nats(theirs, Series("b", at, at, own), nats).values.tolist()
        [3.5, 3.0]
    """
    _, mine, theirs = np.intersect1d(own_nats.steps, own_bits.steps, return_indices=True)
    known = own_bits.values[theirs] > 0
    if not known.any():
        return None
    nats_a_bit = np.median(own_nats.values[mine][known] / own_bits.values[theirs][known])
    return replace(bits, metric=own_nats.metric, values=bits.values * float(nats_a_bit))


def same_text(mine: MetricIdentity, theirs: MetricIdentity) -> bool:
    """Tell whether two scores in bits per byte are of the same bytes, whatever the tokenizers."""
    differing = identity_differences(mine, theirs)
    return mine.normalization == _BYTES and all(
        item.startswith(_OF_TOKENIZER) for item in differing
    )
