"""Verdict identifiers and the evidence each needs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.config import ComparisonSettings
from evalmon.detectors.curve import Alarm, CurveResult, Points
from evalmon.detectors.trust_evidence import EqualScores, TrustEvidence
from evalmon.evidence import Case
from evalmon.types import (
    CheckpointRef,
    ProbeResult,
    RepeatSummary,
    Series,
    TaskDifference,
    Verdict,
    VerdictName,
)
from evalmon.verdict import judge

N = 20
SHORT = ComparisonSettings(profile="short")
CLEAN = RepeatSummary(None, None, 640, 640, 0, 0.0, 0, 0, 0, 1, 640, 4, None, 0, "f")
REPEATS = replace(
    CLEAN, first_repeat_step=5, first_repeat_tokens=50, repeated=480, repeated_fraction=0.75
)
CONFIRMING = ProbeResult(0.5, 0.4, 0.6, 128, "f")
REFUTING = ProbeResult(0.0, -0.01, 0.01, 128, "f")
UNSURE = ProbeResult(0.03, 0.0, 0.06, 128, "f")
PROBED = CheckpointRef("a", 200, 2_000, Path("200"))
ALARM = Alarm(
    index=9, step=100, tokens=1_000, channel="level", magnitude_nats=0.4, onset_tokens=300,
    train_share=0.9, by_train=True, one_evaluation=False, active=True,
)  # fmt: skip


def curve(train_gap: float = 0.0, holdout_gap: float = 0.0, **changes: Any) -> CurveResult:
    steps = np.arange(1, N + 1) * 10
    gap, other = np.full(N, train_gap), np.full(N, holdout_gap)
    points = Points(
        steps, steps * 10, 3 + gap, 3.5 + other, gap, other, other - gap, np.full(N, 0.01)
    )
    result = CurveResult(
        mode="level", profile="short", points=points, unmatched=other - gap,
        low=other - gap - 0.02, high=other - gap + 0.02, tolerance=np.full(N, 0.1),
        held=np.zeros(N, np.bool_), baseline=0.0, span=(0, 0), train_baseline=0.0,
        holdout_baseline=0.0, alarm=None, mirrored=None, enough_data=True, reason="",
    )  # fmt: skip
    return replace(result, **changes)


def case(found: CurveResult, **changes: Any) -> Case:
    return replace(
        Case(
            run="a", step=200, tokens=2_000, tokens_per_step=10, curve=found, reference="b",
            repeats=CLEAN, ids_fingerprint="f", probe_checkpoint=PROBED,
        ),
        **changes,
    )  # fmt: skip


def name(found: CurveResult, **changes: Any) -> VerdictName:
    return judge(case(found, **changes)).verdict


def kinds(verdict: Verdict) -> list[str]:
    return [finding.detector for finding in verdict.findings]


def test_silence_is_healthy_with_the_tolerance_stated():
    verdict = judge(case(curve()))
    assert verdict.verdict is VerdictName.HEALTHY
    assert verdict.tolerance_nats == 0.1
    assert "the short profile tolerates 0.100" in verdict.reasons[0]
    assert verdict.findings == ()


def test_the_curve_alone_can_only_suspect():
    verdict = judge(case(curve(-0.4, alarm=ALARM)))
    assert verdict.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert (verdict.alarm_tokens, verdict.onset_tokens, verdict.channel) == (1_000, 300, "level")
    assert kinds(verdict) == ["unmatched_drop"]


def test_repeats_confirm_a_curve_alarm():
    verdict = judge(case(curve(-0.4, alarm=ALARM), repeats=REPEATS))
    assert verdict.verdict is VerdictName.MEMORIZATION_CONFIRMED
    assert (verdict.first_repeat_tokens, verdict.repeated_fraction) == (50, 0.75)
    assert kinds(verdict) == ["unmatched_drop", "repeated_instances"]
    assert len({finding.kind for finding in verdict.findings}) == 1  # so one alert episode


def test_a_probe_above_its_bound_confirms_a_curve_alarm():
    alarmed = curve(-0.4, alarm=ALARM)
    assert name(alarmed, probe=CONFIRMING) is VerdictName.MEMORIZATION_CONFIRMED
    assert name(alarmed, probe=UNSURE) is VerdictName.MEMORIZATION_SUSPECTED


def test_a_probe_below_its_bound_refutes_memorization():
    verdict = judge(case(curve(-0.4, alarm=ALARM), probe=REFUTING))
    assert verdict.verdict is VerdictName.TRAIN_SHIFT
    assert verdict.findings == ()
    assert verdict.alarm_tokens == 1_000


@pytest.mark.parametrize("fingerprint", [None, "another"])
@pytest.mark.parametrize("probed", [CONFIRMING, REFUTING])
def test_a_probe_whose_id_log_is_gone_does_not_count(fingerprint: str | None, probed: ProbeResult):
    verdict = judge(
        case(curve(-0.4, alarm=ALARM), repeats=None, probe=probed, ids_fingerprint=fingerprint)
    )
    assert verdict.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert verdict.probe is None
    assert any("no longer be verified" in reason for reason in verdict.reasons)
    assert verdict.first_repeat_tokens is None


def test_repeats_alone_are_suspect_before_any_curve_shows_them():
    verdict = judge(case(curve(), repeats=REPEATS))
    assert verdict.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert "480 of 640 draws" in verdict.reasons[0]
    assert (verdict.alarm_tokens, verdict.onset_tokens) == (None, None)


def test_repeats_are_suspect_even_before_the_curve_can_be_judged():
    early = curve(enough_data=False, reason="3 evaluations so far")
    assert name(early, repeats=REPEATS) is VerdictName.MEMORIZATION_SUSPECTED
    assert name(early) is VerdictName.NOT_ENOUGH_DATA


def test_a_probe_alone_decides_nothing():
    verdict = judge(case(curve(), probe=CONFIRMING))
    assert verdict.verdict is VerdictName.HEALTHY
    assert verdict.findings == ()


def test_a_holdout_that_jumped_at_once_is_an_evaluator_fault():
    jumped = replace(ALARM, by_train=False, one_evaluation=True)
    verdict = judge(case(curve(0.0, 0.4, alarm=jumped)))
    assert verdict.verdict is VerdictName.EVALUATOR_FAULT
    assert verdict.findings[0].kind == "evaluator"


def test_a_holdout_that_rose_slowly_is_a_regression():
    rose = replace(ALARM, by_train=False)
    assert name(curve(0.0, 0.4, alarm=rose)) is VerdictName.HOLDOUT_REGRESSION


def test_repeats_make_one_cause_of_it_whichever_loss_moved_more():
    rose = curve(0.0, 0.4, alarm=replace(ALARM, by_train=False))
    verdict = judge(case(rose, repeats=REPEATS))
    assert verdict.verdict is VerdictName.MEMORIZATION_CONFIRMED
    assert {finding.kind for finding in verdict.findings} == {"memorization"}


def test_the_mirrored_alarm_tells_leakage_from_a_train_rise():
    leaked = curve(0.0, -0.4, mirrored=replace(ALARM, by_train=False, magnitude_nats=-0.4))
    verdict = judge(case(leaked))
    assert verdict.verdict is VerdictName.LEAKAGE_SUSPECTED
    assert verdict.findings[0].kind == "leakage"
    rose = judge(case(curve(0.4, mirrored=ALARM)))
    assert rose.verdict is VerdictName.TRAIN_RISE
    assert rose.findings == ()


def test_an_alarm_that_has_gone_back_is_told_and_no_longer_held_against_the_run():
    verdict = judge(case(curve(alarm=replace(ALARM, active=False))))
    assert verdict.verdict is VerdictName.HEALTHY
    assert verdict.alarm_tokens == 1_000
    assert any("gone back" in reason for reason in verdict.reasons)


def test_both_losses_below_the_reference_are_ahead_of_it():
    assert name(curve(-0.2, -0.19)) is VerdictName.AHEAD_OF_REFERENCE
    assert name(curve(-0.2, -0.1)) is VerdictName.HEALTHY  # matched by half only
    assert name(curve(-0.03, -0.03)) is VerdictName.HEALTHY  # inside the interval


def test_both_losses_above_the_reference_are_behind_it():
    assert name(curve(0.2, 0.2)) is VerdictName.BEHIND_REFERENCE
    assert name(curve(0.2, 0.0)) is VerdictName.HEALTHY
    metric = "eval/downstream/hellaswag_0shot/len_norm"
    lost = TaskDifference(
        metric, "loss", -0.03, -0.04, -0.02, 0.01, 10_042, paired=True, p_value=0.001, method=""
    )
    assert name(curve(), tasks=(lost,)) is VerdictName.BEHIND_REFERENCE
    assert name(curve(-0.2, -0.2), tasks=(lost,)) is VerdictName.BEHIND_REFERENCE
    unsure = replace(lost, outcome="inconclusive", p_value=0.5, low_acc=-0.07, high_acc=0.01)
    assert name(curve(), tasks=(unsure,)) is VerdictName.HEALTHY


def test_an_incomparable_reference_is_said_so_unless_the_run_alone_alarms():
    why = ("train/ce_nats differs from b's in 'divisor'",)
    verdict = judge(case(curve(), incomparable=why))
    assert verdict.verdict is VerdictName.RECIPE_DIFFERS
    assert verdict.reasons[0] == why[0]
    alarmed = judge(case(curve(-0.4, alarm=ALARM), incomparable=why))
    assert alarmed.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert why[0] in alarmed.reasons


def test_a_non_finite_loss_is_a_finding_of_its_own_kind():
    verdict = judge(case(curve(), nonfinite=((2, "train/ce_nats"),)))
    assert verdict.verdict is VerdictName.HEALTHY
    assert [finding.kind for finding in verdict.findings] == ["divergence"]
    assert "non-finite train loss at step 2" in verdict.reasons


def test_the_matched_fraction_is_what_the_holdout_followed():
    assert judge(case(curve(-0.4, -0.1))).matched_fraction == pytest.approx(0.25)
    assert judge(case(curve(0.4, 0.1))).matched_fraction is None


def test_an_onset_at_a_planned_epoch_is_said_to_be_one():
    twice = replace(REPEATS, planned_passes=2)
    planned = judge(case(curve(-0.4, alarm=ALARM), repeats=twice, epoch_tokens=301))
    assert any("planned repeat" in reason for reason in planned.reasons)
    elsewhere = judge(case(curve(-0.4, alarm=ALARM), repeats=twice, epoch_tokens=400))
    assert not any("planned repeat" in reason for reason in elsewhere.reasons)


def test_every_verdict_is_strict_json():
    import json

    for found in (curve(), curve(tolerance=np.full(N, np.inf)), curve(-0.4, alarm=ALARM)):
        json.dumps(judge(case(found, repeats=REPEATS)).record(), allow_nan=False)


# Scores that cannot be trusted.


def doubted(step: int = 200, **facts: Any) -> TrustEvidence:
    at = np.arange(10, step + 1, 10)
    holdout = Series("eval/lm/x-validation/ce_nats", at, at * 10, 3.1 + 5 / (1 + at / 30))
    return replace(TrustEvidence(step, 100_352, holdout), **facts)


def test_repeats_speak_whatever_the_evaluator_does():
    found = judge(case(curve(), repeats=REPEATS, trust=doubted(self_check={200: "broken"})))
    assert found.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert "480 of 640 draws" in found.reasons[0]
    assert kinds(found) == ["repeated_instances", "evaluator_suspect"]


def test_equal_scores_are_a_fault_at_the_step_that_got_them_and_told_from_then_on():
    equal = (EqualScores("eval/lm/x-validation/ce_nats", 190, 200, 50),)
    now = judge(case(curve(), trust=doubted(equal_scores=equal)))
    assert now.verdict is VerdictName.EVALUATOR_FAULT
    assert now.reasons[0].startswith("suspect cache: eval/lm/x-validation/ce_nats is equal to ")
    earlier = (replace(equal[0], earlier=180, later=190),)
    later = judge(case(curve(), trust=doubted(equal_scores=earlier)))
    assert later.verdict is VerdictName.HEALTHY
    assert kinds(later) == ["same_scores"]


def test_equal_weights_are_told_and_decide_nothing():
    found = judge(case(curve(), trust=doubted(weights={100: "aa", 190: "bb", 200: "bb"})))
    assert found.verdict is VerdictName.HEALTHY
    assert [(item.detector, item.kind, item.alarm_step) for item in found.findings] == [
        ("same_weights", "checkpoint", 200)
    ]
    assert "steps 190 and 200 hold the same weights (fingerprint bb)" in found.reasons[1]
