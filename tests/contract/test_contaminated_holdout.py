"""A holdout that holds training text: found, cut, and judged on what is left (F34)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from evalmon import leakage
from evalmon.cli import main
from evalmon.comparing import CompareOptions, compare
from evalmon.errors import DataError
from evalmon.store import Store
from evalmon.types import CheckpointRef, Evaluation, RunDescription, Score
from tests.synthetic_store import identity

EOS, STEPS, EVERY, JUMP = 256, 240, 8, 120
COPIES = ("copy-0", "copy-1")
METRIC = "eval/lm/mine-validation/ce_nats"
HEADER = " ".join(f"licence{n}" for n in range(25))


def words(name: str, count: int = 100) -> list[str]:
    return [f"{name}word{n}" for n in range(count)]


def documents() -> dict[str, str]:
    """Return 10 texts: 2 near-copies of training text, 3 that share a licence header, 5 others."""
    found: dict[str, str] = {}
    for n in range(2):
        text = words(f"train{n}")
        text[50] = "changed"  # 13 of 88 n-grams hold it
        found[f"copy-{n}"] = " ".join(text)
    for n in range(3):
        found[f"licensed-{n}"] = f"{HEADER} " + " ".join(words(f"own{n}"))
    return found | {f"other-{n}": " ".join(words(f"other{n}")) for n in range(5)}


def describe(path: Path, name: str, *, seed: int, falls: float) -> RunDescription:
    """Write a run whose train loss falls by so much at the jump."""
    run = RunDescription(
        name=name, path=path / name, adapter="none", model={}, tokenizer="data/tokenizer.json",
        vocab_size=300, eos_id=EOS, sequence_length=16, batch_instances=4, planned_steps=STEPS,
        planned_passes=1, source_instances=960, hosts=1, loader="batch_strided", seed=seed,
        warmup_steps=0, recipe="r", loss={"divisor": "tokens", "z_loss": False}, data="data",
    )  # fmt: skip
    run.path.mkdir(parents=True)
    run.save()
    lines: list[dict[str, Any]] = [{"event": "start", "resumed_from_step": None}]
    draws = np.random.default_rng(seed + 10)
    lines += [
        {"event": "step", "step": step, "tokens": step * 64,
         "train/ce_nats": 2.5 - falls * (step >= JUMP) + draws.normal(0, 0.002)}
        for step in range(1, STEPS + 1)
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.path / "log.jsonl").write_text(text)
    return run


def train_on(run: RunDescription) -> None:
    """Write a token folder: what the copies are of, the header, and other text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder = run.path / "data"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    texts = [*(" ".join(words(f"train{n}")) for n in range(2)),
             *(f"{HEADER} " + " ".join(words(f"more{n}")) for n in range(4))]  # fmt: skip
    ids = [i for text in texts for i in [*tokenizer.encode(text).ids, EOS]]
    np.array(ids, "<u4").tofile(folder / "web.npy")
    index = {"format": 2, "eos_id": EOS, "tokenizer": "tokenizer.json",
             "files": [{"path": "web.npy", "label": "web", "n_tokens": len(ids)}]}  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index))


