"""What becomes of the results when each threshold of the rule is a quarter off."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from typing import Any

from tqdm import tqdm

from evalmon.detectors.profiles import PROFILES, Profile
from tests.benchmarks.detection import false_alarms
from tests.benchmarks.detection.measuring import Cell, Outcome, detection_row, measure, profile_for
from tests.benchmarks.detection.published import repeated
from tests.benchmarks.detection.real_curves import injected_row, repeated_row, silent_rows
from tests.benchmarks.detection.simulator import Setting

__all__ = ["FACTORS", "rows", "scaled", "thresholds"]

PART = "thresholds"
FACTORS = (0.75, 1.25)
_CHANNELS = ("fast", "slow", "level", "shift")
_NOT_THRESHOLDS = (
    "start_fraction", "warmups", "sparse_spacing_fraction", "holdout_noise_nats", "clip",
)  # fmt: skip
_SHARE = 10  # of the runs of other parts, one in so many

Variant = tuple[str, str, float]
"""Channel, field and factor; no channel for the rule as it is."""


def thresholds(profile: Profile) -> tuple[tuple[str, str], ...]:
    """Return (channel, field) of every threshold that a profile uses."""
    found: list[tuple[str, str]] = []
    for channel in _CHANNELS:
        settings = getattr(profile, channel)
        if settings is not None:
            found += [
                (channel, item.name)
                for item in fields(settings)
                if isinstance(getattr(settings, item.name), float)
                and item.name not in _NOT_THRESHOLDS
            ]
    return tuple(found)


def scaled(profile: Profile, channel: str, field: str, factor: float) -> Profile:
    """Return a profile with one threshold multiplied, the same where it does not use it."""
    settings = getattr(profile, channel)
    if settings is None:
        return profile
    changed = replace(settings, **{field: getattr(settings, field) * factor})
    return replace(profile, **{channel: changed})


def rows(scale: float, seed: int, workers: int) -> list[dict[str, Any]]:
    """Return one row of the rule as it is, and one a threshold and factor.

    Where a threshold has no part in a result, that is the one of the rule as it is.
    """
    runs = max(1, int(2_000 * scale / _SHARE))
    named = sorted({item for profile in PROFILES.values() for item in thresholds(profile)})
    variants: list[Variant] = [("", "", 1.0)]
    variants += [(*item, factor) for item in named for factor in FACTORS]
    cells = [_cells(variant, runs) for variant in variants]
    with ProcessPoolExecutor(workers) as pool:
        real = list(tqdm(pool.map(_real, variants), total=len(variants), desc="real"))
    outcomes = iter(measure([cell for mine in cells for cell in mine], seed, workers))
    plain: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    for variant, mine, published in zip(variants, cells, real, strict=True):
        simulated = dict(_simulated(cell, next(outcomes)) for cell in mine)
        plain = plain or {**simulated, **published}
        found.append({**_named(variant), "runs": runs, **plain, **simulated, **published})
    return found


def _simulated(cell: Cell, seen: Sequence[Outcome]) -> tuple[str, float]:
    """Return the name and the value of a simulated result."""
    setting = cell.setting
    name = f"{setting.mode}_{setting.evaluations}"
    if setting.fault == "none":
        return f"false_alarms_{name}", false_alarms.row(cell, seen)["either"]
    return f"within_10_{name}", detection_row(cell, seen).get("within_10", 0.0)


def _named(variant: Variant) -> dict[str, Any]:
    """Return what tells a row from others."""
    channel, field, factor = variant
    return {
        "part": PART,
        "threshold": f"{channel}.{field}" if channel else "none",
        "factor": factor,
    }


def _varied(profile: Profile, variant: Variant) -> Profile:
    """Return a profile with the variant's threshold changed."""
    channel, field, factor = variant
    return scaled(profile, channel, field, factor) if channel else profile


def _cells(variant: Variant, runs: int) -> list[Cell]:
    """Return the simulated cells that a variant has a part in."""
    found: list[Cell] = []
    for evaluations in (1414, 141):
        plain = profile_for(evaluations)
        varied = _varied(plain, variant)
        modes = ("level",) if variant[0] == "level" else ("reference", "free")
        if not variant[0]:
            modes = ("reference", "free", "level")
        elif varied == plain:
            continue
        settings = [
            Setting("default", mode, evaluations, fault, varied.centered)
            for mode in modes
            for fault in ("none", "sudden 0.05")
        ]
        found += [Cell(setting, varied, runs, PART) for setting in settings]
    return found


def _real(variant: Variant) -> dict[str, Any]:
    """Return the results on published curves that a variant has a part in."""
    long, short = _varied(profile_for(141), variant), _varied(PROFILES["short"], variant)
    silent = silent_rows(long, short)
    found: dict[str, Any] = {
        "real_silent": sum(row["silent"] for row in silent),
        "real_healthy": len(silent),
    }
    if repeated() and (short != PROFILES["short"] or not variant[0]):
        row = repeated_row(short)
        found["repeated_suspected"] = row["memorization_suspected"]
        found["repeated_in_time"] = row["an_epoch_before_the_last"]
        found["repeated_too_early"] = row["before_the_second_epoch_ends"]
    if long == profile_for(141) and variant[0]:
        return found
    for mode in ("reference", "free"):
        row = injected_row(long, mode, "sudden", 0.05)
        found[f"injected_found_{mode}"] = row["found"]
        found[f"injected_75pct_{mode}"] = row["delay_75pct"]
        found[f"injected_90pct_{mode}"] = row["delay_90pct"]
    return found
