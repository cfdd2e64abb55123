"""Ten checkpoints of one run, and memory of scoring: two parts of ``tests.benchmarks.scoring``.

``run``: the trainer writes ten checkpoints of its tiny preset, and the monitor scores them
through its own pass: the eight tasks at 0 shots and a holdout. Scoring is the time inside
``Scorer.score``; what else the wall clock shows from the second checkpoint on (waiting for
a restore, putting weights in place, lm-eval's bookkeeping, files, the store, the verdict) is
``restore_and_bookkeeping``, and its share is that over scoring.

``memory``: the tiny preset with a vocabulary of 100,352 scores full windows of 2,048 tokens,
and answers to one question of 1,500, in a process of its own. What counts is anonymous memory
(RssAnon), all of it, at its peak.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tests.benchmarks.convert import Peak

__all__ = ["memory", "ten_checkpoints"]

CHECKPOINTS = 10
LENGTH, VOCABULARY = 512, 8192
ITEMS, DOCUMENTS = 50, 50

MEMORY_LENGTH, MEMORY_VOCABULARY, WINDOWS = 2048, 100_352, 8


@dataclass
class _Times:
    """When weights were loaded, and seconds spent in scoring since each."""

    loads: list[float] = field(default_factory=list[float])
    scoring: list[float] = field(default_factory=list[float])


def ten_checkpoints() -> dict[str, Any]:
    """Train, score every checkpoint by the monitor, and say where its time went."""
    with tempfile.TemporaryDirectory(prefix="scoring-") as place:
        folder = Path(place)
        root = _train(folder)
        return _watch(folder, root)


def memory() -> dict[str, Any]:
    """Score in a process of its own and return its peak."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.scoring_run"],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    return json.loads(child.stdout.splitlines()[-1])


def _train(folder: Path) -> Path:
    """Write a run with ten checkpoints; return the folder of the package's data."""
    from evalmon import package_data

    root = package_data.fetch()
    texts = list(islice(package_data.passages(root), 600))
    package_data.write_jsonl(folder / "train.jsonl", texts[DOCUMENTS:])
    package_data.write_jsonl(folder / "holdout.jsonl", texts[:DOCUMENTS])
    trainer = [sys.executable, "-m", "trainer"]
    data = str(folder / "data")
    for command in (
        [
            *trainer, "tokenize", str(folder / "train.jsonl"), "--out", data,
            "--vocab-size", str(VOCABULARY),
        ],
        [
            *trainer, "train", "--data", data, "--out", str(folder / "run"),
            "--steps", str(CHECKPOINTS - 1), "--checkpoint-every", "1", "--batch", "4",
            "--sequence-length", str(LENGTH),
        ],
    ):  # fmt: skip
        subprocess.run(command, check=True, stdout=sys.stderr)
    return root


def _watch(folder: Path, root: Path) -> dict[str, Any]:
    """Let the monitor score all checkpoints in one pass."""
    from evalmon import models
    from evalmon.config import EvaluationSettings, HoldoutSettings, Settings
    from evalmon.monitor import Monitor
    from evalmon.store import Store
    from evalmon.types import RunDescription
    from tests.scoring_models import Compilations

    run = RunDescription.load(folder / "run")
    evaluation = EvaluationSettings(
        evaluators=("holdout_loss", "downstream_tasks"),
        holdouts=(HoldoutSettings("text", str(folder / "holdout.jsonl"), DOCUMENTS),),
        item_limit=ITEMS,
        task_data=str(root),
        artifacts=str(folder / "evaluations"),
    )
    model = models.find_model(run.model_description)
    compiled, times = Compilations(), _Times()
    with Store.open(folder / "evalmon.sqlite") as store, _timing(model, times):
        settings = Settings(store=str(folder / "evalmon.sqlite"), evaluation=evaluation)
        summary = Monitor(run, store, settings, model=model).one_pass()
        ended = time.perf_counter()
    assert not summary.failed, summary
    assert len(times.loads) == CHECKPOINTS, times.loads  # the untrained one is the first
    # From the end of the first checkpoint's scoring on.
    second = times.loads[1]
    scoring = sum(times.scoring[1:])
    outside = ended - second - scoring
    return {
        "checkpoints": CHECKPOINTS,
        "evaluations": summary.evaluated,
        "compilations_first_checkpoint": sum(t < second for t in compiled.times),
        "compilations_after_first": sum(t >= second for t in compiled.times),
        "scoring_seconds_a_checkpoint": round(scoring / (CHECKPOINTS - 1), 3),
        "restore_and_bookkeeping_seconds_a_checkpoint": round(outside / (CHECKPOINTS - 1), 3),
        "restore_and_bookkeeping_share": round(outside / scoring, 4),
    }


@contextmanager
def _timing(model: Any, times: _Times) -> Generator[None]:
    """Note when weights are loaded, and how long scoring takes."""
    from evalmon.scoring import Scorer

    load, score = model.load, Scorer.score

    def loaded(parameters: Any) -> None:
        times.loads.append(time.perf_counter())
        times.scoring.append(0.0)
        load(parameters)

    def scored(self: Scorer, requests: Any) -> Any:
        begun = time.perf_counter()
        try:
            return score(self, requests)
        finally:
            times.scoring[-1] += time.perf_counter() - begun

    model.load, Scorer.score = loaded, scored
    try:
        yield
    finally:
        model.load, Scorer.score = load, score


def _score_here() -> dict[str, Any]:
    """Score long windows over a large vocabulary and return the peak of memory."""
    import numpy as np

    from evalmon.scoring import Scorer, rolling_windows
    from evalmon.types import ScoreRequest
    from tests.scoring_models import Twin, random_parameters
    from trainer.presets import preset

    config = preset("tiny", MEMORY_VOCABULARY)
    twin = Twin(config, random_parameters(config), Path(), 0, MEMORY_LENGTH)
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, MEMORY_VOCABULARY, WINDOWS * MEMORY_LENGTH).tolist()
    question = tuple(tokens[:1500])
    requests = [
        *rolling_windows(tokens, 0, MEMORY_LENGTH),
        *(ScoreRequest((*question, n), tuple(tokens[n : n + 40])) for n in range(1, 65)),
    ]
    with Peak() as peak:
        scorer = Scorer(twin.ours(Path()))
        answers, seconds = _timed(lambda: scorer.score(requests))
    assert all(np.isfinite(item.logprobs).all() for item in answers)
    return {
        "memory_peak_anonymous_gib": round(peak.highest / 2**30, 3),
        "memory_beyond_imports_and_weights_gib": round(peak.grown / 2**30, 3),
        "memory_tokens_scored": sum(len(item.continuation) for item in requests),
        "memory_seconds": round(seconds, 2),
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what some work returns, and its seconds."""
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


if __name__ == "__main__":
    print(json.dumps(_score_here()))
