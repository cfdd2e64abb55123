"""Makes curves that nobody published as figures: from checkpoints, or from a W&B run."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evalmon import restarts, sampling, tags
from evalmon.errors import CheckpointError, ConfigError, DataError, EvaluationError, FetchError
from evalmon.types import Curve, IntArray, Json, RunCurves, Series

if TYPE_CHECKING:
    from evalmon.config import Settings
    from evalmon.store import Store
    from evalmon.types import Failure, RunDescription

__all__ = [
    "History",
    "HistoryKeys",
    "check_keys",
    "check_path",
    "from_checkpoints",
    "from_history",
    "open_history",
]

_NO_TOKENS = "nothing says how many tokens a step has; give --tokens-key or --tokens-per-step"
_KEPT = ("train/ce_nats", "train/z_nats", "optim/lr")


def from_checkpoints(
    run: "RunDescription", store: "Store", settings: "Settings", progress: Callable[[int], Any]
) -> RunCurves:
    """Score every checkpoint of a run that is not scored yet, and return its curves.

    Args:
        run: a run directory.
        store: its results store; what is scored is kept there.
        settings: what is scored.
        progress: called with 1 after each checkpoint.

    Returns:
        Its scores with what is known of them, and train loss and learning rate from its log.

    Raises:
        CheckpointError: it has no finished checkpoint.
        EvaluationError: an evaluation failed, so that the curve would have holes.
        DataError: its log is missing or broken.
    """
    from evalmon import checkpoints
    from evalmon.monitor import Monitor
    from evalmon.sources import Reading, open_pair

    found = checkpoints.find(run).committed
    if not found:
        raise CheckpointError(f"{run.path}: no finished checkpoint to score; wait for one")
    monitor = Monitor(run, store, settings, sinks=())
    failed: list[Failure] = []
    for ref in found:
        failed += monitor.evaluate_step(ref.step).failures
        progress(1)
    if failed:
        first = failed[0]
        raise EvaluationError(
            f"{run.name}: {len(failed)} evaluations failed, the first {first.evaluator} at step "
            f"{first.checkpoint.step}: {first.message}; nothing was added, and what was scored is "
            "kept: run the command again"
        )
    curves = open_pair(str(run.path), "", Reading(store=store.where))[0].curves
    known: dict[str, Curve] = {}
    for metric, curve in curves.curves.items():
        if metric in _KEPT or metric.startswith("eval/"):
            identity = store.identity(run.name, metric)
            facts: dict[str, Json] = {**curve.facts}
            for name in ("tokenizer", "data", "shots", "split", "prompt_set", "normalization"):
                value = getattr(identity, name, None)
                if value not in (None, ""):
                    facts[name] = value
            known[metric] = replace(curve, facts=facts)
    return replace(curves, curves=known)


class History(Protocol):
    """The history of a W&B run, as ``wandb.Api().run(path)`` gives it.

    Where it has ``history_line_count`` (rows) or ``history_keys`` (rows a key, last step), what
    was read is checked against them.
    """

    def scan_history(self, keys: list[str] | None = None) -> Iterable[Mapping[str, Any]]:
        """Return every row that holds all of the keys."""
        ...


@dataclass(frozen=True, slots=True)
class HistoryKeys:
    """What is read from a W&B run.

    Attributes:
        metrics: key -> canonical metric, "" to look it up in the dictionary of tags.
        step: key that holds the training step.
        tokens: key that holds tokens trained on, "" for steps times ``tokens_per_step``.
        tokens_per_step: tokens of one step, None where ``tokens`` is given.
        trainer: whose names the keys are, one of ``evalmon.tags.SOURCES``, "" for any.
    """

    metrics: Mapping[str, str]
    step: str = "_step"
    tokens: str = ""
    tokens_per_step: int | None = None
    trainer: str = ""


@dataclass(slots=True)
class _Column:
    """One key of a history, by rising step."""

    steps: list[int] = field(default_factory=list[int])
    values: list[float] = field(default_factory=list[float])


def check_path(path: str) -> None:
    """Refuse what cannot be the path of a W&B run.

    Raises:
        ConfigError: it is not ENTITY/PROJECT/RUN.
    """
    if path.count("/") != 2 or not all(path.split("/")):
        raise ConfigError(f"{path!r}: not a W&B run; give ENTITY/PROJECT/RUN")


def check_keys(keys: HistoryKeys) -> None:
    """Refuse keys that `from_history` would refuse, before a run is opened.

    Raises:
        ConfigError: nothing says how many tokens a step has, or a key that the dictionary does
            not know.
    """
    for key, wished in keys.metrics.items():
        _tag(key, wished, keys.trainer)
    if not keys.tokens and keys.tokens_per_step is None:
        raise ConfigError(_NO_TOKENS)


def open_history(path: str) -> History:
    """Open a W&B run.

    Args:
        path: ENTITY/PROJECT/RUN.

    Raises:
        ConfigError: wandb is not installed, or the path is none.
        FetchError: the run cannot be had.
    """
    check_path(path)
    try:
        import wandb
        import wandb.errors
    except ImportError as error:
        raise ConfigError(
            "wandb is not installed; install it with: pip install 'evalmon[writers]', or export "
            "the run's history as a table and use: evalmon reference add"
        ) from error
    try:
        return wandb.Api().run(path)
    except (wandb.errors.Error, OSError, ValueError) as error:
        raise FetchError(
            f"{path}: W&B does not give this run ({error}); check name and login"
        ) from (error)


def from_history(run: History, keys: HistoryKeys, name: str) -> RunCurves:
    """Read the full history of a W&B run, each key apart, joined by step.

    Args:
        run: the history. Only whole scans of one key are read: a scan of several returns the
            rows that hold all of them, and a sampled history has gaps that nobody sees.
        keys: what is read.
        name: name of the run, for messages.

    Returns:
        Its curves, steps counted as updates completed; how each was sampled is told from them.

    Raises:
        ConfigError: a key that the dictionary does not know.
        DataError: rows are missing, a key is absent, or a step has no tokens.
    """
    _check_rows(run, keys, name)
    more = 1 if tags.counts_from_zero(keys.metrics, keys.trainer) else 0
    tokens = _column(run, keys.tokens, keys.step, name, more) if keys.tokens else None
    curves: dict[str, Curve] = {}
    nonfinite: list[tuple[int, str]] = []
    seams: set[int] = set()
    superseded = 0
    for key, wished in keys.metrics.items():
        tag = _tag(key, wished, keys.trainer)
        column = _column(run, key, keys.step, name, more)
        if tag.metric in curves:
            raise DataError(f"{name}: {key!r} is {tag.metric} as another key is; name one of them")
        _check_count(run, key, len(column.steps), name)
        steps = np.array(column.steps, np.int64)
        values = np.array(column.values, np.float64)
        resolved = restarts.resolve(steps)
        seams |= set(resolved.seams)
        superseded += len(resolved.superseded)
        steps, values = steps[resolved.kept], values[resolved.kept]
        finite = np.isfinite(values)
        nonfinite += [(int(step), tag.metric) for step in steps[~finite]]
        steps, values = steps[finite], values[finite]
        if not len(steps):
            raise DataError(f"{name}: {key!r} has no finite value; name another key")
        series = Series(tag.metric, steps, _tokens(steps, tokens, keys, key, name), values)
        curves[tag.metric] = Curve(series, dict(tag.facts), *sampling.recognize(steps))
    if keys.step == "_step":
        _check_end(run, curves, name, more)
    return RunCurves(
        name=name,
        source=f"W&B run {name}",
        curves=curves,
        tokens_per_step=keys.tokens_per_step,
        seams=tuple(sorted(seams)),
        nonfinite=tuple(nonfinite),
        superseded=superseded,
    )


def _tag(key: str, wished: str, trainer: str) -> tags.Tag:
    """Return what a key is: as the user says, with what is known of it, or by the dictionary."""
    known = tags.look_up(key, trainer)
    if wished and (known is None or known.metric != wished):
        return tags.Tag(wished)
    if known is None:
        raise ConfigError(
            f"key {key!r} is not in the dictionary of tags; near it are {list(tags.nearest(key))}. "
            f"Say what it is: --eval-key '{key}=eval/lm/NAME-validation/ce_nats'"
        )
    return known


def _column(run: History, key: str, step_key: str, name: str, more: int) -> _Column:
    """Read one key, whole; our step is so many more than the run's."""
    column = _Column()
    for row in run.scan_history(keys=[step_key, key]):
        step, value = row.get(step_key), row.get(key)
        if value is None or step is None:
            continue
        if isinstance(step, bool) or not isinstance(step, int | float) or step != int(step):
            raise DataError(f"{name}: {step_key!r} is {step!r} where {key!r} is {value!r}; no step")
        try:
            number = float(value)  # W&B writes "NaN" and "Infinity" as text
        except (TypeError, ValueError) as error:
            raise DataError(f"{name}: {key!r} is {value!r} at step {step}, no number") from error
        column.steps.append(int(step) + more)
        column.values.append(number)
    if not column.steps:
        raise DataError(
            f"{name}: no row holds {step_key!r} and {key!r}; look up how the run names them"
        )
    return column


