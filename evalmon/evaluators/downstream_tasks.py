"""Downstream tasks through lm-eval, one evaluator a task, with an error bar on each number.

A task that fails is one stored failure and the other tasks go on. For each task:

=============  ==================================================================
``acc``        share of items whose best choice by summed log-probability is right
``len_norm``   the same with log-probability divided by the characters of the
               choice (lm-eval's ``acc_norm``), where lm-eval defines it
``ce_nats``    nats per token of the right choice, mean over items
``bpb``        bits per UTF-8 byte of the right choice as it is scored (with the
               space before it), mean over items
=============  ==================================================================

lm-eval's own results and samples files are written beside the store.
"""

import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from evalmon import metrics, package_data
from evalmon.config import EvaluationSettings
from evalmon.errors import EvaluationError
from evalmon.evaluators.tokenizer import RunTokenizer
from evalmon.models import LanguageModel
from evalmon.scoring import fingerprint
from evalmon.types import CheckpointRef, Evaluation, MetricIdentity, RunDescription, Score

if TYPE_CHECKING:
    from evalmon.evaluators.harness import FixedTask, HarnessModel, Scored

__all__ = ["DownstreamTask", "build"]

_CODE_VERSION: Final = 1  # raise it when the numbers of an unchanged checkpoint change

_NORMALIZATION: Final = {
    "acc": "none: sum over tokens",
    "len_norm": "characters of the choice",
    "ce_nats": "tokens of the right choice, mean over items",
    "bpb": "UTF-8 bytes of the right choice with its space, mean over items",
}


@dataclass(frozen=True, slots=True)
class _Item:
    """What one item says: right or not, and the probability of the right choice."""

    id: str
    correct: float
    length_normalized: float | None
    nats_per_token: float
    bits_per_byte: float


