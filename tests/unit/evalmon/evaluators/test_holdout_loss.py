"""Holdout loss: both forms, pooled, per document, and another version when anything changes."""

import gzip
import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, processors

from evalmon.across_tokenizers import same_text
from evalmon.config import EvaluationSettings, HoldoutSettings
from evalmon.errors import ConfigError, DataError, EvaluationError
from evalmon.evaluators.holdout_loss import HoldoutLoss, build
from evalmon.scoring import Scorer
from evalmon.types import CheckpointRef, Evaluation, ForestScores, RunDescription

TEXTS = {
    "short": "the fox",
    "long": "the quick brown fox jumps over a lazy dog while two small birds sing " * 3,
    "other": "Zürich – birds",
}
C4 = Path(__file__).parents[5] / "shared/data/c4/c4-en-validation.jsonl.gz"


@pytest.fixture
def holdout(tmp_path: Path) -> Callable[..., HoldoutSettings]:
    """Return a maker of settings for a file of texts."""

    def make(
        form: str, texts: dict[str, str] = TEXTS, limit: int = 0, name: str = "mine"
    ) -> HoldoutSettings:
        path = tmp_path / "holdout.jsonl"
        lines = [json.dumps({"text": text, "id": key}) for key, text in texts.items()]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return HoldoutSettings(name, str(path), limit, form)

    return make


@pytest.fixture
def score(run: RunDescription, model: Any, checkpoint: CheckpointRef) -> Callable[..., Evaluation]:
    """Return what scores settings with the bigram model."""

    def evaluate(settings: HoldoutSettings, of: RunDescription = run, **how: Any) -> Evaluation:
        return HoldoutLoss(settings, of).evaluate(Scorer(model, **how), checkpoint, of, "w")

    return evaluate


def values(found: Evaluation) -> dict[str, float]:
    return {score.metric.rpartition("/")[2]: score.value for score in found.scores}


def nats(table: Any, ids: list[int]) -> float:
    """Sum of -log p of all but the first of these ids, each after the one before it."""
    return -float(table[ids[:-1], ids[1:]].astype(np.float64).sum())


def encode(run: RunDescription, text: str) -> list[int]:
    return Tokenizer.from_file(run.tokenizer).encode(text).ids


# One document an instance, as AI2's trainers score.


def test_documents_are_cut_at_the_models_length_and_scored_from_the_second_token(
    holdout: Callable[..., HoldoutSettings], score: Any, run: RunDescription, model: Any
):
    found = score(holdout("document"))
    instances = [[*encode(run, text), run.eos_id][:16] for text in TEXTS.values()]
    assert [len(ids) for ids in instances][1] == 16  # the long one loses its end
    total = sum(nats(model.table, ids) for ids in instances)
    tokens = sum(len(ids) for ids in instances)
    ce, core, bpb = found.scores
    assert ce.metric == "eval/lm/mine-validation/ce_nats"
    assert ce.value == pytest.approx(total / (tokens - 3), rel=1e-12)
    assert core.metric == "eval/lm/mine-validation/olmo_core_ce_nats"
    assert core.value == pytest.approx(total / tokens, rel=1e-12)
    assert ce.item_ids == core.item_ids == bpb.item_ids == tuple(TEXTS)
    assert ce.item_weights == tuple(float(len(ids) - 1) for ids in instances)
    assert core.item_weights == tuple(float(len(ids)) for ids in instances)
    assert ce.item_values == pytest.approx(
        [nats(model.table, ids) / (len(ids) - 1) for ids in instances]
    )
    assert found.header["prefix_token"] is None
    assert {item.identity.prefix_token for item in found.scores} == {None}


def test_bits_per_byte_are_of_the_text_that_was_scored(
    holdout: Callable[..., HoldoutSettings], score: Any, run: RunDescription, model: Any
):
    bpb = score(holdout("document")).scores[2]
    assert bpb.metric == "eval/lm/mine-validation/bpb"
    total, sizes = 0.0, list[int]()
    for text in TEXTS.values():
        encoded = Tokenizer.from_file(run.tokenizer).encode(text)
        kept = min(len(encoded.ids), 16)
        total += nats(model.table, encoded.ids[:kept])
        start, stop = encoded.offsets[0][1], encoded.offsets[kept - 1][1]
        sizes.append(len(text[start:stop].encode()))
    assert bpb.item_weights == tuple(map(float, sizes))
    assert bpb.value == pytest.approx(total / sum(sizes) / math.log(2), rel=1e-12)


def test_a_text_of_one_token_has_its_end_scored_and_no_bytes(
    holdout: Callable[..., HoldoutSettings], score: Any, model: Any, run: RunDescription
):
    (only,) = encode(run, "the")
    found = score(holdout("document", {"one": "the", "two": "the fox"}))
    ce, core, bpb = found.scores
    assert (ce.item_ids, core.item_ids, bpb.item_ids) == (("one", "two"), ("one", "two"), ("two",))
    assert ce.item_values[0] == pytest.approx(nats(model.table, [only, run.eos_id]))
    assert found.header["documents_without_scored_text"] == ["one"]
    alone = score(holdout("document", {"one": "the"}))
    assert list(values(alone)) == ["ce_nats", "olmo_core_ce_nats"]


