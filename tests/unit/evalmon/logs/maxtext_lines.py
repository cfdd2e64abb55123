"""Logs of a few lines, for the tests of MaxText's reader; not a test itself."""

from pathlib import Path
from typing import Any

from evalmon.logs import maxtext
from evalmon.types import RunCurves

TRAIN = "train/ce_nats"
C4 = "eval/lm/c4_en-validation/ce_nats"
ABSL = "I0417 14:05:19.491532 135646978193216 metric_logger.py:196] "
LOADER = (
    "OLMo grain loader: index=/data/index.npz total_instances=723,629,556 shard={host}/2 "
    "per_host_batch=4 seq=128 resumed_step={resumed} initial_step=0"
)


def log_of(tmp_path: Path, *lines: str, end: str = "\n") -> Path:
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + end)
    return path


def read(tmp_path: Path, *lines: str, end: str = "\n", **options: Any) -> RunCurves:
    return maxtext.read(log_of(tmp_path, *lines, end=end), **options)


def step(n: int, loss: float | str, weight: int | None = 100, before: str = "") -> str:
    weights = "" if weight is None else f"total_weights: {weight}, "
    shown = loss if isinstance(loss, str) else f"{loss:.3f}"
    return f"{before}completed step: {n}, seconds: 1.000, {weights}loss: {shown}"


def points(curves: RunCurves, metric: str = TRAIN) -> dict[int, float]:
    series = curves.curves[metric].series
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def pod(host: int, text: str) -> str:
    return f"[pod/workers-{host}-abc/maxtext] {ABSL}{text}"
