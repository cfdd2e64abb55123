"""How many sound runs the rule speaks of, at least once in the whole run."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.detection.measuring import (
    SILENT,
    Cell,
    Outcome,
    named,
    profile_for,
    share,
    table,
    upper_limit,
)
from tests.benchmarks.detection.simulator import NUISANCES, Setting

__all__ = ["cells", "row", "rows"]

PART = "false_alarms"


def rows(scale: float, seed: int, workers: int) -> list[dict[str, Any]]:
    """Return one row a cell of ``2,000 x scale`` runs."""
    return table(cells(max(1, int(2_000 * scale))), row, seed, workers)


def cells(runs: int) -> list[Cell]:
    """Return a cell a nuisance, mode and spacing; levels where recipes are equal."""
    settings = [
        Setting(nuisance, mode, evaluations, centered=profile_for(evaluations).centered)
        for evaluations in (1414, 141)
        for mode in ("reference", "free")
        for nuisance in NUISANCES
        if nuisance != "rerun"
    ]
    settings += [
        Setting(nuisance, "level", evaluations)
        for evaluations in (1414, 141)
        for nuisance in ("default", "loose")
    ]
    return [Cell(one, profile_for(one.evaluations), runs, PART) for one in settings]


def row(cell: Cell, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count alarms of either sign, and runs that end in a verdict that speaks."""
    total = len(outcomes)
    alarms = sum(one.alarm >= 0 for one in outcomes)
    speaks = sum(one.verdict not in SILENT for one in outcomes)
    return {
        **named(cell),
        "alarm": share(alarms, total),
        "alarm_upper_95pct": upper_limit(alarms, total),
        "mirrored": share(sum(one.mirrored >= 0 for one in outcomes), total),
        "either": share(sum(max(one.alarm, one.mirrored) >= 0 for one in outcomes), total),
        "ends_speaking": share(speaks, total),
        "channels": dict(Counter(one.channel for one in outcomes if one.channel)),
    }
