"""How long `evalmon compare` takes on a whole run: ``python -m tests.benchmarks.compare [--json]``.

Two tables of the size of Olmo 3 7B stage 1 (1,414,078 steps of 4,194,304 tokens, 1,414
evaluations), drawn from a seed, one judged against the other. Measured: wall time of the
command with process start from CSV and from Parquet (median of ``--starts``, after one that is
not counted: Python keeps what it compiled, as it does of an installed package), the peak memory
of its process, ``pandas.read_csv`` of the same two files beside it, and the update by one new
evaluation.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from evalmon.detectors.curve import CurveInputs
from evalmon.detectors.follower import Follower
from evalmon.detectors.profiles import profile_named
from evalmon.types import Series

STEPS, TOKENS_PER_STEP, EVERY = 1_414_078, 4_194_304, 1_000
PLANNED = STEPS * TOKENS_PER_STEP
TRAIN, HOLDOUT = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"
UPDATES = 20
PANDAS = (
    "import sys, time, pandas\nstarted = time.perf_counter()\n"
    "for name in sys.argv[1:]:\n    pandas.read_csv(name)\nprint(time.perf_counter() - started)"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what was measured, one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument("--starts", type=int, default=5, help="starts of each command")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        record = measure(Path(folder), options.starts)
    if not options.json:
        for name, value in record.items():
            print(f"{name:<32} {value}")
    print(json.dumps(record))


def measure(folder: Path, starts: int) -> dict[str, Any]:
    """Write the tables and time everything on them."""
    record: dict[str, Any] = {"steps": STEPS, "evaluations": STEPS // EVERY}
    runs = {"run": curves(0), "reference": curves(1)}
    for form, write in (("csv", write_csv), ("parquet", write_parquet)):
        paths = {name: folder / f"{name}.{form}" for name in runs}
        for name, path in paths.items():
            write(table(name, *runs[name]), path)
        command = [sys.executable, "-m", "evalmon", "compare", str(paths["run"]), "--json"]
        command += ["--reference", str(paths["reference"])]
        kept = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        start(command, kept)
        seconds, peaks, verdicts = zip(*(start(command, kept) for _ in range(starts)), strict=True)
        record[f"{form}_bytes"] = sum(path.stat().st_size for path in paths.values())
        record[f"{form}_seconds"] = round(statistics.median(seconds), 3)
        record[f"{form}_slowest_seconds"] = round(max(seconds), 3)
        record[f"{form}_peak_mib"] = round(max(peaks))
        record["verdict"] = verdicts[-1]
    names = [str(folder / f"{name}.csv") for name in runs]
    read = [float(printed([sys.executable, "-c", PANDAS, *names])) for _ in range(min(starts, 3))]
    record["pandas_read_csv_seconds"] = round(statistics.median(read), 3)
    record["update_ms"] = round(update_ms(*runs.values()), 2)
    return record


def curves(seed: int) -> tuple[Series, Series]:
    """Draw train and holdout loss of a sound run, in nats."""
    rng = np.random.default_rng(seed)
    steps = np.arange(1, STEPS + 1)
    at = np.arange(EVERY, STEPS + 1, EVERY)

    def loss(offset: float, step: "np.ndarray[Any, Any]", noise: float) -> Any:
        falling = 9.0 * (step + 150.0) ** -0.33
        return np.round(offset + falling + rng.normal(0, noise, len(step)), 6)

    return (
        Series(TRAIN, steps, steps * TOKENS_PER_STEP, loss(1.78, steps, 0.02)),
        Series(HOLDOUT, at, at * TOKENS_PER_STEP, loss(2.38, at, 0.002)),
    )


def table(name: str, *parts: Series) -> pa.Table:
    """Return a run as a tidy table."""
    count = sum(len(part) for part in parts)
    return pa.table(
        {
            "run": pa.array([name], pa.string()).take(pa.array(np.zeros(count, np.int32))),
            "metric": pa.concat_arrays(
                [
                    pa.array([part.metric], pa.string()).take(pa.array(np.zeros(len(part), "i4")))
                    for part in parts
                ]
            ),
            "step": np.concatenate([part.steps for part in parts]),
            "tokens": np.concatenate([part.tokens for part in parts]),
            "value": np.concatenate([part.values for part in parts]),
        }
    )


def write_csv(rows: pa.Table, path: Path) -> None:
    """Write a table as other programs do: no quotes around plain text."""
    options = pyarrow.csv.WriteOptions(quoting_style="none", quoting_header="none")
    pyarrow.csv.write_csv(rows, path, options)


def write_parquet(rows: pa.Table, path: Path) -> None:
    """Write a table as Parquet with the library's own settings."""
    pyarrow.parquet.write_table(rows, path)


def start(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float, str]:
    """Return wall seconds, peak memory in MiB, and the verdict of one start."""
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=environment)
        assert child.stderr is not None
        said = child.stderr.read().decode()
        child.stderr.close()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        lines = out.read().decode().splitlines()
    if not lines:
        raise SystemExit(f"exit {child.returncode}: {said}")
    return seconds, usage.ru_maxrss / 1024, json.loads(lines[-1])["verdict"]


def printed(command: Sequence[str]) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def update_ms(run: tuple[Series, Series], reference: tuple[Series, Series]) -> float:
    """Return the median time of judging one more evaluation of a run that is followed, in ms."""
    train, holdout = run
    last = len(holdout) - UPDATES
    cut = int(holdout.steps[last - 1])
    known = CurveInputs(train.until(cut), holdout.until(cut), PLANNED, 0, *reference)
    follower = Follower(known, profile_named("full"))
    times: list[float] = []
    for at in range(last, len(holdout)):
        step = int(holdout.steps[at])
        new = part(train, lambda s, b=step - EVERY, e=step: (s > b) & (s <= e))
        one = part(holdout, lambda s, e=step: s == e)
        started = time.perf_counter()
        follower.extend(new, one)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def part(series: Series, chosen: Callable[[Any], Any]) -> Series:
    """Return the points whose steps are chosen."""
    kept = chosen(series.steps)
    return Series(series.metric, series.steps[kept], series.tokens[kept], series.values[kept])


if __name__ == "__main__":
    main()
