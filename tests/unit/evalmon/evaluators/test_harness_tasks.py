"""Tasks as lm-eval builds them: worked examples, partial scoring, items that cannot be scored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from lm_eval.tasks import TaskManager

from evalmon.errors import EvaluationError
from evalmon.evaluators import harness_tasks
from evalmon.evaluators.harness_tasks import FixedTask, load_task
from evalmon.evaluators.suites import expand
from evalmon.package_data import TASK_FILES

POOL = [{"question": f"q{n}", "answer": n % 2} for n in range(30)]
DOCS = [{"question": f"d{n}", "answer": n % 2} for n in range(12)]


def rows(**_: Any) -> dict[str, Any]:
    """Return 12 documents, and 30 others to draw worked examples from."""
    return {"train": datasets.Dataset.from_list(POOL), "test": datasets.Dataset.from_list(DOCS)}


Made = Callable[..., FixedTask]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a maker of a task of lm-eval's form from a file with its own number of shots."""

    def make(file_shots: int = 5, **overrides: Any) -> FixedTask:
        (tmp_path / "drawn.yaml").write_text(
            "task: drawn\ntraining_split: train\nfewshot_split: train\ntest_split: test\n"
            "output_type: multiple_choice\ndoc_to_text: '{{question}}:'\ndoc_to_target: answer\n"
            f"doc_to_choice: ['no', 'yes']\nnum_fewshot: {file_shots}\n"
        )
        manager = TaskManager(include_defaults=False, include_path=str(tmp_path))
        task = {"task": "drawn", "class": FixedTask, "custom_dataset": rows, **overrides}
        with harness_tasks.quiet():
            found = manager.load([{"group": "g", "task": [task]}])["tasks"]["drawn"]
        assert isinstance(found, FixedTask)
        return found

    return make


def prompts(task: FixedTask, **how: Any) -> dict[int, str]:
    task.build_all_requests(**how)
    return {item.doc_id or 0: item.args[0] for item in task.instances}


def test_a_prompt_depends_neither_on_processes_nor_on_a_limit(made: Made):
    whole = prompts(made())
    assert len(whole) == 12
    assert all(prompt.count("\n\n") == 5 for prompt in whole.values())
    for count in (1, 2, 3):
        for limit in (None, 7):
            shared = [prompts(made(), rank=rank, world_size=count, limit=limit)
                      for rank in range(count)]  # fmt: skip
            parts = {number: prompt for part in shared for number, prompt in part.items()}
            assert parts == {n: whole[n] for n in range(limit or 12)}
            assert sum(map(len, shared)) == len(parts)


def test_one_task_gives_each_process_its_share(made: Made):
    task, whole = made(), prompts(made())
    assert prompts(task) == whole
    assert prompts(task, rank=1, world_size=3) == {n: whole[n] for n in (1, 4, 7, 10)}
    assert len(task.questions) == 12


def test_both_ways_of_giving_the_shots_draw_the_same(made: Made):
    assert prompts(made(5)) == prompts(made(0, num_fewshot=5))


def test_the_seed_is_used(made: Made, monkeypatch: pytest.MonkeyPatch):
    found: list[dict[int, str]] = []
    for seed in (1, 2, 1):
        monkeypatch.setattr(harness_tasks, "FEWSHOT_SEED", seed)
        found.append(prompts(made()))
    assert found[0] == found[2]
    assert all(found[0][n] != found[1][n] for n in range(12))


def packaged(root: Path, task: str, records: list[dict[str, Any]]) -> FixedTask:
    """Write rows of a suite's task and load it."""
    path = root / TASK_FILES[task]
    datasets.Dataset.from_list(records).save_to_disk(str(path.parent))
    (choice,) = expand((f"{task}_0shot",), 0, list)
    return load_task(choice, None, root)


def test_winogrande_scores_what_follows_the_blank(tmp_path: Path):
    row = {
        "sentence": "Kim thanked Lee since _ had watered the 2 'ferns'.",
        "option1": "Kim", "option2": "Lee", "answer": "2",
    }  # fmt: skip
    (found,) = packaged(tmp_path, "winogrande", [row]).questions
    ending = " had watered the 2 'ferns'."
    assert found.pairs == (
        ("Kim thanked Lee since Kim", ending),
        ("Kim thanked Lee since Lee", ending),
    )
    assert found.gold == 1


def test_hellaswag_is_cleaned_as_ai2_cleans_it(tmp_path: Path):
    row = {
        "activity_label": "Roof", "ctx_a": "A  man [header] x [title] y.", "ctx_b": "he SITS",
        "endings": ["[step] goes  up.", " b", "c [a] d", "e"], "label": "3",
    }  # fmt: skip
    (found,) = packaged(tmp_path, "hellaswag", [row]).questions
    assert found.pairs[0] == ("Roof: A man x. y. He sits", "  goes up.")
    assert [text for _, text in found.pairs] == ["  goes up.", " b", " c d", " e"]
    assert found.gold == 3


def test_a_right_answer_that_is_no_choice_is_refused(tmp_path: Path):
    good = {"goal": "g", "sol1": "a", "sol2": "b", "label": 1}
    task = packaged(tmp_path, "piqa", [good, {**good, "label": 2}])
    with pytest.raises(EvaluationError, match=r"piqa_0shot, item 1: right answer 2 is none"):
        _ = task.questions


def test_an_empty_choice_is_refused(tmp_path: Path):
    task = packaged(tmp_path, "piqa", [{"goal": "g", "sol1": "a", "sol2": "", "label": 0}])
    with pytest.raises(EvaluationError, match=r"piqa_0shot, item 0: choice 1 is empty \(' '\)"):
        _ = task.questions


def test_rows_cut_in_half_are_never_scored(tmp_path: Path):
    records = [{"goal": "g", "sol1": "a", "sol2": "b", "label": 1}] * 50
    packaged(tmp_path, "piqa", records)
    path = tmp_path / TASK_FILES["piqa"]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (choice,) = expand(("piqa_0shot",), 0, list)
    with pytest.raises(EvaluationError, match="piqa_0shot: its items cannot be built"):
        load_task(choice, None, tmp_path)


def test_what_an_item_asks_is_worked_out_once(tmp_path: Path):
    task = packaged(tmp_path, "piqa", [{"goal": "g", "sol1": "a", "sol2": "b", "label": 1}])
    (doc,) = task.eval_docs
    assert task.doc_to_choice(doc) is task.doc_to_choice(doc)
    assert task.doc_to_choice({**doc, "sol1": "other"}) == [" other", " b"]
