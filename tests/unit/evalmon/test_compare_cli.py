"""`evalmon compare` from table to exit code: what it says, prints and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from evalmon import reference
from evalmon.cli import main
from evalmon.detectors.profiles import PROFILES

from .drawn_runs import BATCH_TOKENS, C4, PLAN, TRAIN, compare, drawn, refusal, rows, write
from .logs.maxtext_log import write_case

FIELDS = {
    "run", "verdict", "basis", "reference", "profile", "holdout", "step", "tokens",
    "onset_tokens", "alarm_tokens", "channel", "unmatched_nats", "low", "high",
    "matched_fraction", "slope", "train_gap_nats", "holdout_gap_nats", "tolerance_nats", "tasks",
    "literal", "evidence", "reasons", "planned_tokens", "planned_tokens_source", "findings",
    "notes", "data_changes",
}  # fmt: skip
HEAVY = {"jax", "pandas", "plotly", "scipy", "sqlalchemy", "torch"}


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A table of two sound runs and one that memorizes."""
    runs = {"one": drawn(1), "two": drawn(2), "bad": drawn(3, memorized=0.004)}
    return write(tmp_path / "runs.csv", rows(runs))


def test_a_sound_run_against_another_of_its_table_is_healthy(pair: Path) -> None:
    result, record = compare(pair, "--run", "one", "--reference", "two")
    assert result.exit_code == 0
    assert set(record) == FIELDS
    assert (record["run"], record["reference"]) == ("one", "two")
    assert (record["verdict"], record["basis"]) == ("healthy", "train and holdout")
    assert (record["step"], record["tokens"], record["holdout"]) == (200, PLAN, "c4_en")
    assert (record["planned_tokens"], record["planned_tokens_source"]) == (
        PLAN,
        "last token in the table",
    )
    assert record["low"] <= record["unmatched_nats"] <= record["high"]
    assert record["alarm_tokens"] is None


def test_a_run_that_memorizes_is_suspected_and_ends_with_1(pair: Path) -> None:
    for against in ([], ["--reference", "two"], ["--reference", f"{pair}:two", "--same-recipe"]):
        result, record = compare(pair, "--run", "bad", *against)
        assert (result.exit_code, record["verdict"]) == (1, "memorization_suspected")
        assert 80 * BATCH_TOKENS < record["alarm_tokens"] < PLAN
        assert record["onset_tokens"] <= record["alarm_tokens"]
        assert record["unmatched_nats"] > 0.1
        assert [item["detector"] for item in record["findings"]] == ["unmatched_drop"]


def test_a_person_reads_verdict_range_plan_numbers_and_reasons(pair: Path) -> None:
    result = CliRunner().invoke(
        main,
        ["compare", f"{pair}:bad", "--reference", "two", "--planned-tokens", "4.096e5"],
    )
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "bad: memorization_suspected"
    assert lines[1] == (
        "  against two on c4_en, train and holdout, 20,480 to 409,600 of 409,600 tokens planned "
        "(given), profile short"
    )
    assert "train gap -0." in lines[2]
    assert "unmatched drop +0." in lines[2]
    assert lines[3].startswith("  - train loss fell unmatched")


def test_with_json_standard_output_holds_one_object(pair: Path) -> None:
    result, record = compare(pair, "--run", "one")
    assert json.loads(result.stdout) == record
    assert result.stderr.startswith("one: ")


def test_thinning_and_steps_tokens_are_declared_on_the_command_line(tmp_path: Path) -> None:
    train, holdout = drawn(1)
    whole = rows({"one": (train, holdout)})
    bare = [(run, metric, step, value) for run, metric, step, _, value in whole]
    table = write(tmp_path / "bare.csv", bare, ("run", "metric", "step", "value"))
    assert "--tokens-per-step" in refusal(table)
    _, given = compare(table, "--tokens-per-step", BATCH_TOKENS)
    _, known = compare(write(tmp_path / "whole.csv", whole))
    assert given == known
    thinned = [row for row in whole if row[1] != TRAIN or row[2] % 7 in (0, 3)]
    path = write(tmp_path / "thinned.csv", thinned)
    result, record = compare(path)
    assert (result.exit_code, record["verdict"]) == (3, "not_enough_data")
    assert "sampled" in record["reasons"][0]
    result, record = compare(path, "--thinned")
    assert (result.exit_code, record["verdict"]) == (0, "healthy")


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "5.93T", "nan", "inf", "many"])
def test_planned_tokens_that_are_no_number_are_refused(pair: Path, text: str) -> None:
    assert text in refusal(pair, "--run", "one", f"--planned-tokens={text}")


