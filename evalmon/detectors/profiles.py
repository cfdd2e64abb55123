"""Constants of the decision rule, by profile.

Each channel of the rule has its own settings; a profile holds those it uses. Fractions
are of the planned tokens. docs/detection.md tells where each constant comes from.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from evalmon.errors import ConfigError, DataError
from evalmon.types import IntArray

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
    "choose",
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
        earlier_share: least share of the mean squared noise of all earlier lagged windows: few
            evaluations can look quiet by chance.
        outlier_sigmas: r further than this from its running median of 5 counts as if it lay
            there; None where x is a median itself.
    """

    length_fraction: float = 0.106
    distance_fraction: float = 0.035
    evaluations: int = 5
    sigma_floor_nats: float = 0.0015
    phi_limit: float = 0.9
    earlier_share: float = 0.0
    outlier_sigmas: float | None = None


@dataclass(frozen=True, slots=True)
class FastSettings:
    """Sequential sum of what exceeds the lagged mean.

    Attributes:
        tolerance_nats: least tolerance kappa.
        slope: tolerance as a share of the movement of train loss.
        train_share: against a reference the larger of two movements counts: that of the train
            gap, and this share of train loss's own.
        free_mirror_slope: the same of the mirrored rule without a reference, where annealing
            moves the holdout a little more than train loss.
        clip: most one evaluation may add, in sigmas.
        threshold: sum that alarms.
        explained_threshold: the same where the noise is that of few train points a window, so
            white and known; in between by its share.
    """

    tolerance_nats: float = 0.005
    slope: float = 0.25
    train_share: float = 1.0
    free_mirror_slope: float = 0.40
    clip: float = 4.0
    threshold: float = 20.0
    explained_threshold: float = 12.0


@dataclass(frozen=True, slots=True)
class SlowSettings:
    """Running median against the baseline.

    Attributes:
        window: evaluations in the running median.
        sparse_window: the same where evaluations are sparse.
        sparse_spacing_fraction: spacing from which they are.
        z: sigmas of the lower bound.
        reference_nats: bound that alarms against a reference.
        free_nats: bound that alarms without one, from half of the plan on.
        free_early_nats: the same up to a quarter of the plan; linear between: holdout minus train
            loss drifts little before. Not of the mirrored rule.
    """

    window: int = 20
    sparse_window: int = 5
    sparse_spacing_fraction: float = 0.005
    z: float = 4.0
    reference_nats: float = 0.025
    free_nats: float = 0.060
    free_early_nats: float = 0.015


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
        mirror_tolerance_nats: the same of the mirrored rule: early on, and where a learning rate
            falls late, holdout loss moves further than train loss by as much as a tenth.
        z: standard errors of the run's own window noise tolerated beyond it.
        holdout_noise_nats: noise of one holdout score, added to it.
    """

    start_fraction: float = 0.10
    warmups: float = 1.0
    recent: int = 2
    earlier: int = 3
    points: int = 6
    tolerance_nats: float = 0.05
    mirror_tolerance_nats: float = 0.15
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
        gap_evaluations: last evaluations whose median tells the present gap.
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
    gap_evaluations: int
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
    gap_evaluations=15,
    probe_nats=0.02,
)

_LOOSE = replace(
    _FULL,
    name="loose",
    fast=FastSettings(tolerance_nats=0.010),
    slow=SlowSettings(reference_nats=0.045),
)

_SPARSE = replace(
    _FULL,
    name="sparse",
    lag=LagSettings(
        length_fraction=0.14, distance_fraction=0.07, earlier_share=0.8, outlier_sigmas=4.0
    ),
    fast=FastSettings(train_share=0.5),
    level=LevelSettings(z=2.5),
    gap_evaluations=3,
    median_of=1,
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
    gap_evaluations=3,
    probe_nats=0.25,
)

PROFILES: MappingProxyType[str, Profile] = MappingProxyType(
    {profile.name: profile for profile in (_FULL, _SPARSE, _LOOSE, _SHORT)}
)
"""Profile by name: ``full`` for long runs with hundreds of evaluations, ``sparse`` for those
with 40 to 400 or a thinned train log, ``loose`` for long runs against a reference whose recipe is
known to differ, ``short`` for runs of 12 to 40 evaluations."""

_SPACED = 8  # evaluations whose spacing tells how often a run is evaluated
_SPARSE_EVALUATIONS = 400
_SHORT_EVALUATIONS = 40


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


def choose(name: str, tokens: IntArray, planned_tokens: int) -> Profile:
    """Return the profile asked for; without one, the one for how often the run is evaluated.

    The first evaluations' spacing and the plan decide, so that later evaluations change
    nothing.

    Args:
        name: its name, "" to choose.
        tokens: [n] tokens of the evaluations.
        planned_tokens: tokens of the whole schedule.

    Raises:
        ConfigError: there is none of that name.
        DataError: tokens that do not rise.

    Example:
        >>> [choose("", np.arange(1, 11) * every, 1000).name for every in (1, 5, 50)]
        ['full', 'sparse', 'short']
    """
    if name:
        return profile_named(name)
    if len(tokens) < 2:
        return _FULL
    spacing = float(np.median(np.diff(tokens[: _SPACED + 1])))
    if spacing <= 0:
        at = int(np.argmax(np.diff(tokens) <= 0))
        raise DataError(
            f"evaluations at {int(tokens[at]):,} and then at {int(tokens[at + 1]):,} tokens: they "
            "must rise; give the tokens trained on since the beginning of the run"
        )
    expected = planned_tokens / spacing
    if expected <= _SHORT_EVALUATIONS:
        return _SHORT
    return _SPARSE if expected <= _SPARSE_EVALUATIONS else _FULL


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
            free_early_nats=slow.free_early_nats + nats,
        ),
        level=level and replace(level, tolerance_nats=level.tolerance_nats + nats),
        shift=shift
        and replace(
            shift,
            tolerance_nats=shift.tolerance_nats + nats,
            mirror_tolerance_nats=shift.mirror_tolerance_nats + nats,
        ),
        gap_nats=profile.gap_nats + nats,
    )
