"""Operating characteristics of the curve rule on simulated runs.

    python -m tests.benchmarks.detection [--json] [--scale X] [--workers N]

Two simulators. ``long`` draws evaluations of a full pre-training run (1,414 or 141 of
them): power-law loss with the run's own annealing, offset and drift against a
reference, slow and white noise, spikes, restarts, missing and bad evaluations. ``short``
draws every train step of a tiny run and its evaluations. Both plant faults. The table
says how often a sound run alarms and when a faulty one does.

The last line is one JSON object; progress goes to standard error.
"""

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from tqdm import tqdm

from evalmon.detectors.curve import CurveInputs, Plan, Points
from evalmon.detectors.profiles import PROFILES, Profile
from evalmon.detectors.unmatched_drop import detect, judge_points
from evalmon.types import Series

Floats = NDArray[np.float64]

_PASSES = np.log([1.2, 2, 3, 4, 5, 6.5, 14, 44])
_PASS_GAP = np.log([0.001, 0.007, 0.016, 0.026, 0.035, 0.045, 0.11, 0.60])


@dataclass(frozen=True, slots=True)
class Nuisance:
    """What makes sound runs differ; the defaults are those of docs/detection.md."""

    drift: float = 0.03
    noise: float = 1.0
    spikes: int = 8
    restarts: int = 5
    missing: float = 0.02
    bad: float = 0.3


NUISANCES = {
    "default": Nuisance(),
    "noisy": Nuisance(noise=2.0),
    "spiky": Nuisance(spikes=30, restarts=20, bad=1.0),
    "missing": Nuisance(missing=0.10),
    "tight": Nuisance(drift=0.015),
    "loose": Nuisance(drift=0.06),
}


