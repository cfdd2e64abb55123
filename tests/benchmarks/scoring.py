"""Scoring beside lm-eval's Hugging Face class: ``python -m tests.benchmarks.scoring``.

    python -m tests.benchmarks.scoring [--json] [--items 100] [--shots 0|5|both]
                                       [--part all|speed|run|memory]

``speed``: eight layers of width 256 (eight heads of 32, feed-forward 768 as in ``olmo3-30m``,
window 4,096), vocabulary 50,304, a tokenizer of the package, random weights, inputs of up to
2,048 tokens. Both sides score the same requests of the eight tasks, from texts to
log-likelihoods: tokenization is in it; imports, building tasks and loading weights are not.
Ours scores a first checkpoint (``cold``: it compiles), then a second. The second and lm-eval's
class, at the best of five batch sizes, take turns task by task, so that what else the machine
does slows both. ``ratio`` is seconds of theirs over seconds of ours, ``cpu_ratio`` the same of
processor seconds. Then ours once more, part by part, to see where its time goes.

``run`` and ``memory``: see ``tests.benchmarks.scoring_run``.

The last line is one JSON object. At five shots lm-eval's class takes some ten minutes.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalmon import package_data, packing
from evalmon.evaluators.harness import quiet
from evalmon.evaluators.harness_model import HarnessModel
from evalmon.evaluators.harness_tasks import FixedTask
from evalmon.models import LanguageModel
from evalmon.scoring import Accounting, Scorer
from evalmon.tokenizer import TextTokenizer
from evalmon.types import ScoreRequest
from tests.benchmarks import scoring_run
from tests.scoring_models import Compilations, Twin, random_parameters, suite_tasks
from trainer.architecture import Olmo3Config

CONFIG = Olmo3Config(50_304, width=256, layers=8, heads=8, kv_heads=8, head_dim=32, ffn=768)
TOKENIZER, EOS_ID, LENGTH = "gpt-neox-olmo-dolma-v1_5", 50_279, 2048
SUITES = {"0": "olmo-core8-0shot", "5": "olmes-core8-5shot"}
BATCH_SIZES = (1, 4, 8, 16, 32)
MOST_BYTES = 6 << 30
"""Of lm-eval's logits and their log-softmax; batches with more are not tried."""

SLICES, SLICE = (0.15, 0.5, 0.85), 32
"""Where, in the requests by length, those stand that a batch size is chosen by; how many."""

MATRIX = 2048
Answers = list[tuple[float, bool]]


@dataclass
class Stopwatch:
    """Seconds of some work, on the clock and of all processors."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def run(self, work: Callable[[], Any]) -> Any:
        """Do it, and add what it takes."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu
        return result


@dataclass
class Ours:
    """Our side: a model, and what its scorers have computed."""

    model: LanguageModel
    tokenizer: TextTokenizer
    watch: Stopwatch = field(default_factory=Stopwatch)
    sums: Accounting = field(default_factory=Accounting)

    def score(self, task: FixedTask) -> Answers:
        """Score a task as its evaluator does, with nothing remembered of its texts."""

        def work() -> Answers:
            harness = HarnessModel(self.tokenizer, EOS_ID, apart=task.apart)
            scorer = Scorer(self.model)
            harness.use(scorer)
            answers = harness.loglikelihood(task.instances)
            for name in ("requests", "tokens_distinct", "tokens_computed", "tokens_padded"):
                total = getattr(self.sums, name) + getattr(scorer.accounting, name)
                setattr(self.sums, name, total)
            return answers

        return self.watch.run(work)


