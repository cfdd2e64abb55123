"""Values that cross modules: exact forms, exact refusals."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.errors import CheckpointError
from evalmon.types import (
    ID_LOG_MAGIC,
    ID_LOG_RECORD,
    Alert,
    AlertStatus,
    Finding,
    MetricIdentity,
    ProbeResult,
    RunDescription,
    Series,
    Verdict,
    VerdictName,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDescription:
    return RunDescription(
        name="tiny",
        path=tmp_path,
        adapter="olmo3",
        model={"preset": "tiny"},
        tokenizer="tokenizer.json",
        vocab_size=64,
        eos_id=0,
        sequence_length=8,
        batch_instances=4,
        planned_steps=100,
        planned_passes=1,
        source_instances=400,
        hosts=2,
        loader="batch_strided",
        seed=0,
        warmup_steps=5,
        recipe="cc",
        loss={"z_loss": False},
        data="data",
    )


def test_a_run_description_comes_back_from_its_file(run: RunDescription) -> None:
    run.save()
    assert RunDescription.load(run.path) == run
    assert [item.name for item in run.path.iterdir()] == ["run.json"]
    assert (run.tokens_per_step, run.planned_tokens) == (32, 3200)
    assert run.resolve("tokenizer.json") == run.path / "tokenizer.json"
    assert run.resolve("/data/x") == Path("/data/x")


def rewrite(run: RunDescription, **changes: Any) -> None:
    """Change fields of a run's file; None removes one."""
    run.save()
    file = run.path / "run.json"
    record = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))


def test_a_file_of_another_format_is_refused(run: RunDescription) -> None:
    rewrite(run, format=2)
    with pytest.raises(CheckpointError, match="not run format 1; use the evalmon its trainer"):
        RunDescription.load(run.path)


def test_unknown_and_missing_fields_are_named(run: RunDescription) -> None:
    rewrite(run, colour="red", seed=None)
    with pytest.raises(CheckpointError, match=r"unknown fields \['colour'\], missing .*\['seed'\]"):
        RunDescription.load(run.path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": "many"}, "'vocab_size' must be int >= 1, got 'many'"),
        ({"sequence_length": 0}, "'sequence_length' must be int >= 2, got '0'"),
        ({"batch_instances": 0}, "'batch_instances' must be int >= 1"),
        ({"seed": True}, "'seed' must be int >= 0, got 'True'"),
        ({"fresh_data": 7}, "'fresh_data' must be str or null, got '7'"),
        ({"model": [1]}, "'model' must be dict"),
        ({"earlier_batches": [[3]]}, "'earlier_batches' must hold lists of 2 whole numbers"),
        ({"upsampled": [["a", 1, 2]]}, "'upsampled' must hold whole numbers >= 0"),
        ({"data_changes": ["x"]}, "'data_changes' must hold whole numbers >= 0, got 'x'"),
        ({"data_changes": [[1]]}, "'data_changes' must hold whole numbers, got"),
        ({"name": ""}, "'name' is empty"),
    ],
)
def test_a_value_no_trainer_can_have_written_is_refused_by_name(
    run: RunDescription, changes: dict[str, Any], says: str
) -> None:
    rewrite(run, **changes)
    with pytest.raises(CheckpointError, match=says) as error:
        RunDescription.load(run.path)
    assert str(run.path / "run.json") in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_file_that_is_no_description_is_refused(run: RunDescription, text: str) -> None:
    (run.path / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json"):
        RunDescription.load(run.path)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a run directory \(no run.json\)"):
        RunDescription.load(tmp_path)
    with pytest.raises(CheckpointError, match="no such run directory"):
        RunDescription.load(tmp_path / "none")


def test_an_id_log_record_is_twenty_four_little_endian_bytes() -> None:
    assert (len(ID_LOG_MAGIC), ID_LOG_RECORD.itemsize) == (16, 24)
    record = np.array([(1, 2, 3, 4)], ID_LOG_RECORD)
    assert record.tobytes() == bytes.fromhex("0100000002000000" + "03" + "00" * 7 + "04" + "00" * 7)


IDENTITY = MetricIdentity(
    "arc_easy", "acc", 0, "lm-eval", "test", None, "", "t", "float32", 0, "d", 128
)


def test_equal_identities_have_equal_fingerprints_and_any_other_field_changes_it() -> None:
    assert IDENTITY.fingerprint == replace(IDENTITY).fingerprint
    assert len(IDENTITY.fingerprint) == 16
    for name, value in asdict(IDENTITY).items():
        other = f"{value}x" if isinstance(value, str) else 77
        assert replace(IDENTITY, **{name: other}).fingerprint != IDENTITY.fingerprint, name


def test_a_series_is_cut_after_a_step() -> None:
    steps = np.array([10, 20, 30])
    series = Series("m", steps, steps * 32, steps / 10)
    assert len(series) == 3
    assert [series.until(step).steps.tolist() for step in (9, 10, 25, 30, 99)] == [
        [],
        [10],
        [10, 20],
        [10, 20, 30],
        [10, 20, 30],
    ]
    assert series.until(20).tokens.tolist() == [320, 640]
    assert series.until(20).values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (
            1,
            {
                "memorization_suspected",
                "memorization_confirmed",
                "leakage_suspected",
                "holdout_regression",
                "evaluator_fault",
            },
        ),
        (3, {"not_enough_data", "recipe_differs"}),
        (
            0,
            {"healthy", "ahead_of_reference", "behind_reference", "train_shift", "train_rise"},
        ),
    ],
)
def test_exit_codes_tell_findings_from_doubt_and_health(code: int, names: set[str]) -> None:
    assert {str(name) for name in VerdictName if name.exit_code == code} == names


def test_a_verdicts_record_is_strict_json_with_findings_and_alerts() -> None:
    finding = Finding(
        "unmatched_drop", "memorization", "tiny", 70, 2240, 1700, "fast", 0.3, "m", {"a": [1]}
    )
    verdict = Verdict(
        run="tiny",
        verdict=VerdictName.MEMORIZATION_SUSPECTED,
        step=70,
        tokens=2240,
        reference=None,
        profile="short",
        onset_tokens=1700,
        alarm_tokens=2240,
        channel="fast",
        train_gap_nats=-0.3,
        holdout_gap_nats=0.0,
        unmatched_nats=0.3,
        unmatched_low_nats=0.2,
        unmatched_high_nats=0.4,
        matched_fraction=0.0,
        tolerance_nats=0.1,
        first_repeat_tokens=None,
        repeated_fraction=None,
        probe=ProbeResult(0.1, 0.0, 0.2, 8, "f"),
        reasons=("because",),
        findings=(finding,),
    )
    alert = Alert(
        "id", "tiny", "memorization", AlertStatus.OPEN, 70, 2240, 0, "t", "m", verdict.verdict, 70
    )
    record = json.loads(json.dumps(verdict.record([alert]), allow_nan=False))
    assert record["verdict"] == "memorization_suspected"
    assert record["probe"]["low_nats"] == 0.0
    assert record["findings"][0]["evidence"] == {"a": [1]}
    assert record["alerts"][0]["status"] == "open"
    assert set(record) == {*Verdict.__dataclass_fields__, "alerts"}
