"""An evaluator killed at ten moments ends with what an unkilled one has: the same, once each.

Real processes: ``python -m trainer`` writes a small run whose loader is doubly sharded;
``evalmon watch`` scores, judges and tells. One store belongs to an evaluator that nobody
disturbs, the other to evaluators that are ended by signal 9, each followed by the next.
"""

import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from evalmon.store import Store
from evalmon.types import Evaluation

pytestmark = pytest.mark.slow

RUN = "faulty"
COMPUTED = {"requests", "tokens_computed", "tokens_distinct", "tokens_padded"}
"""Facts of a header that tell what one process computed: less where another had begun."""

SEED = 20_240_229
WORDS = [f"{first}{rest}" for first in "bcdfghlmnprst" for rest in ("ado", "ire", "ulo", "esta")]

# Ends the evaluator at the n-th time a statement has run, before its transaction commits.
KILLED_IN_A_WRITE = """
import os, signal, sys
from sqlalchemy import event
from sqlalchemy.engine import Engine
from evalmon.cli import main

start, count = sys.argv.pop(1), int(sys.argv.pop(1))

@event.listens_for(Engine, "after_cursor_execute")
def kill(connection, cursor, statement, parameters, context, executemany):
    global count
    count -= statement.startswith(start)
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)

main()
"""

# A receiver that keeps what it is told, and ends the evaluator on its first call if asked to.
RECEIVER = """
import os, signal, sys
from pathlib import Path

with open(os.environ["RECEIVED"], "a") as file:
    file.write(os.environ["EVALMON_ALERT_ID"] + " " + sys.stdin.read() + chr(10))
order = Path(os.environ["KILL_ORDER"])
if order.exists():
    order.unlink()
    os.kill(os.getppid(), signal.SIGKILL)
"""


def text(folder: Path, name: str, documents: int, words: int, seed: int) -> Path:
    """Write documents of made-up words."""
    draw = random.Random(seed)
    path = folder / name
    with path.open("w") as file:
        for _ in range(documents):
            line = {"source": "words", "text": " ".join(draw.choices(WORDS, k=words))}
            file.write(json.dumps(line) + "\n")
    return path


def run(*arguments: str, folder: Path) -> None:
    """Run a module of the project to its end."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def environment(folder: Path) -> dict[str, str]:
    """Return the processes' environment; compiled code is kept from one to the next."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run: nine checkpoints, repeats from step 11 on."""
    folder = tmp_path_factory.mktemp("killed")
    train = text(folder, "train.jsonl", 120, 400, 1)
    fresh = text(folder, "fresh.jsonl", 30, 400, 2)
    text(folder, "holdout.jsonl", 8, 60, 3)
    tokenize = ["trainer", "tokenize"]
    run(*tokenize, str(train), "--out", "data", "--vocab-size", "300", folder=folder)
    shared = ["--tokenizer", "data/tokenizer.json"]
    run(*tokenize, str(fresh), "--out", "fresh", *shared, folder=folder)
    run(
        "trainer", "train", "--preset", "tiny", "--data", "data", "--fresh-data", "fresh",
        "--out", RUN, "--name", RUN, "--steps", "40", "--batch", "8", "--sequence-length", "32",
        "--hosts", "4", "--instances", "320", "--checkpoint-every", "5",
        "--loader", "double_shard", folder=folder,
    )  # fmt: skip
    return folder