def score(store: Store, run: RunDescription, fingerprint: str, *, leaked: bool) -> None:
    """Store a holdout score each 8 steps: the copies fall by 0.40 at the jump, if they leaked."""
    draws = np.random.default_rng(run.seed)
    what = replace(identity("mine", "ce_nats"), data=fingerprint)
    store.register(run, {"holdout": "mine"})
    ids = tuple(documents())
    for step in range(EVERY, STEPS + 1, EVERY):
        values = 2.7 + draws.normal(0, 0.001, len(ids))
        values[:2] -= 0.4 if leaked and step >= JUMP else 0.0
        found = Score(METRIC, float(values.mean()), 0.01, len(ids), what, ids,
                      tuple(values.tolist()), (100.0,) * len(ids))  # fmt: skip
        at = CheckpointRef(run.name, step, run.tokens_at(step), run.path / str(step))
        store.append_evaluation(
            Evaluation("holdout_loss", "1", at, f"weights-{run.name}-{step}", (found,), 1.0)
        )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a contaminated holdout, a sound one beside it, and the report of the first."""
    folder = tmp_path_factory.mktemp("case")
    holdout = folder / "mine.jsonl"
    holdout.write_text("".join(
        json.dumps({"id": name, "text": text}) + "\n" for name, text in documents().items()
    ))  # fmt: skip
    fingerprint = leakage.find_holdout(str(holdout)).fingerprint
    run = describe(folder, "tiny", seed=0, falls=0.08)
    peer = describe(folder, "peer", seed=1, falls=0.0)
    train_on(run)
    with Store.open(folder / "evalmon.sqlite", clock=lambda: 0.0) as store:
        score(store, run, fingerprint, leaked=True)
        score(store, peer, fingerprint, leaked=False)
    made = CliRunner().invoke(
        main, ["audit", "leakage", str(run.path), "--holdout", str(holdout), "--json"]
    )
    assert made.exit_code == 1, made.output
    (folder / "report.json").write_text(made.stdout)
    return folder


@pytest.fixture(scope="module")
def early(case: Path) -> Path:
    """The same run, evaluated up to the jump."""
    folder = case / "early"
    run = replace(RunDescription.load(case / "tiny"), path=folder / "tiny")
    run.path.mkdir(parents=True)
    run.save()
    (run.path / "log.jsonl").write_text((case / "tiny" / "log.jsonl").read_text())
    report = json.loads((case / "report.json").read_text().splitlines()[-1])
    with Store.open(case / "evalmon.sqlite", read_only=True) as store:
        kept = store.items("tiny", METRIC)
        tokens = {ref.step: ref for ref in store.checkpoints("tiny")}
    assert {item.identity.data for item in kept.values()} == {report["holdout_fingerprint"]}
    with Store.open(folder / "evalmon.sqlite", clock=lambda: 0.0) as store:
        store.register(run, {"holdout": "mine"})
        for step, item in kept.items():
            if step <= JUMP:
                at = replace(tokens[step], path=run.path / str(step))
                store.append_evaluation(
                    Evaluation("holdout_loss", "1", at, f"weights-{step}", (item,), 1.0)
                )
    return run.path


def test_exactly_the_copies_are_named_and_the_licensed_are_not(case: Path) -> None:
    report = json.loads((case / "report.json").read_text().splitlines()[-1])
    named = {item["id"]: item for item in report["overlaps"] if item["share"] >= report["share"]}
    assert (set(named), report["leaked"], report["documents"]) == (set(COPIES), 2, 10)
    assert all((item["ngrams"], item["found"]) == (88, 75) for item in named.values())
    shared = {item["id"]: item["share"] for item in report["overlaps"]}
    assert {name for name in shared if name.startswith("licensed")} == {
        "licensed-0", "licensed-1", "licensed-2",
    }  # fmt: skip
    assert all(share < 0.2 for name, share in shared.items() if name.startswith("licensed"))


@pytest.mark.parametrize("profile", ["", "full", "sparse", "short"])
def test_what_looks_matched_is_suspected_on_the_clean_slice(case: Path, profile: str) -> None:
    whole = compare(CompareOptions(str(case / "tiny"), profile=profile)).verdict
    assert not whole.verdict.startswith("memorization")
    assert whole.unmatched_nats == pytest.approx(0.0, abs=0.01)
    found = compare(
        CompareOptions(str(case / "tiny"), profile=profile,
                       without_leaked=str(case / "report.json"))
    )  # fmt: skip
    assert found.verdict.verdict == "memorization_suspected"
    assert found.verdict.unmatched_nats == pytest.approx(0.08, abs=0.01)
    assert found.verdict.reasons[0] == (
        "holdout contaminated: 2 of 10 documents are in the training text (copy-0 share 0.85, "
        "copy-1 share 0.85); judged on the other 8"
    )
    evidence = found.record["evidence"]
    assert evidence["contaminated"] == [
        {"id": name, "share": pytest.approx(75 / 88, abs=1e-6), "exact": False,
         "ngrams": 88, "found": 75}
        for name in COPIES
    ]  # fmt: skip
    assert evidence["whole_holdout"]["verdict"] == str(whole.verdict)
    assert evidence["whole_holdout"]["literal"] == dict(whole.literal or {})


def test_the_literal_comparison_at_the_jump_is_told_for_both(case: Path, early: Path) -> None:
    """Judged at the jump, where the whole holdout falls by 0.08 and what did not leak by none."""
    record = compare(CompareOptions(str(early), without_leaked=str(case / "report.json"))).record
    whole, clean = record["evidence"]["whole_holdout"]["literal"], record["literal"]
    assert (record["step"], record["verdict"]) == (JUMP, "healthy")  # one window is no finding
    assert whole["holdout_gain_nats"] == pytest.approx(0.08, abs=0.003)
    assert clean["holdout_gain_nats"] == pytest.approx(0.0, abs=0.003)


def test_the_command_takes_the_report_and_a_reference_that_keeps_documents(case: Path) -> None:
    done = CliRunner().invoke(
        main,
        ["compare", str(case / "tiny"), "--reference", "peer", "--without-leaked",
         str(case / "report.json"), "--json"],
    )  # fmt: skip
    record = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, record["reference"]) == (1, "peer")
    assert record["verdict"] == "memorization_suspected"
    assert record["reasons"][0].startswith("holdout contaminated: 2 of 10 documents")
    assert record["holdout_gap_nats"] == pytest.approx(0.0, abs=0.002)
    stored = CliRunner().invoke(
        main,
        ["compare", "tiny", "--store", str(case / "evalmon.sqlite"), "--without-leaked",
         str(case / "report.json"), "--json"],
    )  # fmt: skip
    assert stored.exit_code == 1, stored.output
    assert json.loads(stored.stdout.splitlines()[-1])["verdict"] == "memorization_suspected"


def test_what_keeps_no_documents_is_refused(case: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("run,metric,step,tokens,value\n" + "".join(
        f"r,{metric},{n},{n},{3 - n / 100}\n" for metric in ("train/ce_nats", METRIC)
        for n in range(1, 30)
    ))  # fmt: skip
    report = str(case / "report.json")
    with pytest.raises(DataError, match=r"t\.csv keeps no loss of single documents.*leave out"):
        compare(CompareOptions(str(table), without_leaked=report))
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(DataError, match="no report of holdout leakage"):
        compare(CompareOptions(str(case / "tiny"), without_leaked=str(tmp_path / "odd.json")))


def test_a_report_without_leaks_changes_nothing_and_says_so(case: Path, tmp_path: Path) -> None:
    report = json.loads((case / "report.json").read_text().splitlines()[-1])
    path = tmp_path / "sound.json"
    path.write_text(json.dumps({**report, "share": 0.99}))
    record = compare(CompareOptions(str(case / "tiny"), without_leaked=str(path))).record
    assert "contaminated" not in record["evidence"]
    assert any("names no leaked document" in note for note in record["notes"])


def test_other_data_from_a_step_on_withholds_the_verdict_with_a_mark(early: Path) -> None:
    replace(RunDescription.load(early), data_changes=(90,)).save()
    record = compare(CompareOptions(str(early))).record
    assert (record["verdict"], record["alarm_tokens"]) == ("not_enough_data", None)
    assert record["data_changes"] == [90]
    assert record["reasons"][0].startswith("data changed at step 90: ")
