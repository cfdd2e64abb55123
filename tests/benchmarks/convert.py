"""Memory and speed of converting weights.

    python -m tests.benchmarks.convert [--json] [--layers N] [--folder FOLDER]

A random float32 model of 948 million parameters (width 2,048, 8 layers, 100,352 rows) in
shards of 1 GB goes from published files to Orbax and back, and through MaxText's scanned
tree. Each way is a process of its own. What counts is its anonymous memory (RssAnon: what
it allocates, without file pages that the system can drop), sampled every 5 ms, at its peak
and less that after all imports. The aim is at most 2.5 GiB.

About 15 GB of disk are used and freed. The last line is one JSON object.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

AIM_GIB = 2.5
WAYS = (
    # name, source, result, options, what is not needed afterwards
    ("hf -> orbax", "hf", "orbax", ["--to", "orbax"], ()),
    ("orbax -> hf", "orbax", "hf2", ["--to", "hf", "--shard", "1GB"], ("orbax", "hf2")),
    ("hf -> maxtext, scanned", "hf", "maxtext", ["--to", "maxtext"], ("hf",)),
    ("maxtext, scanned -> orbax", "maxtext", "orbax2", ["--to", "orbax"], ("maxtext", "orbax2")),
)


def anonymous_bytes() -> int:
    """Return RssAnon of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError("this system does not tell RssAnon; run on Linux")
    return 1024 * int(found[1])


class Peak:
    """Highest anonymous memory while it is open, less that at the start, in bytes."""

    def __enter__(self) -> "Peak":
        self.start = self.highest = anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.005):
            self.highest = max(self.highest, anonymous_bytes())

    @property
    def grown(self) -> int:
        """Bytes."""
        return self.highest - self.start


def make_model(folder: Path, layers: int) -> int:
    """Write a random published model and return its parameters' bytes."""
    import numpy as np

    from trainer.architecture import Olmo3Config
    from trainer.weights.huggingface import PublishedModel
    from trainer.weights.names import published_shapes
    from trainer.weights.shard_writer import ShardWriter

    config = Olmo3Config(
        vocab_size=100_352, width=2048, layers=layers, heads=16, kv_heads=16, head_dim=128, ffn=8192
    )
    folder.mkdir()
    float32 = np.dtype(np.float32)
    shapes = published_shapes(config)
    writer = ShardWriter(folder, {n: (float32, shape) for n, shape in shapes.items()}, 10**9)
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.write(name, rng.standard_normal(shape, np.float32) * np.float32(0.02))
    record = PublishedModel(config, 8192, (100_257,), 100_277).to_record(float32)
    (folder / "config.json").write_text(json.dumps(record), encoding="utf-8")
    return 4 * sum(int(np.prod(shape)) for shape in shapes.values())


def convert_here(src: Path, dst: Path, to: str, shard: str | None) -> dict[str, Any]:
    """Convert in this process and return what it took."""
    import jax

    from trainer.weights.convert import Options, convert

    jax.devices()
    with Peak() as peak:
        started = time.perf_counter()
        facts = convert(src, dst, Options(to=to, max_shard_size=shard))
        seconds = time.perf_counter() - started
    return {
        "peak_anonymous_gib": round(peak.grown / 2**30, 3),
        "after_imports_gib": round(peak.start / 2**30, 3),
        "seconds": round(seconds, 1),
        "params_fingerprint": facts["params_fingerprint"],
    }


def measure(folder: Path, layers: int) -> dict[str, Any]:
    """Make the model and convert it every way."""
    nbytes = make_model(folder / "hf", layers)
    rows: list[dict[str, Any]] = []
    for name, src, dst, options, done in WAYS:
        command = [
            *(sys.executable, "-m", "tests.benchmarks.convert"),
            *("--child", str(folder / src), str(folder / dst), *options),
        ]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        child = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
        row = json.loads(child.stdout.splitlines()[-1])
        rows.append({"way": name, **row, "gb_per_second": round(nbytes / 1e9 / row["seconds"], 3)})
        for old in done:
            shutil.rmtree(folder / old)
    return {
        "benchmark": "convert",
        "parameters": nbytes // 4,
        "aim_gib": AIM_GIB,
        "peak_anonymous_gib": max(row["peak_anonymous_gib"] for row in rows),
        "same_parameters": len({row["params_fingerprint"] for row in rows}) == 1,
        "rows": rows,
    }


def main() -> None:
    """Measure every way and print one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument("--layers", type=int, default=8, help="a multiple of 4")
    parser.add_argument("--folder", type=Path, help="where to work; by default the system's")
    parser.add_argument("--child", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--to", help=argparse.SUPPRESS)
    parser.add_argument("--shard", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        src, dst = options.child
        print(json.dumps(convert_here(src, dst, options.to, options.shard)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="convert-") as folder:
        record = measure(Path(folder), options.layers)
    for row in () if options.json else record["rows"]:
        print(
            f"{row['way']:28}{row['peak_anonymous_gib']:6.2f} GiB beyond imports"
            f"{row['seconds']:8.1f} s{row['gb_per_second']:8.3f} GB/s"
        )
    print(json.dumps(record))


if __name__ == "__main__":
    main()
