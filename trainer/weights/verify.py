"""A result read back and compared with what was written."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from evalmon.errors import CheckpointError, WriteError
from evalmon.types import weights_fingerprint
from trainer.weights.casting import Array, blocks
from trainer.weights.names import is_transposed, tree_path
from trainer.weights.source import Source

__all__ = ["digest", "fingerprint", "require_recorded", "verified_fingerprint"]


def fingerprint(names: Mapping[str, object], read: Callable[[str], Array]) -> str:
    """Return the fingerprint of parameters that are read one by one.

    Args:
        names: published names.
        read: published name -> tensor in published orientation.
    """
    tree: dict[str, Any] = {}
    for name in names:
        node = tree
        *parents, leaf = tree_path(name)
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = name
    return weights_fingerprint(_Read(tree, read))


def require_recorded(source: Source, found: str) -> None:
    """Refuse a source whose parameters are not those recorded when it was written.

    Raises:
        CheckpointError: they have another fingerprint.
    """
    if source.fingerprint not in (None, found):
        raise CheckpointError(
            f"{source.path}: fingerprint {found}, but {source.fingerprint} was recorded; its "
            "parameters are damaged, copy it again"
        )


def digest(array: Array) -> bytes:
    """Return a hash of an array's dtype, shape and bits, however it lies in memory."""
    found = hashlib.sha256(repr((str(array.dtype), array.shape)).encode())
    for part in blocks(array):
        found.update(cast("Any", np.ascontiguousarray(part).view(np.uint8)))
    return found.digest()


def verified_fingerprint(
    result: Source,
    digests: Mapping[str, bytes],
    read_again: Callable[[str], Array],
    on_read: Callable[[int], None],
) -> str:
    """Read a result back, compare every tensor and return the fingerprint.

    Args:
        result: what was written, opened again.
        digests: of each tensor when it was written.
        read_again: published name -> tensor as it was to be written; asked only where the
            result's own tensors cannot be read one by one.
        on_read: called with the bytes of each tensor when it is compared.

    Raises:
        WriteError: a tensor is not what was written.
    """

    def checked(name: str) -> Array:
        found = result.read(name)
        if digest(found) != digests[name]:
            raise WriteError(f"{name} reads back other than it was written; check the disk")
        on_read(found.nbytes)
        return found

    if result.any_order:
        return fingerprint(result.dtypes, checked)
    for name in result.dtypes:
        checked(name)
    return fingerprint(result.dtypes, read_again)


class _Read(Mapping[str, Any]):
    """A tree of our form whose arrays are read when they are asked for."""

    def __init__(self, names: Mapping[str, Any], read: Callable[[str], Array]) -> None:
        self._names = names
        self._read = read

    def __getitem__(self, key: str) -> Any:
        node = self._names[key]
        if isinstance(node, Mapping):
            return _Read(node, self._read)
        array = self._read(node)
        return array.T if is_transposed(node) else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
