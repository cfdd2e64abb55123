"""The rule on published runs: silent where nothing is wrong, in time where text repeats.

Faults are also put into the real train loss of Olmo 3 7B, at 50 evenly spaced evaluations.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from evalmon.detectors.curve import CurveInputs, CurveResult
from evalmon.detectors.measuring import measure
from evalmon.detectors.profiles import PROFILES, Profile
from evalmon.detectors.unmatched_drop import detect
from evalmon.types import Series
from tests.benchmarks.detection.measuring import SILENT, profile_for, verdict_of
from tests.benchmarks.detection.published import CURVES, Published, healthy, inputs, repeated

__all__ = ["blamed", "injected_row", "repeated_row", "rows", "silent_rows"]

PART = "real_curves"
_INJECTIONS = 50
_FROM = 0.2  # of the usable evaluations
_LEFT = 15  # evaluations left after the last injection
_RAMP_STEPS = 200_000
_SIZES = (0.02, 0.05, 0.10, 0.25)
_LADDER = "olmo_ladder_pairs.csv.gz"
_CHANGES = tuple(
    (loss, size, ramp)
    for ramp, sizes in ((0, (0.05, 0.10)), (100_000, (0.10,)))
    for loss in ("train", "holdout")
    for size in (*sizes, *(-size for size in sizes))
)
_DRAWS = np.random.default_rng(0)


def rows(scale: float, seed: int, workers: int) -> list[dict[str, Any]]:
    """Return every row; nothing is drawn, so no option changes any."""
    del scale, seed, workers
    sparse, short = profile_for(141), PROFILES["short"]
    found = silent_rows(sparse, short)
    found += _ladder_rows()
    if repeated():
        found.append(repeated_row(short))
    found += [
        _blamed_row(sparse, mode, *change) for mode in ("reference", "free") for change in _CHANGES
    ]
    sizes = [(form, size) for form in ("sudden", "ramp", "both") for size in _SIZES]
    for mode in ("reference", "free"):
        found += [injected_row(sparse, mode, form, size) for form, size in sizes]
    return found


def silent_rows(long: Profile, short: Profile) -> list[dict[str, Any]]:
    """Return how each healthy run is judged, alone and against its like."""
    runs = healthy()
    olmo3, olmo2 = runs["olmo3-7b-stage1"], runs["olmo2-7b-stage1"]
    judged: list[tuple[Published, Published | None, Profile]] = [
        (olmo3, None, long), (olmo3, olmo2, long), (olmo2, None, long),
        (olmo3, None, short), (olmo2, None, short),
    ]  # fmt: skip
    if "gpt2-124m-a" in runs:
        one, other = runs["gpt2-124m-a"], runs["gpt2-124m-b"]
        judged += [
            (one, other, profile) if against else (one, None, profile)
            for one, other in ((one, other), (other, one))
            for against in (True, False)
            for profile in (long, short)
        ]
    return [_silent_row(*item) for item in judged]


def _silent_row(run: Published, against: Published | None, profile: Profile) -> dict[str, Any]:
    """Judge one healthy run at the last evaluation that its reference reaches."""
    read = inputs(run, against)
    if against:
        end = min(int(against.train.tokens[-1]), int(against.holdout.tokens[-1]))
        inside = int(np.searchsorted(run.holdout.tokens, end, side="right"))
        read = replace(read, holdout=run.holdout.until(int(run.holdout.steps[inside - 1])))
    result = detect(read, profile)
    verdict = verdict_of(result, remembered_nats=None, rng=_DRAWS)
    return {
        "part": PART,
        "run": run.name,
        "reference": against.name if against else None,
        "profile": profile.name,
        "evaluations": len(result.points),
        "verdict": str(verdict),
        "silent": verdict in SILENT,
        "alarm": result.alarm is not None,
        "mirrored": result.mirrored is not None,
    }


def _ladder_rows() -> list[dict[str, Any]]:
    """Judge ladder runs, which have no train loss, through the command's own path."""
    from evalmon.comparing import CompareOptions, compare

    table = CURVES / _LADDER
    if not table.is_file():
        return []
    import pandas as pd

    names = [str(name) for name in pd.read_csv(table, usecols=["run"])["run"].unique()]
    found: list[dict[str, Any]] = []
    for run, other in _pairs(names):
        verdict = compare(CompareOptions(str(table), run, f"{table}:{other}")).verdict
        found.append(
            {
                "part": PART,
                "run": run,
                "reference": other,
                "verdict": str(verdict.verdict),
                "silent": verdict.verdict in SILENT,
                "basis": getattr(verdict, "basis", None),
            }
        )
    return found


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    """Return the ladder runs that belong together: first the run, then its reference."""
    pairs: list[tuple[str, str]] = []
    for size in ("190M", "370M"):
        main, cosine = f"moreeval/{size}-1xC", f"moreeval/{size}-10xC"
        pairs += [(main, name) for name in names if f"{size}-1xC" in name and name != main]
        pairs += [(name, cosine) for name in names if f"{size}-10xC" in name and name != cosine]
    return pairs


