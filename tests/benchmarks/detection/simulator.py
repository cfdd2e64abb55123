"""Full pre-training runs, drawn evaluation by evaluation.

Losses are in nats per token. A run is a power-law curve with an annealing of its own, an
offset and a slow drift against its reference, slow and white noise, loss spikes, restarts,
missing and bad evaluations. All runs of a batch are drawn at once.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType
from zlib import crc32

import numpy as np
from scipy.signal import lfilter

from evalmon.detectors.curve import Plan, Points
from tests.benchmarks.detection.faults import FAULTS, Fault, Floats

__all__ = ["BATCH", "NUISANCES", "PLANNED_STEPS", "Batch", "Nuisance", "Setting", "draw"]

PLANNED_STEPS = 1_414_000
TOKENS_PER_STEP = 4_194_304
_WARMUP_STEPS = 2_000
_DENSE = 1_414  # evaluations of the plan when there is one every 1,000 steps
BATCH = 50
"""Runs drawn at once."""


@dataclass(frozen=True, slots=True)
class Nuisance:
    """What makes sound runs differ.

    Attributes:
        drift_nats: spread of the change of run minus reference over the plan, and of its offset.
        noise: factor on all noise of train windows and of holdout scores.
        spikes: loss spikes in the plan.
        restarts: restarts in the plan.
        missing: share of evaluations that are missing.
        bad: chance that one evaluation of the run is off by 0.02 to 0.2.
        annealed_nats: what the run's own annealing takes off, which the reference does not share.
    """

    drift_nats: float = 0.03
    noise: float = 1.0
    spikes: int = 8
    restarts: int = 5
    missing: float = 0.02
    bad: float = 0.3
    annealed_nats: float = 0.08


NUISANCES: MappingProxyType[str, Nuisance] = MappingProxyType(
    {
        "default": Nuisance(),
        "noisy": Nuisance(noise=2.0),
        "spiky": Nuisance(spikes=30, restarts=20, bad=1.0),
        "missing": Nuisance(missing=0.10),
        "tight": Nuisance(drift_nats=0.015),
        "loose": Nuisance(drift_nats=0.06),
        "rerun": Nuisance(drift_nats=0.005, annealed_nats=0.0),
    }
)
"""Nuisance settings by name; ``rerun`` is a reference of the run's own recipe and schedule."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is drawn.

    Attributes:
        nuisance: name in ``NUISANCES``.
        mode: ``reference`` (another recipe), ``level`` (the same recipe) or ``free``.
        evaluations: evaluations of the whole plan.
        fault: name in ``FAULTS``.
        centered: whether the profile compares the holdout with each step's train loss.
    """

    nuisance: str = "default"
    mode: str = "reference"
    evaluations: int = _DENSE
    fault: str = "none"
    centered: bool = False

    @property
    def interval_steps(self) -> int:
        """Steps between two evaluations: 1,000 or 10,000 at 1,414 or 141 of them."""
        return PLANNED_STEPS // self.evaluations // 1_000 * 1_000

    @property
    def plan(self) -> Plan:
        """The schedule and the mode."""
        return Plan(PLANNED_STEPS * TOKENS_PER_STEP, _WARMUP_STEPS * TOKENS_PER_STEP, self.mode)


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that were drawn together; R runs of n evaluations.

    Attributes:
        setting: what was drawn.
        kept: [R, n] whether the evaluation took place.
        train: [R, n] T, median train CE of the window.
        holdout: [R, n] H.
        train_gap: [R, n] run minus reference train CE.
        holdout_gap: [R, n] the same of the holdout.
        ahead: [R, n] by how much T lags behind the loss at the evaluation.
        onset: [R] first evaluation that a fault touches, counted from 0.
        remembered: [R] memory of its text at the end of the run, nats.
    """

    setting: Setting
    kept: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]"
    train: Floats
    holdout: Floats
    train_gap: Floats
    holdout_gap: Floats
    ahead: Floats
    onset: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    remembered: Floats

    def __len__(self) -> int:
        return len(self.train)

    def points(self, run: int) -> Points:
        """Return what the rule judges of one run."""
        setting, kept = self.setting, np.flatnonzero(self.kept[run])
        steps = (kept + 1) * setting.interval_steps
        train, holdout = self.train[run, kept], self.holdout[run, kept]
        free = setting.mode == "free"
        train_gap = np.zeros(len(kept)) if free else self.train_gap[run, kept]
        holdout_gap = np.zeros(len(kept)) if free else self.holdout_gap[run, kept]
        excess = holdout_gap - train_gap
        if free:
            excess = holdout - (train - self.ahead[run, kept]) if setting.centered else holdout
        noise = np.full(len(kept), 0.0007 * NUISANCES[setting.nuisance].noise)
        return Points(
            steps, steps * TOKENS_PER_STEP, train, holdout, train_gap, holdout_gap, excess, noise
        )


