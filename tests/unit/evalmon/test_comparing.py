"""What is laid over what: holdout, plan, range, basis; and published runs, each as it was."""

import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.comparing import CompareOptions, Comparison, compare
from evalmon.errors import ConfigError, DataError
from evalmon.store import Store
from evalmon.types import Score, Series
from tests import synthetic_store

from .drawn_runs import BATCH_TOKENS, C4, PLAN, drawn, rows, write

PUBLISHED = Path(__file__).parents[4] / "shared" / "curves"
published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published curves are not beside this checkout"
)
FINEWEB = "eval/lm/fineweb-validation/ce_nats"
PILE = "eval/lm/pile-validation/ce_nats"
ACC = "eval/downstream/hellaswag_0shot/len_norm"


def judged(run: object, **options: Any) -> Comparison:
    """Compare with options by name."""
    return compare(CompareOptions(str(run), **options))


def other(part: Series, metric: str) -> Series:
    """Return the same points as another metric."""
    return Series(metric, part.steps, part.tokens, part.values)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Runs with one holdout, with C4 among two, and with two that are not C4."""
    train, held = drawn(1)
    return write(
        tmp_path / "runs.csv",
        rows(
            {
                "c4": (train, held),
                "fineweb": (train, other(held, FINEWEB)),
                "both": (train, other(held, PILE), held),
                "neither": (train, other(held, PILE), other(held, FINEWEB)),
                "none": (train,),
            }
        ),
    )


def test_one_holdout_is_used_the_named_else_c4_else_the_only_one(table: Path) -> None:
    assert judged(table, run_name="both").record["holdout"] == "c4_en"
    assert judged(table, run_name="fineweb").record["holdout"] == "fineweb"
    for name in ("pile", PILE):
        assert judged(table, run_name="both", holdout=name).record["holdout"] == "pile"
    with pytest.raises(ConfigError, match="2 holdouts and none is c4_en; --holdout one of"):
        judged(table, run_name="neither")
    with pytest.raises(ConfigError, match="no holdout 'pile'; it has c4_en"):
        judged(table, run_name="c4", holdout="pile")
    with pytest.raises(DataError, match=r"no holdout loss among train/ce_nats; a verdict needs"):
        judged(table, run_name="none")


def test_a_reference_needs_the_same_holdout_and_what_both_have_is_named(table: Path) -> None:
    with pytest.raises(DataError, match=r"no holdout 'c4_en'.*both have pile: give --holdout"):
        judged(table, run_name="both", reference="neither")
    with pytest.raises(DataError, match=r"no holdout 'fineweb'.*they share none"):
        judged(table, run_name="fineweb", reference="c4")
    found = judged(table, run_name="neither", reference="both", holdout="pile")
    assert (found.record["holdout"], found.verdict.verdict) == ("pile", "healthy")


def test_planned_tokens_are_given_else_recorded_else_the_last_in_the_table(
    table: Path, tmp_path: Path
) -> None:
    given = judged(table, run_name="c4", planned_tokens=2 * PLAN).record
    assert (given["planned_tokens"], given["planned_tokens_source"]) == (2 * PLAN, "given")
    last = judged(table, run_name="c4").record
    assert (last["planned_tokens"], last["planned_tokens_source"]) == (
        PLAN,
        "last token in the table",
    )
    store = synthetic_store.build(tmp_path, steps=(0, 100, 200))
    recorded = judged("clean", store=str(store)).record
    assert recorded["planned_tokens_source"] == "recorded"
    assert recorded["planned_tokens"] == 200 * synthetic_store.TOKENS_PER_STEP


def test_a_run_a_little_past_its_plan_says_so_and_far_past_it_the_plan_is_refused(
    table: Path,
) -> None:
    near = PLAN * 24 // 25
    found = judged(table, run_name="c4", planned_tokens=near).record
    assert found["notes"] == [f"the run goes beyond its {near:,} planned tokens (given)"]
    with pytest.raises(ConfigError, match=rf"--planned-tokens {PLAN // 2:,}: c4 is judged at"):
        judged(table, run_name="c4", planned_tokens=PLAN // 2)


def test_a_run_beyond_its_reference_is_judged_where_that_ends_and_says_so(tmp_path: Path) -> None:
    run, reference = drawn(1), drawn(2)
    short = tuple(part.until(156) for part in reference)
    path = write(tmp_path / "runs.csv", rows({"run": run, "short": short, "whole": reference}))
    found = judged(path, run_name="run", reference="short")
    whole = judged(path, run_name="run", reference="whole")
    assert (whole.verdict.step, whole.record["notes"]) == (200, [])
    assert (found.verdict.step, found.verdict.tokens) == (150, 150 * BATCH_TOKENS)
    (note,) = found.record["notes"]
    assert note == (
        "judged at 307,200 tokens: the reference short ends at 307,200, 5 later evaluations of the "
        "run are not compared"
    )


def test_without_a_train_loss_on_either_side_the_holdout_alone_is_compared(tmp_path: Path) -> None:
    runs = {"one": drawn(1)[1:], "two": drawn(2)[1:], "whole": drawn(3)}
    worse = drawn(4)[1]
    runs["worse"] = (Series(C4, worse.steps, worse.tokens, worse.values + 0.2),)
    path = write(tmp_path / "runs.csv", rows(runs))
    for run, reference in (("one", "two"), ("whole", "two"), ("one", "whole")):
        verdict = judged(path, run_name=run, reference=reference).verdict
        assert (verdict.verdict, verdict.basis) == ("healthy", "holdout only")
        assert verdict.unmatched_nats is None
        assert verdict.matched_fraction is None
    behind = judged(path, run_name="worse", reference="two").verdict
    assert (behind.verdict, behind.basis) == ("behind_reference", "holdout only")
    alone = judged(path, run_name="one").verdict
    assert alone.verdict == "not_enough_data"
    assert "no train loss and no reference" in alone.reasons[0]


def test_tasks_of_both_are_compared_where_the_run_is_judged(tmp_path: Path) -> None:
    def scored(part: Series, level: float) -> Series:
        at = np.arange(len(part))
        values = level + 0.02 * at / len(at) + 0.002 * (at % 3)
        return Series(ACC, part.steps, part.tokens, values.round(4))

    runs = {name: drawn(seed) for seed, name in enumerate(("one", "two"))}
    runs = {
        name: (*parts, scored(parts[1], level))
        for (name, parts), level in zip(runs.items(), (0.5, 0.4), strict=True)
    }
    path = write(tmp_path / "runs.csv", rows(runs))
    record = judged(path, run_name="one", reference="two").record
    assert [(item["task"], item["outcome"], item["paired"]) for item in record["tasks"]] == [
        (ACC, "gain", False),
        ("mean_without_boolq", "gain", False),
    ]
    task = record["tasks"][0]
    assert task["low_acc"] <= task["difference_acc"] <= task["high_acc"]
    assert task["difference_acc"] == pytest.approx(0.1, abs=0.005)
    assert judged(path, run_name="one").record["tasks"] == []


def test_a_run_directory_against_another_of_its_store(tmp_path: Path) -> None:
    synthetic_store.build(tmp_path)
    for name in ("clean", "double-sharded"):
        synthetic_store.describe(tmp_path, name).save()
    found = judged(tmp_path / "double-sharded", reference="clean", profile="short")
    assert found.verdict.run == "double-sharded"
    assert found.verdict.verdict.startswith("memorization")
    assert found.verdict.channel == "level"  # one recipe hash
    assert found.record["holdout"] == "synthetic"
    sound = judged(tmp_path / "clean", profile="short")
    assert sound.verdict.verdict == "healthy"


def test_answers_that_both_stores_keep_are_compared_item_by_item(tmp_path: Path) -> None:
    ids = tuple(f"item-{n}" for n in range(400))
    right = {name: tuple(float(n % 10 < tenth) for n in range(400))
             for name, tenth in (("clean", 5), ("double-sharded", 4))}  # fmt: skip
    with Store.open(synthetic_store.build(tmp_path, steps=(0, 100)), clock=lambda: 0.0) as store:
        for name, answers in right.items():
            run = synthetic_store.describe(tmp_path, name)
            run.save()
            losses, tasks, _ = synthetic_store.evaluations(run, 200)
            kept = Score(
                "eval/downstream/hellaswag_0shot/len_norm",
                sum(answers) / 400,
                0.025,
                400,
                synthetic_store.identity("hellaswag", "len_norm"),
                ids if name == "clean" else ids[::-1],
                answers if name == "clean" else answers[::-1],
            )
            store.append_evaluation(losses)
            store.append_evaluation(replace(tasks, scores=(kept,)))
    found = judged(tmp_path / "double-sharded", reference="clean", profile="short")
    by_name = {item["task"]: item for item in found.record["tasks"]}
    item = by_name["eval/downstream/hellaswag_0shot/len_norm"]
    assert (item["outcome"], item["paired"], item["items"]) == ("loss", True, 400)
    assert item["difference_acc"] == pytest.approx(-0.1)
    assert "40 of 400 items differ" in item["method"]


# Published runs.


@cache
def unpacked(name: str) -> tuple[tuple[str, str, int, int, float], ...]:
    """Return the rows of a published table."""
    data = (PUBLISHED / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    split = (line.split(",") for line in text.splitlines()[1:])
    return tuple((r, m, int(s), int(t), float(v)) for r, m, s, t, v in split)


SILENT = ("healthy", "ahead_of_reference")
OLMO3 = PUBLISHED / "olmo3_7b_stage1_train_and_evals.csv"
GPT2 = PUBLISHED / "gpt2_124m_one_pass_pair.csv.gz"
LADDER = PUBLISHED / "olmo_ladder_pairs.csv.gz"
REPEATED = PUBLISHED / "repeated_epochs_train_vs_holdout.csv"


@published
@pytest.mark.parametrize("reference", [None, "olmo2-7b-stage1"])
def test_olmo_3_is_silent_alone_and_against_olmo_2(reference: str | None) -> None:
    found = judged(OLMO3, reference=reference, thinned=True, planned_tokens=5_930_000_000_000)
    assert found.verdict.verdict in SILENT
    assert (found.verdict.basis, found.verdict.alarm_tokens) == ("train and holdout", None)
    assert found.verdict.step == (1_410_000 if reference is None else 920_000)


@published
def test_a_history_that_is_not_declared_thinned_gets_no_verdict() -> None:
    verdict = judged(OLMO3).verdict
    assert verdict.verdict == "not_enough_data"
    assert "sampled" in verdict.reasons[0]


@published
def test_olmo_2_is_silent_alone() -> None:
    found = judged("olmo2-7b-stage1")
    assert found.verdict.verdict == "healthy"
    assert found.record["planned_tokens_source"] == "recorded"


@published
@pytest.mark.parametrize(("run", "reference"), ["ab", "ba"])
def test_two_runs_of_gpt_2_are_silent_each_against_the_other(run: str, reference: str) -> None:
    names = [f"gpt2-124M-one-pass-{letter}" for letter in (run, reference)]
    found = judged(f"{GPT2}:{names[0]}", reference=names[1], thinned=True)
    assert found.verdict.verdict in SILENT
    assert found.verdict.basis == "train and holdout"


@published
@pytest.mark.parametrize(
    ("run", "reference"),
    [
        ("moreeval/190M-1xC", "moreeval/190M-1xC-rerun"),
        ("moreeval/190M-1xC", "seed1/190M-1xC"),
        ("moreeval/190M-1xC", "seed1-init/190M-1xC"),
        ("moreeval/370M-1xC", "moreeval/370M-1xC-rerun"),
    ],
)
def test_ladder_reruns_and_other_seeds_are_healthy_by_the_holdout_alone(
    run: str, reference: str
) -> None:
    for mine, theirs in ((run, reference), (reference, run)):
        verdict = judged(f"{LADDER}:{mine}", reference=theirs).verdict
        assert (verdict.verdict, verdict.basis) == ("healthy", "holdout only")


@published
@pytest.mark.parametrize("size", ["190M", "370M"])
def test_constant_learning_rate_is_behind_cosine_and_never_memorization(size: str) -> None:
    found = judged(f"{LADDER}:const-lr/{size}-10xC", reference=f"moreeval/{size}-10xC")
    verdict = found.verdict
    assert (verdict.verdict, verdict.basis) == ("behind_reference", "holdout only")
    assert verdict.holdout_gap_nats is not None
    assert verdict.holdout_gap_nats > 0.05


@published
def test_repeated_epochs_end_suspected_most_of_them_well_before_their_end() -> None:
    names = sorted({row[0] for row in unpacked(REPEATED.name)})
    found = [judged(f"{REPEATED}:{name}", profile="short").verdict for name in names]
    assert len(found) == 27
    assert sum(verdict.verdict == "memorization_suspected" for verdict in found) >= 26
    epoch = 100_000_000
    alarms = [(at.alarm_tokens, at.tokens) for at in found if at.alarm_tokens is not None]
    assert sum(alarm + epoch <= last for alarm, last in alarms) >= 20
    assert all(alarm > 2 * epoch for alarm, _ in alarms)


@published
@pytest.mark.parametrize(
    "run",
    [
        f"{GPT2}:gpt2-124M-one-pass-a",
        f"{GPT2}:gpt2-124M-one-pass-b",
        str(OLMO3),
        "olmo2-7b-stage1",
        "olmo3-7b-stage1",
    ],
)
def test_one_pass_runs_stay_silent_under_the_same_profile(run: str) -> None:
    verdict = judged(run, profile="short", thinned=True).verdict
    assert (verdict.verdict, verdict.alarm_tokens) == ("healthy", None)


@published
def test_the_rule_is_causal_on_a_truncated_table(tmp_path: Path) -> None:
    whole = [row for row in unpacked(REPEATED.name) if row[0] == "repeat-100M-00"]
    plan = max(row[3] for row in whole)
    path = write(tmp_path / "whole.csv", whole)
    alarm = judged(path, profile="short", planned_tokens=plan).verdict.alarm_tokens
    assert alarm is not None
    for end in sorted({row[3] for row in whole})[6:]:
        cut = write(tmp_path / "cut.csv", [row for row in whole if row[3] <= end])
        early = judged(cut, profile="short", planned_tokens=plan).verdict
        assert early.alarm_tokens == (alarm if alarm <= end else None)
