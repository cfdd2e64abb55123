"""From a stranger's batch to its tokens and ids."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import DataError
from evalmon.types import IntArray

__all__ = ["BatchReader"]

_TOKEN_FIELDS = ("tokens", "inputs", "input_ids")
_ID_FIELDS = ("instance", "instance_id")


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Takes tokens and ids out of batches.

    Attributes:
        token_field: field with the tokens, None for the first of tokens, inputs, input_ids.
        id_field: field with the ids, None for ``instance`` where there is one, "none" for
            no ids.
    """

    token_field: str | None = None
    id_field: str | None = None

    def read(self, batch: Any, place: str) -> tuple[NDArray[Any], IntArray | None]:
        """Return a batch's instances.

        Args:
            batch: a mapping or object with fields of arrays, or an array of tokens; the tokens
                are [b, L], or [L] for one instance.
            place: host and step, for messages.

        Returns:
            Tokens [b, L] and ids [b], None without any.

        Raises:
            DataError: no tokens, tokens or ids that are no integers, or of another shape.
        """
        fields = list(batch) if type(batch) is dict else _fields(batch)
        if fields is None:
            return self._tokens(batch, "the batch", place), None
        name = self._token_name(fields, place)
        tokens = self._tokens(_get(batch, name), name, place)
        if self.id_field is None:
            name = next((known for known in _ID_FIELDS if known in fields), "none")
        elif self.id_field in (*fields, "none"):
            name = self.id_field
        else:
            raise DataError(
                f"{place}: no field {self.id_field!r} with ids; it has {_listed(fields)}; "
                "name one of them by --id-field"
            )
        if name == "none":
            return tokens, None
        return tokens, _ids(_get(batch, name), name, len(tokens), place)

    def _token_name(self, fields: list[str], place: str) -> str:
        """Return the field with the tokens."""
        wanted = _TOKEN_FIELDS if self.token_field is None else (self.token_field,)
        for name in wanted:
            if name in fields:
                return name
        raise DataError(
            f"{place}: batch without tokens: no field {' or '.join(wanted)}; it has "
            f"{_listed(fields)}; name the one with the token ids by --token-field"
        )

    def _tokens(self, value: Any, name: str, place: str) -> NDArray[Any]:
        """Return tokens as rows."""
        tokens = _array(value)
        if tokens is None or tokens.dtype.kind not in "iu":
            kind = type(value).__name__ if tokens is None else f"an array of {tokens.dtype}"
            raise DataError(
                f"{place}: {name} is {kind}, expected an array of integers (token ids) of shape "
                "[batch, length]; name the field with the token ids by --token-field, or return "
                "rows of one length"
            )
        if tokens.ndim == 1:
            tokens = tokens[None, :]
        if tokens.ndim != 2:
            raise DataError(
                f"{place}: {name} has shape {list(tokens.shape)}, expected [batch, length] or "
                "[length]; flatten other axes into the batch"
            )
        return tokens


def _fields(batch: Any) -> list[str] | None:
    """Return the names of a batch's fields, None where it is one array."""
    if isinstance(batch, Mapping):
        return [str(key) for key in cast("Mapping[Any, Any]", batch)]
    if hasattr(batch, "dtype") or isinstance(batch, (list, int, float, str, bytes)):
        return None
    if batch is None or (isinstance(batch, tuple) and not hasattr(batch, "_fields")):
        return None
    named = getattr(batch, "_fields", None) or getattr(batch, "__dataclass_fields__", None)
    names = named if named is not None else getattr(batch, "__dict__", {})
    return [str(name) for name in names if not str(name).startswith("_")]


def _get(batch: Any, name: str) -> Any:
    """Return one field."""
    return batch[name] if isinstance(batch, Mapping) else getattr(batch, name)


def _array(value: Any) -> NDArray[Any] | None:
    """Return a value as an array, None where it is none or ragged."""
    if type(value) is np.ndarray and value.ndim and value.dtype != object:
        return value
    if isinstance(value, (str, bytes, tuple, Mapping)) or value is None:
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.ndim and array.dtype != object else None


def _ids(value: Any, name: str, rows: int, place: str) -> IntArray:
    """Return ids as [rows] integers."""
    try:
        ids = np.asarray(value)
    except (TypeError, ValueError):
        ids = np.empty(0, object)
    whole = ids.dtype.kind in "iu" or (
        ids.dtype.kind == "f" and bool(np.isfinite(ids).all() and (ids == np.floor(ids)).all())
    )
    if not whole:
        example = f", such as {ids.ravel()[0]!r}" if ids.size else ""
        raise DataError(
            f"{place}: {name} holds ids of {ids.dtype}{example}; expected integers; give the "
            "global index of each instance, name another field by --id-field, or leave ids out "
            "by --id-field none"
        )
    if ids.size != rows or ids.ndim > 2:
        raise DataError(
            f"{place}: {name} has shape {list(ids.shape)} for {rows} instances; expected one id "
            "an instance; name another field by --id-field"
        )
    return ids.reshape(rows).astype(np.int64)


def _listed(fields: list[str]) -> str:
    """Return names for a message."""
    return ", ".join(str(name) for name in fields[:12]) or "no fields"
