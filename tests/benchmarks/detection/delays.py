"""How many faulty runs are found, and how many evaluations after the fault began."""

from typing import Any

from tests.benchmarks.detection.measuring import Cell, detection_row, profile_for, table
from tests.benchmarks.detection.simulator import Setting

__all__ = ["cells", "rows"]

PART = "delays"
_SIZES = ("0.02", "0.05", "0.10", "0.25")


def rows(scale: float, seed: int, workers: int) -> list[dict[str, Any]]:
    """Return one row a cell of ``2,000 x scale`` runs."""
    return table(cells(max(1, int(2_000 * scale))), detection_row, seed, workers)


def cells(runs: int) -> list[Cell]:
    """Return a cell a fault, mode and spacing; ``runs`` for those that are promised."""
    promised = [f"sudden {size}" for size in _SIZES] + ["24 passes"]
    others = [f"ramp {size}" for size in _SIZES]
    others += [f"accelerating {size}" for size in ("0.05", "0.10", "0.25")]
    others += [
        "both 0.05",
        "stair 0.05",
        "stair 0.10",
        "4 passes",
        "6 passes",
        "14 passes",
        "44 passes",
    ]
    found: list[Cell] = []
    for evaluations in (1414, 141):
        profile = profile_for(evaluations)
        for mode in ("reference", "free"):
            for fault in (*promised, *others):
                setting = Setting("default", mode, evaluations, fault, profile.centered)
                fewer = runs if fault in promised else -(-runs // 4)
                found.append(Cell(setting, profile, fewer, PART))
        for fault, few in (("24 passes", 1), ("14 passes", 4), ("6 passes", 4), ("44 passes", 4)):
            setting = Setting("default", "level", evaluations, fault)
            found.append(Cell(setting, profile, -(-runs // few), PART))
    return found