def measure(suite: str, items: int, twin: Twin, root: Path, folder: Path) -> dict[str, Any]:
    """Measure one suite."""
    tasks = suite_tasks(suite, items, root)
    compiled = Compilations()
    jax.clear_caches()
    cold = Ours(twin.ours(folder), TextTokenizer(twin.tokenizer))
    assert cold.tokenizer.vocab_size <= CONFIG.vocab_size
    for name, task in tasks.items():
        cold.score(task)
        _say(f"{name}: first checkpoint, {cold.watch.seconds:.1f} s in all")
    cold_compilations = len(compiled.times)
    model = cold.model
    second = random_parameters(CONFIG, seed=1)
    model.load(second)
    warm, theirs = Ours(model, cold.tokenizer), Stopwatch()
    peer = Twin(twin.config, second, twin.tokenizer, twin.eos_id, twin.max_length)
    batch_size, tried = _best_batch_size(peer, tasks)
    other = peer.theirs(batch_size)
    differences: list[float] = []
    for name, task in tasks.items():
        ours = warm.score(task)
        with quiet():
            answers = theirs.run(lambda t=task: other.loglikelihood(t.instances, disable_tqdm=True))
        differences += [abs(a - b) for (a, _), (b, _) in zip(ours, answers, strict=True)]
        _say(f"{name}: ours {warm.watch.seconds:.1f} s, theirs {theirs.seconds:.1f} s in all")
    compilations = len(compiled.times) - cold_compilations
    return {
        "ratio": theirs.seconds / warm.watch.seconds,
        "ratio_cold": theirs.seconds / cold.watch.seconds,
        "cpu_ratio": theirs.cpu_seconds / warm.watch.cpu_seconds,
        "cpu_ratio_cold": theirs.cpu_seconds / cold.watch.cpu_seconds,
        "computed_over_distinct": warm.sums.computed_over_distinct,
        "padding_share": warm.sums.padding_share,
        "requests": len(differences),
        "tokens_distinct": warm.sums.tokens_distinct,
        "seconds": warm.watch.seconds,
        "seconds_cold": cold.watch.seconds,
        "seconds_theirs": theirs.seconds,
        "batch_size_theirs": batch_size,
        "slice_seconds_by_batch_size_theirs": tried,
        "compilations_cold": cold_compilations,
        "compilation_seconds_cold": compiled.seconds,
        "compilations_second_checkpoint": compilations,
        # AI2 encodes context and continuation apart, lm-eval's class joined: not all are equal.
        "share_of_log_likelihoods_equal": float(np.mean(np.array(differences) < 1e-3)),
        "where_time_goes": _parts(warm, tasks),
    }


def _best_batch_size(twin: Twin, tasks: dict[str, FixedTask]) -> tuple[int, dict[int, float]]:
    """Return lm-eval's fastest batch size on a slice of requests, and seconds of each tried."""
    with quiet():
        probe = twin.theirs(1)
        items = [item for task in tasks.values() for item in task.instances]
        items.sort(key=lambda item: len("".join(item.args)))
        longest = len(probe.tok_encode("".join(items[-1].args)))
        starts = [int(place * max(0, len(items) - SLICE)) for place in SLICES]
        found: dict[int, float] = {}
        for size in BATCH_SIZES:
            if size * longest * CONFIG.vocab_size * 8 > MOST_BYTES:
                break
            side, watch = twin.theirs(size), Stopwatch()
            for start in starts:
                part = items[start : start + SLICE]
                watch.run(lambda s=side, p=part: s.loglikelihood(p, disable_tqdm=True))
            found[size] = round(watch.seconds, 2)
            _say(f"lm-eval's class on a slice, batch size {size}: {watch.seconds:.1f} s")
    return min(found, key=lambda size: found[size]), found


