"""What must be silent and what must speak: evalmon compare on published runs."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from evalmon.comparing import CompareOptions, compare
from evalmon.detectors.profiles import profile_named
from tests.benchmarks.detection.real_curves import blamed, injected_row

CURVES = Path(__file__).parents[3] / "shared/curves"
LADDER = CURVES / "olmo_ladder_pairs.csv.gz"
GPT2 = CURVES / "gpt2_124m_one_pass_pair.csv.gz"
OLMO3 = CURVES / "olmo3_7b_stage1_train_and_evals.csv"
RERUNS = (
    "moreeval/190M-1xC", "moreeval/190M-1xC-rerun", "seed1/190M-1xC", "seed1-init/190M-1xC",
)  # fmt: skip
SILENT = ("healthy", "ahead_of_reference")

pytestmark = pytest.mark.skipif(
    not CURVES.is_dir(), reason="the published tables are not beside the project"
)


def judged(run: Path | str, **options: Any) -> dict[str, Any]:
    return compare(CompareOptions(run=str(run), **options)).record


@pytest.mark.parametrize("profile", ["", "full", "sparse", "loose", "short"])
def test_sound_runs_are_silent_in_every_profile(profile: str):
    found = [
        judged(OLMO3, thinned=True, profile=profile),
        judged(OLMO3, thinned=True, profile=profile, reference="olmo2-7b-stage1"),
        judged("olmo2-7b-stage1", profile=profile),
    ]
    names = ("gpt2-124M-one-pass-a", "gpt2-124M-one-pass-b")
    for run, other in permutations(names):
        found.append(judged(GPT2, run_name=run, profile=profile))
        found.append(judged(GPT2, run_name=run, reference=f"{GPT2}:{other}", profile=profile))
    for record in found:
        assert record["verdict"] in SILENT
        assert record["basis"] == "train and holdout"
        assert record["findings"] == []


def test_reruns_and_other_seeds_are_healthy_by_their_holdouts():
    pairs = [
        *permutations(RERUNS, 2),
        *permutations(("moreeval/370M-1xC", "moreeval/370M-1xC-rerun")),
    ]
    for run, other in pairs:
        record = judged(LADDER, run_name=run, reference=f"{LADDER}:{other}")
        assert (record["verdict"], record["basis"]) == ("healthy", "holdout only"), (run, other)


@pytest.mark.parametrize("size", ["190M", "370M"])
def test_a_constant_learning_rate_is_behind_the_cosine_and_no_memorization(size: str):
    cosine = f"{LADDER}:moreeval/{size}-10xC"
    record = judged(LADDER, run_name=f"const-lr/{size}-10xC", reference=cosine)
    assert (record["verdict"], record["basis"]) == ("behind_reference", "holdout only")
    assert record["holdout_gap_nats"] == pytest.approx(0.11, abs=0.002)
    assert any("LR differs from" in reason for reason in record["reasons"])


def test_a_drop_of_a_twentieth_put_into_olmo_3_is_found_against_olmo_2():
    row = injected_row(profile_named("sparse"), "reference", "sudden", 0.05)
    assert (row["injections"], row["early"], row["mirrored"]) == (50, 0, 0)
    assert row["found"] >= 48
    assert row["delay_90pct"] <= 10


def test_a_drop_of_a_twentieth_put_into_olmo_3_is_found_without_a_reference():
    row = injected_row(profile_named("sparse"), "free", "sudden", 0.05)
    assert (row["injections"], row["early"], row["mirrored"]) == (50, 0, 0)
    assert row["found"] >= 45
    assert row["delay_75pct"] <= 12


@pytest.mark.parametrize("mode", ["reference", "free"])
def test_the_same_drop_on_both_losses_is_never_flagged(mode: str):
    assert injected_row(profile_named("sparse"), mode, "both", 0.05)["found"] == 0


@pytest.mark.parametrize("mode", ["reference", "free"])
@pytest.mark.parametrize(
    ("loss", "size", "ramp_steps"),
    [
        ("train", -0.05, 0), ("train", -0.10, 200_000), ("train", 0.10, 0),
        ("holdout", 0.05, 0), ("holdout", 0.10, 100_000), ("holdout", -0.10, 0),
    ],
)  # fmt: skip
def test_a_change_is_laid_to_the_loss_that_changed(
    mode: str, loss: str, size: float, ramp_steps: int
):
    found = blamed(profile_named("sparse"), mode, loss, size, ramp_steps, every=5)
    assert found[loss] >= 9
    assert sum(found.values()) == 10
