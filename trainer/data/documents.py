"""Which tokens of a packed instance belong together.

An instance is cut out of documents that follow each other, each ended by its EOS. It may
begin and end in the middle of one.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

__all__ = ["segments"]


def segments(tokens: Int[Array, "B L"], eos_id: int) -> Int[Array, "B L"]:
    """Number the documents of each instance.

    Args:
        tokens: ids.
        eos_id: id that ends a document and belongs to it.

    Returns:
        int32 from 0 on, one more after each EOS.

    Source: OLMo-core ``data/utils.py`` (get_document_lengths), which ends documents so.

    Example:
        >>> segments(jnp.array([[5, 0, 0, 7, 0, 8]]), eos_id=0).tolist()
        [[0, 0, 1, 2, 2, 3]]
    """
    ends = (tokens == eos_id).astype(jnp.int32)
    return jnp.cumsum(ends, axis=1) - ends
