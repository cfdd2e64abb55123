"""Laws of the store that hold for all values: what is stored comes back, in any order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalmon.errors import EvaluationError
from evalmon.store import Store
from evalmon.store.codec import verdict_from, verdict_text
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    Finding,
    MetricIdentity,
    ProbeResult,
    RunDescription,
    Score,
    Verdict,
    VerdictName,
)

RUN = RunDescription(
    name="tiny", path=Path("/runs/tiny"), adapter="a", model={}, tokenizer="t", vocab_size=64,
    eos_id=0, sequence_length=8, batch_instances=4, planned_steps=100, planned_passes=1,
    source_instances=400, hosts=1, loader="batch_strided", seed=0, warmup_steps=5, recipe="r",
    loss={}, data="data",
)  # fmt: skip

numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
counts = st.integers(0, 2**53)
identities = st.builds(
    MetricIdentity,
    task=texts, metric=texts, shots=st.none() | st.integers(0, 9), prompt_set=texts, split=texts,
    item_limit=st.none() | counts, normalization=texts, tokenizer=texts, dtype=texts,
    prefix_token=st.none() | counts, data=texts, max_length=counts,
)  # fmt: skip
probes = st.builds(ProbeResult, numbers, numbers, numbers, st.integers(1, 999), texts)


@st.composite
def scores(draw: st.DrawFn) -> Score:
    """A score with items, perhaps none, perhaps without weights."""
    ids = draw(st.lists(texts, max_size=5))
    values = draw(st.lists(numbers, min_size=len(ids), max_size=len(ids)))
    weights = draw(st.sampled_from([(), tuple(values)]))
    return Score(
        metric=draw(texts),
        value=draw(numbers),
        stderr=draw(st.none() | numbers),
        items=draw(counts),
        identity=draw(identities),
        item_ids=tuple(ids),
        item_values=tuple(values),
        item_weights=weights,
    )


json_values = st.recursive(
    st.none() | st.booleans() | counts | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
headers = st.dictionaries(texts, json_values, max_size=3)


def evaluation(
    step: int,
    found: Sequence[Score],
    probe: ProbeResult | None = None,
    header: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Make an evaluation of a step."""
    ref = CheckpointRef("tiny", step, step * 32, Path("/runs/tiny") / str(step))
    artifacts = (Path("a b.json"),)
    return Evaluation("e", "v", ref, "w", tuple(found), 0.5, probe, artifacts, header or {})


quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(
    st.lists(scores(), unique_by=lambda score: score.metric, max_size=4),
    st.none() | probes,
    headers,
)
def test_an_evaluation_comes_back_to_the_last_bit(
    found: list[Score], probe: ProbeResult | None, header: dict[str, Any]
) -> None:
    with Store.open("sqlite://") as store:
        store.register(RUN)
        stored = evaluation(10, found, probe, header)
        assert store.append_evaluation(stored)
        (back,) = store.evaluations("tiny")
        scored = tuple(sorted(found, key=lambda score: score.metric))
        assert store.scores("tiny", 10) == scored
        assert replace(back, scores=()) == replace(stored, scores=())


@quick
@given(st.permutations(range(8)))
def test_a_series_does_not_depend_on_the_order_of_storing(order: list[int]) -> None:
    identity = MetricIdentity("t", "m", None, "", "", None, "", "", "", None, "", 8)
    with Store.open("sqlite://") as store:
        store.register(RUN)
        for step in order:
            score = Score("m", step / 7, None, 1, identity)
            store.append_evaluation(evaluation(step, [score]))
        series = store.series("tiny", "m")
        assert series is not None
        assert series.steps.tolist() == list(range(8))
        assert series.values.tolist() == [step / 7 for step in range(8)]


@quick
@given(scores(), st.sampled_from([float("nan"), float("inf"), -float("inf")]), st.integers(0, 3))
def test_a_number_that_is_not_finite_leaves_no_trace(score: Score, bad: float, where: int) -> None:
    broken = [
        evaluation(10, [replace(score, value=bad)]),
        evaluation(10, [replace(score, stderr=bad)]),
        evaluation(10, [replace(score, item_ids=("x",), item_values=(bad,), item_weights=())]),
        evaluation(10, [score], header={"padding_share": [bad]}),
    ][where]
    with Store.open("sqlite://") as store:
        store.register(RUN)
        with pytest.raises(EvaluationError):
            store.append_evaluation(broken)
        assert store.evaluations("tiny") == ()
        assert store.checkpoints("tiny") == ()


maybe = st.none() | numbers
evidence = st.dictionaries(texts, st.none() | st.booleans() | counts | numbers | texts, max_size=3)
findings = st.builds(
    Finding, texts, texts, texts, counts, counts, st.none() | counts, texts, maybe, texts, evidence
)
verdicts = st.builds(
    Verdict,
    run=texts, verdict=st.sampled_from(VerdictName), step=counts, tokens=counts,
    reference=st.none() | texts, profile=texts, onset_tokens=st.none() | counts,
    alarm_tokens=st.none() | counts, channel=texts, train_gap_nats=maybe, holdout_gap_nats=maybe,
    unmatched_nats=maybe, unmatched_low_nats=maybe, unmatched_high_nats=maybe,
    matched_fraction=maybe, tolerance_nats=maybe, first_repeat_tokens=st.none() | counts,
    repeated_fraction=maybe, probe=st.none() | probes,
    reasons=st.lists(texts, max_size=3).map(tuple),
    findings=st.lists(findings, max_size=3).map(tuple),
)  # fmt: skip


@quick
@given(verdicts)
def test_a_verdict_comes_back_from_strict_json(verdict: Verdict) -> None:
    assert verdict_from(verdict_text(verdict)) == verdict
