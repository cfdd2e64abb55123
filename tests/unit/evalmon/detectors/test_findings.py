"""Detectors that read counts and results: repeats, probe, non-finite loss."""

from dataclasses import replace
from pathlib import Path

import pytest

from evalmon.detectors import nonfinite_loss, probe, repeated_instances
from evalmon.detectors.profiles import profile_named
from evalmon.types import CheckpointRef, ProbeResult, RepeatSummary, Seam

CLEAN = RepeatSummary(
    first_repeat_step=None, first_repeat_tokens=None, draws=3200, unique=3200, repeated=0,
    repeated_fraction=0.0, same_step_duplicates=0, replayed_draws=0, duplicate_texts=0,
    planned_passes=1, source_instances=3200, hosts=8, period_draws=None, cross_host=0,
    fingerprint="f",
)  # fmt: skip
REPEATING = replace(
    CLEAN, first_repeat_step=26, first_repeat_tokens=26 * 2048, unique=400, repeated=2800,
    repeated_fraction=0.875,
)  # fmt: skip
CHECKPOINT = CheckpointRef("a", 100, 204_800, Path("100"))


def test_a_single_pass_is_no_finding():
    assert repeated_instances.finding("a", CLEAN) is None


def test_repeats_are_a_finding_at_the_first_one():
    found = repeated_instances.finding("a", REPEATING)
    assert found is not None
    assert (found.detector, found.kind) == ("repeated_instances", "memorization")
    assert found.alarm_step == 26
    assert found.alarm_tokens == found.onset_tokens == 26 * 2048
    assert "2,800 of 3,200 draws (87.5%)" in found.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"period_draws": 50}, "same 1/8 of its 1/8"),
        ({"period_draws": 400}, "a further epoch"),
        ({"period_draws": 123}, "every 123 draws"),
        ({"same_step_duplicates": 2800, "cross_host": 2800}, "not sharded"),
        ({"cross_host": 2500}, "each other's instances"),
        ({}, ""),
    ],
)
def test_the_signature_names_the_construct(change: dict[str, int], said: str):
    suggestion = repeated_instances.suggestion(replace(REPEATING, **change))
    assert (suggestion == "") is (said == "")
    assert said in suggestion


def test_no_repeats_suggest_nothing():
    assert repeated_instances.suggestion(CLEAN) == ""


@pytest.mark.parametrize(
    ("low", "high", "confirms", "refutes"),
    [(0.021, 0.5, True, False), (0.02, 0.5, False, False), (-0.01, 0.019, False, True)],
)
def test_the_probe_confirms_above_and_refutes_below_two_hundredths(
    low: float, high: float, confirms: bool, refutes: bool
):
    result = ProbeResult((low + high) / 2, low, high, 128, "f")
    assert (probe.confirms(result, 0.02), probe.refutes(result)) == (confirms, refutes)
    assert (probe.finding(CHECKPOINT, result, 0.02) is not None) is confirms


def test_a_short_run_must_remember_more_than_one_pass_leaves():
    one_pass = ProbeResult(0.20, 0.14, 0.26, 128, "f")
    limit = profile_named("short").probe_nats
    assert not probe.confirms(one_pass, limit)
    assert probe.confirms(ProbeResult(0.42, 0.36, 0.48, 128, "f"), limit)


def test_a_non_finite_train_loss_is_a_divergence():
    found = nonfinite_loss.finding(
        "a", [(3, "train/ce_nats"), (2, "train/ce_nats"), (1, "optim/grad_norm")], tokens_per_step=8
    )
    assert found is not None
    assert (found.kind, found.alarm_step, found.alarm_tokens) == ("divergence", 2, 16)
    assert found.message == "non-finite train loss at step 2 and 1 later step"


def test_another_metric_that_is_not_finite_is_none():
    assert nonfinite_loss.finding("a", [(1, "optim/grad_norm")], tokens_per_step=8) is None


K = replace(REPEATING, cross_host=2500, first_repeat_draws=400)


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (replace(REPEATING, period_draws=50), "double_sharding"),
        (K, "double_sharding"),
        (replace(K, first_repeat_draws=420), "double_sharding"),
        (replace(K, first_repeat_draws=60), "unsharded_per_host_seed"),
        (replace(K, seams=(Seam(80, 16, 11),)), "double_sharding_with_resume_fault"),
        (replace(K, seams=(Seam(80, 16, 60),)), "double_sharding"),
        (
            replace(REPEATING, period_draws=560, seams=(Seam(320, 16, 41),)),
            "double_sharding_with_resume_fault",
        ),
        (replace(REPEATING, same_step_duplicates=2800, cross_host=2800), "unsharded_same_seed"),
        (replace(REPEATING, period_draws=1), "sampler_sharded_loader_not"),
        (replace(REPEATING, period_draws=400), "further_pass"),
        (replace(K, hosts=1, cross_host=0), ""),
        (replace(REPEATING, repeated=0), ""),
    ],
)
def test_the_construction_is_named(found: RepeatSummary, name: str):
    assert repeated_instances.construction(found) == name
    assert name in {"", *repeated_instances.CONSTRUCTIONS}
    assert bool(repeated_instances.suggestion(found)) is bool(name)


def test_a_finding_from_a_sample_says_so():
    found = repeated_instances.finding("a", replace(REPEATING, rate=1024, kept=7))
    assert found is not None
    assert "about 2,800 of 3,200 draws" in found.message
    assert "a sample of one text in 1,024 shows (7 draws kept)" in found.message
    assert (found.evidence["sampling_rate"], found.evidence["draws_kept"]) == (1024, 7)
