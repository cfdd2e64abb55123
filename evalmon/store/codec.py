"""Values to rows and back. JSON is strict: a number that is not finite is refused, never stored."""

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from sqlalchemy import RowMapping

from evalmon.errors import EvaluationError
from evalmon.types import (
    Alert,
    AlertStatus,
    CheckpointRef,
    Evaluation,
    Failure,
    Finding,
    MetricIdentity,
    ProbeResult,
    RunDescription,
    Score,
    TaskDifference,
    Verdict,
    VerdictName,
)

__all__ = [
    "alert_from",
    "alert_row",
    "description_from",
    "description_text",
    "evaluation_from",
    "evaluation_row",
    "failure_from",
    "probe_from",
    "refuse_non_finite",
    "score_from",
    "score_row",
    "verdict_from",
    "verdict_text",
]


def refuse_non_finite(evaluation: Evaluation) -> None:
    """Let an evaluation pass only if every number in it is finite.

    Raises:
        EvaluationError: a score, its standard error, an item, the probe or a number of the
            header is NaN or infinite, or the header holds what JSON does not.
    """
    where = f"{evaluation.evaluator} at step {evaluation.checkpoint.step}"
    for score in evaluation.scores:
        numbers = {
            "value": [score.value],
            "stderr": [] if score.stderr is None else [score.stderr],
            "item_values": score.item_values,
            "item_weights": score.item_weights,
        }
        for name, values in numbers.items():
            bad = [value for value in values if not math.isfinite(value)]
            if bad:
                raise EvaluationError(
                    f"{where}: {name} of {score.metric} is {bad[0]}, expected a finite number;"
                    " look for non-finite weights in the checkpoint"
                )
    probe = evaluation.probe
    if probe and not all(map(math.isfinite, (probe.mean_nats, probe.low_nats, probe.high_nats))):
        raise EvaluationError(f"{where}: the probe's interval is not finite: {probe}")
    try:
        _dumps(dict(evaluation.header))
    except (TypeError, ValueError) as error:
        raise EvaluationError(
            f"{where}: the header is not strict JSON ({error}): {dict(evaluation.header)}; "
            "report this fault"
        ) from error


def description_text(run: RunDescription) -> str:
    """Return a run's description as JSON, without its path."""
    record = asdict(run)
    del record["path"]
    return _dumps(record)


def description_from(row: RowMapping) -> RunDescription:
    """Return the description stored in a row of ``runs``."""
    return RunDescription(path=Path(row["path"]), **json.loads(row["description"]))


def evaluation_row(evaluation: Evaluation, at: float) -> dict[str, Any]:
    """Return the row of ``evaluations``."""
    probe = evaluation.probe
    return {
        "run": evaluation.checkpoint.run,
        "step": evaluation.checkpoint.step,
        "evaluator": evaluation.evaluator,
        "version": evaluation.version,
        "weights": evaluation.weights,
        "seconds": float(evaluation.seconds),
        "finished_at": at,
        "probe": None if probe is None else _dumps(asdict(probe)),
        "artifacts": _dumps([str(path) for path in evaluation.artifacts]),
        "header": _dumps(dict(evaluation.header)),
    }


def evaluation_from(row: RowMapping, scores: Iterable[Score]) -> Evaluation:
    """Return the evaluation of a row joined with its checkpoint."""
    return Evaluation(
        evaluator=row["evaluator"],
        version=row["version"],
        checkpoint=CheckpointRef(row["run"], row["step"], row["tokens"], Path(row["path"])),
        weights=row["weights"],
        scores=tuple(scores),
        seconds=row["seconds"],
        probe=probe_from(row["probe"]),
        artifacts=tuple(Path(name) for name in json.loads(row["artifacts"])),
        header=json.loads(row["header"]),
    )


def score_row(score: Score, evaluation: int) -> dict[str, Any]:
    """Return the row of ``scores``."""
    return {
        "evaluation": evaluation,
        "metric": score.metric,
        "value": float(score.value),
        "stderr": None if score.stderr is None else float(score.stderr),
        "items": int(score.items),
        "identity": _dumps(asdict(score.identity)),
        "identity_fingerprint": score.identity.fingerprint,
        "item_ids": zlib.compress(_dumps(list(score.item_ids)).encode()),
        "item_values": _pack(score.item_values),
        "item_weights": _pack(score.item_weights),
    }


def score_from(row: RowMapping) -> Score:
    """Return the score of a row; its items only where the row holds them."""
    items: dict[str, Any] = {}
    if "item_ids" in row:
        items = {
            "item_ids": tuple(json.loads(zlib.decompress(row["item_ids"]))),
            "item_values": _unpack(row["item_values"]),
            "item_weights": _unpack(row["item_weights"]),
        }
    identity = MetricIdentity(**json.loads(row["identity"]))
    return Score(
        row["metric"], row["value"], row["stderr"], row["items"], identity=identity, **items
    )


def probe_from(text: str | None) -> ProbeResult | None:
    """Return a stored probe result."""
    return None if text is None else ProbeResult(**json.loads(text))


def failure_from(row: RowMapping) -> Failure:
    """Return the failure of a row."""
    checkpoint = CheckpointRef(row["run"], row["step"], row["tokens"], Path(row["path"]))
    return Failure(row["evaluator"], checkpoint, row["error"], row["message"])


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict as strict JSON.

    Raises:
        ValueError: a number in it is not finite.
    """
    return _dumps(verdict.record())


def verdict_from(text: str) -> Verdict:
    """Return the verdict of :func:`verdict_text`."""
    record = cast("dict[str, Any]", json.loads(text))
    del record["alerts"]
    probe = record.pop("probe")
    findings = record.pop("findings")
    tasks = record.pop("tasks", ())  # absent from what an earlier version stored
    return Verdict(
        verdict=VerdictName(record.pop("verdict")),
        probe=None if probe is None else ProbeResult(**probe),
        reasons=tuple(record.pop("reasons")),
        findings=tuple(Finding(**finding) for finding in findings),
        tasks=tuple(TaskDifference(**task) for task in tasks),
        **record,
    )


def alert_row(alert: Alert) -> dict[str, Any]:
    """Return the row of ``alerts``."""
    return {**asdict(alert), "status": str(alert.status), "verdict": str(alert.verdict)}


def alert_from(row: RowMapping) -> Alert:
    """Return the alert of a row."""
    values = {key: value for key, value in row.items() if key != "number"}
    status, verdict = AlertStatus(values.pop("status")), VerdictName(values.pop("verdict"))
    return Alert(status=status, verdict=verdict, **values)


def _dumps(value: Any) -> str:
    """Write strict, compact JSON with sorted keys, so that equal values are equal texts."""
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _pack(values: Sequence[float]) -> bytes:
    """Write numbers as compressed little-endian float64."""
    return zlib.compress(np.asarray(values, dtype="<f8").tobytes())


def _unpack(data: bytes) -> tuple[float, ...]:
    """Read numbers written by :func:`_pack`."""
    return tuple(np.frombuffer(zlib.decompress(data), dtype="<f8").tolist())
