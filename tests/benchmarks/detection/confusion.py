"""Which verdict a run ends with, by what truly happened to it.

The reference is a run of the same recipe and schedule (nuisance ``rerun``), compared as
one whose recipe may differ: without the level channel. A probe of standard error 0.004
around what the run truly remembers stands beside the curves.
"""

from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from evalmon.types import VerdictName
from tests.benchmarks.detection.measuring import (
    PROBE_STANDARD_ERROR_NATS,
    SILENT,
    Cell,
    Outcome,
    named,
    profile_for,
    share,
    table,
)
from tests.benchmarks.detection.simulator import Setting

__all__ = ["EXPECTED", "cells", "row", "rows"]

PART = "confusion"

EXPECTED = MappingProxyType(
    {
        "none": VerdictName.HEALTHY,
        "real gain 0.05": VerdictName.AHEAD_OF_REFERENCE,
        "early anneal 0.10": VerdictName.AHEAD_OF_REFERENCE,
        "both worse 0.05": VerdictName.BEHIND_REFERENCE,
        "sudden 0.05": VerdictName.MEMORIZATION_CONFIRMED,
        "sudden 0.25": VerdictName.MEMORIZATION_CONFIRMED,
        "ramp 0.05": VerdictName.MEMORIZATION_CONFIRMED,
        "ramp 0.25": VerdictName.MEMORIZATION_CONFIRMED,
        "24 passes": VerdictName.MEMORIZATION_CONFIRMED,
        "easier mix 0.05": VerdictName.TRAIN_SHIFT,
        "normalization x0.97": VerdictName.TRAIN_SHIFT,
        "harder mix 0.05": VerdictName.TRAIN_RISE,
        "leak 0.03": VerdictName.LEAKAGE_SUSPECTED,
        "evaluator +0.10": VerdictName.EVALUATOR_FAULT,
        "one bad checkpoint +0.30": VerdictName.HEALTHY,
        "divergence spike +0.30": VerdictName.HEALTHY,
    }
)
"""The right verdict, by fault."""


def rows(scale: float, seed: int, workers: int) -> list[dict[str, Any]]:
    """Return one row a cell of ``1,000 x scale`` runs."""
    return table(cells(max(1, int(1_000 * scale))), row, seed, workers)


def cells(runs: int) -> list[Cell]:
    """Return a cell a row of the matrix and spacing, and sound runs that drift as usual."""
    found: list[Cell] = []
    for evaluations in (1414, 141):
        profile = profile_for(evaluations)
        found += [
            Cell(Setting("rerun", "reference", evaluations, fault), profile, runs, PART,
                 "", verdicts=True)
            for fault in EXPECTED
        ]  # fmt: skip
        drifting = Setting("default", "reference", evaluations)
        found.append(Cell(drifting, profile, runs, PART, "silent", verdicts=True))
    return found


def row(cell: Cell, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count verdicts; a run that drifts may be ahead or behind, but nothing that speaks."""
    counts = Counter(one.verdict for one in outcomes)
    right = SILENT if cell.label == "silent" else {EXPECTED[cell.setting.fault]}
    return {
        **named(cell),
        "probe_standard_error_nats": PROBE_STANDARD_ERROR_NATS,
        "expected": cell.label or str(EXPECTED[cell.setting.fault]),
        "right": share(sum(counts[verdict] for verdict in right), len(outcomes)),
        "verdicts": {name: share(count, len(outcomes)) for name, count in counts.most_common()},
    }