class DownstreamTask:
    """Scores one task.

    Args:
        task: lm-eval's name.
        settings: shots, item limit, where rows come from and where files go.
        run: gives tokenizer, prefix token and length.
    """

    def __init__(self, task: str, settings: EvaluationSettings, run: RunDescription) -> None:
        self.name = f"downstream_tasks:{task}"
        self._task_name = task
        self._shots = settings.shots
        self._limit = settings.item_limit or None
        self._data = Path(settings.task_data) if settings.task_data else None
        self._artifacts = (
            Path(settings.artifacts) if settings.artifacts else run.path / "evaluations"
        )
        self._tokenizer = RunTokenizer(run)
        self._prefix = run.eos_id
        self._harness_version = installed_version("lm-eval")
        self.version = fingerprint(
            code=_CODE_VERSION,
            task=task,
            shots=self._shots,
            limit=self._limit,
            lm_eval=self._harness_version,
            rows="hub" if self._data is None else _file_hash(self._data, task),
            tokenizer=self._tokenizer.fingerprint,
            prefix=self._prefix,
            sequence_length=run.sequence_length,
        )

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        """Return "": a task can be scored at every checkpoint."""
        del checkpoint, run
        return ""

    def evaluate(
        self, model: LanguageModel, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Score the task with the weights loaded into ``model``.

        Raises:
            EvaluationError: the items cannot be had, the model cannot score them, its
                answers are not finite, or lm-eval's files could not be written.
        """
        from evalmon.evaluators import harness

        started = time.monotonic()
        task, adapter = self._task, self._adapter
        adapter.use(model)
        scored = harness.run(adapter, task, self._limit)
        items = [self._item(task, adapter, sample) for sample in scored.samples]
        scores = self._scores(items, task, model)
        artifacts = self._save(scored, checkpoint, run, weights)
        return Evaluation(
            evaluator=self.name,
            version=self.version,
            checkpoint=checkpoint,
            weights=weights,
            scores=scores,
            seconds=time.monotonic() - started,
            artifacts=artifacts,
        )

    @cached_property
    def _task(self) -> "FixedTask":
        """Load the task and build its requests once for all checkpoints."""
        from evalmon.evaluators import harness

        task = harness.load_task(self._task_name, self._shots, self._limit, self._data)
        if task.OUTPUT_TYPE != "multiple_choice" or task.multiple_target:
            raise EvaluationError(
                f"task {self._task_name} is of lm-eval's type {task.OUTPUT_TYPE}; only multiple "
                "choice with one right answer is scored here, take it out of evaluation.tasks"
            )
        return task

    @cached_property
    def _adapter(self) -> "HarnessModel":
        """Keep one adapter, which remembers how its pairs are encoded."""
        from evalmon.evaluators import harness

        return harness.HarnessModel(self._tokenizer, self._prefix)

    @cached_property
    def _items_hash(self) -> str:
        """Hash every prompt and continuation, so that a changed row is another metric."""
        digest = hashlib.blake2b(digest_size=8)
        for item in self._task.instances:
            digest.update(json.dumps([item.doc_id, *item.args]).encode())
        return digest.hexdigest()

    def _item(self, task: "FixedTask", adapter: "HarnessModel", sample: dict[str, Any]) -> _Item:
        """Reduce one of lm-eval's samples to its numbers."""
        gold = _gold(task, sample)
        context, continuation = sample["arguments"][gold]
        nats = -float(sample["resps"][gold][0][0])
        tokens = len(adapter.pairs.encode(context, continuation)[1])
        normalized = sample.get("acc_norm")
        return _Item(
            id=str(sample["doc_id"]),
            correct=float(sample["acc"]),
            length_normalized=None if normalized is None else float(normalized),
            nats_per_token=nats / tokens,
            bits_per_byte=metrics.bits_per_byte(nats, len(continuation.encode())),
        )

    def _scores(
        self, items: Sequence[_Item], task: "FixedTask", model: LanguageModel
    ) -> tuple[Score, ...]:
        """Average the items, metric by metric."""
        columns = {
            "acc": [item.correct for item in items],
            "ce_nats": [item.nats_per_token for item in items],
            "bpb": [item.bits_per_byte for item in items],
        }
        normalized = [i.length_normalized for i in items if i.length_normalized is not None]
        if len(normalized) == len(items):
            columns["len_norm"] = normalized
        ids = tuple(item.id for item in items)
        return tuple(
            self._score(metric, values, ids, task, model) for metric, values in columns.items()
        )

    def _score(
        self,
        metric: str,
        values: Sequence[float],
        ids: tuple[str, ...],
        task: "FixedTask",
        model: LanguageModel,
    ) -> Score:
        """Average one metric, with its standard error and identity."""
        found = metrics.mean(values)
        if not math.isfinite(found.value):
            raise EvaluationError(f"task {self._task_name}: {metric} is {found.value}")
        split = task.config.test_split or task.config.validation_split
        return Score(
            metric=f"eval/downstream/{self._task_name}_{self._shots}shot/{metric}",
            value=found.value,
            stderr=found.stderr,
            items=found.items,
            identity=MetricIdentity(
                task=self._task_name,
                metric=metric,
                shots=self._shots,
                prompt_set=f"lm-eval {self._harness_version} {self._task_name} v{task.VERSION}",
                split=str(split),
                item_limit=self._limit,
                normalization=_NORMALIZATION[metric],
                tokenizer=self._tokenizer.fingerprint,
                dtype=model.dtype,
                prefix_token=self._prefix,
                data=self._items_hash,
                max_length=model.max_length,
            ),
            item_ids=ids,
            item_values=tuple(values),
        )

    def _save(
        self, scored: "Scored", checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> tuple[Path, ...]:
        """Write lm-eval's files into their place, whole or not at all."""
        from evalmon.evaluators import harness

        scored.results["config"] = {
            "model": "evalmon",
            "model_args": {"adapter": run.adapter, "run": run.name, "step": checkpoint.step},
            "weights": weights,
            "limit": self._limit,
            "fewshot_seed": harness.FEWSHOT_SEED,
            "boundary_merges": self._adapter.pairs.boundary_merges,
        }
        place = self._artifacts / run.name / f"step-{checkpoint.step}" / self._task_name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".writing-", dir=place.parent) as scratch:
                files = harness.save(scored, self._task_name, Path(scratch), {"model": run.name})
                written = files[0].parent
                if place.exists():
                    shutil.rmtree(place)
                written.rename(place)
        except OSError as error:
            raise EvaluationError(
                f"{place}: lm-eval's files cannot be written ({error}); free some space or set "
                "evaluation.artifacts to another folder"
            ) from error
        return tuple(place / path.name for path in files)


def build(settings: EvaluationSettings, run: RunDescription) -> list[DownstreamTask]:
    """Return one evaluator a task."""
    return [DownstreamTask(task, settings, run) for task in settings.tasks]


def _gold(task: "FixedTask", sample: dict[str, Any]) -> int:
    """Return the number of the right choice."""
    doc = sample["doc"]
    gold = cast("Any", task.doc_to_text(doc) if task.multiple_input else sample["target"])
    if isinstance(gold, str) and not gold.isdecimal():
        gold = list(task.doc_to_choice(doc)).index(gold)
    return int(gold)


def _file_hash(data: Path, task: str) -> str:
    """Hash a task's rows; a missing file is reported when the task is scored."""
    path = data / package_data.TASK_FILES[task]
    if not path.is_file():
        return "missing"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
