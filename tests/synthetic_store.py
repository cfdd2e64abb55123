"""A store as an evaluator leaves it, without training or evaluating anything.

``clean`` reads its corpus once; ``double-sharded`` is judged against it and memorizes.
Losses follow a smooth curve, so that every number is known.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from evalmon.alerts import AlertPolicy, update
from evalmon.package_data import TASK_FILES as TASKS
from evalmon.store import Store
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

HOLDOUT = "eval/lm/synthetic-validation/ce_nats"
STEPS = tuple(range(0, 201, 10))
TOKENS_PER_STEP = 2048
TOLERANCE_NATS = 0.3
FIRST_REPEAT_STEP, ONSET_STEP, ALARM_STEP = 26, 60, 90
NOW = 1_800_000_000.0


def describe(folder: Path, name: str) -> RunDescription:
    """Return a synthetic run whose directory is in ``folder``."""
    return RunDescription(
        name=name,
        path=folder / name,
        adapter="none",
        model={},
        tokenizer="tokenizer.json",
        vocab_size=4096,
        eos_id=0,
        sequence_length=128,
        batch_instances=16,
        planned_steps=STEPS[-1],
        planned_passes=1,
        source_instances=3200,
        hosts=8,
        loader="double_shard" if name == "double-sharded" else "batch_strided",
        seed=0,
        warmup_steps=10,
        recipe="0123456789abcdef",
        loss={"divisor": "tokens", "z_loss": False},
        data="data",
    )


def holdout_nats(step: int) -> float:
    """Return the holdout loss of both runs."""
    return 5.45 + 2.9 * math.exp(-step / 45)


def memorized_nats(name: str, step: int) -> float:
    """Return how far train loss has fallen without the holdout."""
    return max(0.0, step - ONSET_STEP) / 140 if name == "double-sharded" else 0.0


def train_nats(name: str, step: int) -> float:
    """Return the train loss of one step."""
    return holdout_nats(step) - 0.05 - memorized_nats(name, step)


def write_log(run: RunDescription, steps: int = STEPS[-1], lost: Sequence[int] = ()) -> None:
    """Write the run's log, with a null loss at the steps in ``lost``."""
    run.path.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, object]] = [{"event": "start", "resumed_from_step": None}]
    for step in range(1, steps + 1):
        record: dict[str, object] = {
            "event": "step",
            "step": step,
            "tokens": step * TOKENS_PER_STEP,
            "train/ce_nats": train_nats(run.name, step),
        }
        if step in lost:
            record |= {"train/ce_nats": None, "nonfinite": ["train/ce_nats"]}
        lines.append(record)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.path / "log.jsonl").write_text(text, encoding="utf-8")


def identity(task: str, metric: str) -> MetricIdentity:
    """Return what a synthetic metric means."""
    return MetricIdentity(
        task=task,
        metric=metric,
        shots=None if metric == "ce_nats" else 0,
        prompt_set="" if metric == "ce_nats" else "synthetic",
        split="validation",
        item_limit=25,
        normalization="tokens" if metric == "ce_nats" else "items",
        tokenizer="synthetic",
        dtype="float32",
        prefix_token=0,
        data="synthetic",
        max_length=128,
    )


