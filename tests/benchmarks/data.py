"""Speed and size of the data stream.

    python -m tests.benchmarks.data [--json] [--folder FOLDER]

- ``loader``: the trainer's pipeline at 8,192 tokens an instance, read in its global order
  through Grain, against a bare loop that copies the same instances from one NumPy memory map
  into a batch; both in turns, medians of tokens a second. Aims: 0.25 of the bare loop, and 50
  million tokens a second.
- ``index``: opening a folder of 951 files and 724 million instances (sparse files: 23.7 TB of
  zeros on a few megabytes of disk). Aim: 1 s. ``order``: its shuffle, built once for all
  processes, and then opened by others.
- ``audit``: ``evalmon audit run`` on a log of 10 million draws, imports included. Aims: 10 s,
  500 MB.

About 5 GB of disk are used and freed. The last line is one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, RunDescription
from trainer.data.batch_strided import build
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder
from trainer.data.order import GlobalOrder
from trainer.data.pipeline import ReadPlan
from trainer.data.source import InstanceSource

LENGTH = 8192
INSTANCES = 1 << 15
BATCH = 64
ROUNDS = 5
PUBLISHED = 724_000_000
FILES = 951
DRAWS = 10_000_000


def loader_speed(folder: Path) -> dict[str, Any]:
    """Read a gigabyte of tokens in random order, in turns by Grain and by a bare loop."""
    path = folder / "tokens"
    path.mkdir()
    rng = np.random.default_rng(0)
    rng.integers(0, 100_278, INSTANCES * LENGTH, dtype=np.uint32).tofile(path / "a.npy")
    file = TokenFile.of(path / "a.npy", "a.npy", "a")
    index = InstanceIndex.build(TokenFolder(path, (file,), 100_278, 0), LENGTH)
    source = InstanceSource(index)
    plan = ReadPlan(source, 0, BATCH, 1, position=0, batches=INSTANCES // BATCH)
    bare_map = np.memmap(path / "a.npy", dtype="<u4", mode="r")
    order = plan.global_order.epoch(1)

    def bare() -> None:
        for start in range(0, INSTANCES, BATCH):
            batch = np.empty((BATCH, LENGTH), np.uint32)
            for row, instance in enumerate(order[start : start + BATCH]):
                at = int(instance) * LENGTH
                batch[row] = bare_map[at : at + LENGTH]

    def through(workers: int) -> Callable[[], None]:
        def read() -> None:
            chosen = ReadPlan(source, 0, BATCH, 1, 0, INSTANCES // BATCH, workers=workers)
            for batch in build(chosen, 0):
                batch.clear()

        return read

    ways = {"bare": bare, "grain": through(0), "grain, 2 workers": through(2)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, read in ways.items():
            began = time.perf_counter()
            read()
            seconds[name].append(time.perf_counter() - began)
    speeds = {n: INSTANCES * LENGTH / statistics.median(s) for n, s in seconds.items()}
    return {
        "million_tokens_per_second": {n: round(s / 1e6, 1) for n, s in speeds.items()},
        "ratio_bare": round(speeds["grain"] / speeds["bare"], 3),
        "ratio_bare_workers": round(speeds["grain, 2 workers"] / speeds["bare"], 3),
        "aim_ratio": 0.25,
        "aim_million_tokens_per_second": 50,
    }


def make_published_index(folder: Path) -> Path:
    """Make a folder as large as a published mix, of sparse files."""
    path = folder / "published"
    path.mkdir()
    shares = np.full(FILES, PUBLISHED // FILES) + (np.arange(FILES) < PUBLISHED % FILES)
    files: list[TokenFile] = []
    for number, share in enumerate(shares.tolist()):
        name = f"part-{number:05d}.npy"
        with (path / name).open("wb") as stream:
            stream.truncate(share * LENGTH * 4)
        files.append(TokenFile.of(path / name, name, "web", whole=False))
    TokenFolder(path, tuple(files), 100_278, 100_257, tokenizer="").save()
    return path


def open_index(path: Path) -> dict[str, float]:
    """Open an index in this process."""
    began = time.perf_counter()
    source = InstanceSource(InstanceIndex.build(TokenFolder.open(path), LENGTH))
    assert len(source) == PUBLISHED
    opened = time.perf_counter()
    tokens, _ = source.read(np.array([0, PUBLISHED // 2, PUBLISHED - 1]))
    assert tokens.shape == (3, LENGTH)
    return {"open_seconds": opened - began, "read_seconds": time.perf_counter() - opened}


def open_order(path: Path) -> dict[str, float]:
    """Open the first epoch's shuffle in this process, which builds it if it is not there."""
    began = time.perf_counter()
    order = GlobalOrder(34521, PUBLISHED, directory=path, fingerprint="published")
    first = order.at(0, 8)
    assert first.size == 8
    return {"seconds": time.perf_counter() - began}


