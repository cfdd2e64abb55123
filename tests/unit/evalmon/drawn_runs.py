"""Runs drawn from a seed and written as tidy tables, for tests of `evalmon compare`."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from evalmon import comparing
from evalmon.cli import main
from evalmon.types import FloatArray, Series

STEPS, BATCH_TOKENS, EVERY = 200, 2_048, 10
PLAN = STEPS * BATCH_TOKENS
TRAIN = "train/ce_nats"
C4 = "eval/lm/c4_en-validation/ce_nats"
STEP_TOKENS = 1_000
COLUMNS = ("run", "metric", "step", "tokens", "value")


def series(metric: str, steps: Any, values: FloatArray) -> Series:
    steps = np.asarray(steps, np.int64)
    return Series(metric, steps, steps * STEP_TOKENS, np.asarray(values, np.float64))


def judged(run: object, **options: Any) -> comparing.Comparison:
    return comparing.compare(comparing.CompareOptions(str(run), **options))


def drawn(seed: int, *, memorized: float = 0.0, holdout: str = C4) -> tuple[Series, Series]:
    """Return train and holdout loss of a run of 200 steps, 20 evaluations.

    Args:
        seed: seed of the noise.
        memorized: nats a step by which train loss falls alone after step 80.
        holdout: metric of the holdout.
    """
    rng = np.random.default_rng(seed)
    steps = np.arange(1, STEPS + 1)
    loss = 5.8 + 2.5 / (1 + (steps / 30) ** 1.1)
    train = loss - memorized * np.maximum(0, steps - 80) + rng.normal(0, 0.02, STEPS)
    at = steps[EVERY - 1 :: EVERY]
    held = loss[at - 1] + 0.05 + rng.normal(0, 0.004, len(at))
    return (
        Series(TRAIN, steps, steps * BATCH_TOKENS, train.round(6)),
        Series(holdout, at, at * BATCH_TOKENS, held.round(6)),
    )


def rows(runs: Mapping[str, Sequence[Series]]) -> list[tuple[Any, ...]]:
    """Return runs as the rows of a tidy table."""
    return [
        (name, part.metric, step, tokens, value)
        for name, parts in runs.items()
        for part in parts
        for step, tokens, value in zip(
            part.steps.tolist(), part.tokens.tolist(), part.values.tolist(), strict=True
        )
    ]


def write(path: Path, table: Sequence[Sequence[Any]], columns: Sequence[str] = COLUMNS) -> Path:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(table)
    return path


def compare(*arguments: object) -> tuple[Result, dict[str, Any]]:
    """Run the command with ``--json``; the object on its last line, empty where there is none."""
    result = CliRunner().invoke(main, ["compare", *map(str, arguments), "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    lines = result.stdout.splitlines()

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return result, json.loads(lines[-1], parse_constant=refused) if lines else {}


def refusal(*arguments: object) -> str:
    """Return the message of a command that refuses its input: exit code 2, nothing printed."""
    result, record = compare(*arguments)
    assert (result.exit_code, record) == (2, {}), result.output
    return result.stderr