def _tokens(
    steps: IntArray,
    tokens: _Column | None,
    keys: HistoryKeys,
    key: str,
    name: str,
) -> IntArray:
    """Return the tokens at steps, never a guess."""
    if tokens is None:
        if keys.tokens_per_step is None:
            raise DataError(f"{name}: {_NO_TOKENS}")
        if len(steps) and int(steps.max()) > np.iinfo(np.int64).max // keys.tokens_per_step:
            raise DataError(
                f"{name}: step {int(steps.max()):,} of {key!r} times {keys.tokens_per_step:,} "
                "tokens per step is beyond 64 bits; correct --tokens-per-step"
            )
        return steps * keys.tokens_per_step
    known = {
        step: round(value)
        for step, value in zip(tokens.steps, tokens.values, strict=True)
        if math.isfinite(value)
    }
    missing = [step for step in steps.tolist() if step not in known]
    if missing:
        raise DataError(
            f"{name}: {len(missing)} of {len(steps)} steps with {key!r} have no {keys.tokens!r}, "
            f"the first {missing[0]:,}; give --tokens-per-step if all steps have as many"
        )
    found = np.array([known[step] for step in steps.tolist()], np.int64)
    back = np.flatnonzero(np.diff(found) <= 0)
    if len(back):
        raise DataError(
            f"{name}: {keys.tokens!r} falls or stays from step {steps[back[0]]:,} to "
            f"{steps[back[0] + 1]:,}; it counts something else, or begins anew after a restart: "
            "give --tokens-per-step"
        )
    return found


