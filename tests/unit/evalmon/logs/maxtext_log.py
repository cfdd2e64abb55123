"""Writes logs as MaxText prints them, from what is known of its format; not a test itself.

What it keeps to: steps counted from 0; three decimals; one line a step and host; an evaluation's
result printed before the line of its step, because step lines are flushed one step late; the
z-loss inside every loss; start-up lines again after each restart.
"""

import datetime
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SEQUENCE = 8192


@dataclass(frozen=True)
class Shape:
    """How a log looks.

    Attributes:
        version: ``current``; ``no_lm_loss`` (older); ``no_weights`` (older still, also without
            perplexity, and evaluations without z-loss).
        hosts: hosts that print, one line each.
        prefix: ``pods`` (kubectl's name, then absl's), ``absl``, ``docker`` (timestamps), ``rank``,
            ``none``.
        restart: (last step counted from 0 before the crash, first step after it), None without.
        evaluation_interval: updates between evaluations.
        tokens_per_step: of the loader's line, a multiple of ``hosts * SEQUENCE``; 0 for no line.
        z_nats: inside every loss.
        run_name: printed with the settings, "" for no settings.
        rampup: first steps whose batch still grows.
        profiler: steps, counted from 0, that print no times.
    """

    version: str = "current"
    hosts: int = 1
    prefix: str = "absl"
    restart: tuple[int, int] | None = None
    evaluation_interval: int = 20
    tokens_per_step: int = 4_194_304
    z_nats: float = 0.001
    run_name: str = ""
    rampup: int = 0
    profiler: tuple[int, ...] = ()


def write_log(
    path: Path,
    train: Sequence[float] | NDArray[np.float64],
    holdout: Sequence[float] | NDArray[np.float64] | None = None,
    shape: Shape | None = None,
    *,
    abandoned_offset: float = 0.0,
    end: str = "\n",
) -> int:
    """Write a log, gzipped where the name ends so.

    Args:
        path: where to.
        train: [n] cross-entropy of steps 0 to n - 1, without z-loss.
        holdout: [n] likewise, of the state after each step; None for no evaluations.
        shape: how it looks.
        abandoned_offset: added to the losses of the branch a restart leaves behind.
        end: what follows the last line, "" for a line still being written.

    Returns:
        Lines written.
    """
    shape = shape or Shape()
    lines = list(_lines(np.asarray(train), None if holdout is None else np.asarray(holdout), shape,
                        abandoned_offset))  # fmt: skip
    text = "\n".join(lines) + end
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return len(lines)


def write_case(
    path: Path,
    train: tuple[NDArray[np.int64], NDArray[np.float64]],
    holdout: tuple[NDArray[np.int64], NDArray[np.float64]],
    *,
    steps: int = 820,
    tokens: int = 1_500_000_000_000,
    noise: float = 0.02,
    drop: tuple[float, float] = (1.0, 0.0),
    seed: int = 0,
) -> int:
    """Write a log of two pods of a run that follows a published curve, with one restart.

    Args:
        path: where to.
        train: (tokens, nats) of the published train loss.
        holdout: likewise of the holdout loss.
        steps: updates.
        tokens: trained on by the last of them.
        noise: standard deviation of one step's loss, nats.
        drop: (share of the run, nats): from there on the train loss alone is lower by so much.
        seed: of the noise.

    Returns:
        Lines written; 2,002 with the steps as given.
    """
    unit = 2 * SEQUENCE
    per_step = round(tokens / steps / unit) * unit
    at = np.log(per_step * np.arange(1, steps + 1))
    draws = np.random.default_rng(seed)
    level, floor = (np.interp(at, np.log(t[t > 0]), v[t > 0]) for t, v in (train, holdout))
    level = level + draws.normal(0, noise, steps)
    level[round(drop[0] * steps) :] -= drop[1]
    floor = floor + draws.normal(0, 0.001, steps)
    crash = round(0.6 * steps)
    shape = Shape(
        hosts=2, prefix="pods", restart=(crash, crash - 37), tokens_per_step=per_step,
        run_name="olmo3-7b-reproduction",
    )  # fmt: skip
    return write_log(path, level, floor, shape, abandoned_offset=0.004)


