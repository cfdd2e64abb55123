"""The outcome: decided by one number, never by what is not a number, and readable."""

import json
from dataclasses import replace
from typing import Any

import pytest

from evalmon.parity.divergence import Divergence, Worst
from evalmon.parity.reference import ReferenceFacts
from evalmon.parity.result import MAX_KL, MEAN_KL, ModelFacts, ParityResult, PromptFacts

NONE = {"reference": 0, "model": 0}
FOUND = Divergence(
    128, 5e-7, 1e-7, 1e-4, 0.98, 1e-9, 2e-9, 5e-7, Worst(1, 40, 5e-7), NONE, NONE
)  # fmt: skip
RESULT = ParityResult(
    FOUND, MAX_KL, 1e-6, 10, ModelFacts("w", "float32", "float32", 384),
    ReferenceFacts("hf", "huggingface", 384, 16, "float32", "c", {"transformers": "5.24.0"}),
    PromptFacts("random", [64, 64], 0),
)  # fmt: skip


def found(**changes: Any) -> ParityResult:
    return replace(RESULT, divergence=replace(FOUND, **changes))


def test_the_criterion_alone_decides_and_its_threshold_passes():
    assert RESULT.passed
    assert found(max_kl=1e-6).passed
    assert not found(max_kl=1.0000001e-6).passed
    assert replace(RESULT, criterion=MEAN_KL, threshold=1e-7).passed
    assert not replace(RESULT, criterion=MEAN_KL, threshold=0.9e-7).passed


def test_what_is_no_number_or_no_distribution_never_passes():
    nothing = dict.fromkeys(("max_kl", "mean_kl", "max_logprob_diff", "topk_agreement"))
    broken = found(**nothing, nonfinite={"reference": 0, "model": 1})
    assert not broken.passed
    assert not replace(broken, threshold=float("inf")).passed
    assert not found(nonfinite={"reference": 1, "model": 0}).passed
    assert not found(unnormalized={"reference": 0, "model": 1}).passed


def test_a_record_has_every_number_and_is_strict_json():
    record = json.loads(json.dumps(RESULT.record(), allow_nan=False))
    assert {k: record[k] for k in ("max_kl", "mean_kl", "max_logprob_diff", "topk_agreement")} == {
        "max_kl": 5e-7, "mean_kl": 1e-7, "max_logprob_diff": 1e-4, "topk_agreement": 0.98,
    }  # fmt: skip
    assert (record["threshold"], record["criterion"], record["passed"]) == (1e-6, "max_kl", True)
    assert (record["positions"], record["top_k"], record["window"]) == (128, 10, 16)
    assert record["worst"] == {"prompt": 1, "position": 40, "kl": 5e-7}
    assert record["prompts"] == {"source": "random", "count": 2, "tokens": [64, 64], "seed": 0}
    assert record["reference"]["versions"] == {"transformers": "5.24.0"}
    assert record["reference"]["dtype"] == "float32"
    broken = found(max_kl=None, worst=Worst(0, 3, None), nonfinite={"reference": 0, "model": 2})
    assert json.loads(json.dumps(broken.record(), allow_nan=False))["max_kl"] is None


def test_casts_are_said_on_both_sides():
    assert RESULT.casts == {"model": None, "reference": None}
    cast = replace(
        RESULT,
        model=ModelFacts("w", "bfloat16", "float32", 384),
        reference=replace(RESULT.reference, stored_dtype="bfloat16"),
    )
    assert cast.casts == {
        "model": "float32 -> bfloat16", "reference": "bfloat16 -> float32",
    }  # fmt: skip
    assert "cast, model: float32 -> bfloat16" in cast.text()
    assert cast.record()["casts"] == cast.casts


def test_padding_and_an_untested_window_are_said():
    assert RESULT.warnings == []
    (untested,) = found(max_kl_beyond=None).warnings
    assert untested == (
        "sliding attention is untested: the longest prompt has 64 tokens, the window 16; "
        "give longer ones"
    )
    padded = replace(RESULT, model=ModelFacts("w", "float32", "float32", 512))
    (differ,) = padded.warnings
    assert differ == (
        "vocabularies differ: model 512, reference 384; the last 128 entries of the larger are "
        "left out"
    )
    assert padded.record()["vocabulary"] == {"compared": 384, "model": 512, "reference": 384}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_kl_first": 0.1}, "the first position differs already: embedding"),
        ({"max_kl_within": 0.1}, "later ones inside the window do not: rotary settings"),
        ({"max_kl_beyond": 0.1}, "only positions beyond the window differ: window length"),
        (
            {"max_kl": None, "nonfinite": {"reference": 0, "model": 3}},
            "positions whose log-probabilities are not finite: 3 of the model; check the weights",
        ),
        ({"unnormalized": {"reference": 2, "model": 0}}, "not normalized: 2 of the reference"),
    ],
)
def test_a_failure_says_where_to_look_next(changes: dict[str, Any], says: str):
    failed = found(**{"max_kl": 0.1, **changes})
    assert not failed.passed
    last = failed.text().splitlines()[-1]
    assert last.startswith("  next: ")
    assert says in last
    assert failed.text().startswith("parity FAILED: max KL ")


def test_weights_kept_at_another_precision_are_a_hint():
    failed = replace(
        found(max_kl=0.1, max_kl_first=0.1), model=ModelFacts("w", "float32", "bfloat16", 384)
    )
    assert "the model's weights are bfloat16, the reference's float32" in failed.text()
    assert "compare at one precision" not in found(max_kl=0.1, max_kl_first=0.1).text()


def test_a_pass_is_a_few_lines():
    lines = RESULT.text().splitlines()
    assert lines[0] == "parity passed: max KL 5e-07 nats, at most 1e-06"
    assert len(lines) == 5
    assert all(len(line) < 140 for line in lines)
