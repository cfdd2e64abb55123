"""From what a run and its reference left behind to a verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.config import ComparisonSettings
from evalmon.detectors.trust_evidence import TrustEvidence
from evalmon.errors import ConfigError
from evalmon.evidence import build_case
from evalmon.id_logs import IdLog
from evalmon.logs.jsonl import RunLog
from evalmon.run_evidence import RunEvidence, curves_of
from evalmon.types import (
    ID_LOG_RECORD,
    CheckpointRef,
    Curve,
    MetricIdentity,
    ProbeResult,
    RunDescription,
    Series,
    Verdict,
    VerdictName,
)
from evalmon.verdict import judge_run

SHORT = ComparisonSettings(profile="short")
PROBED = CheckpointRef("a", 200, 2_000, Path("200"))


def kinds(verdict: Verdict) -> list[str]:
    return [finding.detector for finding in verdict.findings]


def described(path: Path, **changes: Any) -> RunDescription:
    run = RunDescription(
        name="a", path=path, adapter="olmo3", model={}, tokenizer="t", vocab_size=8, eos_id=0,
        sequence_length=2, batch_instances=5, planned_steps=200, planned_passes=1,
        source_instances=1_000, hosts=1, loader="batch_strided", seed=0, warmup_steps=0,
        recipe="r", loss={"divisor": "unmasked tokens", "z_loss": False}, data="d",
    )  # fmt: skip
    return replace(run, **changes)


def evidence(path: Path, lower: float = 0.0, seed: int = 0, **changes: Any) -> RunEvidence:
    rng = np.random.default_rng(seed)
    steps = np.arange(1, 201)
    loss = 3 + 5 / (1 + steps / 30) + 0.05 * rng.standard_normal(200)
    loss -= lower * np.maximum(0, steps - 30) / 170
    at = np.arange(10, 201, 10)
    train = Series("train/ce_nats", steps, steps * 10, loss)
    holdout = Series("eval/lm/x-validation/ce_nats", at, at * 10, 3.1 + 5 / (1 + at / 30))
    log = RunLog(path / "log.jsonl", {train.metric: train}, (), 200, None, True, "completed", "",
                 (), 0)  # fmt: skip
    run = changes.pop("run", described(path))
    logged = curves_of(run, changes.pop("log", log))
    return replace(RunEvidence(logged, holdout, description=run), **changes)


def logged(run: RunEvidence, *series: Series) -> RunEvidence:
    """Return what a run left behind with these series alone in its log."""
    curves = {item.metric: Curve(item) for item in series}
    return replace(run, curves=replace(run.curves, curves=curves))


def drawn(path: Path, source: int) -> IdLog:
    records = np.zeros(1_000, ID_LOG_RECORD)
    records["step"] = np.repeat(np.arange(1, 201), 5)
    records["instance"] = records["text_hash"] = np.arange(1_000) % source
    return IdLog(path / "ids.bin", records, 0)


def test_a_run_that_repeats_is_confirmed_and_without_its_id_log_suspected(tmp_path: Path):
    reference = evidence(tmp_path, seed=1)
    ids = drawn(tmp_path, 250)
    result = ProbeResult(0.5, 0.4, 0.6, 128, ids.until(200).fingerprint)
    full = evidence(tmp_path, 1.0, ids=ids, probe=result, probe_checkpoint=PROBED)
    confirmed = judge_run(full, SHORT, reference)
    assert confirmed.verdict is VerdictName.MEMORIZATION_CONFIRMED
    assert confirmed.first_repeat_tokens == 51 * 10
    assert confirmed.probe == result
    suspected = judge_run(replace(full, ids=None), SHORT, reference)
    assert suspected.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert suspected.onset_tokens == confirmed.onset_tokens
    assert suspected.alarm_tokens == confirmed.alarm_tokens


def test_a_probe_taken_earlier_counts_while_its_draws_are_the_same(tmp_path: Path):
    ids = drawn(tmp_path, 1_000)
    earlier = replace(PROBED, step=100)
    result = ProbeResult(0.5, 0.4, 0.6, 128, ids.until(100).fingerprint)
    found = evidence(tmp_path, ids=ids, probe=result, probe_checkpoint=earlier)
    assert build_case(found, SHORT).counted_probe == result
    changed = replace(found, ids=drawn(tmp_path, 300))
    assert build_case(changed, SHORT).counted_probe is None


def test_equal_recipes_turn_the_level_channel_on(tmp_path: Path):
    run, reference = evidence(tmp_path), evidence(tmp_path, seed=1)
    other = evidence(tmp_path, seed=1, run=described(tmp_path, recipe="q"))
    assert build_case(run, SHORT, reference).curve.mode == "level"
    assert build_case(run, SHORT, other).curve.mode == "reference"
    forced = replace(SHORT, same_recipe=True)
    assert build_case(run, forced, other).curve.mode == "level"
    assert build_case(run, SHORT).curve.mode == "free"


def test_another_divisor_of_the_loss_is_never_laid_over(tmp_path: Path):
    masked = described(tmp_path, name="b", loss={"divisor": "all tokens", "z_loss": False})
    reference = evidence(tmp_path, seed=1, run=masked)
    verdict = judge_run(evidence(tmp_path), SHORT, reference)
    assert verdict.verdict is VerdictName.RECIPE_DIFFERS
    assert verdict.reference is None
    assert verdict.reasons[0] == (
        "train/ce_nats differs from b's in 'divisor': 'unmasked tokens' against 'all tokens'"
    )


MEANING = MetricIdentity(
    "x", "ce_nats", None, "text alone", "validation", None, "tokens", "tok-a", "float32", 0, "rows",
    16,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokenizer": "tok-b"}, "'tokenizer': 'tok-a' against 'tok-b'"),
        ({"prefix_token": 2}, "'prefix_token': 0 against 2"),
        ({"data": "other rows"}, "'data': 'rows' against 'other rows'"),
        ({"dtype": "bfloat16"}, "'dtype': 'float32' against 'bfloat16'"),
    ],
)
def test_a_holdout_that_means_something_else_is_never_laid_over(
    tmp_path: Path, changed: dict[str, Any], said: str
):
    other = replace(MEANING, **changed)
    run = described(tmp_path, name="b")
    reference = evidence(tmp_path, seed=1, run=run, holdout_identity=other)
    verdict = judge_run(evidence(tmp_path, holdout_identity=MEANING), SHORT, reference)
    assert (verdict.verdict, verdict.reference) == (VerdictName.RECIPE_DIFFERS, None)
    assert verdict.reasons[0] == f"eval/lm/x-validation/ce_nats differs from b's in {said}"


def test_runs_of_different_tokenizers_are_sent_to_bits_per_byte(tmp_path: Path):
    other = replace(MEANING, tokenizer="tok-b")
    reference = evidence(tmp_path, seed=1, holdout_identity=other)
    verdict = judge_run(evidence(tmp_path, holdout_identity=MEANING), SHORT, reference)
    assert verdict.reasons[1].endswith("compare bits per byte, eval/lm/x-validation/bpb")


def test_equal_meanings_are_laid_over(tmp_path: Path):
    reference = evidence(tmp_path, seed=1, holdout_identity=replace(MEANING))
    verdict = judge_run(evidence(tmp_path, holdout_identity=MEANING), SHORT, reference)
    assert (verdict.verdict, verdict.reference) == (VerdictName.HEALTHY, "a")


def test_a_loss_rounded_to_bfloat16_widens_every_tolerance_and_is_said_so(tmp_path: Path):
    run = evidence(tmp_path)
    rounded = replace(run.train, values=np.round(run.train.values * 32) / 32)
    coarse = logged(run, rounded)
    exact, widened = judge_run(run, SHORT), judge_run(coarse, SHORT)
    assert widened.tolerance_nats is not None
    assert exact.tolerance_nats is not None
    assert widened.tolerance_nats > exact.tolerance_nats + 1 / 32 - 0.01
    assert widened.reasons[-1] == (
        "the train loss lies on a grid of 0.03125 nats, as bfloat16 rounds it: every tolerance is "
        "widened by 0.03125 nats; log the loss in float32"
    )
    assert not any("grid" in reason for reason in exact.reasons)
    both = judge_run(coarse, SHORT, coarse)
    assert "widened by 0.0625 nats" in both.reasons[-1]


# Scores that cannot be trusted.


def doubted(step: int = 200, **facts: Any) -> TrustEvidence:
    at = np.arange(10, step + 1, 10)
    holdout = Series("eval/lm/x-validation/ce_nats", at, at * 10, 3.1 + 5 / (1 + at / 30))
    return replace(TrustEvidence(step, 100_352, holdout), **facts)


def test_a_failed_self_check_is_an_evaluator_fault_and_its_scores_enter_no_curve(tmp_path: Path):
    run = evidence(tmp_path)
    broken = run.holdout.values.copy()
    broken[-1] += 3.0
    run = replace(run, holdout=replace(run.holdout, values=broken))
    failed = judge_run(replace(run, trust=doubted(self_check={200: "batch size: 1 nat"})), SHORT)
    assert failed.verdict is VerdictName.EVALUATOR_FAULT
    assert failed.reasons[0] == (
        "evaluator suspect: the self-check of step 200 failed: batch size: 1 nat"
    )
    assert failed.alarm_tokens is None
    assert kinds(failed) == ["evaluator_suspect"]
    assert failed.verdict.exit_code == 1


def test_an_untrained_model_gets_no_verdict(tmp_path: Path):
    run = evidence(tmp_path)
    values = run.holdout.values.copy()
    values[-1] = 11.45  # ln 100,352 = 11.5164
    holdout = replace(run.holdout, values=values)
    trust = replace(doubted(), holdout=holdout)
    verdict = judge_run(replace(run, holdout=holdout, trust=trust), SHORT)
    assert (verdict.verdict, verdict.verdict.exit_code) == (VerdictName.NOT_ENOUGH_DATA, 3)
    assert verdict.reasons[0].startswith("the model looks untrained at step 200: ")
    assert verdict.alarm_tokens is None


def test_one_untrusted_evaluation_does_not_spoil_the_later_ones(tmp_path: Path):
    run = evidence(tmp_path)
    values = run.holdout.values.copy()
    values[14] = 11.5  # step 150
    holdout = replace(run.holdout, values=values)
    spoiled = judge_run(replace(run, holdout=holdout), SHORT)
    trust = replace(doubted(), holdout=holdout)
    mended = judge_run(replace(run, holdout=holdout, trust=trust), SHORT)
    assert spoiled.alarm_tokens == 1_500 or spoiled.unmatched_nats != mended.unmatched_nats
    assert (mended.verdict, mended.alarm_tokens) == (VerdictName.HEALTHY, None)
    assert mended.reasons[-1] == (
        "the evaluation of step 150 enters no curve: its scores cannot be trusted"
    )


def test_what_comes_after_the_evaluation_judged_changes_nothing(tmp_path: Path):
    whole = evidence(tmp_path, 1.0, ids=drawn(tmp_path, 250))
    early = replace(whole, holdout=whole.holdout.until(120))
    ids = whole.ids.until(120) if whole.ids else None
    cut = replace(logged(early, whole.train.until(120)), ids=ids)
    reference = evidence(tmp_path, seed=1)
    assert judge_run(early, SHORT, reference) == judge_run(cut, SHORT, reference)


def test_a_run_alone_is_healthy(tmp_path: Path):
    verdict = judge_run(evidence(tmp_path), SHORT)
    assert (verdict.verdict, verdict.reference) == (VerdictName.HEALTHY, None)


def test_a_run_before_its_first_step_is_not_enough(tmp_path: Path):
    started = evidence(tmp_path)
    zero = np.zeros(1, np.int64)
    untrained = replace(
        logged(started),
        holdout=Series(started.holdout.metric, zero, zero, np.array([8.3])),
    )
    verdict = judge_run(untrained, SHORT, evidence(tmp_path, seed=1))
    assert verdict.verdict is VerdictName.NOT_ENOUGH_DATA
    assert (verdict.step, verdict.unmatched_nats, verdict.tolerance_nats) == (0, None, None)


def test_an_unknown_profile_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="unknown profile 'shrt'"):
        judge_run(evidence(tmp_path), ComparisonSettings(profile="shrt"))


def test_later_evaluations_that_are_no_numbers_count_where_nothing_else_came_after(tmp_path: Path):
    run = evidence(tmp_path, 1.0)
    bad = replace(run.curves, nonfinite=((210, run.holdout.metric), (215, "train/ce_nats")))
    watched = judge_run(replace(run, curves=bad), SHORT)
    last = judge_run(replace(run, curves=bad, latest=True), SHORT)
    assert watched.verdict is last.verdict is VerdictName.MEMORIZATION_SUSPECTED
    assert not any("no evaluation after" in said for said in watched.reasons)
    assert any("no evaluation after step 200 is a number" in said for said in last.reasons)
    sound = replace(evidence(tmp_path), curves=bad, latest=True)
    sound = replace(sound, curves=replace(sound.curves, curves=evidence(tmp_path).curves.curves))
    verdict = judge_run(sound, SHORT)
    assert verdict.verdict is VerdictName.NOT_ENOUGH_DATA
    assert "no verdict rests on what came before" in verdict.reasons[0]


def test_a_run_in_bits_is_told_once_enough_evaluations_are_compared(tmp_path: Path):
    run, reference = evidence(tmp_path), evidence(tmp_path, seed=1)
    bits = {
        name: Curve(replace(item.series, values=item.series.values / np.log(2)), item.facts)
        for name, item in run.curves.curves.items()
    }
    holdout = replace(run.holdout, values=run.holdout.values / np.log(2))
    run = replace(run, curves=replace(run.curves, curves=bits), holdout=holdout)
    verdict = judge_run(run, SHORT, reference)
    assert verdict.verdict is VerdictName.NOT_ENOUGH_DATA
    assert verdict.reasons[0].startswith(f"{holdout.metric} of the run a (")
    assert "is likely bits per token as well" in verdict.reasons[0]  # its windows are noisy
    assert judge_run(run, SHORT).verdict is VerdictName.HEALTHY  # alone, both of one unit
    for step in (10, 20, 50):  # too few to tell: nothing is said, and nothing fails
        early = judge_run(replace(run, holdout=holdout.until(step)), SHORT, reference)
        assert "bits" not in " ".join(early.reasons)
