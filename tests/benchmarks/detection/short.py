"""Short runs, drawn step by step: how often the short profile errs and how late it speaks."""

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from tqdm import tqdm

from evalmon.detectors.curve import CurveInputs
from evalmon.detectors.profiles import PROFILES, Profile
from evalmon.detectors.unmatched_drop import detect
from evalmon.types import Series
from tests.benchmarks.detection.faults import Floats

__all__ = ["SHORTS", "Short", "rows", "short_inputs", "tiny_repeats"]

PART = "short"
Lower = Callable[[Floats], Floats]
"""Fraction of the plan -> nats by which train loss lies lower, holdout alike."""
_TINY_ONSET = 0.13


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


SHORTS: MappingProxyType[str, Short] = MappingProxyType(
    {
        "tiny": Short(),
        "tiny, loud": Short(noise=0.12, holdout=0.02, own=0.02),
        "tiny, 12 evaluations": Short(evaluations=12),
        "tiny, 40 evaluations": Short(evaluations=40),
        "124M": Short(20, 50, 7.0, 3.1, 0.03, 0.045, 0.003, 0.02, 0.005, 0.005),
    }
)
"""Kinds of short runs by name."""


def short_run(seed: int, holdout_seed: int, kind: Short, lower: Lower) -> tuple[Series, Series]:
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


def no_fault(u: Floats) -> Floats:
    """A sound run."""
    return np.zeros_like(u)


def tiny_repeats(u: Floats) -> Floats:
    """Unmatched drop of the tiny run, doubly sharded over 8 hosts, as measured."""
    return np.interp(u, [0.0, 0.13, 0.35, 0.6, 1.0], [0.0, 0.0, 0.32, 0.45, 0.98])


def short_inputs(seed: int, kind: Short, mode: str, lower: Lower) -> CurveInputs:
    """Draw what the rule reads of one short run."""
    train, holdout = short_run(seed, seed, kind, lower)
    inputs = CurveInputs(train, holdout, int(train.tokens[-1]))
    if mode == "free":
        return inputs
    other = short_run(seed + 10**9, seed, kind, no_fault)
    return replace(
        inputs,
        reference_train=other[0],
        reference_holdout=other[1],
        same_recipe=mode == "level",
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """One row: kind, ``free`` or ``level``, sound or with repeats, and constants of its own."""

    setting: str
    mode: str
    fault: str
    runs: int
    z: float | None = None
    tolerance_nats: float | None = None


def rows(scale: float, seed: int, workers: int) -> list[dict[str, Any]]:
    """Return one row a cell.

    Args:
        scale: multiplies the number of runs, 500 sound and 150 faulty ones.
        seed: seed of everything.
        workers: processes.
    """
    cells = list(_cells(scale))
    with ProcessPoolExecutor(workers) as pool:
        found = pool.map(_measure, cells, [seed] * len(cells))
        return list(tqdm(found, total=len(cells), unit="cell", desc=PART, file=sys.stderr))


def _cells(scale: float) -> Iterable[_Cell]:
    """Yield the cells: every kind, then two kinds at other constants."""
    many, some = max(1, int(500 * scale)), max(1, int(150 * scale))
    for setting in SHORTS:
        for mode in ("level", "free"):
            yield _Cell(setting, mode, "none", many)
            if setting.startswith("tiny"):
                yield _Cell(setting, mode, "tiny repeats", some)
    for setting in ("tiny", "tiny, loud"):
        for mode in ("level", "free"):
            for z, tolerance in ((2.0, 0.05), (3.0, 0.05), (4.0, 0.05), (5.0, 0.05), (4.0, 0.0)):
                yield _Cell(setting, mode, "none", many, z, tolerance)
                yield _Cell(setting, mode, "tiny repeats", some, z, tolerance)


def _measure(cell: _Cell, seed: int) -> dict[str, Any]:
    """Draw the runs of a cell and count alarms."""
    profile, kind = _with(PROFILES["short"], cell), SHORTS[cell.setting]
    alarms: list[float] = []
    onsets: list[float] = []
    mirrored = 0
    for run in range(cell.runs):
        lower = no_fault if cell.fault == "none" else tiny_repeats
        inputs = short_inputs(seed + run, kind, cell.mode, lower)
        result = detect(inputs, profile)
        mirrored += result.mirrored is not None
        if result.alarm is not None:
            alarms.append(result.alarm.tokens / inputs.planned_tokens)
            onsets.append(result.alarm.onset_tokens / inputs.planned_tokens)
    found: dict[str, Any] = {
        "alarm_fraction": len(alarms) / cell.runs,
        "mirrored_fraction": mirrored / cell.runs,
    }
    if alarms:
        found["plan_median"] = float(np.median(alarms))
        found["plan_90pct"] = float(np.quantile(alarms, 0.9))
    if alarms and cell.fault != "none":
        late = (np.array(onsets) - _TINY_ONSET) * kind.evaluations
        found["onset_error_evaluations_5pct"] = float(np.quantile(late, 0.05))
        found["onset_error_evaluations_95pct"] = float(np.quantile(late, 0.95))
    named = {key: value for key, value in asdict(cell).items() if value is not None}
    return {"part": PART, "profile": "short", **named, **found}


def _with(profile: Profile, cell: _Cell) -> Profile:
    """Return the profile with a cell's own constants."""
    if cell.z is None or cell.tolerance_nats is None:
        return profile
    level, shift = profile.level, profile.shift
    assert level is not None
    assert shift is not None
    return replace(
        profile,
        level=replace(level, z=cell.z, tolerance_nats=cell.tolerance_nats),
        shift=replace(shift, z=cell.z, tolerance_nats=cell.tolerance_nats),
    )
