"""Judges simulated runs in parallel and counts what the rule said."""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from evalmon.detectors.curve import CurveResult
from evalmon.detectors.profiles import PROFILES, Profile
from evalmon.detectors.unmatched_drop import judge_points
from evalmon.evidence import Case
from evalmon.types import CheckpointRef, ProbeResult, VerdictName
from evalmon.verdict import judge
from tests.benchmarks.detection.simulator import BATCH, Setting, draw

__all__ = [
    "SILENT",
    "Cell",
    "Outcome",
    "detection_row",
    "measure",
    "named",
    "profile_for",
    "share",
    "table",
    "upper_limit",
    "verdict_of",
]

SILENT = frozenset(
    {VerdictName.HEALTHY, VerdictName.AHEAD_OF_REFERENCE, VerdictName.BEHIND_REFERENCE}
)
"""Verdicts that tell nobody."""

PROBE_STANDARD_ERROR_NATS = 0.004


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs of one setting under one profile.

    Attributes:
        setting: what is drawn.
        profile: the rule's constants.
        runs: runs drawn.
        part: part of the table it belongs to.
        label: what tells it from other cells of its setting.
        verdicts: whether to reach a verdict for every run, with a probe.
    """

    setting: Setting
    profile: Profile
    runs: int
    part: str = ""
    label: str = ""
    verdicts: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the rule said of one run.

    Attributes:
        onset: first evaluation that the fault touches, counted from 0 as all evaluations.
        alarm: evaluation of the alarm, -1 without.
        mirrored: evaluation of the mirrored alarm, -1 without.
        channel: channel of the alarm, else of the mirrored one, or "".
        verdict: verdict at the end of the run; "" when it was not asked for.
    """

    onset: int
    alarm: int
    mirrored: int
    channel: str
    verdict: str


def profile_for(evaluations: int) -> Profile:
    """Return the profile meant for that many evaluations of a full run."""
    return PROFILES["full"] if evaluations > 500 else PROFILES.get("sparse", PROFILES["full"])


def verdict_of(
    result: CurveResult, *, remembered_nats: float | None, rng: np.random.Generator
) -> VerdictName:
    """Return the verdict of a run at its last evaluation.

    Args:
        result: what the curve rule found.
        remembered_nats: what a perfect probe would find, None to probe nothing.
        rng: draws the probe's error.
    """
    points = result.points
    step, tokens = int(points.steps[-1]), int(points.tokens[-1])
    probe = None
    if remembered_nats is not None:
        mean = remembered_nats + PROBE_STANDARD_ERROR_NATS * float(rng.standard_normal())
        half = 1.96 * PROBE_STANDARD_ERROR_NATS
        probe = ProbeResult(mean, mean - half, mean + half, 3_200, "ids")
    return judge(
        Case(
            run="simulated",
            step=step,
            tokens=tokens,
            tokens_per_step=tokens // step,
            curve=result,
            reference=None if result.mode == "free" else "reference",
            probe=probe,
            probe_checkpoint=CheckpointRef("simulated", step, tokens, Path(str(step))),
            ids_fingerprint="ids",
            gap_nats=PROFILES[result.profile].gap_nats,
        )
    ).verdict


def _judge_batch(job: tuple[Cell, int, int]) -> list[Outcome]:
    """Draw a batch of a cell and judge its runs."""
    cell, seed, number = job
    setting, plan = cell.setting, cell.setting.plan
    batch = draw(setting, seed, number)
    rng = np.random.default_rng([seed, number, 7])
    outcomes: list[Outcome] = []
    for run in range(min(BATCH, cell.runs - number * BATCH)):
        result = judge_points(batch.points(run), cell.profile, plan)
        spoken = result.alarm or result.mirrored
        remembered = float(batch.remembered[run]) if cell.verdicts else None
        verdict = ""
        if cell.verdicts or spoken:
            verdict = str(verdict_of(result, remembered_nats=remembered, rng=rng))
        alarms = [
            item.step // setting.interval_steps - 1 if item else -1
            for item in (result.alarm, result.mirrored)
        ]
        outcomes.append(
            Outcome(
                int(batch.onset[run]),
                alarms[0],
                alarms[1],
                spoken.channel if spoken else "",
                verdict or str(VerdictName.HEALTHY),
            )
        )
    return outcomes


def table(
    cells: Sequence[Cell],
    row: Callable[[Cell, Sequence[Outcome]], dict[str, Any]],
    seed: int,
    workers: int,
) -> list[dict[str, Any]]:
    """Return the row of each cell."""
    outcomes = measure(cells, seed, workers)
    return [row(cell, found) for cell, found in zip(cells, outcomes, strict=True)]


def measure(cells: Sequence[Cell], seed: int, workers: int) -> Iterable[list[Outcome]]:
    """Judge all runs of all cells, in parallel.

    Args:
        cells: what to draw.
        seed: seed of everything.
        workers: processes.

    Yields:
        The outcomes of each cell, in the order of the cells.
    """
    jobs = [(cell, seed, number) for cell in cells for number in range(-(-cell.runs // BATCH))]
    with ProcessPoolExecutor(workers) as pool:
        found = iter(
            tqdm(
                pool.map(_judge_batch, jobs),
                total=len(jobs),
                unit="batch",
                desc=cells[0].part if cells else None,
                file=sys.stderr,
            )
        )
        for cell in cells:
            outcomes: list[Outcome] = []
            for _ in range(-(-cell.runs // BATCH)):
                outcomes.extend(next(found))
            yield outcomes


def share(count: int, total: int) -> float:
    """Return a share rounded to what the number of runs can tell."""
    return round(count / max(total, 1), 5)


def upper_limit(count: int, total: int) -> float:
    """Return the one-sided 95 % upper limit of a share (Clopper and Pearson)."""
    from scipy.stats import beta

    return 1.0 if count >= total else round(float(beta.ppf(0.95, count + 1, total - count)), 5)


def named(cell: Cell) -> dict[str, Any]:
    """Return what tells a cell from others, as the beginning of its row."""
    setting = cell.setting
    row: dict[str, Any] = {
        "part": cell.part,
        "nuisance": setting.nuisance,
        "mode": setting.mode,
        "evaluations": setting.evaluations,
        "fault": setting.fault,
        "profile": cell.profile.name,
        "runs": cell.runs,
    }
    return {**row, "label": cell.label} if cell.label else row


def detection_row(cell: Cell, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count what was found, and how late.

    The delay is the alarm's evaluation minus the first that the fault touches: 0 is the
    earliest possible. Alarms before it are counted apart. Where the fault is there from
    the start the alarm's fraction of the plan tells more.
    """
    delays = np.array([one.alarm - one.onset for one in outcomes if one.alarm >= one.onset])
    early = sum(0 <= one.alarm < one.onset for one in outcomes)
    row = {
        **named(cell),
        "found": share(len(delays), len(outcomes)),
        "early": share(early, len(outcomes)),
        "mirrored": share(sum(one.mirrored >= 0 for one in outcomes), len(outcomes)),
    }
    if not len(delays):
        return row
    quantiles = np.quantile(delays, (0.5, 0.75, 0.9), method="inverted_cdf")
    if cell.setting.fault.endswith("passes"):
        scale = (quantiles + 1) / cell.setting.evaluations
        row |= {"plan_median": round(float(scale[0]), 3), "plan_90pct": round(float(scale[2]), 3)}
    else:
        row |= {
            f"delay_{name}": int(value)
            for name, value in zip(("median", "75pct", "90pct"), quantiles, strict=True)
        }
        row["within_10"] = share(int((delays <= 10).sum()), len(outcomes))
    return row