def draw(setting: Setting, seed: int, batch: int, runs: int = BATCH) -> Batch:
    """Draw runs.

    Args:
        setting: what to draw.
        seed: seed of the whole table.
        batch: number of the batch: batches of a setting are independent.
        runs: how many.

    Returns:
        The runs; the same arguments give the same runs.
    """
    named = f"{setting.nuisance} {setting.mode} {setting.evaluations} {setting.fault}"
    rng = np.random.default_rng([seed, crc32(named.encode()), batch])
    nuisance, fault = NUISANCES[setting.nuisance], FAULTS[setting.fault]
    n = setting.evaluations
    shape = (runs, n)
    u = np.arange(1, n + 1) / n
    center = u - 0.5 / n  # of the window that ends at the evaluation
    decayed = np.clip((u - 0.8) / 0.2, 0.0, 1.0) ** 1.5
    annealed = -nuisance.annealed_nats * decayed
    drift = nuisance.drift_nats * (_normal(rng, runs) + _smooth(rng, runs, u))
    wander = 0.0015 * _autoregressive(rng, shape, 0.9)
    white, slow = rng.standard_normal(shape), _autoregressive(rng, shape, 0.8)
    train_noise = nuisance.noise * (0.0007 * white + 0.0014 * slow)
    by_rate = np.maximum(1 - 0.9 * decayed, 0.3)
    holdout_noise = nuisance.noise * 0.002 * by_rate * _autoregressive(rng, shape, 0.5)
    spike_train, spike_holdout = _spikes(rng, shape, nuisance)
    train_gap = drift + annealed + wander + train_noise + spike_train
    holdout_gap = (1 + 0.15 * _normal(rng, runs)) * drift
    holdout_gap += (1 + 0.10 * _normal(rng, runs)) * annealed
    holdout_gap += 0.004 * _smooth(rng, runs, u)
    holdout_gap += wander + holdout_noise + spike_holdout + _bad(rng, shape, nuisance.bad)
    if setting.mode == "reference":  # another mix
        holdout_gap += 0.1 * _normal(rng, runs)
    ahead = _curve(center) - _curve(u)
    transfer = 1 + 0.05 * _normal(rng, runs)
    bent = 0.010 * rng.choice([-1.0, 1.0], (runs, 1)) * 4 * u * (1 - u)
    plain = Batch(
        setting=setting,
        kept=rng.random(shape) >= nuisance.missing,
        train=_curve(center) + train_gap,
        holdout=0.3 + transfer * _curve(u) + bent + holdout_gap,
        train_gap=train_gap,
        holdout_gap=holdout_gap,
        ahead=np.broadcast_to(ahead, shape),
        onset=np.zeros(runs, np.int64),
        remembered=np.zeros(runs),
    )
    return _plant(plain, fault, rng, u, center)


