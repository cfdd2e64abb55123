"""`evalmon audit run`: exit codes, its JSON, its text, what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

from evalmon import id_logs
from evalmon.cli import main
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, RunDescription

BATCH, STEPS = 4, 50


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunDescription(
        name="tiny", path=tmp_path, adapter="none", model={}, tokenizer="t", vocab_size=8, eos_id=0,
        sequence_length=8, batch_instances=BATCH, planned_steps=STEPS, planned_passes=1,
        source_instances=BATCH * STEPS, hosts=2, loader="batch_strided", seed=0, warmup_steps=0,
        recipe="r", loss={}, data="data",
    ).save()  # fmt: skip
    return tmp_path


def drawn(instances: NDArray[np.int64]) -> NDArray[np.void]:
    records = np.zeros(len(instances), ID_LOG_RECORD)
    records["step"] = np.arange(len(instances)) // BATCH + 1
    records["host"] = np.arange(len(instances)) % BATCH // 2
    records["instance"] = instances
    records["text_hash"] = records["instance"] * np.uint64(0x9E3779B97F4A7C15)
    return records


def write(run: Path, records: NDArray[np.void]) -> None:
    (run / "ids.bin").write_bytes(ID_LOG_MAGIC + records.tobytes())


def audit(run: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["audit", "run", str(run), *options])


def parsed(done: Result) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(done.stdout.splitlines()[-1], parse_constant=refuse)


def test_a_sound_log_ends_with_zero_and_says_all_counts(run: Path):
    write(run, drawn(np.arange(BATCH * STEPS)))
    done = audit(run, "--json")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 1
    assert parsed(done) == {
        "run": "tiny", "draws": 200, "unique": 200, "instances": 200, "coverage": 1.0,
        "planned_passes": 1, "repeated": 0, "repeated_fraction": 0.0, "first_repeat": None,
        "replayed_draws": 0, "planned_repeats": 0, "same_step_duplicates": 0,
        "duplicate_texts": 0, "changed_texts": 0, "multiplicity": {"1": 200},
        "period_draws": None, "cross_host": 0, "hosts": 2, "construction": None,
        "sampling_rate": 1, "draws_kept": 200, "findings": [], "sound": True,
        "log": str(run / "ids.bin"), "log_bytes": 16 + 200 * 24, "bytes_per_instance": 24,
    }  # fmt: skip


def test_a_repeat_ends_with_one_and_names_the_first(run: Path):
    instances = np.arange(BATCH * STEPS)
    instances[120] = 17  # by host 0 in step 31, after step 5
    write(run, drawn(instances))
    done = audit(run, "--json")
    assert done.exit_code == 1
    found = parsed(done)
    assert found["first_repeat"] == {
        "step": 31, "tokens": 31 * 32, "instance": 17, "host": 0, "previous_step": 5,
    }  # fmt: skip
    assert (found["sound"], found["repeated"], found["coverage"]) == (False, 1, 199 / 200)
    assert [item["detector"] for item in found["findings"]] == ["repeated_instances"]
    assert found["findings"][0]["kind"] == "memorization"
    text = audit(run).output
    assert "first repeat      step 31 (992 tokens): instance 17 by host 0" in text
    assert "FINDING: 1 of 200 draws" in text


def test_a_text_that_changed_under_its_index_is_a_finding_of_its_own(run: Path):
    records = drawn(np.arange(BATCH * STEPS) % 100)
    records["text_hash"][100:] += np.uint64(1)
    write(run, records)
    done = audit(run, "--json")
    assert done.exit_code == 1
    assert [item["kind"] for item in parsed(done)["findings"]] == ["data"]
    assert "100 draws read an instance with another text than before" in done.stderr


def test_before_the_first_whole_step_there_is_nothing_to_tell(run: Path):
    for content in (b"", ID_LOG_MAGIC, ID_LOG_MAGIC + drawn(np.arange(3)).tobytes()):
        (run / "ids.bin").write_bytes(content)
        done = audit(run, "--json")
        assert (done.exit_code, parsed(done)["draws"]) == (3, 0)
        assert "holds no whole step yet" in done.stderr
        assert (parsed(done)["sound"], "sound" in done.stderr) == (None, False)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda log: log.unlink(), "ids.bin: no such file, so nothing tells what the run drew"),
        (lambda log: log.write_bytes(ID_LOG_MAGIC[:7]), "ids.bin: 7 bytes, fewer than the 16"),
        (lambda log: log.write_bytes(bytes(100)), "this is no id log"),
        (
            lambda log: log.write_bytes(log.read_bytes()[:-240] + log.read_bytes()[-96:]),
            "step 48 holds 2 draws, expected 4",
        ),
    ],
)
def test_a_log_that_cannot_be_used_ends_with_two(
    run: Path, damage: Callable[[Path], object], said: str
):
    write(run, drawn(np.arange(BATCH * STEPS)))
    damage(run / "ids.bin")
    done = audit(run, "--json")
    assert done.exit_code == 2
    assert said in done.output
    assert done.stdout == ""


def test_a_folder_that_is_no_run_ends_with_two(tmp_path: Path):
    assert audit(tmp_path / "absent").exit_code == 2


def test_a_long_log_is_sampled_unless_all_of_it_is_asked_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(id_logs, "EXACT_DRAWS", 199)
    monkeypatch.setattr(id_logs, "SAMPLED_RATE", 4)
    instances = np.arange(BATCH * STEPS)
    instances[100:] = instances[:100]
    write(run, drawn(instances))
    sampled, exact = audit(run, "--json"), audit(run, "--json", "--exact")
    assert (sampled.exit_code, exact.exit_code) == (1, 1)
    assert parsed(exact)["repeated"] == 100
    found = parsed(sampled)
    assert (found["sampling_rate"], found["draws"]) == (4, 200)
    assert found["repeated"] == 4 * (found["draws_kept"] // 2)
    assert "sampled: of one text in 4 every draw is kept" in sampled.stderr
    instances[100:] = np.arange(100, 200)
    instances[100] = int(np.flatnonzero(_kept(instances))[0])
    write(run, drawn(instances))
    quiet = audit(run, "--json")
    assert (quiet.exit_code, parsed(quiet)["repeated"]) == (0, 4)
    assert "sound as far as the sample tells" in quiet.stderr


def _kept(instances: NDArray[np.int64]) -> NDArray[np.bool_]:
    return id_logs.mixed(drawn(instances)["text_hash"]) % np.uint64(4) == 0
