"""How long a person waits for the command line: ``python -m tests.benchmarks.startup``.

Median wall time of a fresh interpreter over several starts, less nothing: the
interpreter's own start is reported beside it.
"""

import json
import statistics
import subprocess
import sys
import time

STARTS = 7
COMMANDS = {
    "python_seconds": [sys.executable, "-c", "pass"],
    "import_evalmon_seconds": [sys.executable, "-c", "import evalmon"],
    "help_seconds": [sys.executable, "-m", "evalmon", "--help"],
}


def main() -> None:
    """Print one JSON object of medians in seconds."""
    record = {name: _median_seconds(command) for name, command in COMMANDS.items()}
    print(json.dumps(record))


def _median_seconds(command: list[str]) -> float:
    """Return the median wall time of a command in seconds."""
    times: list[float] = []
    for _ in range(STARTS):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return round(statistics.median(times), 4)


if __name__ == "__main__":
    main()