def _plant(
    batch: Batch, fault: Fault, rng: np.random.Generator, u: Floats, center: Floats
) -> Batch:
    """Add a fault to every run."""
    runs, n = batch.train.shape
    onset = fault.begins(rng, runs, n)
    early, late = fault.shape(center, onset), fault.shape(u, onset)
    if fault.evaluations:
        ends = onset + (fault.evaluations + 0.25) / n
        early, late = early * (center < ends), late * (u < ends)
    train = early * (fault.train_nats + (fault.train_factor - 1) * batch.train)
    holdout = late * fault.holdout_nats * (1 + fault.slope_error * _normal(rng, runs))
    return replace(
        batch,
        train=batch.train + train,
        holdout=batch.holdout + holdout,
        train_gap=batch.train_gap + train,
        holdout_gap=batch.holdout_gap + holdout,
        onset=np.rint(onset[:, 0] * n).astype(np.int64),
        remembered=-train[:, -1] if fault.remembered else batch.remembered,
    )


def _curve(u: Floats) -> Floats:
    """Return the power law: 2.67 nats at 1 % of the plan, 2.15 at its end."""
    return 1.4 + 0.75 * u**-0.12


def _normal(rng: np.random.Generator, runs: int) -> Floats:
    """Return [runs, 1] standard normals."""
    return rng.standard_normal((runs, 1))


def _autoregressive(rng: np.random.Generator, shape: tuple[int, int], phi: float) -> Floats:
    """Return first-order autoregressive noise of unit variance along the last axis."""
    shocks = rng.standard_normal((shape[0], shape[1] + 50)) * np.sqrt(1 - phi**2)
    return np.asarray(lfilter([1.0], [1.0, -phi], shocks, axis=-1), np.float64)[:, 50:]


def _smooth(rng: np.random.Generator, runs: int, u: Floats) -> Floats:
    """Return [runs, n] smooth curves from 0 whose change over the plan spreads by about 1."""
    weights = rng.standard_normal((runs, 3)) * np.array([0.9, 0.3, 0.15])
    return weights @ np.stack([u, np.sin(np.pi * u), np.sin(2 * np.pi * u)])


def _bad(rng: np.random.Generator, shape: tuple[int, int], chance: float) -> Floats:
    """Return one evaluation off by 0.02 to 0.2 in some runs."""
    runs, n = shape
    jumps = rng.uniform(0.02, 0.2, runs) * rng.choice([-1.0, 1.0], runs)
    off = np.zeros(shape)
    off[np.arange(runs), rng.integers(0, n, runs)] = jumps * (rng.random(runs) < chance)
    return off


def _spikes(
    rng: np.random.Generator, shape: tuple[int, int], nuisance: Nuisance
) -> tuple[Floats, Floats]:
    """Return what loss spikes and restarts do to window medians and to holdout scores.

    Each begins somewhere inside a window and decays exponentially: a spike of 0.05 to 0.5
    nats within 50 to 1,000 steps, a restart of 0.02 to 0.3 within 20 to 100. A window's
    median sees it once it fills more than half of the window, the holdout what is left.
    """
    runs, n = shape
    train, holdout = np.zeros(shape), np.zeros(shape)
    rows = np.arange(runs)[:, None]
    reach = np.arange(16)
    for count, heights, lengths in (
        (nuisance.spikes, (0.05, 0.5), (0.05, 1.0)),
        (nuisance.restarts, (0.02, 0.3), (0.02, 0.1)),
    ):
        for _ in range(count):
            at = rng.uniform(0, n, (runs, 1))
            height = rng.uniform(*heights, (runs, 1))
            length = rng.uniform(*lengths, (runs, 1)) * n / _DENSE
            index = np.floor(at).astype(np.int64) + reach  # first evaluation after it and on
            since = index + 1 - at
            inside = index < n
            index = np.minimum(index, n - 1)
            covered = np.where(since < 1, since > 0.5, True)
            middle = np.where(since < 1, 0.5, since - 0.5)
            seen = height * np.exp(-np.minimum(middle / length, 700.0)) * covered * inside
            left = height * np.exp(-np.minimum(since / length, 700.0)) * inside
            np.add.at(train, (rows, index), seen)
            np.add.at(holdout, (rows, index), left)
    return train, holdout
