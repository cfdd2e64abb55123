"""Operating characteristics of the curve rule, on simulated and on published runs.

    python -m tests.benchmarks.detection [--json] [--scale X] [--workers N] [--part PART] [--seed S]

Parts: ``real_curves`` (published runs, and faults put into one), ``false_alarms``, ``delays``
and ``confusion`` (full runs, simulated evaluation by evaluation), ``short`` (short runs,
simulated step by step), ``thresholds`` (each threshold of the rule a quarter off).

The last line is one JSON object; progress goes to standard error. Constants were chosen at
seeds below 10,000; the default is none of them.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.detection import (
    confusion,
    delays,
    false_alarms,
    real_curves,
    short,
    thresholds,
)

PARTS: dict[str, Callable[[float, int, int], list[dict[str, Any]]]] = {
    part.PART: part.rows
    for part in (real_curves, false_alarms, delays, confusion, short, thresholds)
}


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts asked for and print one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of runs")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="may be repeated")
    parser.add_argument("--seed", type=int, default=1_000_000, help="seed of everything drawn")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    for name in options.part or PARTS:
        begun = time.perf_counter()
        found = PARTS[name](options.scale, options.seed, options.workers)
        seconds[name] = round(time.perf_counter() - begun, 1)
        rows += found
        for row in () if options.json else found:
            shown = (f"{key}={value}" for key, value in row.items() if value is not None)
            print("  ".join(shown), flush=True)
    record = {
        "benchmark": "detection",
        "seed": options.seed,
        "scale": options.scale,
        "seconds": seconds,
        "rows": rows,
    }
    print(json.dumps(record, allow_nan=False))


if __name__ == "__main__":
    main()
