"""Equal weights at two steps, and equal scores of different weights."""

from dataclasses import replace

import numpy as np

from evalmon.detectors.same_results import same_scores, same_weights
from evalmon.detectors.trust_evidence import EqualScores, TrustEvidence
from evalmon.types import Series

AT = np.array([10, 20, 30], np.int64)
SEEN = TrustEvidence(
    30, 64, Series("eval/lm/x-validation/ce_nats", AT, AT * 2, np.array([3.0, 2.5, 2.4])),
    weights={10: "aa", 20: "bb", 30: "cc"}, tokens={10: 20, 20: 40, 30: 60},
)  # fmt: skip


def test_the_same_weights_at_two_steps_are_a_finding_that_names_both():
    assert same_weights("a", SEEN) is None
    found = same_weights("a", replace(SEEN, weights={10: "aa", 20: "bb", 30: "bb"}))
    assert found is not None
    assert (found.kind, found.alarm_step, found.alarm_tokens, found.onset_tokens) == (
        "checkpoint", 30, 60, 40,
    )  # fmt: skip
    assert found.message.startswith("steps 20 and 30 hold the same weights (fingerprint bb)")
    assert found.evidence["steps"] == [[20, 30]]


def test_more_pairs_are_counted():
    found = same_weights("a", replace(SEEN, weights=dict.fromkeys((10, 20, 30), "aa")))
    assert found is not None
    assert found.evidence["pairs"] == 2
    assert "and so do 1 further pairs" in found.message


def test_equal_scores_of_different_weights_name_the_steps_and_a_cache():
    assert same_scores("a", SEEN) is None
    equal = (
        EqualScores("eval/downstream/piqa_0shot/bpb", 10, 30, 25),
        EqualScores("eval/downstream/sciq_0shot/bpb", 10, 30, 25),
    )
    found = same_scores("a", replace(SEEN, equal_scores=equal))
    assert found is not None
    assert (found.kind, found.alarm_step) == ("evaluator", 30)
    assert found.message == (
        "suspect cache: eval/downstream/piqa_0shot/bpb and 1 more is equal to the last bit in all "
        "25 items at steps 10 and 30, whose weights differ; remove the response cache and score "
        "both again"
    )


def test_what_comes_later_is_not_known_yet():
    evidence = replace(
        SEEN,
        weights={10: "aa", 20: "bb", 30: "bb"},
        equal_scores=(EqualScores("eval/lm/x-validation/ce_nats", 10, 30, 3),),
        self_check={30: "broken"},
    )
    early = evidence.until(20)
    assert same_weights("a", early) is None
    assert same_scores("a", early) is None
    assert (early.step, early.self_check, len(early.holdout)) == (20, {}, 2)
    assert evidence.extent(20) != evidence.extent(30)
    assert evidence.extent(20) == early.extent(20)
