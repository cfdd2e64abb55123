"""One number for a text: equal token ids have equal hashes."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["text_hashes"]


def text_hashes(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """Return 64 bits of BLAKE2b over each row's little-endian uint32 ids, read little-endian.

    Args:
        tokens: [b, L] ids, integers.

    Returns:
        [b] hashes.

    Example:
        >>> hex(text_hashes(np.array([[1, 70000, 5]]))[0])
        '0x8b6d5525f5e20427'
    """
    content = tokens.astype("<u4").tobytes()
    width = 4 * tokens.shape[1]
    digests = b"".join(
        hashlib.blake2b(content[start : start + width], digest_size=8).digest()
        for start in range(0, len(tokens) * width, width or 1)
    )
    if not width:
        digests = hashlib.blake2b(b"", digest_size=8).digest() * len(tokens)
    return np.frombuffer(digests, "<u8").astype(np.uint64)