class Watch:
    """``evalmon watch`` on one store.

    Args:
        folder: holds the run.
        name: of the store.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.store = folder, folder / f"{name}.sqlite"
        self.received, self.order = folder / f"{name}.received", folder / f"{name}.kill"
        self.config = folder / f"{name}.toml"
        receiver = folder / "receiver.py"
        receiver.write_text(RECEIVER)
        target = shlex.join([sys.executable, str(receiver)])
        self.config.write_text(
            f"""
            store = {json.dumps(str(self.store))}
            poll_seconds = 0.1
            [evaluation]
            evaluators = ["holdout_loss", "memorization_probe"]
            probe_pairs = 16
            [[evaluation.holdouts]]
            name = "words"
            path = {json.dumps(str(folder / "holdout.jsonl"))}
            [comparison]
            profile = "short"
            [[alerts.sinks]]
            kind = "command"
            target = {json.dumps(target)}
            """
        )

    def start(self, *killed_at: str) -> "subprocess.Popen[bytes]":
        """Start the evaluator, perhaps one that ends itself at a statement."""
        start = ["-c", KILLED_IN_A_WRITE, *killed_at] if killed_at else ["-m", "evalmon"]
        return subprocess.Popen(
            [sys.executable, *start, "watch", RUN, "--config", str(self.config)],
            cwd=self.folder,
            env={
                **environment(self.folder),
                "RECEIVED": str(self.received),
                "KILL_ORDER": str(self.order),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def finish(self) -> None:
        """Let an evaluator come to its end; memorization is exit status 1."""
        process = self.start()
        _, errors = process.communicate()
        assert process.returncode == 1, errors.decode()[-2000:]

    def die(self, *killed_at: str) -> None:
        """Let an evaluator end itself, or be ended by the receiver."""
        process = self.start(*killed_at)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, (killed_at, errors.decode()[-2000:])

    def die_after(self, seconds: float) -> None:
        """End an evaluator a while after its first result of its own."""
        known = self.evaluations()
        process = self.start()
        while self.evaluations() == known and process.poll() is None:
            time.sleep(0.01)  # another process is at work: there is no clock to pass in
        time.sleep(seconds)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL

    def evaluations(self) -> int:
        """Count the evaluations stored."""
        return len(self.rows("SELECT id FROM evaluations"))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the file itself, past the code under test."""
        connection = sqlite3.connect(self.store, timeout=60)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def results(self) -> dict[str, Any]:
        """Return everything stored but wall times and counts of work."""
        with Store.open(self.store, read_only=True) as store:
            steps = [ref.step for ref in store.checkpoints(RUN)]
            return {
                "checkpoints": store.checkpoints(RUN),
                "evaluations": [steady_facts(e) for e in store.evaluations(RUN)],
                "scores": {step: store.scores(RUN, step) for step in steps},
                "probes": store.probes(RUN),
                "failures": [replace(failure, at=0.0) for failure in store.failures(RUN)],
                "verdicts": [asdict(verdict) for verdict in store.verdicts(RUN)],
                "alerts": [asdict(alert) for alert in store.alerts()],
                "deliveries": [(d.alert_id, d.sink, d.status) for d in store.deliveries()],
            }


def steady_facts(found: Evaluation) -> Evaluation:
    """Leave out what a kill may change: the time taken, and what was computed in it."""
    header = {key: value for key, value in found.header.items() if key not in COMPUTED}
    return replace(found, seconds=0.0, header=header)


def test_ten_kills_leave_the_results_of_an_unkilled_evaluator(trained: Path) -> None:
    draw = random.Random(SEED)
    steady, killed = Watch(trained, "steady"), Watch(trained, "killed")
    steady.finish()

    killed.die("INSERT INTO checkpoints", "1")
    killed.die("INSERT INTO scores", str(draw.randint(1, 4)))
    killed.die_after(draw.uniform(0.0, 0.3))
    killed.die("INSERT INTO alerts", "1")
    killed.order.touch()
    killed.die()  # by the receiver: between the alert and the mark that it was delivered
    killed.die("UPDATE deliveries", "1")
    for start in draw.sample(["INSERT INTO evaluations", "INSERT INTO verdicts", "DELETE"], 3):
        killed.die(start, str(draw.randint(1, 2)))
    killed.die_after(draw.uniform(0.0, 0.3))
    killed.finish()

    assert killed.results() == steady.results()
    results = killed.results()
    assert [ref.step for ref in results["checkpoints"]] == list(range(0, 41, 5))
    assert len(results["evaluations"]) == 9 + 8  # nothing has been read at step 0
    assert results["failures"] == []
    (alert,) = results["alerts"]
    assert alert["cause"] == "memorization"
    assert results["deliveries"] == [(alert["id"], results["deliveries"][0][1], "delivered")]

    for watch in (steady, killed):
        for table in ("evaluations", "scores", "verdicts", "alerts", "deliveries"):
            assert watch.rows(f"SELECT count(*) FROM {table}") == steady.rows(
                f"SELECT count(*) FROM {table}"
            )
        assert watch.rows("SELECT * FROM leases") == []
        assert watch.rows("PRAGMA integrity_check") == [("ok",)]
    told = [line.split()[0] for line in killed.received.read_text().splitlines()]
    assert told == [alert["id"]] * 3  # at least once, and always under the same id
    assert len(steady.received.read_text().splitlines()) == 1