def long_run(
    seed: int, evaluations: int, nuisance: Nuisance, mode: str, fault: Callable[[Floats], Floats]
) -> tuple[Points, Plan]:
    """Draw the evaluations of one full run.

    Args:
        seed: seed of everything random.
        evaluations: evaluations of the whole plan.
        nuisance: how much sound runs differ.
        mode: ``reference``, ``level`` or ``free``.
        fault: fraction of the run -> nats by which train loss lies lower, holdout alike.

    Returns:
        What the rule judges.
    """
    rng = np.random.default_rng(seed)
    n = evaluations
    u = (np.arange(n) + 1) / n
    scale = 1.0 if n > 500 else 0.5  # a longer window averages more of the slow noise
    decayed = np.clip((u - 0.8) / 0.2, 0, 1) ** 1.5  # of the learning rate
    annealed = -0.08 * decayed
    curve = 1.4 + 0.75 * u**-0.12
    drift = nuisance.drift * _smooth(rng, u)
    wander = 0.0015 * _autoregressive(rng, n, 0.9)
    train_noise = 0.0007 * rng.standard_normal(n) + 0.0014 * scale * _autoregressive(rng, n, 0.8)
    holdout_noise = 0.002 * np.maximum(1 - 0.9 * decayed, 0.3) * _autoregressive(rng, n, 0.5)
    train_noise, holdout_noise = nuisance.noise * train_noise, nuisance.noise * holdout_noise
    own = 0.004 * _smooth(rng, u)
    spike = _spikes(rng, n, nuisance)
    anneal_slope, drift_slope = 1 + 0.10 * rng.standard_normal(), 1 + 0.15 * rng.standard_normal()
    moved = wander + spike
    train_gap = drift + annealed + moved + train_noise - fault(u)
    holdout_gap = drift_slope * drift + anneal_slope * annealed + moved + holdout_noise + own
    if mode == "reference":
        holdout_gap = holdout_gap + 0.1 * rng.standard_normal()
    transfer = 1 + 0.05 * rng.standard_normal()
    curvature = 0.010 * 4 * u * (1 - u)
    train = curve + train_gap
    holdout = 0.3 + transfer * curve + curvature + holdout_gap
    if rng.random() < nuisance.bad:
        at = int(rng.integers(n // 8, n))
        jump = rng.uniform(0.02, 0.2) * rng.choice([-1, 1])
        holdout[at] += jump
        holdout_gap[at] += jump
    kept = rng.random(n) >= nuisance.missing
    step = 1_413_814 // n
    excess = holdout if mode == "free" else holdout_gap - train_gap
    points = Points(
        steps=(np.arange(n)[kept] + 1) * step,
        tokens=(np.arange(n)[kept] + 1) * step * 4_194_304,
        train=train[kept],
        holdout=holdout[kept],
        train_gap=train_gap[kept],
        holdout_gap=holdout_gap[kept],
        excess=excess[kept],
        noise=np.zeros(int(kept.sum())),
    )
    return points, Plan(n * step * 4_194_304, 2000 * 4_194_304, mode)


def _autoregressive(rng: np.random.Generator, n: int, phi: float) -> Floats:
    """Return [n] first-order autoregressive noise of unit variance."""
    shocks = rng.standard_normal(n + 50) * np.sqrt(1 - phi**2)
    return np.asarray(lfilter([1.0], [1.0, -phi], shocks), np.float64)[50:]


def _smooth(rng: np.random.Generator, u: Floats) -> Floats:
    """Return a smooth random curve whose change over the run has unit deviation."""
    weights = rng.standard_normal(3) * np.array([0.9, 0.3, 0.15])
    return weights @ np.stack([u, np.sin(np.pi * u), np.sin(2 * np.pi * u)])


def _spikes(rng: np.random.Generator, n: int, nuisance: Nuisance) -> Floats:
    """Return [n] common bumps: loss spikes that decay, and restarts that jump."""
    bumps = np.zeros(n)
    for count, height, length in (
        (nuisance.spikes, 0.3, 3.0),
        (nuisance.restarts, 0.02, 2.0),
    ):
        for at in rng.integers(0, n, size=count):
            length_here = max(1.0, length * n / 1414)
            shape = np.exp(-np.arange(n - at) / length_here)
            bumps[at:] += height * rng.uniform(0.1, 1.0) * shape * min(1.0, n / 1414 * 3)
    return bumps


def no_fault(u: Floats) -> Floats:
    """A sound run."""
    return np.zeros_like(u)


def sudden(size: float, at: float) -> Callable[[Floats], Floats]:
    """Train loss drops at once and stays down."""
    return lambda u: np.where(u > at, size, 0.0)


def ramp(size: float, at: float, length: float) -> Callable[[Floats], Floats]:
    """Train loss drops linearly over a part of the run."""
    return lambda u: size * np.clip((u - at) / length, 0.0, 1.0)


def passes(total: float) -> Callable[[Floats], Floats]:
    """Double sharding from the first step, with the measured gap by number of passes."""

    def lower(u: Floats) -> Floats:
        read = np.maximum(total * u, 1.0)
        return np.where(read > 1.2, np.exp(np.interp(np.log(read), _PASSES, _PASS_GAP)), 0.0)

    return lower


@dataclass(frozen=True, slots=True)
class Short:
    """A run of 12 to 40 evaluations.

    Attributes:
        evaluations: evaluations of the whole plan.
        window: train steps between evaluations.
        top: loss at the first step, nats.
        floor: loss it approaches, nats.
        half: fraction of the plan at which half of the fall is done.
        noise: spread of one train step, nats.
        holdout: spread of one holdout score beside its trend, nats.
        drift: spread of the change of holdout minus train over the run, nats.
        own: the part of it that runs of one recipe do not share, nats.
        pace: spread of the speed at which runs of one recipe learn, as a fraction.
    """

    evaluations: int = 20
    window: int = 10
    top: float = 8.3
    floor: float = 5.4
    half: float = 0.15
    noise: float = 0.06
    holdout: float = 0.01
    drift: float = 0.04
    own: float = 0.01
    pace: float = 0.02


SHORTS = {
    "tiny": Short(),
    "tiny, loud": Short(noise=0.12, holdout=0.02, own=0.02),
    "tiny, 12 evaluations": Short(evaluations=12),
    "tiny, 40 evaluations": Short(evaluations=40),
    "124M": Short(20, 50, 7.0, 3.1, 0.03, 0.045, 0.003, 0.02, 0.005, 0.005),
}


def short_run(
    seed: int, holdout_seed: int, kind: Short, lower: Callable[[Floats], Floats]
) -> tuple[Series, Series]:
    """Draw every train step and every evaluation of a short run.

    Args:
        seed: seed of what is random in the run.
        holdout_seed: seed of what is random in the holdout, shared with a reference.
        kind: what sort of run.
        lower: fraction of the run -> nats by which train loss lies lower, holdout alike.

    Returns:
        Train CE by step, holdout CE by evaluation.
    """
    rng, shared = np.random.default_rng(seed), np.random.default_rng(holdout_seed)
    steps = np.arange(1, kind.evaluations * kind.window + 1)
    u = steps / steps[-1]
    reached = u * (1 + kind.pace * rng.standard_normal())
    curve = kind.floor + (kind.top - kind.floor) / (1 + (reached / kind.half) ** 0.9)
    shocks = rng.standard_t(5, len(steps)) / np.sqrt(5 / 3)
    train = curve + kind.noise * shocks - lower(u)
    at = steps[kind.window - 1 :: kind.window]
    drift = kind.drift * shared.standard_normal() + kind.own * rng.standard_normal()
    beside = 0.05 * shared.standard_normal() + drift * u
    holdout = (curve + beside)[at - 1] + kind.holdout * rng.standard_normal(len(at))
    return Series("train", steps, steps * 2_048, train), Series("holdout", at, at * 2_048, holdout)


def tiny_repeats(u: Floats) -> Floats:
    """Unmatched drop of the tiny run, doubly sharded over 8 hosts, as measured."""
    return np.interp(u, [0.0, 0.13, 0.35, 0.6, 1.0], [0.0, 0.0, 0.32, 0.45, 0.98])


def short_inputs(
    seed: int, kind: Short, mode: str, lower: Callable[[Floats], Floats]
) -> CurveInputs:
    """Draw what the rule reads of one short run."""
    train, holdout = short_run(seed, seed, kind, lower)
    inputs = CurveInputs(train, holdout, int(train.tokens[-1]))
    if mode == "free":
        return inputs
    other = short_run(seed + 10**6, seed, kind, no_fault)
    return replace(
        inputs,
        reference_train=other[0],
        reference_holdout=other[1],
        same_recipe=mode == "level",
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table.

    Attributes:
        profile: profile of the rule.
        setting: nuisance of a long run, or kind of a short one.
        mode: ``free``, ``reference`` or ``level``.
        evaluations: evaluations of a long run, 0 for a short one.
        fault: name in ``FAULTS``.
        runs: runs drawn.
        z: another z of the short profile's channels, to show why it was chosen.
        tolerance_nats: another tolerance of theirs.
    """

    profile: str
    setting: str
    mode: str
    evaluations: int
    fault: str
    runs: int
    z: float | None = None
    tolerance_nats: float | None = None


FAULTS: dict[str, tuple[float, Callable[[Floats], Floats]]] = {  # name -> onset, curve
    "none": (0.0, no_fault),
    "sudden 0.02": (0.5, sudden(0.02, 0.5)),
    "sudden 0.05": (0.5, sudden(0.05, 0.5)),
    "sudden 0.25": (0.5, sudden(0.25, 0.5)),
    "ramp 0.10": (0.4, ramp(0.10, 0.4, 0.14)),
    "24 passes": (0.0, passes(24)),
    "tiny repeats": (0.13, tiny_repeats),
}


def measure_cell(cell: Cell) -> dict[str, Any]:
    """Draw the runs of a cell and count alarms."""
    onset, lower = FAULTS[cell.fault]
    profile = _with(PROFILES[cell.profile], cell)
    alarms: list[float] = []
    onsets: list[float] = []
    mirrored = 0
    count = cell.evaluations
    for seed in range(cell.runs):
        if cell.evaluations:
            nuisance = NUISANCES[cell.setting]
            points, plan = long_run(seed, cell.evaluations, nuisance, cell.mode, lower)
            result, planned = judge_points(points, profile, plan), plan.planned_tokens
        else:
            kind = SHORTS[cell.setting]
            inputs = short_inputs(seed, kind, cell.mode, lower)
            result, planned = detect(inputs, profile), inputs.planned_tokens
            count = kind.evaluations
        mirrored += result.mirrored is not None
        if result.alarm is not None:
            alarms.append(result.alarm.tokens / planned)
            onsets.append(result.alarm.onset_tokens / planned)
    found = {
        "alarm_fraction": len(alarms) / cell.runs,
        "mirrored_fraction": mirrored / cell.runs,
        "alarm_at_median": float(np.median(alarms)) if alarms else None,
        "alarm_at_90pct": float(np.quantile(alarms, 0.9)) if alarms else None,
    }
    if cell.fault != "none" and alarms:
        late = (np.array(onsets) - onset) * count
        found["delay_evaluations_median"] = float(np.median((np.array(alarms) - onset) * count))
        found["onset_error_evaluations_5pct"] = float(np.quantile(late, 0.05))
        found["onset_error_evaluations_95pct"] = float(np.quantile(late, 0.95))
    return {**asdict(cell), **found}


def _with(profile: Profile, cell: Cell) -> Profile:
    """Return the profile with a cell's own constants."""
    changes = {
        name: value
        for name, value in (("z", cell.z), ("tolerance_nats", cell.tolerance_nats))
        if value is not None
    }
    if not changes or profile.level is None or profile.shift is None:
        return profile
    return replace(
        profile, level=replace(profile.level, **changes), shift=replace(profile.shift, **changes)
    )


def cells(scale: float) -> list[Cell]:
    """Return the table's rows; ``scale`` multiplies the number of runs."""
    few, some, many = (max(1, int(scale * n)) for n in (50, 150, 500))
    rows = [
        Cell("full", setting, mode, n, "none", few if n > 500 else some)
        for n in (1414, 141)
        for setting, mode in (
            ("default", "reference"), ("noisy", "reference"), ("spiky", "reference"),
            ("loose", "reference"), ("default", "level"), ("default", "free"), ("loose", "free"),
        )
    ]  # fmt: skip
    rows += [
        Cell("full", "default", mode, n, fault, few if n > 500 else some)
        for n in (1414, 141)
        for mode in ("reference", "free")
        for fault in ("sudden 0.05", "ramp 0.10", "24 passes")
    ]
    rows += [
        Cell("short", setting, mode, 0, "none", many)
        for setting in SHORTS
        for mode in ("level", "free")
    ]
    rows += [
        Cell("short", setting, mode, 0, "tiny repeats", some)
        for setting in SHORTS
        if setting.startswith("tiny")
        for mode in ("level", "free")
    ]
    rows += [
        Cell("short", setting, mode, 0, fault, many if fault == "none" else some, z, tolerance)
        for setting in ("tiny", "tiny, loud")
        for mode in ("level", "free")
        for fault in ("none", "tiny repeats")
        for z, tolerance in ((2.0, 0.05), (3.0, 0.05), (4.0, 0.05), (5.0, 0.05), (4.0, 0.0))
    ]
    return rows


def main() -> None:
    """Measure all cells and print one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of runs")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args()
    table = cells(options.scale)
    with ProcessPoolExecutor(options.workers) as pool:
        measured = pool.map(measure_cell, table)
        rows = list(tqdm(measured, total=len(table), unit="cell", file=sys.stderr))
    for row in () if options.json else rows:
        print("  ".join(f"{key}={value}" for key, value in row.items() if value is not None))
    print(json.dumps({"benchmark": "detection", "rows": rows}, allow_nan=False))


if __name__ == "__main__":
    main()
