"""The rule is causal on real runs: an alarm on a truncated table is that of the whole one."""

from dataclasses import replace
from pathlib import Path

import pytest

from evalmon import reference
from evalmon.detectors.curve import Alarm, CurveInputs
from evalmon.detectors.profiles import profile_named
from evalmon.detectors.unmatched_drop import detect
from evalmon.logs import tables
from evalmon.run_evidence import TRAIN_METRIC

C4 = "eval/lm/c4_en-validation/ce_nats"
REPEATED = Path(__file__).parents[3] / "shared/curves/repeated_epochs_train_vs_holdout.csv"
PLACE = ("tokens", "channel", "index")


def place(alarm: Alarm | None) -> tuple[object, ...] | None:
    return None if alarm is None else tuple(getattr(alarm, name) for name in PLACE)


def truncations(inputs: CurveInputs, profile: str, every: int) -> int:
    """Hold every truncated run against the whole one; return the evaluation of its alarm."""
    whole = detect(inputs, profile_named(profile)).alarm
    assert whole is not None
    for count in range(1, len(inputs.holdout) + 1, every):
        step = int(inputs.holdout.steps[count - 1])
        cut = replace(inputs, train=inputs.train.until(step), holdout=inputs.holdout.until(step))
        found = detect(cut, profile_named(profile))
        reached = whole.step <= step
        assert place(found.alarm) == (place(whole) if reached else None), count
    return whole.index


@pytest.mark.skipif(
    not REPEATED.is_file(), reason="the published tables are not beside the project"
)
def test_every_run_of_repeated_epochs_alarms_where_it_does_in_the_whole():
    names = tables.runs(REPEATED)
    assert len(names) == 27
    for name in names:
        found = tables.read(REPEATED, name).curves
        holdout = found["eval/lm/fineweb-validation/ce_nats"].series
        planned = int(holdout.tokens[-1])
        inputs = CurveInputs(found[TRAIN_METRIC].series, holdout, planned)
        assert truncations(inputs, "short", every=1) >= 2  # never before the second epoch ends


@pytest.mark.parametrize("referenced", [False, True])
def test_a_drop_put_into_olmo_3_alarms_where_it_does_in_the_whole(referenced: bool):
    found = reference.load("olmo3-7b-stage1", (TRAIN_METRIC, C4))
    train, holdout = found.curves[TRAIN_METRIC].series, found.curves[C4].series
    holdout = holdout.until(900_000)
    lower = replace(train, values=train.values - 0.05 * (train.steps > 500_000))
    peer = reference.load("olmo2-7b-stage1", (TRAIN_METRIC, C4)).curves
    curves = (peer[TRAIN_METRIC].series, peer[C4].series) if referenced else (None, None)
    assert found.planned_tokens is not None
    inputs = CurveInputs(
        lower, holdout, found.planned_tokens, 0, *curves, thinned=True, reference_thinned=True
    )
    at = truncations(inputs, "sparse", every=7)
    plain = detect(replace(inputs, train=train), profile_named("sparse"))
    assert plain.alarm is None
    assert 0 < plain.points.steps[at] - 500_000 <= 120_000
