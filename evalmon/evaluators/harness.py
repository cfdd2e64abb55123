"""lm-eval's evaluator and its result files around our model.

Imported only when tasks are really scored. Beside it :mod:`~evalmon.evaluators.harness_tasks`
loads tasks, and :mod:`~evalmon.evaluators.harness_model` is the model as lm-eval sees it.
"""

import contextlib
import logging
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import datasets
from lm_eval import __version__ as lm_eval_version
from lm_eval.evaluator import evaluate
from lm_eval.loggers import EvaluationTracker

from evalmon.errors import EvaluationError

if TYPE_CHECKING:
    from evalmon.evaluators.harness_model import HarnessModel
    from evalmon.evaluators.harness_tasks import FixedTask

__all__ = ["Scored", "quiet", "run", "save"]


@dataclass(frozen=True, slots=True)
class Scored:
    """One task, scored by lm-eval.

    Attributes:
        results: lm-eval's results object, without samples.
        samples: lm-eval's samples of the task, one an item.
    """

    results: dict[str, Any]
    samples: list[dict[str, Any]]


def run(model: "HarnessModel", task: "FixedTask", limit: int | None) -> Scored:
    """Let lm-eval score one task.

    Several processes score a share of the items each, and all of them get the whole result.

    Raises:
        EvaluationError: the model's answers cannot be used, or there are fewer items than
            processes.
    """
    items = len(task.eval_docs) if limit is None else min(limit, len(task.eval_docs))
    if items < model.world_size:
        raise EvaluationError(
            f"task {task.task_name}: {items} items for {model.world_size} processes; each needs "
            "one, so use fewer processes"
        )
    with quiet():
        found = cast(
            "dict[str, Any]",
            model.shared(
                evaluate(
                    lm=model,
                    task_dict={"tasks": {task.task_name: task}},
                    limit=limit,
                    bootstrap_iters=1,  # means have a closed form; nothing is resampled
                    log_samples=True,
                )
            ),
        )
    samples = cast("dict[str, list[dict[str, Any]]]", found.pop("samples"))[task.task_name]
    samples.sort(key=lambda sample: sample["doc_id"])
    found["lm_eval_version"] = lm_eval_version
    if task.rows is not None:
        found["n-samples"][task.task_name]["original"] = task.rows
    return Scored(found, samples)


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