def test_an_unknown_profile_is_refused_with_those_there_are(pair: Path) -> None:
    said = refusal(pair, "--run", "one", "--profile", "shrot")
    assert all(f"'{name}'" in said for name in PROFILES)
    assert {
        compare(pair, "--run", "one", "--profile", name)[1]["profile"] for name in PROFILES
    } == {*PROFILES}


def test_the_command_starts_without_what_it_does_not_need(pair: Path) -> None:
    code = (
        "import json, sys\nfrom evalmon.cli import main\n"
        "try:\n    main(sys.argv[1:], standalone_mode=False)\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    command = ["compare", str(pair), "--run", "one", "--reference", "two"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
    )
    assert HEAVY & set(json.loads(done.stdout.splitlines()[-1])) == set()


# What cannot be judged is refused, or ends without a verdict: never a guess.


def test_no_common_token_range_is_refused_with_both(tmp_path: Path) -> None:
    train, holdout = drawn(1)
    late = tuple(
        type(part)(part.metric, part.steps, part.tokens + 10 * PLAN, part.values)
        for part in drawn(2)
    )
    table = write(tmp_path / "runs.csv", rows({"one": (train, holdout), "late": late}))
    said = refusal(table, "--run", "late", "--reference", "one")
    assert "no common token range" in said
    assert f"{10 * PLAN + 20_480:,} to {11 * PLAN:,} tokens" in said
    assert f"{20_480:,} to {PLAN:,}; choose another reference" in said


def test_a_run_that_has_not_reached_its_reference_has_no_verdict_yet(tmp_path: Path) -> None:
    late = tuple(
        type(part)(part.metric, part.steps, part.tokens + 10 * PLAN, part.values)
        for part in drawn(2)
    )
    table = write(tmp_path / "runs.csv", rows({"one": drawn(1), "late": late}))
    result, record = compare(table, "--run", "one", "--reference", "late")
    assert (result.exit_code, record["verdict"]) == (3, "not_enough_data")
    assert "no common token range" in record["reasons"][0]
    assert f"{20_480:,} to {PLAN:,} tokens" in record["reasons"][0]
    assert "reaches from 4,116,480 to 4,505,600" in record["reasons"][0]
    assert "wait for later evaluations" in record["reasons"][0]


def test_an_unknown_metric_is_refused_with_the_nearest(tmp_path: Path) -> None:
    table = [("one", "train/ce_nat", step, step, 3.0) for step in range(1, 30)]
    said = refusal(write(tmp_path / "runs.csv", table))
    assert "'train/ce_nat' is not known" in said
    assert TRAIN in said


def test_two_metrics_of_one_name_are_refused(tmp_path: Path) -> None:
    table = rows({"one": drawn(1)})
    double = [(run, "train/CrossEntropyLoss", *rest) for run, m, *rest in table if m == TRAIN]
    said = refusal(write(tmp_path / "runs.csv", table + double))
    assert "are both train/ce_nats" in said


def test_steps_without_tokens_are_refused(tmp_path: Path) -> None:
    table = [(*row[:3], "", row[4]) for row in rows({"one": drawn(1)})]
    assert "tokens" in refusal(write(tmp_path / "runs.csv", table))


def test_reversed_steps_give_the_verdict_of_rising_ones_and_say_so(tmp_path: Path) -> None:
    table = rows({"one": drawn(1)})
    _, rising = compare(write(tmp_path / "rising.csv", table))
    result, record = compare(write(tmp_path / "reversed.csv", table[::-1]))
    assert result.exit_code == 0
    assert any("reversed" in note for note in record["notes"])
    assert record | {"notes": []} == rising | {"notes": []}


def test_a_step_twice_with_other_values_is_refused_with_its_step(tmp_path: Path) -> None:
    table = rows({"one": drawn(1)})
    at = next(i for i, row in enumerate(table) if row[1] == C4 and row[2] == 100)
    table.insert(at + 1, (*table[at][:4], 9.0))
    assert "step 100" in refusal(write(tmp_path / "runs.csv", table))


def test_an_infinite_loss_is_a_finding_and_enters_no_number(tmp_path: Path) -> None:
    table = rows({"one": drawn(1)})
    table[120] = (*table[120][:4], "inf")
    _, record = compare(write(tmp_path / "runs.csv", table))
    assert "nonfinite_loss" in [item["detector"] for item in record["findings"]]
    assert record["verdict"] == "healthy"


def test_a_reference_that_itself_alarms_gives_no_verdict(pair: Path) -> None:
    result, record = compare(pair, "--run", "one", "--reference", "bad", "--same-recipe")
    assert (result.exit_code, record["verdict"]) == (3, "not_enough_data")
    assert "the reference itself shows an unmatched drop" in record["reasons"][0]


