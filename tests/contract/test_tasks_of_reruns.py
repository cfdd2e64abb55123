"""Tasks of real runs: of one recipe they neither gain nor lose, of another they do."""

import csv
import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.detectors import task_differences
from evalmon.detectors.task_differences import examine, macro, summary
from evalmon.types import Curve, Series

LADDER = Path(__file__).parents[3] / "shared" / "curves" / "olmo_ladder_pairs.csv.gz"


@pytest.fixture(scope="module")
def ladder() -> dict[str, dict[str, Curve]]:
    """Return the task curves of every ladder run."""
    if not LADDER.exists():
        pytest.skip(f"no published curves at {LADDER.parent}")
    points: dict[str, dict[str, list[tuple[int, int, float]]]] = {}
    with gzip.open(LADDER, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"].startswith("eval/downstream/"):
                of_run = points.setdefault(row["run"], {}).setdefault(row["metric"], [])
                of_run.append((int(row["step"]), int(row["tokens"]), float(row["value"])))
    return {
        run: {metric: _curve(metric, rows) for metric, rows in of_run.items()}
        for run, of_run in points.items()
    }


def _curve(metric: str, rows: list[tuple[int, int, float]]) -> Curve:
    table = np.array(sorted(rows))
    steps, tokens = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    return Curve(Series(metric, steps, tokens, table[:, 2]))


_190M = (
    "moreeval/190M-1xC", "moreeval/190M-1xC-rerun", "seed1/190M-1xC", "seed1-init/190M-1xC",
)  # fmt: skip
SAME_RECIPE = (
    *itertools.permutations(_190M, 2),
    *itertools.permutations(("moreeval/370M-1xC", "moreeval/370M-1xC-rerun"), 2),
)


def last_common(*runs: dict[str, Curve]) -> int:
    return min(int(one.series.tokens[-1]) for curves in runs for one in curves.values())


@pytest.mark.parametrize("part", [1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
def test_runs_of_one_recipe_neither_gain_nor_lose(ladder: dict[str, Any], part: float):
    """Reruns and other seeds, at the end and on the way: 14 ordered pairs, 7 tasks, one mean."""
    for first, second in SAME_RECIPE:
        run, reference = ladder[first], ladder[second]
        found = examine(run, reference, int(part * last_common(run, reference)))[0]
        whole = macro(found)
        assert len(found) == 7
        assert whole is not None
        assert {one.outcome for one in (*found, whole)} <= {"equivalent", "inconclusive"}
        assert summary(found) in ("equivalent", "inconclusive")


@pytest.mark.parametrize("size", ["190M", "370M"])
def test_a_learning_rate_that_never_falls_loses(ladder: dict[str, Any], size: str):
    run, reference = ladder[f"const-lr/{size}-10xC"], ladder[f"moreeval/{size}-10xC"]
    end = last_common(run, reference)
    found = {one.task: one for one in examine(run, reference, end)[0]}
    assert found["eval/downstream/hellaswag_val_rc_5shot"].outcome == "loss"
    assert "gain" not in {one.outcome for one in found.values()}
    assert summary(tuple(found.values())) == "loss"
    assert summary(examine(reference, run, end)[0]) == "gain"


def test_without_what_lasts_runs_of_one_recipe_would_differ(
    ladder: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """The trap: the spread between a run's own checkpoints alone finds differences of seeds."""
    monkeypatch.setattr(task_differences, "_LASTING_VARIANCE", 0.0)
    outcomes = [
        one.outcome
        for first, second in SAME_RECIPE
        for one in examine(
            ladder[first], ladder[second], int(0.8 * last_common(ladder[first], ladder[second]))
        )[0]
    ]
    assert {"gain", "loss"} <= set(outcomes)
