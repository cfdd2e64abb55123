"""Holdout loss: pooled, per document, one prefix token, another version when anything changes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from evalmon.config import EvaluationSettings, HoldoutSettings
from evalmon.errors import DataError, EvaluationError
from evalmon.evaluators.holdout_loss import HoldoutLoss, build
from evalmon.types import CheckpointRef, RunDescription

TEXTS = {
    "short": "the fox",
    "long": "the quick brown fox jumps over a lazy dog while two small birds sing " * 3,
    "other": "Zürich – birds",
}


@pytest.fixture
def holdout(tmp_path: Path) -> HoldoutSettings:
    path = tmp_path / "holdout.jsonl"
    lines = [json.dumps({"text": text, "id": name}) for name, text in TEXTS.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return HoldoutSettings("mine", str(path))


def nats(model: Any, run: RunDescription, text: str) -> tuple[float, int]:
    """Sum of -log p over the document's tokens, each after the one before it."""
    ids = Tokenizer.from_file(run.tokenizer).encode(text).ids
    before = [run.eos_id, *ids[:-1]]
    return -float(model.table[before, ids].astype(np.float64).sum()), len(ids)


def test_loss_and_bits_per_byte_are_pooled_over_documents(
    holdout: HoldoutSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    evaluator = HoldoutLoss(holdout, run)
    found = evaluator.evaluate(model, checkpoint, run, "w")
    expected = [nats(model, run, text) for text in TEXTS.values()]
    sizes = [len(text.encode()) for text in TEXTS.values()]
    ce, bpb = found.scores
    assert ce.metric == "eval/lm/mine-validation/ce_nats"
    assert ce.value == pytest.approx(sum(n for n, _ in expected) / sum(t for _, t in expected))
    assert bpb.metric == "eval/lm/mine-validation/bpb"
    assert bpb.value == pytest.approx(sum(n for n, _ in expected) / sum(sizes) / math.log(2))
    assert ce.item_ids == tuple(TEXTS)
    assert ce.item_values == pytest.approx([n / t for n, t in expected])
    assert ce.item_weights == tuple(float(t) for _, t in expected)
    assert bpb.item_weights == tuple(float(size) for size in sizes)
    assert ce.stderr is not None
    assert (found.evaluator, found.version, found.weights) == (
        "holdout_loss:mine",
        evaluator.version,
        "w",
    )


def test_a_document_longer_than_the_model_is_scored_in_windows(
    holdout: HoldoutSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    HoldoutLoss(holdout, run).evaluate(model, checkpoint, run, "w")
    lengths = [len(item.context) + len(item.continuation) for item in model.asked]
    assert max(lengths) == model.max_length
    assert sum(item.context == (run.eos_id,) for item in model.asked) == len(TEXTS)


def test_identity_says_what_the_number_means(
    holdout: HoldoutSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    ce, bpb = HoldoutLoss(holdout, run).evaluate(model, checkpoint, run, "w").scores
    assert (ce.identity.normalization, bpb.identity.normalization) == ("tokens", "UTF-8 bytes")
    assert (ce.identity.prefix_token, ce.identity.max_length) == (0, 16)
    assert ce.identity.shots is None
    assert ce.identity.fingerprint != bpb.identity.fingerprint


def test_one_document_has_no_standard_error(
    holdout: HoldoutSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    one = HoldoutSettings("mine", holdout.path, limit=1)
    (ce, _) = HoldoutLoss(one, run).evaluate(model, checkpoint, run, "w").scores
    assert (ce.items, ce.stderr) == (1, None)
    assert ce.identity.item_limit == 1


def test_any_change_of_text_limit_tokenizer_or_prefix_is_another_version(
    holdout: HoldoutSettings, make_run: Callable[..., RunDescription], tmp_path: Path
):
    base = HoldoutLoss(holdout, make_run()).version
    assert HoldoutLoss(holdout, make_run()).version == base
    versions = {base}
    versions.add(HoldoutLoss(HoldoutSettings("mine", holdout.path, 2), make_run()).version)
    versions.add(HoldoutLoss(HoldoutSettings("theirs", holdout.path), make_run()).version)
    versions.add(HoldoutLoss(holdout, make_run(eos_id=1)).version)
    versions.add(HoldoutLoss(holdout, make_run(sequence_length=32)).version)
    other = tmp_path / "other.json"
    other.write_bytes(Path(make_run().tokenizer).read_bytes() + b" ")
    versions.add(HoldoutLoss(holdout, make_run(tokenizer=str(other))).version)
    path = Path(holdout.path)
    path.write_text(path.read_text(encoding="utf-8").replace("fox", "cat"), encoding="utf-8")
    versions.add(HoldoutLoss(holdout, make_run()).version)
    assert len(versions) == 7


def test_log_probabilities_that_are_not_numbers_are_an_error_and_no_score(
    holdout: HoldoutSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    model.table = np.full_like(model.table, np.nan)
    with pytest.raises(EvaluationError, match="nothing is scored"):
        HoldoutLoss(holdout, run).evaluate(model, checkpoint, run, "w")


def test_a_missing_tokenizer_is_named(
    holdout: HoldoutSettings, make_run: Callable[..., RunDescription]
):
    with pytest.raises(DataError, match=r"none\.json: the tokenizer cannot be read"):
        HoldoutLoss(holdout, make_run(tokenizer="none.json"))


def test_a_file_that_is_no_tokenizer_is_named(
    holdout: HoldoutSettings,
    make_run: Callable[..., RunDescription],
    model: Any,
    checkpoint: CheckpointRef,
    tmp_path: Path,
):
    (tmp_path / "bad.json").write_text("{}")
    run = make_run(tokenizer=str(tmp_path / "bad.json"))
    with pytest.raises(DataError, match=r"bad\.json: not a tokenizers JSON file"):
        HoldoutLoss(holdout, run).evaluate(model, checkpoint, run, "w")


def test_there_is_one_evaluator_a_holdout(holdout: HoldoutSettings, run: RunDescription):
    second = HoldoutSettings("second", holdout.path)
    found = build(EvaluationSettings(holdouts=(holdout, second)), run)
    assert [item.name for item in found] == ["holdout_loss:mine", "holdout_loss:second"]