def test_a_model_that_reads_one_token_leaves_nothing_to_score(
    holdout: Callable[..., HoldoutSettings], score: Any, model: Any
):
    model.max_length = 1
    with pytest.raises(EvaluationError, match="holdout mine: an instance of 1 token leaves none"):
        score(holdout("document"))


# Whole documents in windows.


def test_rolling_loss_is_of_all_tokens_after_one_prefix(
    holdout: Callable[..., HoldoutSettings], score: Any, run: RunDescription, model: Any
):
    found = score(holdout("rolling"))
    whole = [[run.eos_id, *encode(run, text)] for text in TEXTS.values()]
    total = sum(nats(model.table, ids) for ids in whole)
    sizes = [len(text.encode()) for text in TEXTS.values()]
    ce, bpb = found.scores
    assert ce.value == pytest.approx(total / sum(len(ids) - 1 for ids in whole), rel=1e-12)
    assert bpb.value == pytest.approx(total / sum(sizes) / math.log(2), rel=1e-12)
    assert bpb.item_weights == tuple(map(float, sizes))
    assert ce.stderr is not None
    assert (found.evaluator, found.weights) == ("holdout_loss:mine", "w")
    assert max(map(len, model.asked)) == model.max_length + 1
    assert found.header["prefix_token"] == run.eos_id
    assert found.header["tokens_scored"] == sum(len(ids) - 1 for ids in whole)
    assert found.header["utf8_bytes"] == sum(sizes)
    assert found.header["token_perplexity"] == pytest.approx(math.exp(ce.value))


def test_a_beginning_of_text_is_the_one_prefix_even_where_the_tokenizer_adds_it(
    holdout: Callable[..., HoldoutSettings],
    score: Any,
    make_run: Callable[..., RunDescription],
    tmp_path: Path,
    model: Any,
):
    made = Tokenizer.from_file(make_run().tokenizer)
    made.add_special_tokens([AddedToken("<s>", special=True)])
    first = cast("int", made.token_to_id("<s>"))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", first)]
    )
    made.save(str(tmp_path / "adding.json"))
    for tokenizer in (make_run().tokenizer, str(tmp_path / "adding.json")):
        run = make_run(tokenizer=tokenizer, bos_id=first)
        found = score(holdout("rolling", {"a": "the fox"}), run)
        plain = Tokenizer.from_file(tokenizer).encode("the fox", add_special_tokens=False).ids
        ids = [first, *plain]
        assert values(found)["ce_nats"] == pytest.approx(nats(model.table, ids) / (len(ids) - 1))
        assert found.scores[0].identity.prefix_token == first


# What the numbers mean.


def test_identity_says_what_the_number_means(holdout: Callable[..., HoldoutSettings], score: Any):
    document, rolling = (score(holdout(form)).scores for form in ("document", "rolling"))
    assert [item.identity.normalization for item in rolling] == ["tokens", "UTF-8 bytes"]
    assert [item.identity.normalization for item in document] == [
        "tokens",
        "tokens of the instances, the first of each too",
        "UTF-8 bytes of the tokens scored",
    ]
    assert (rolling[0].identity.prefix_token, rolling[0].identity.max_length) == (0, 16)
    assert rolling[0].identity.shots is None
    prints = [item.identity.fingerprint for item in (*document, *rolling)]
    assert len(set(prints)) == 5


def test_runs_of_two_tokenizers_are_compared_by_the_byte_alone(
    holdout: Callable[..., HoldoutSettings],
    score: Any,
    make_run: Callable[..., RunDescription],
    tmp_path: Path,
):
    other = tmp_path / "other.json"
    other.write_bytes(Path(make_run().tokenizer).read_bytes() + b" ")
    first = score(holdout("rolling")).scores
    second = score(holdout("rolling"), make_run(tokenizer=str(other))).scores
    assert first[1].value == second[1].value
    assert same_text(first[1].identity, second[1].identity)
    assert not same_text(first[0].identity, second[0].identity)
    # What is scored of a document depends on the tokenizer, so neither number compares.
    first = score(holdout("document")).scores
    second = score(holdout("document"), make_run(tokenizer=str(other))).scores
    for mine, theirs in zip(first, second, strict=True):
        assert not same_text(mine.identity, theirs.identity)


@pytest.mark.parametrize("form", ["document", "rolling"])
def test_one_document_has_no_standard_error(
    holdout: Callable[..., HoldoutSettings], score: Any, form: str
):
    ce = score(holdout(form, limit=1)).scores[0]
    assert (ce.items, ce.stderr) == (1, None)
    assert ce.identity.item_limit == 1


