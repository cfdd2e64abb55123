"""A conversion in a few lines for people."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["summary"]


def summary(facts: Mapping[str, Any]) -> list[str]:
    r"""Return lines for a person from what ``convert`` returns.

    Example:
        >>> facts = {
        ...     "source": {"path": "a", "form": "weights", "left_out": []},
        ...     "result": {"path": "b", "form": "hf"}, "tensors": 14, "parameters": 1234,
        ...     "dtype": "float32, kept", "vocab_rows_before": 8, "vocab_rows_after": 16,
        ...     "non_finite_values": {}, "vanished_values": {}, "assumed": [], "warnings": [],
        ...     "params_fingerprint": "ab"}
        >>> print("\n".join(summary(facts)))
        a (weights) -> b (hf)
        14 tensors, 1,234 parameters, fingerprint ab
        dtype: float32, kept
        vocabulary: 8 -> 16 rows, 8 rows of zeros added
    """
    return list(_lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines."""
    source, result = facts["source"], facts["result"]
    stacked = {True: ", layers stacked", False: ", layers apart"}.get(result.get("scanned"), "")
    yield f"{source['path']} ({source['form']}) -> {result['path']} ({result['form']}{stacked})"
    yield (
        f"{facts['tensors']} tensors, {facts['parameters']:,} parameters, fingerprint "
        f"{facts['params_fingerprint']}"
    )
    yield f"dtype: {facts['dtype']}"
    before, after = facts["vocab_rows_before"], facts["vocab_rows_after"]
    if before == after:
        yield f"vocabulary: {before:,} rows, kept"
    else:
        done = "rows of zeros added" if after > before else "rows cut off"
        yield f"vocabulary: {before:,} -> {after:,} rows, {abs(after - before):,} {done}"
    if source["left_out"]:
        yield f"left out: {', '.join(source['left_out'])}"
    for word, found in (
        ("not finite, kept", facts["non_finite_values"]),
        ("too small for the new dtype, now zero", facts["vanished_values"]),
    ):
        if found:
            names = ", ".join(f"{name} ({count:,})" for name, count in found.items())
            yield f"{sum(found.values()):,} values {word}: {names}"
    yield from (f"assumed: {note}" for note in facts["assumed"])
    yield from (f"warning: {note}" for note in facts["warnings"])