def test_five_points_are_not_enough(tmp_path: Path) -> None:
    train, holdout = drawn(1)
    few = rows({"one": (train.until(50), holdout.until(50))})
    result, record = compare(write(tmp_path / "runs.csv", few))
    assert (result.exit_code, record["verdict"]) == (3, "not_enough_data")
    assert record["unmatched_nats"] is None or record["reasons"]
    assert record["alarm_tokens"] is None


def test_a_folder_text_and_what_is_not_there_are_refused_with_what_is_possible(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("dear diary\n")
    (tmp_path / "empty.csv").write_text("")
    for name, look in (
        ("folder", "a folder without run.json (empty)"),
        ("notes.txt", "text that begins with 'dear diary'"),
        ("empty.csv", "an empty file"),
        ("absent.csv", "no such file or folder"),
    ):
        said = refusal(tmp_path / name)
        assert look in said
        assert "it may be a run directory" in said


def test_a_maxtext_log_goes_to_a_verdict_against_olmo_3_in_one_command(tmp_path: Path) -> None:
    published = reference.load("olmo3-7b-stage1", (TRAIN, C4)).curves
    train, held = (
        (published[name].series.tokens, published[name].series.values) for name in (TRAIN, C4)
    )
    against = ("--reference", "olmo3-7b-stage1", "--planned-tokens", "5.93e12")
    assert write_case(tmp_path / "sound.log", train, held) > 2_000
    result, record = compare(tmp_path / "sound.log", *against)
    assert (result.exit_code, record["verdict"]) == (0, "healthy"), record["reasons"]
    assert (record["run"], record["reference"]) == ("olmo3-7b-reproduction", "olmo3-7b-stage1")
    assert (record["basis"], record["planned_tokens_source"]) == ("train and holdout", "given")
    assert "z_loss" in " ".join(record["reasons"])  # an offset of known size, tolerated
    write_case(tmp_path / "repeated.log", train, held, drop=(0.6, 0.1))
    result, record = compare(tmp_path / "repeated.log", *against)
    assert (result.exit_code, record["verdict"]) == (1, "memorization_suspected")
    assert 0.6 * 1.5e12 < record["alarm_tokens"] <= 1.5e12


def test_a_wandb_history_goes_to_a_verdict_against_a_table(tmp_path: Path, pair: Path) -> None:
    train, held = drawn(4)
    scores = dict(zip(held.steps.tolist(), held.values.tolist(), strict=True))
    table = [
        (step, step * BATCH_TOKENS, loss, scores.get(step, ""))
        for step, loss in zip(train.steps.tolist(), train.values.tolist(), strict=True)
    ]
    columns = (
        "_step",
        "throughput/total_tokens",
        "train/CE loss",
        "eval/lm/c4_en-validation/CE loss",
    )
    export = write(tmp_path / "wandb_history.csv", table, columns)
    result, record = compare(export, "--reference", f"{pair}:two")
    assert (result.exit_code, record["verdict"]) == (0, "healthy"), record["reasons"]
    assert (record["run"], record["step"]) == ("wandb_history", 200)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_ends_with_4_and_one_message(pair: Path) -> None:
    command = [sys.executable, "-c", "from evalmon.cli import main; main()", "compare"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*command, f"{pair}:one"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 4
    (line,) = ended.stderr.splitlines()
    assert line.startswith("Error: output cannot be written (")


def test_names_are_printed_without_what_a_terminal_acts_on_and_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows({"\x1b[31mred": drawn(1), "x" * 200: drawn(2)}))
    result = CliRunner().invoke(main, ["compare", str(path), "--run", "\x1b[31mred"])
    assert result.stdout.startswith("\\x1b[31mred: healthy\n")
    result = CliRunner().invoke(main, ["compare", str(path), "--run", "x" * 200])
    assert result.stdout.splitlines()[0] == "x" * 79 + "…: healthy"
    result = CliRunner().invoke(main, ["compare", str(path), "--run", "\x1b[2J"])
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr


def test_a_plan_beyond_any_training_is_refused(pair: Path) -> None:
    for text in ("1e300", "1.1e18"):
        assert "more than any training has" in refusal(f"{pair}:one", "--planned-tokens", text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--reference", ""], "--reference is empty"),
        (["--same-recipe"], "give --reference, or leave out --same-recipe"),
    ],
)
def test_options_that_say_nothing_are_refused(pair: Path, options: list[str], text: str) -> None:
    assert text in refusal(f"{pair}:one", *options)