def test_any_change_of_text_form_limit_tokenizer_or_prefix_is_another_version(
    holdout: Callable[..., HoldoutSettings],
    make_run: Callable[..., RunDescription],
    tmp_path: Path,
):
    other = tmp_path / "other.json"
    other.write_bytes(Path(make_run().tokenizer).read_bytes() + b" ")
    changed = {"long": "the cat", "short": "the fox"}
    versions = [
        HoldoutLoss(holdout(**{"form": "rolling"} | settings), make_run(**changes)).version
        for settings, changes in [
            ({}, {}),
            ({"form": "document"}, {}),
            ({"limit": 2}, {}),
            ({"name": "theirs"}, {}),
            ({"texts": changed}, {}),
            ({}, {"eos_id": 1}),
            ({}, {"bos_id": 1}),
            ({}, {"sequence_length": 32}),
            ({}, {"tokenizer": str(other)}),
        ]
    ]
    assert len(set(versions)) == 9
    assert HoldoutLoss(holdout("rolling"), make_run()).version == versions[0]


# What is refused.


@pytest.mark.parametrize("form", ["document", "rolling"])
def test_log_probabilities_that_are_not_numbers_are_an_error_and_no_score(
    holdout: Callable[..., HoldoutSettings], score: Any, model: Any, form: str
):
    model.table = np.full_like(model.table, np.nan)
    with pytest.raises(EvaluationError, match="nothing is scored"):
        score(holdout(form))


def test_an_unknown_form_and_a_missing_or_misfit_tokenizer_are_named_before_compute(
    holdout: Callable[..., HoldoutSettings],
    make_run: Callable[..., RunDescription],
    tmp_path: Path,
):
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"form 'packed' of 'mine'.*\['document', 'rolling'\]"):
        HoldoutLoss(holdout("packed"), make_run())
    for changes, says in (
        ({"tokenizer": "none.json"}, r"none\.json: the tokenizer cannot be read"),
        ({"tokenizer": str(tmp_path / "bad.json")}, r"bad\.json: not a tokenizers JSON file"),
        ({"tokenizer": ""}, r"run\.json: names no tokenizer"),
        ({"vocab_size": 100}, r"tokenizer\.json: token '.+' has id \d+, but .*run\.json has 100"),
    ):
        with pytest.raises(DataError, match=says):
            HoldoutLoss(holdout("rolling"), make_run(**changes))


def test_a_model_that_lacks_ids_of_the_tokenizer_is_refused(
    holdout: Callable[..., HoldoutSettings], score: Any, model: Any
):
    model.vocab_size = 200
    with pytest.raises(DataError, match="but the model has 200 ids"):
        score(holdout("document"))


def test_a_document_without_tokens_is_named(
    holdout: Callable[..., HoldoutSettings],
    score: Any,
    make_run: Callable[..., RunDescription],
    tmp_path: Path,
):
    from tokenizers import normalizers

    made = Tokenizer.from_file(make_run().tokenizer)
    made.normalizer = normalizers.Strip()
    made.save(str(tmp_path / "strip.json"))
    run = make_run(tokenizer=str(tmp_path / "strip.json"))
    with pytest.raises(EvaluationError, match="document 'blank' of holdout mine has no tokens"):
        score(holdout("document", {"a": "the", "blank": "  "}), run)


def test_there_is_one_evaluator_a_holdout(
    holdout: Callable[..., HoldoutSettings], run: RunDescription
):
    first = holdout("rolling")
    second = HoldoutSettings("second", first.path)
    found = build(EvaluationSettings(holdouts=(first, second)), run)
    assert [item.name for item in found] == ["holdout_loss:mine", "holdout_loss:second"]


# C4, by a computation of its own: order and batch do not matter.


@pytest.mark.slow
@pytest.mark.skipif(not C4.is_file(), reason="C4 lies beside the repository")
@pytest.mark.parametrize("form", ["document", "rolling"])
def test_c4_is_an_independent_mean_whatever_the_order_and_the_batch(
    score: Any, run: RunDescription, model: Any, tmp_path: Path, form: str
):
    # A bigram asks for no more than each place's own token.
    model.score = lambda forest, _=None: ForestScores(
        model.table[forest.ids.ravel()[forest.picks], forest.targets], forest.targets
    )
    model.max_length = 200
    lines = gzip.decompress(C4.read_bytes()).decode().splitlines()
    total, tokens, positions = 0.0, 0, 0
    for line in lines:
        ids = encode(run, json.loads(line)["text"])
        ids = [*ids, 0][:200] if form == "document" else [0, *ids]
        total -= sum(float(model.table[before, token]) for before, token in pairwise(ids))
        tokens, positions = tokens + len(ids) - 1, positions + len(ids)
    found: list[Evaluation] = []
    for name, order, how in (
        ("a", lines, {}),
        ("b", lines[::-1], {"batch_size": 3, "share_prefixes": False}),
    ):
        path = tmp_path / f"{name}.jsonl"
        named = [json.dumps({"text": json.loads(line)["text"]}) for line in order]
        path.write_text("\n".join(named), encoding="utf-8")
        found.append(score(HoldoutSettings("c4_en", str(path), form=form), **how))
    for item in found:
        assert values(item)["ce_nats"] == pytest.approx(total / tokens, abs=1e-6)
        if form == "document":
            assert values(item)["olmo_core_ce_nats"] == pytest.approx(total / positions, abs=1e-6)
        assert values(item)["bpb"] == pytest.approx(values(found[0])["bpb"], abs=1e-6)
    assert found[0].scores[0].items == len(lines) == 200
