"""The fingerprint of weights: what tells one checkpoint's parameters from another's."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["weights_fingerprint"]


def weights_fingerprint(tree: Mapping[str, Any]) -> str:
    """Return 32 hex digits over the names, shapes, dtypes and bytes of all arrays.

    Args:
        tree: nested mapping of numpy arrays.

    Example:
        >>> one = {"a": np.zeros(2, np.float32)}
        >>> weights_fingerprint(one) == weights_fingerprint({"a": np.zeros(2, np.float16)})
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, array in _leaves(tree):
        head = json.dumps([name, list(array.shape), str(array.dtype)]).encode()
        body = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(cast("Any", body))
    return digest.hexdigest()


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield names and arrays, by name."""
    for key in sorted(tree):
        value, name = tree[key], f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(cast("Mapping[str, Any]", value), f"{name}/")
        elif isinstance(value, np.ndarray):
            yield name, cast("NDArray[Any]", value)
        else:
            raise TypeError(f"{name} is {type(value).__name__}, not an array")
