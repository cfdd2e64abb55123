"""The probe: sound for a model that remembers nothing, exact for one that remembers."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evalmon import id_logs
from evalmon.config import EvaluationSettings
from evalmon.errors import DataError, EvaluationError
from evalmon.evaluators.memorization_probe import MemorizationProbe, build, draws, strata_of
from evalmon.id_logs import IdLogReader
from evalmon.scoring import Scorer
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, CheckpointRef, RunDescription

LENGTH, BATCH = 16, 4


def token_folder(path: Path, seed: int, instances: dict[str, int]) -> NDArray[np.uint32]:
    """Write a token folder; return its instances [n, LENGTH] in the order of the index."""
    path.mkdir()
    rng = np.random.default_rng(seed)
    files: list[dict[str, Any]] = []
    rows: list[NDArray[np.uint32]] = []
    for label, count in instances.items():
        tokens = rng.integers(1, 320, count * LENGTH + 5).astype("<u4")  # a tail that is dropped
        tokens.tofile(path / f"{label}-00000.npy")
        files.append({"path": f"{label}-00000.npy", "label": label, "n_tokens": len(tokens)})
        rows.append(tokens[: count * LENGTH].reshape(count, LENGTH))
    index = {"format": 1, "dtype": "uint32", "files": files, "fingerprint": f"f{seed}"}
    (path / "index.json").write_text(json.dumps(index))
    return np.concatenate(rows)


def records(data: NDArray[np.uint32], order: list[tuple[int, int]]) -> NDArray[np.void]:
    """Make id-log records of (step, instance)."""
    found = np.zeros(len(order), ID_LOG_RECORD)
    for place, (step, instance) in enumerate(order):
        digest = hashlib.blake2b(data[instance].tobytes(), digest_size=8).digest()
        found[place] = (step, place % 2, instance, int.from_bytes(digest, "little"))
    return found


def write_log(run: RunDescription, *parts: NDArray[np.void]) -> None:
    content = ID_LOG_MAGIC + b"".join(part.tobytes() for part in parts)
    (run.path / "ids.bin").write_bytes(content)


@pytest.fixture
def run(make_run: Callable[..., RunDescription]) -> RunDescription:
    """A run that has read 200 of 240 instances once, in 50 steps."""
    run = make_run(data="data", fresh_data="fresh", batch_instances=BATCH)
    data = token_folder(run.path / "data", 1, {"books": 120, "web": 120})
    token_folder(run.path / "fresh", 2, {"books": 60, "web": 60})
    order = np.random.default_rng(3).permutation(240)[:200].tolist()
    write_log(run, records(data, [(1 + n // BATCH, i) for n, i in enumerate(order)]))
    return run


def at(run: RunDescription, step: int) -> CheckpointRef:
    return CheckpointRef("run", step, step * BATCH * LENGTH, run.path / f"checkpoints/{step}")


SETTINGS = EvaluationSettings(probe_pairs=64)


def test_a_model_that_remembers_nothing_shows_no_difference(run: RunDescription, model: Any):
    found = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
    assert found.probe is not None
    assert found.probe.pairs == 64
    assert found.probe.low_nats < 0 < found.probe.high_nats


def test_a_model_that_remembers_what_it_read_shows_by_how_much(run: RunDescription, model: Any):
    data = np.concatenate(
        [
            np.fromfile(run.path / f"data/{name}-00000.npy", "<u4")[: 120 * LENGTH].reshape(-1, 16)
            for name in ("books", "web")
        ]
    )
    model.known = {tuple(row.tolist()): 1.5 for row in data}
    plain = MemorizationProbe(SETTINGS, run)
    before = plain.evaluate(Scorer(type(model)(320, 16)), at(run, 50), run, "w").scores[0]
    after = plain.evaluate(Scorer(model), at(run, 50), run, "w").scores[0]
    # Every seen token is 1.5 nats likelier, no fresh one is: each pair moves by 1.5.
    assert np.array(after.item_values) - np.array(before.item_values) == pytest.approx(1.5)
    assert after.value - before.value == pytest.approx(1.5)
    assert after.stderr == pytest.approx(before.stderr)


def test_the_score_carries_every_pair(run: RunDescription, model: Any):
    found = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
    (score,) = found.scores
    assert score.metric == "probe/memorization/mean_nats"
    assert score.items == len(set(score.item_ids)) == 64
    assert np.mean(score.item_values) == pytest.approx(score.value)
    assert found.probe is not None
    assert score.value == found.probe.mean_nats


def test_pairs_are_of_one_source_and_seen_ones_were_read_before(run: RunDescription, model: Any):
    found = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 20), run, "w")
    read = set(draws(run, 20).records["instance"].tolist())
    assert len(read) == 80
    seen: list[int] = []
    fresh: list[int] = []
    for name in found.scores[0].item_ids:
        label, pair = name.split("/")
        left, right = (int(part) for part in pair.split("-"))
        assert (left < 120) == (label == "books")
        assert (right < 60) == (label == "books")
        seen.append(left)
        fresh.append(right)
    assert set(seen) <= read
    assert len(set(seen)) == len(set(fresh)) == 64


def test_the_same_checkpoint_is_probed_with_the_same_pairs(run: RunDescription, model: Any):
    once = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
    again = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
    other = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 40), run, "w")
    assert once.scores == again.scores
    assert once.probe == again.probe
    assert other.scores[0].item_ids != once.scores[0].item_ids


def test_strata_hold_each_instance_once_by_its_last_reading(run: RunDescription):
    data = np.arange(320, dtype="<u4").reshape(20, 16)
    log = records(data, [(1, 7), (60, 8), (80, 7), (95, 9), (100, 10), (100, 11)])
    recent, later, past, old = (part["instance"].tolist() for part in strata_of(log, 100))
    assert (recent, later, past, old) == ([10, 11], [9], [7, 8], [])


def test_strata_share_the_pairs_evenly_while_they_last(run: RunDescription, model: Any):
    found = MemorizationProbe(EvaluationSettings(probe_pairs=16), run)
    names = found.evaluate(Scorer(model), at(run, 50), run, "w").scores[0].item_ids
    step_of = {int(record["instance"]): int(record["step"]) for record in draws(run, 50).records}
    ages = [(50 - step_of[int(name.split("/")[1].split("-")[0])]) / 50 for name in names]
    counts = [
        sum(low <= age < high for age in ages)
        for low, high in [(0, 0.01), (0.01, 0.1), (0.1, 0.5), (0.5, 1)]
    ]
    assert counts == [4, 4, 4, 4]


@pytest.mark.parametrize("until", [1, 10, 12, 20])
def test_draws_and_their_fingerprint_are_those_that_the_judge_reads(
    run: RunDescription, model: Any, until: int
):
    data = np.arange(960, dtype="<u4").reshape(60, 16)
    first = records(data, [(1 + n // BATCH, n) for n in range(60)])  # steps 1 to 15
    again = records(data, [(11 + n // BATCH, 39 - n) for n in range(40)])  # back to step 11
    write_log(run, first, again)
    whole = (run.path / "ids.bin").read_bytes()
    (run.path / "ids.bin").write_bytes(whole + b"torn")
    theirs = IdLogReader().read(run)
    assert theirs is not None
    ours = draws(run, until)
    np.testing.assert_array_equal(ours.records, theirs.until(until).records)
    assert ours.fingerprint == theirs.until(until).fingerprint


def test_the_probe_names_the_log_it_rests_on(run: RunDescription, model: Any):
    found = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
    log = id_logs.read(run, 50)
    assert log is not None
    assert found.probe is not None
    assert found.probe.ids_fingerprint == log.fingerprint


def test_without_id_log_fresh_text_or_steps_it_does_not_apply(
    run: RunDescription, make_run: Callable[..., RunDescription]
):
    probe = MemorizationProbe(SETTINGS, run)
    assert probe.not_applicable(at(run, 50), run) == ""
    assert "step 0" in probe.not_applicable(at(run, 0), run)
    bare = make_run(fresh_data=None)
    assert "no fresh data" in MemorizationProbe(SETTINGS, bare).not_applicable(at(bare, 50), bare)
    none = EvaluationSettings(probe_pairs=0)
    assert "probe_pairs" in MemorizationProbe(none, run).not_applicable(at(run, 50), run)
    (run.path / "ids.bin").unlink()
    assert "no id log" in probe.not_applicable(at(run, 50), run)


def test_tokens_changed_since_they_were_read_are_not_called_seen(run: RunDescription, model: Any):
    for name in ("books", "web"):
        path = run.path / f"data/{name}-00000.npy"
        (np.fromfile(path, "<u4") % 319 + 1).astype("<u4").tofile(path)
    with pytest.raises(EvaluationError, match="not the text that the id log recorded"):
        MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")


def test_an_id_log_that_ends_early_is_refused(run: RunDescription, model: Any):
    with pytest.raises(EvaluationError, match="holds 200 draws up to step 60, expected 240"):
        MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 60), run, "w")


def test_an_instance_beyond_the_data_is_refused(run: RunDescription, model: Any):
    shutil.rmtree(run.path / "data")
    token_folder(run.path / "data", 1, {"books": 20})
    with pytest.raises(EvaluationError, match="belongs to other data"):
        MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("ids.bin", b"PK\x03\x04 something else", "is no id log"),
        ("data/index.json", b"{}", "cannot be read as the index"),
        ("data/index.json", b"{", "cannot be read as the index"),
        ("fresh/web-00000.npy", b"123", "not the 965 uint32 tokens"),
    ],
)
def test_files_of_another_form_are_named(
    run: RunDescription, model: Any, name: str, content: bytes, said: str
):
    (run.path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
    assert str(run.path / name) in str(caught.value)


def test_fresh_text_of_other_sources_makes_no_pairs(run: RunDescription, model: Any):
    shutil.rmtree(run.path / "fresh")
    token_folder(run.path / "fresh", 2, {"code": 60})
    with pytest.raises(EvaluationError, match=r"only 0 pairs .* holds sources \['code'\]"):
        MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")


def test_other_pairs_or_data_are_another_version(run: RunDescription):
    base = MemorizationProbe(SETTINGS, run).version
    assert MemorizationProbe(SETTINGS, run).version == base
    assert MemorizationProbe(EvaluationSettings(probe_pairs=32), run).version != base
    index = run.path / "fresh/index.json"
    index.write_text(index.read_text().replace("f2", "f3"))
    assert MemorizationProbe(SETTINGS, run).version != base


def test_there_is_one_probe(run: RunDescription):
    assert [item.name for item in build(SETTINGS, run)] == ["memorization_probe"]


def test_a_long_run_is_probed_from_a_sample_of_its_draws(
    run: RunDescription, model: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(id_logs, "EXACT_DRAWS", 100)
    monkeypatch.setattr(id_logs, "SAMPLED_RATE", 4)
    found = MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
    log = IdLogReader().read(run)
    assert log is not None
    assert (log.rate, log.last_step) == (4, 50)
    assert found.probe is not None
    assert found.probe.ids_fingerprint == log.fingerprint
    kept = set(log.records["instance"].tolist())
    seen = {int(name.split("/")[1].split("-")[0]) for name in found.scores[0].item_ids}
    assert len(kept) < 100
    assert seen <= kept


def test_after_a_change_of_data_only_the_present_data_is_probed(run: RunDescription, model: Any):
    """What was read before step 30 is of files that are no longer there."""
    for name in ("books", "web"):
        path = run.path / f"data/{name}-00000.npy"
        (np.fromfile(path, "<u4") % 319 + 1).astype("<u4").tofile(path)
    rows = np.concatenate(
        [
            np.fromfile(run.path / f"data/{name}-00000.npy", "<u4")[: 120 * LENGTH].reshape(-1, 16)
            for name in ("books", "web")
        ]
    )
    order = draws(run, 50).records["instance"].tolist()
    new = records(rows, [(1 + n // BATCH, i) for n, i in enumerate(order)])
    write_log(run, draws(run, 30).records, new[new["step"] > 30])
    changed = replace(run, data_changes=[30])
    probe = MemorizationProbe(SETTINGS, changed)
    found = probe.evaluate(Scorer(model), at(run, 50), changed, "w")
    seen = {int(name.split("/")[1].split("-")[0]) for name in found.scores[0].item_ids}
    assert seen <= set(order[30 * BATCH :])
    assert "present data" in probe.not_applicable(at(run, 30), changed)
    with pytest.raises(EvaluationError, match="not the text that the id log recorded"):
        MemorizationProbe(SETTINGS, run).evaluate(Scorer(model), at(run, 50), run, "w")