def _check_rows(run: History, keys: HistoryKeys, name: str) -> None:
    """Refuse a scan that has fewer rows than the run says it logged."""
    lines = getattr(run, "history_line_count", None)
    if isinstance(lines, int) and keys.step == "_step":
        rows = sum(1 for _ in run.scan_history(keys=["_step"]))
        if rows < lines:
            raise DataError(
                f"{name}: {rows:,} rows were read where the run logged {lines:,}; "
                f"{lines - rows:,} are missing. Read it again when W&B has the whole history"
            )


def _check_count(run: History, key: str, rows: int, name: str) -> None:
    """Refuse a key of which fewer rows came than the run says it holds."""
    known = getattr(run, "history_keys", None) or {}
    counts = known.get("keys", {}).get(key, {}).get("typeCounts", [])
    expected = sum(int(item.get("count", 0)) for item in counts)
    if rows < expected:
        raise DataError(
            f"{name}: {rows:,} rows hold {key!r} where the run logged {expected:,}; "
            f"{expected - rows:,} are missing. Read it again when W&B has the whole history"
        )


def _check_end(run: History, curves: Mapping[str, Curve], name: str, more: int) -> None:
    """Refuse a history that ends before the run's last step."""
    last = (getattr(run, "history_keys", None) or {}).get("lastStep")
    if not isinstance(last, int) or last < 0:
        return
    seen = max(int(curve.series.steps[-1]) for curve in curves.values()) - more
    gaps = [np.diff(curve.series.steps) for curve in curves.values() if len(curve.series) > 1]
    interval = min((int(np.median(gap)) for gap in gaps), default=0)
    if last - seen > interval:
        raise DataError(
            f"{name}: the keys end at step {seen:,} and the run at {last:,}, more than their "
            f"interval of {interval:,} later; rows are missing"
        )