def step_line(n: int, nats: float, weight: int, shape: Shape) -> str:
    """Return the line of one completed step, without prefix."""
    total = nats + shape.z_nats
    parts = ["[Rampup Batch Size Phase]"] if n < shape.rampup else []
    if n in shape.profiler:
        parts.append(f"completed profiler activation/deactivation step: {n}")
    else:
        parts += [f"completed step: {n}", f"seconds: {4.2 + 0.001 * (n % 7):.3f}"]
        if n >= shape.rampup:
            parts += [f"TFLOP/s/device: {401.5:.3f}", f"Tokens/s/device: {9801.25:.3f}"]
    if shape.version != "no_weights":
        parts.append(f"total_weights: {weight}")
    parts.append(f"loss: {total:.3f}")
    if shape.version == "current":
        parts += [f"lm_loss: {total:.3f}", f"perplexity: {np.exp(total):.3f}"]
    return ", ".join(parts)


def evaluation_lines(n: int, nats: float, shape: Shape) -> list[str]:
    """Return the lines of the evaluation after step n, without prefix."""
    total = nats + shape.z_nats
    if shape.version != "current":
        return [
            "Completed eval step 0",
            f"eval metrics after step: {n}, loss={total:.3f}, total_weights=75264.0",
        ]
    return [
        f"Starting eval after train step {n}",
        (
            f"Completed eval step: 0, seconds: 0.512, running loss={total + 0.2:.3f}, "
            f"running perplexity={np.exp(total + 0.2):.3f}, running total_weights=8192.0"
        ),
        (
            f"Completed eval after train step {n}, loss={total:.3f}, "
            f"perplexity={np.exp(total):.3f}, total_weights=75264.0, avg_z_loss={shape.z_nats:.3f}"
        ),
    ]


def startup_lines(host: int, resumed: int, shape: Shape) -> list[str]:
    """Return what a process prints before its first step, without prefix."""
    lines: list[str] = []
    if shape.run_name:
        lines += [f"Config param run_name: {shape.run_name}", "Config param eval_interval: 20"]
    lines.append("number parameters: 7.298 billion")
    if shape.tokens_per_step:
        batch = shape.tokens_per_step // SEQUENCE // shape.hosts
        lines.append(
            f"OLMo grain loader: index=/data/index.npz total_instances=723,629,556 "
            f"shard={host}/{shape.hosts} per_host_batch={batch} seq={SEQUENCE} "
            f"resumed_step={resumed} initial_step={resumed * batch}"
        )
    lines += [
        "Per train step:",
        " Total TFLOPs: 1682.20 ",
        " split as 94.10% learnable weight flops and 5.90% attention flops",
    ]
    return lines


def _lines(
    train: NDArray[np.float64], holdout: NDArray[np.float64] | None, shape: Shape, offset: float
) -> Iterator[str]:
    """Return all lines of all hosts."""
    count = len(train)
    clock = 0
    crash, back = shape.restart or (count - 1, count)
    for attempt, (first, last) in enumerate(((0, crash), (back, count - 1))):
        if first > last:
            return
        for host in range(shape.hosts):
            for line in startup_lines(host, first, shape):
                yield _prefix(host, attempt, clock, shape) + line
        for n in range(first, last + 1):
            clock += 4
            off = offset if attempt == 0 and shape.restart and n >= back else 0.0
            texts: list[str] = []
            if holdout is not None and (n + 1) % shape.evaluation_interval == 0:
                texts += evaluation_lines(n, float(holdout[n]) + off, shape)
            texts.append(step_line(n, float(train[n]) + off, _weight(n, shape), shape))
            for host in range(shape.hosts):
                for text in texts:
                    yield _prefix(host, attempt, clock, shape) + text


def _weight(n: int, shape: Shape) -> int:
    """Return the tokens counted in a step's loss: some of the batch are masked."""
    batch = shape.tokens_per_step or 8192
    if n < shape.rampup:
        return batch // 2
    return batch - 1000 - 7 * (n % 5)


def _prefix(host: int, attempt: int, seconds: int, shape: Shape) -> str:
    """Return what stands before a line."""
    moment = datetime.datetime(2025, 4, 17, 14, 5, 19, 491532, tzinfo=datetime.UTC)
    moment += datetime.timedelta(seconds=seconds, microseconds=1000 * host)
    thread = 135646978193216 + 1000 * host + attempt
    absl = f"I{moment:%m%d %H:%M:%S.%f} {thread} metric_logger.py:196] "
    return {
        "pods": f"[pod/olmo3-workers-0-{host}-x7k2p/maxtext] {absl}",
        "absl": absl,
        "docker": f"{moment:%Y-%m-%dT%H:%M:%S.%f}123Z {absl}",
        "rank": f"[{moment:%Y%m%d %H:%M:%S}][rank-{host}/{shape.hosts}][INFO]     ",
        "none": "",
    }[shape.prefix]
