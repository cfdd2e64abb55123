"""Constants of the decision rule, by profile.

Each channel of the rule has its own settings; a profile holds those it uses. Fractions
are of the planned tokens. docs/detection.md tells where each constant comes from.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType

from evalmon.errors import ConfigError

__all__ = [
    "PROFILES",
    "BaselineSettings",
    "FastSettings",
    "HoldSettings",
    "LagSettings",
    "LevelSettings",
    "Profile",
    "ShiftSettings",
    "SlowSettings",
    "profile_named",
    "widened",
]


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    """Where the run is taken as its own standard.

    Attributes:
        start_fraction: where it begins.
        end_fraction: where it ends.
        warmups: warm-ups that must have passed before it begins.
        evaluations: fewest evaluations; it is prolonged until it has them.
    """

    start_fraction: float
    end_fraction: float
    warmups: float
    evaluations: int


@dataclass(frozen=True, slots=True)
class LagSettings:
    """The lagged window that gives local mean and noise.

    Attributes:
        length_fraction: its length.
        distance_fraction: how far it ends behind the evaluation judged.
        evaluations: fewest evaluations; with fewer the baseline stands in.
        sigma_floor_nats: least noise assumed.
        phi_limit: largest autocorrelation corrected for.
    """

    length_fraction: float = 0.106
    distance_fraction: float = 0.035
    evaluations: int = 5
    sigma_floor_nats: float = 0.0015
    phi_limit: float = 0.9


@dataclass(frozen=True, slots=True)
class FastSettings:
    """Sequential sum of what exceeds the lagged mean.

    Attributes:
        tolerance_nats: least tolerance kappa.
        slope: tolerance as a share of the train loss's own movement.
        clip: most one evaluation may add, in sigmas.
        threshold: sum that alarms.
    """

    tolerance_nats: float = 0.005
    slope: float = 0.25
    clip: float = 4.0
    threshold: float = 20.0


@dataclass(frozen=True, slots=True)
class SlowSettings:
    """Running median against the baseline.

    Attributes:
        window: evaluations in the running median.
        sparse_window: the same where evaluations are sparse.
        sparse_spacing_fraction: spacing from which they are.
        z: sigmas of the lower bound.
        reference_nats: bound that alarms against a reference.
        free_nats: bound that alarms without one.
    """

    window: int = 20
    sparse_window: int = 5
    sparse_spacing_fraction: float = 0.005
    z: float = 4.0
    reference_nats: float = 0.025
    free_nats: float = 0.060


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """Running median of the raw unmatched drop, against a reference of the same recipe.

    Attributes:
        start_fraction: where it may first be used.
        warmups: warm-ups that must have passed before.
        window: evaluations in the running median.
        sparse_window: the same where evaluations are sparse.
        z: sigmas of the lower bound.
        tolerance_nats: bound that alarms.
        own_noise: take sigma from the spread inside train windows, not between evaluations.
        holdout_noise_nats: noise of one holdout difference, added to it.
    """

    start_fraction: float = 0.03
    warmups: float = 0.0
    window: int = 20
    sparse_window: int = 5
    z: float = 4.0
    tolerance_nats: float = 0.030
    own_noise: bool = False
    holdout_noise_nats: float = 0.0


@dataclass(frozen=True, slots=True)
class ShiftSettings:
    """Mean of the last evaluations against the median of the earlier ones.

    Attributes:
        start_fraction: evaluations up to here are left out.
        warmups: warm-ups that must have passed before.
        recent: evaluations in the mean.
        earlier: fewest evaluations in the median.
        points: fewest evaluations of the run altogether.
        tolerance_nats: shift that a sound run's drift may show.
        z: standard errors of the run's own window noise tolerated beyond it.
        holdout_noise_nats: noise of one holdout score, added to it.
    """

    start_fraction: float = 0.10
    warmups: float = 1.0
    recent: int = 2
    earlier: int = 3
    points: int = 6
    tolerance_nats: float = 0.05
    z: float = 4.0
    holdout_noise_nats: float = 0.0


@dataclass(frozen=True, slots=True)
class HoldSettings:
    """The spike hold: no evidence while train loss stands out upwards.

    Attributes:
        history: windows before, whose median and spread define standing out.
        floor_nats: least excess over the median.
        sigmas: excess in standard deviations.
        longest: windows a hold lasts at most.
        after: further windows after it.
    """

    history: int = 10
    floor_nats: float = 0.02
    sigmas: float = 6.0
    longest: int = 10
    after: int = 2


@dataclass(frozen=True, slots=True)
class Profile:
    """The channels of the rule and their constants.

    Attributes:
        name: its name in settings, verdicts and figures.
        baseline: the baseline window.
        lag: the lagged window.
        fast: fast channel, None = off.
        slow: slow channel, None = off.
        level: level channel, None = off.
        shift: shift channel, None = off.
        hold: the spike hold.
        median_of: evaluations in the running median x.
        centered: compare the holdout, interpolated to each train step, with that step,
            which removes the lag of a window behind a falling curve.
        slope_low: least slope of holdout on train without a reference.
        slope_high: largest.
        gap_nats: run and reference differ when both losses do by more than this.
        probe_nats: lower bound of the seen-against-fresh probe that confirms memorization.
    """

    name: str
    baseline: BaselineSettings
    lag: LagSettings
    fast: FastSettings | None
    slow: SlowSettings | None
    level: LevelSettings | None
    shift: ShiftSettings | None
    hold: HoldSettings
    median_of: int
    centered: bool
    slope_low: float
    slope_high: float
    gap_nats: float
    probe_nats: float


_FULL = Profile(
    name="full",
    baseline=BaselineSettings(0.03, 0.10, warmups=5.0, evaluations=10),
    lag=LagSettings(),
    fast=FastSettings(),
    slow=SlowSettings(),
    level=LevelSettings(),
    shift=None,
    hold=HoldSettings(),
    median_of=3,
    centered=False,
    slope_low=0.92,
    slope_high=1.02,
    gap_nats=0.02,
    probe_nats=0.02,
)

_LOOSE = replace(
    _FULL,
    name="loose",
    fast=FastSettings(tolerance_nats=0.010),
    slow=SlowSettings(reference_nats=0.045),
)

_SHORT = Profile(
    name="short",
    baseline=BaselineSettings(0.10, 0.10, warmups=1.0, evaluations=3),
    lag=LagSettings(),
    fast=None,
    slow=None,
    level=LevelSettings(
        start_fraction=0.10,
        warmups=1.0,
        window=3,
        sparse_window=3,
        z=4.0,
        tolerance_nats=0.05,
        own_noise=True,
        holdout_noise_nats=0.01,
    ),
    shift=ShiftSettings(),
    hold=HoldSettings(history=5),
    median_of=1,
    centered=True,
    slope_low=1.0,
    slope_high=1.0,
    gap_nats=0.05,
    probe_nats=0.25,
)

PROFILES: MappingProxyType[str, Profile] = MappingProxyType(
    {profile.name: profile for profile in (_FULL, _LOOSE, _SHORT)}
)
"""Profile by name: ``full`` for long runs, ``loose`` for long runs against a reference whose
recipe is known to differ, ``short`` for runs of 12 to 40 evaluations."""


def profile_named(name: str) -> Profile:
    """Return a profile.

    Raises:
        ConfigError: there is none of that name.

    Example:
        >>> profile_named("short").name
        'short'
    """
    if name not in PROFILES:
        raise ConfigError(f"unknown profile {name!r}; known are {sorted(PROFILES)}")
    return PROFILES[name]


def widened(profile: Profile, nats: float) -> Profile:
    """Return a profile that tolerates so many nats more in every channel.

    Example:
        >>> fast = widened(profile_named("full"), 1 / 64).fast
        >>> fast.tolerance_nats
        0.020625
    """
    fast, slow, level, shift = profile.fast, profile.slow, profile.level, profile.shift
    return replace(
        profile,
        fast=fast and replace(fast, tolerance_nats=fast.tolerance_nats + nats),
        slow=slow
        and replace(
            slow,
            reference_nats=slow.reference_nats + nats,
            free_nats=slow.free_nats + nats,
        ),
        level=level and replace(level, tolerance_nats=level.tolerance_nats + nats),
        shift=shift and replace(shift, tolerance_nats=shift.tolerance_nats + nats),
        gap_nats=profile.gap_nats + nats,
    )