def make_log(run: Path) -> dict[str, float]:
    """Write a run directory whose log holds 10 million draws of one pass."""
    run.mkdir()
    batch, hosts = 500, 4
    records = np.empty(DRAWS, ID_LOG_RECORD)
    records["step"] = np.arange(DRAWS) // batch + 1
    records["host"] = np.arange(DRAWS) % batch // (batch // hosts)
    records["instance"] = np.random.default_rng(0).permutation(DRAWS)
    records["text_hash"] = records["instance"] * np.uint64(0x9E3779B97F4A7C15)
    (run / "ids.bin").write_bytes(ID_LOG_MAGIC + records.tobytes())
    RunDescription(
        name="ten-million",
        path=run,
        adapter="none",
        model={},
        tokenizer="",
        vocab_size=100_352,
        eos_id=0,
        sequence_length=LENGTH,
        batch_instances=batch,
        planned_steps=DRAWS // batch,
        planned_passes=1,
        source_instances=DRAWS,
        hosts=hosts,
        loader="batch_strided",
        seed=0,
        warmup_steps=0,
        recipe="",
        loss={},
        data="none",
    ).save()
    return {"bytes": float(records.nbytes)}


def audit_log(run: Path) -> dict[str, Any]:
    """Audit a log in a process of its own, whose peak memory the system tells."""
    in_child("log", run)
    command = [sys.executable, "-m", "evalmon", "audit", "run", str(run), "--json"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        printed = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    assert child.returncode == 0
    assert json.loads(printed.splitlines()[-1])["draws"] == DRAWS
    return {
        "draws": DRAWS,
        "seconds": round(seconds, 2),
        "peak_mb": round(usage.ru_maxrss * 1024 / 1e6),
        "aim_seconds": 10,
        "aim_mb": 500,
    }


def in_child(kind: str, path: Path) -> dict[str, float]:
    """Measure something in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.data", "--child", kind, str(path)]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return {k: round(v, 3) for k, v in json.loads(child.stdout.splitlines()[-1]).items()}


def measure(folder: Path) -> dict[str, Any]:
    """Take every measure; the audit first, while this process is small: a child starts as large."""
    audit = audit_log(folder / "run")
    index = in_child("index", make_published_index(folder))
    order = folder / "order"
    built, opened = in_child("order", order), in_child("order", order)
    return {
        "benchmark": "data",
        "loader": loader_speed(folder),
        "index": {"instances": PUBLISHED, "files": FILES, **index, "aim_open_seconds": 1},
        "order": {
            "build_seconds": built["seconds"],
            "open_seconds": opened["seconds"],
            "files": len(list(order.glob("*.u4"))),
        },
        "audit": audit,
    }


def main() -> None:
    """Measure and print one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument("--folder", type=Path, help="where to work; by default the system's")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, path = options.child
        print(
            json.dumps(
                {"index": open_index, "log": make_log, "order": open_order}[kind](Path(path))
            )
        )
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(Path(folder))
    if not options.json:
        for part in ("loader", "index", "order", "audit"):
            print(f"{part}: {json.dumps(result[part])}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