def repeated_row(profile: Profile) -> dict[str, Any]:
    """Count runs of many epochs that are found, in time, and not before anything repeats."""
    found = in_time = too_early = suspected = 0
    lateness: list[float] = []
    for run in repeated():
        result = detect(replace(inputs(run), thinned=False), profile)
        suspected += str(verdict_of(result, remembered_nats=None, rng=_DRAWS)).startswith(
            "memorization"
        )
        if result.alarm is None:
            continue
        epoch = int(run.holdout.tokens[0])
        found += 1
        in_time += result.alarm.tokens + epoch <= int(run.holdout.tokens[-1])
        too_early += result.alarm.tokens < 2 * epoch
        lateness.append(result.alarm.tokens / run.planned_tokens)
    return {
        "part": PART,
        "run": "repeated epochs",
        "profile": profile.name,
        "runs": len(repeated()),
        "found": found,
        "memorization_suspected": suspected,
        "an_epoch_before_the_last": in_time,
        "before_the_second_epoch_ends": too_early,
        "plan_median": round(float(np.median(lateness)), 3) if lateness else None,
    }


def injected_row(profile: Profile, mode: str, form: str, size: float) -> dict[str, Any]:
    """Put one fault at each of 50 evaluations of Olmo 3 7B and count what is found.

    Args:
        profile: the rule's constants.
        mode: ``reference`` (against OLMo 2 7B) or ``free``.
        form: ``sudden`` or ``ramp`` (over 200,000 steps) of train loss, ``both`` for a sudden
            drop of train and holdout loss alike.
        size: nats.
    """
    run, against, plain = _published(mode)
    usable = measure(plain, profile)[0].steps
    delays: list[int] = []
    early = mirrored = 0
    for at in _places(len(usable)):
        result = detect(_injected(plain, int(usable[at - 1]), form, size), profile)
        mirrored += result.mirrored is not None
        delay = _delay(result, int(usable[at]))
        if delay is not None and delay >= 0:
            delays.append(delay)
        early += delay is not None and delay < 0
    missed = _INJECTIONS - len(delays)
    ordered = sorted(delays)
    quantiles = {
        f"delay_{name}": ordered[rank] if rank < len(ordered) else None
        for name, rank in (("median", 24), ("75pct", 37), ("90pct", 44))  # of all 50
    }
    return {
        "part": PART,
        "run": run.name,
        "reference": against.name if against else None,
        "profile": profile.name,
        "fault": f"{form} {size:.2f}",
        "usable_evaluations": len(usable),
        "injections": _INJECTIONS,
        "found": len(delays),
        "missed": missed,
        "early": early,
        "mirrored": mirrored,
        **({} if form == "both" else quantiles),
        "within_6": sum(delay <= 6 for delay in delays),
        "within_12": sum(delay <= 12 for delay in delays),
    }


def blamed(
    profile: Profile, mode: str, loss: str, size: float, ramp_steps: int = 0, every: int = 1
) -> dict[str, int]:
    """Count which loss is said to have made a change put into one of them.

    Args:
        profile: the rule's constants.
        mode: ``reference`` (against OLMo 2 7B) or ``free``.
        loss: ``train`` or ``holdout``, the one that is changed.
        size: nats, above 0 for a rise.
        ramp_steps: steps over which the change comes, 0 for a sudden one.
        every: every so many of the 50 places.

    Returns:
        ``train``, ``holdout`` or ``none`` (no alarm) -> times, of the alarm of that sign.
    """
    _, _, plain = _published(mode)
    usable = measure(plain, profile)[0].steps
    curve = plain.train if loss == "train" else plain.holdout
    found = Counter[str]()
    for at in _places(len(usable))[::every]:
        since = curve.steps - int(usable[at - 1])
        part = np.clip(since / ramp_steps, 0, 1) if ramp_steps else since > 0
        moved = replace(curve, values=curve.values + size * part)
        changed = replace(plain, train=moved) if loss == "train" else replace(plain, holdout=moved)
        result = detect(changed, profile)
        unmatched = (size < 0) == (loss == "train")
        alarm = result.alarm if unmatched else result.mirrored
        found["none" if alarm is None else "train" if alarm.by_train else "holdout"] += 1
    return dict(found)


def _blamed_row(
    profile: Profile, mode: str, loss: str, size: float, ramp_steps: int
) -> dict[str, Any]:
    """Return what a change of one loss is laid to."""
    return {
        "part": PART,
        "run": "olmo3-7b-stage1",
        "reference": "olmo2-7b-stage1" if mode == "reference" else None,
        "changed": loss,
        "nats": size,
        "ramp_steps": ramp_steps,
        "blamed": blamed(profile, mode, loss, size, ramp_steps),
    }


def _published(mode: str) -> tuple[Published, Published | None, CurveInputs]:
    """Return Olmo 3 7B, OLMo 2 7B where it is the reference, and both as inputs."""
    run = healthy()["olmo3-7b-stage1"]
    against = healthy()["olmo2-7b-stage1"] if mode == "reference" else None
    return run, against, inputs(run, against)


def _places(usable: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return 50 evenly spaced evaluations of those usable, at which a fault begins."""
    first = int(np.ceil(_FROM * usable))
    return np.rint(np.linspace(first, usable - _LEFT, _INJECTIONS)).astype(np.int64)


def _delay(result: CurveResult, step: int) -> int | None:
    """Return the alarm's place less that of an evaluation, None without an alarm."""
    if result.alarm is None:
        return None
    return result.alarm.index - int(np.searchsorted(result.points.steps, step))


def _injected(plain: CurveInputs, step: int, form: str, size: float) -> CurveInputs:
    """Lower train loss, or both losses, after a step."""

    def lowered(series: Series) -> Series:
        """Return a series with the drop."""
        since = series.steps - step
        part = np.clip(since / _RAMP_STEPS, 0, 1) if form == "ramp" else since > 0
        return replace(series, values=series.values - size * part)

    holdout = lowered(plain.holdout) if form == "both" else plain.holdout
    return replace(plain, train=lowered(plain.train), holdout=holdout)