def _parts(ours: Ours, tasks: dict[str, FixedTask]) -> dict[str, Any]:
    """Score all once more, each part waited for, and say what each takes."""
    parts: defaultdict[str, Stopwatch] = defaultdict(Stopwatch)
    inner: Any = ours.model

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: parts[name].run(lambda: jax.block_until_ready(work(*args)))

    steps = {"_rows": "body", "_grow": "shared_beginnings", "_append": "shared_beginnings"}
    steps["_head"] = "head"
    kept = {method: getattr(inner, method) for method in steps}
    states = 0
    whole = Stopwatch()
    try:
        for method, name in steps.items():
            setattr(inner, method, timed(name, kept[method]))
        for task in tasks.values():
            harness = HarnessModel(ours.tokenizer, EOS_ID, apart=task.apart)
            harness.use(Scorer(ours.model))
            whole.run(lambda h=harness, t=task: h.loglikelihood(t.instances))
    finally:
        for method, work in kept.items():
            setattr(inner, method, work)
    for task in tasks.values():
        harness = HarnessModel(ours.tokenizer, EOS_ID, apart=task.apart)
        pairs = parts["tokenization"].run(lambda h=harness, t=task: h.encode(t.instances))
        requests = [ScoreRequest(*pair) for pair in pairs]
        states += parts["planning"].run(lambda r=requests: _planned(r))
    seconds = {name: round(watch.seconds, 2) for name, watch in parts.items()}
    matrices = 4 * CONFIG.width * CONFIG.heads * CONFIG.head_dim + 3 * CONFIG.width * CONFIG.ffn
    body = 2.0 * CONFIG.layers * matrices * ours.sums.tokens_padded
    head = 2.0 * CONFIG.width * CONFIG.vocab_size * states
    peak = _peak_flops_per_second()
    read = parts["body"].seconds + parts["shared_beginnings"].seconds
    return {
        "seconds": seconds | {"other": round(whole.seconds - sum(seconds.values()), 2)},
        "states_through_head": states,
        "peak_flops_per_second": round(peak),
        "body_fraction_of_peak": round(body / read / peak, 3),  # attention's products left out
        "head_fraction_of_peak": round(head / parts["head"].seconds / peak, 3),
        "seconds_at_peak": round((body + head) / peak, 2),
    }


def _planned(requests: Sequence[ScoreRequest]) -> int:
    """Plan requests, lay all rows out, and return the states that go through the head."""
    made = packing.plan(list(dict.fromkeys(requests)))
    states, sections = 0, [made.root]
    while sections:
        section = sections.pop()
        states += sum(len(np.unique(batch.forest.picks)) for batch in made.batches(section))
        sections += section.children
    return states


def _peak_flops_per_second() -> float:
    """Return the rate of a large float32 matrix product, the best of five."""
    matrix, product = jnp.ones((MATRIX, MATRIX), jnp.float32), jax.jit(jnp.matmul)
    best = float("inf")
    for _ in range(6):
        watch = Stopwatch()
        watch.run(lambda: product(matrix, matrix).block_until_ready())
        best = min(best, watch.seconds)
    return 2.0 * MATRIX**3 / best


def speed(shots: str, items: int) -> dict[str, Any]:
    """Measure the suites of these shots."""
    root = package_data.fetch()
    file = package_data.tokenizer_file(root, TOKENIZER)
    twin = Twin(CONFIG, random_parameters(CONFIG), file, EOS_ID, LENGTH)
    record: dict[str, Any] = {"items": items, "load_average": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory() as folder:
        for number, suite in SUITES.items():
            if shots not in (number, "both"):
                continue
            found = measure(suite, items, twin, root, Path(folder))
            record |= {
                f"ratio_{number}shot": found.pop("ratio"),
                f"ratio_{number}shot_cold": found.pop("ratio_cold"),
                f"computed_over_distinct_{number}shot": found.pop("computed_over_distinct"),
                f"padding_share_{number}shot": found.pop("padding_share"),
                f"{number}shot": found,
            }
    return record


def main() -> None:
    """Measure, print a table on standard error and one JSON object last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100, help="a task (default 100)")
    parser.add_argument("--shots", choices=[*SUITES, "both"], default="both")
    parser.add_argument("--part", choices=["all", "speed", "run", "memory"], default="all")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    _quiet[0] = options.json
    record: dict[str, Any] = {"benchmark": "scoring"}
    if options.part in ("all", "memory"):
        record |= scoring_run.memory()
    if options.part in ("all", "run"):
        record |= scoring_run.ten_checkpoints()
    if options.part in ("all", "speed"):
        record |= speed(options.shots, options.items)
    for name, value in record.items():
        if isinstance(value, float):
            record[name] = round(value, 4)
            _say(f"{name:<34} {value:,.4g}")
    print(json.dumps(record))


_quiet = [False]


def _say(line: str) -> None:
    """Tell how far it is."""
    if not _quiet[0]:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
