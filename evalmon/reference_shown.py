"""A reference as it is shown: as a record for machines, and as lines for people."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evalmon.reference_index import Entry
from evalmon.types.curves import RunCurves

__all__ = ["curve", "lines", "short", "summary"]


def summary(entry: Entry) -> dict[str, Any]:
    """Return what the index says of a reference, without its curves' details.

    Args:
        entry: the reference.
    """
    return {
        "name": entry.name,
        "aliases": list(entry.aliases),
        "folder": str(entry.folder),
        "model": entry.model,
        "parameters": entry.parameters,
        "stage": entry.stage,
        "tokenizer": entry.tokenizer,
        "tokens_per_step": entry.tokens_per_step,
        "planned_tokens": entry.planned_tokens,
        "planned_tokens_source": entry.planned_tokens_source,
        "warmup_tokens": entry.warmup_tokens,
        "points": sum(item.points for item in entry.curves.values()),
        "metrics": list(entry.curves),
        "known_faults": list(entry.known_faults),
    }


def curve(entry: Entry, loaded: RunCurves, metric: str) -> dict[str, Any]:
    """Return all that is known of one curve.

    Args:
        entry: its reference.
        loaded: the reference's curves.
        metric: canonical name of the curve.
    """
    item, series = entry.curves[metric], loaded.curves[metric].series
    return {
        "file": f"{entry.name}/{item.file.name}",
        "unit": item.measure.unit,
        "points": item.points,
        "sampling": str(item.sampling),
        "note": item.note,
        "steps": [int(series.steps[0]), int(series.steps[-1])],
        "tokens": [int(series.tokens[0]), int(series.tokens[-1])],
        "values": [float(series.values.min()), float(series.values.max())],
        "last_value": float(series.values[-1]),
        "facts": dict(item.measure.facts),
        "sha256": item.sha256,
        **asdict(item.source),
    }


def lines(entry: Entry, record: Mapping[str, Any]) -> list[str]:
    """Return a reference as text.

    Args:
        entry: the reference.
        record: its summary, and ``curves`` by metric.
    """
    found = [entry.name]
    named = ("aliases", "model", "parameters", "stage", "tokenizer", "tokens_per_step")
    for key in (*named, "planned_tokens", "planned_tokens_source", "warmup_tokens"):
        value = record[key]
        if value:
            shown = f"{value:,}" if isinstance(value, int) else _joined(value)
            found.append(f"  {key.replace('_', ' '):<22} {shown}")
    for metric, item in record["curves"].items():
        low, high = item["values"]
        first, last = item["steps"]
        found.append(
            f"  {metric}: {item['points']:,} points, steps {first:,} to {last:,} "
            f"({short(item['tokens'][1])} tokens), {low:g} to {high:g} {item['unit']}".rstrip()
            + f", {item['sampling']}"
            + (f" ({item['note']})" if item["note"] else "")
        )
        facts = ", ".join(f"{key} {value}" for key, value in item["facts"].items())
        found += [f"      {facts}"] if facts else []
    for source in dict.fromkeys(item.source for item in entry.curves.values()):
        found.append(f"  source: {source.source}; licence {source.licence}; {source.date}")
    for point in entry.published:
        at = f" at {short(point.tokens)} tokens" if point.tokens else ""
        found.append(f"  published: {point.metric} {point.value:g}{at} ({point.note})")
    return found + [f"  known fault: {fault}" for fault in entry.known_faults]


def _joined(value: str | Sequence[str]) -> str:
    """Return text, or texts joined."""
    return value if isinstance(value, str) else ", ".join(value)


def short(tokens: int) -> str:
    """Return a count of tokens to three digits.

    Example:
        >>> short(5_929_965_715_456), short(2048)
        ('5.93T', '2048')
    """
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if tokens >= size:
            return f"{tokens / size:.3g}{letter}"
    return str(tokens)