def evaluations(run: RunDescription, step: int) -> tuple[Evaluation, ...]:
    """Return what the three evaluators find at a step."""
    ref = CheckpointRef(
        run.name, step, step * TOKENS_PER_STEP, run.path / "checkpoints" / str(step)
    )
    loss = Score(HOLDOUT, holdout_nats(step), 0.02, 100, identity("synthetic", "ce_nats"))
    right = [6 + (number * 3 + step // 40) % 9 for number in range(len(TASKS))]
    tasks = tuple(
        Score(
            f"eval/downstream/{task}_0shot/acc",
            hits / 25,
            math.sqrt(hits / 25 * (1 - hits / 25) / 24),
            25,
            identity(task, "acc"),
        )
        for task, hits in zip(TASKS, right, strict=True)
    )
    mean = 0.9 * memorized_nats(run.name, step)
    probe = Score("probe/memorization/mean_nats", mean, 0.01, 128, identity("probe", "nats"))
    result = ProbeResult(mean, mean - 0.02, mean + 0.02, 128, "ids")
    base = Evaluation("holdout_loss", "1", ref, f"weights-{step}", (loss,), 1.0)
    return (
        base,
        replace(base, evaluator="downstream_tasks", scores=tasks),
        replace(base, evaluator="memorization_probe", scores=(probe,), probe=result),
    )


def judge(run: RunDescription, step: int) -> Verdict:
    """Return the verdict at a step."""
    faulty = run.name == "double-sharded"
    name = VerdictName.HEALTHY if step >= 30 else VerdictName.NOT_ENOUGH_DATA
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ("The unmatched drop stays within the tolerance.",)
    alarmed = faulty and step >= ALARM_STEP
    drop = memorized_nats(run.name, step)
    if alarmed:
        name = VerdictName.MEMORIZATION_CONFIRMED
        findings = _findings(run, drop)
        reasons = (
            f"Train loss fell {drop:.2f} nats further than holdout loss.",
            "87.5 % of the instances drawn had been drawn before; one pass was planned.",
        )
    tokens = step * TOKENS_PER_STEP
    return Verdict(
        run=run.name,
        verdict=name,
        step=step,
        tokens=tokens,
        reference="clean" if faulty else None,
        profile="short",
        onset_tokens=ONSET_STEP * TOKENS_PER_STEP if alarmed else None,
        alarm_tokens=ALARM_STEP * TOKENS_PER_STEP if alarmed else None,
        channel="level" if alarmed else "",
        train_gap_nats=-drop,
        holdout_gap_nats=0.0,
        unmatched_nats=drop,
        unmatched_low_nats=drop - 0.06,
        unmatched_high_nats=drop + 0.06,
        matched_fraction=0.0 if drop else None,
        tolerance_nats=TOLERANCE_NATS,
        first_repeat_tokens=(
            FIRST_REPEAT_STEP * TOKENS_PER_STEP if faulty and step >= FIRST_REPEAT_STEP else None
        ),
        repeated_fraction=max(0, step - 25) / step if faulty and step else 0.0,
        probe=evaluations(run, step)[2].probe,
        reasons=reasons,
        findings=findings,
    )


def _findings(run: RunDescription, drop: float) -> tuple[Finding, ...]:
    """Return what the detectors see after the alarm."""
    place = partial(
        Finding,
        kind="memorization",
        run=run.name,
        alarm_step=ALARM_STEP,
        alarm_tokens=ALARM_STEP * TOKENS_PER_STEP,
    )
    return (
        place(
            detector="unmatched_drop",
            onset_tokens=ONSET_STEP * TOKENS_PER_STEP,
            channel="level",
            magnitude_nats=drop,
            message=f"Train loss fell {drop:.2f} nats further than holdout loss.",
            evidence={"unmatched_nats": drop, "tolerance_nats": TOLERANCE_NATS},
        ),
        place(
            detector="repeated_instances",
            onset_tokens=FIRST_REPEAT_STEP * TOKENS_PER_STEP,
            channel="",
            magnitude_nats=None,
            message="Each host reads the same eighth of its own eighth: data were sharded twice.",
            evidence={
                "first_repeat_tokens": FIRST_REPEAT_STEP * TOKENS_PER_STEP,
                "draws": 3200,
                "unique": 400,
                "repeated_fraction": 0.875,
                "period_draws": 50,
            },
        ),
    )


def add(store: Store, run: RunDescription, step: int) -> None:
    """Store one checkpoint's evaluations and verdict, as the monitor does."""
    for evaluation in evaluations(run, step):
        store.append_evaluation(evaluation)
    store.append_verdict(
        judge(run, step),
        "judge",
        lambda episodes: update(episodes, judge(run, step), AlertPolicy()),
        ("console",),
    )


def build(folder: Path, *, steps: Sequence[int] = STEPS) -> Path:
    """Write both runs and their store, evaluated at ``steps``.

    Returns:
        Path of the store.
    """
    path = folder / "evalmon.sqlite"
    with Store.open(path, clock=lambda: NOW) as store:
        for name in ("clean", "double-sharded"):
            run = describe(folder, name)
            write_log(run)
            reference = {"reference": "clean"} if name != "clean" else {}
            store.register(run, {"profile": "short", "holdout": "synthetic", **reference})
            for step in steps:
                add(store, run, step)
        for alert in store.alerts():
            store.append_attempt([alert.id], "console", "delivered")
    return path
