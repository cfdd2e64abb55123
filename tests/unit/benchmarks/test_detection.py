"""The simulator draws what it says, the same again, and its table runs in small."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evalmon.detectors.profiles import PROFILES
from evalmon.detectors.unmatched_drop import judge_points
from tests.benchmarks.detection.faults import FAULTS, RAMP_FRACTION
from tests.benchmarks.detection.simulator import NUISANCES, Batch, Setting, draw
from tests.benchmarks.detection.thresholds import scaled, thresholds

U = np.arange(1, 1415) / 1414
HALF = np.array([[0.5]])


def shape(fault: str, at: float) -> float:
    return FAULTS[fault].shape(np.array([at]), HALF).item()


@pytest.mark.parametrize(
    ("fault", "at", "share"),
    [
        ("sudden 0.05", 0.5, 0.0),
        ("sudden 0.05", 0.5001, 1.0),
        ("ramp 0.05", 0.5 + RAMP_FRACTION / 4, 0.25),
        ("ramp 0.05", 0.9, 1.0),
        ("stair 0.05", 0.5 + RAMP_FRACTION / 8, 0.25),
        ("accelerating 0.05", 0.75, 0.25),
        ("24 passes", 1 / 24, 0.0),
        ("24 passes", 0.08, 0.041),
        ("24 passes", 0.19, 0.075),
        ("24 passes", 1.0, 0.245),
        ("44 passes", 1.0, 0.60),
        ("none", 1.0, 0.0),
    ],
)
def test_a_fault_has_the_stated_size_at_each_fraction_of_the_plan(
    fault: str, at: float, share: float
) -> None:
    assert shape(fault, at) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("fault", list(FAULTS))
def test_no_fault_shrinks(fault: str) -> None:
    reached = FAULTS[fault].shape(U, HALF)[0]
    assert (np.diff(reached) >= -1e-12).all()
    assert reached[0] >= 0


def test_more_passes_leave_a_wider_gap_at_the_end() -> None:
    ends = [shape(f"{total} passes", 1.0) for total in (4, 6, 14, 24, 44)]
    assert ends == sorted(ends)


def quiet(batch: Batch) -> float:
    """Spread of the differences of neighboring unmatched drops, free of spikes."""
    r = np.diff(batch.holdout_gap - batch.train_gap)
    return float(1.4826 * np.median(np.abs(r)) / np.sqrt(2))


def test_a_batch_is_the_same_again_and_unlike_the_next() -> None:
    setting = Setting(evaluations=141)
    first, again, other, seeded = (
        draw(setting, *numbers, 4) for numbers in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert np.array_equal(first.train_gap, again.train_gap)
    assert not np.array_equal(first.train_gap, other.train_gap)
    assert not np.array_equal(first.train_gap, seeded.train_gap)


def test_nuisances_are_as_wide_as_they_say() -> None:
    noise = {name: quiet(draw(Setting(name), 1, 0, 20)) for name in ("default", "noisy")}
    # white 0.0007 and AR(0.8) 0.0014 of train, AR(0.5) 0.002 of the holdout: of differences,
    # each counts with 1 - phi
    expected = np.sqrt(0.0007**2 + 0.2 * 0.0014**2 + 0.5 * 0.002**2)
    assert noise["default"] == pytest.approx(expected, rel=0.1)
    assert noise["noisy"] == pytest.approx(2 * expected, rel=0.1)
    missing = draw(Setting("missing"), 1, 0, 20)
    assert missing.kept.mean() == pytest.approx(0.9, abs=0.01)
    wide = [
        np.std(np.diff(draw(Setting(name), 1, 0, 200).train_gap[:, [140, 1000]]))
        for name in ("loose", "tight")
    ]
    assert wide[0] / wide[1] == pytest.approx(NUISANCES["loose"].drift_nats / 0.015, rel=0.3)


def test_a_planted_drop_lowers_train_loss_alone_from_its_onset_on() -> None:
    batch = draw(Setting("tight", "reference", 1414, "sudden 0.25"), 1, 0, 20)
    for run in range(20):
        at = int(batch.onset[run])
        step = np.median(batch.train_gap[run, at : at + 9]) - np.median(
            batch.train_gap[run, at - 9 : at]
        )
        other = np.median(batch.holdout_gap[run, at : at + 9]) - np.median(
            batch.holdout_gap[run, at - 9 : at]
        )
        assert step == pytest.approx(-0.25, abs=0.02)
        assert other == pytest.approx(0, abs=0.02)
    assert batch.remembered == pytest.approx(0.25)


def test_points_leave_out_what_is_missing_and_carry_no_gap_without_a_reference() -> None:
    batch = draw(Setting("missing", "free", 141), 1, 0, 3)
    points = batch.points(0)
    assert len(points) == batch.kept[0].sum() < 141
    assert (points.train_gap == 0).all()
    assert np.array_equal(points.excess, points.holdout)
    centered = draw(Setting("missing", "free", 141, centered=True), 1, 0, 3).points(0)
    assert (centered.excess < 1).all()


def test_a_large_drop_is_found_and_the_same_drop_of_both_losses_is_not() -> None:
    for fault, found in (("sudden 0.25", True), ("both 0.05", False)):
        setting = Setting("tight", "reference", 141, fault)
        batch = draw(setting, 1, 0, 5)
        results = [
            judge_points(batch.points(run), PROFILES["full"], setting.plan) for run in range(5)
        ]
        assert all((result.alarm is not None) == found for result in results)


def test_every_threshold_is_scaled_alone() -> None:
    profile = PROFILES["full"]
    assert ("fast", "threshold") in thresholds(profile)
    assert ("slow", "reference_nats") in thresholds(profile)
    assert not any(channel == "shift" for channel, _ in thresholds(profile))
    halved = scaled(profile, "fast", "threshold", 0.5)
    assert halved.fast is not None
    assert profile.fast is not None
    assert halved.fast.threshold == profile.fast.threshold / 2
    assert scaled(halved, "fast", "threshold", 2.0) == profile
    assert scaled(profile, "shift", "z", 2.0) == profile


@pytest.mark.slow
def test_the_table_runs_in_small() -> None:
    parts = ("false_alarms", "delays", "confusion", "short")
    asked = [argument for part in parts for argument in ("--part", part)]
    command = [sys.executable, "-m", "tests.benchmarks.detection", "--json", *asked]
    ran = subprocess.run(
        [*command, "--scale", "0.002", "--workers", "2", "--seed", "1"],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    record = json.loads(ran.stdout.splitlines()[-1])
    assert {row["part"] for row in record["rows"]} == set(parts)
    sure = [row for row in record["rows"] if row.get("fault") == "sudden 0.25" and "found" in row]
    assert sure
    assert all(row["found"] == 1.0 for row in sure)
