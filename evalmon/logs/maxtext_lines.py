"""The lines of a MaxText log that say something: pairs of key and value behind any prefix.

MaxText's versions print the same names in different company: with and without ``lm_loss``,
``perplexity`` and ``total_weights``, behind ``[Rampup Batch Size Phase]``, at profiler steps
without times. So a line is told by its opening words and then read pair by pair. In front of
them may stand what a cluster adds: the pod, the rank, timestamps, absl's own prefix.
"""

import gzip
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from evalmon.errors import DataError
from evalmon.logs.maxtext_values import (
    MOST_STEPS,
    MOST_TOKENS_A_STEP,
    drop_torn,
    known,
    number,
    pairs_of,
    plain,
    whole,
)

__all__ = ["HEAD", "Evaluation", "LogLines", "Row", "Start", "Stream", "open_text", "read_lines"]

_STEP = re.compile(r"completed (?:profiler activation/deactivation )?step: (\d+)(.*)")
_EVALUATION = re.compile(
    r"(?<!\w)(?:Completed eval after train step |eval metrics after step: ?"
    r"|[Aa]verage loss after step=)(\d+)(.*)"
)
_LOADER = "OLMo grain loader:"
_PARAMETERS = "number parameters:"
_SETTING = re.compile(r"(?<!\w)Config param (\w+): (.*)")
HEAD = re.compile(
    r"(?<!\w)(?:completed (?:profiler activation/deactivation )?step: \d+.*\bloss: "
    r"|Completed eval step|Completed eval after train step \d"
    r"|eval metrics after step: ?\d|Config param \w+: |OLMo grain loader: index=)"
)
"""Any line that only MaxText writes."""

_EQUAL = re.compile(r"(\w+)=(\S+)")
_HOST = re.compile(r"\[pod/([^/\]]+)|\[rank-?(\d+)|^([\w.-]+)\s*\| |[IWEF]\d{4} [\d:.]+\s+(\d+) ")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ][\d:.]+)|[IWEF](\d{4} [\d:.]+) ")
_EXCERPT = 200  # characters of a line that are quoted
_IN_THE_LOSS = ("moe_lb_loss", "mtp_loss", "indexer_loss")


@dataclass(frozen=True, slots=True)
class Start:
    """A process of the trainer began.

    Attributes:
        line: where, counted from 1.
        resumed_step: updates it had behind it, None where the line does not say.
        tokens_per_step: sequences a host times hosts times length, None likewise.
    """

    line: int
    resumed_step: int | None = None
    tokens_per_step: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of one evaluation.

    Attributes:
        line: where, counted from 1.
        step: updates completed.
        nats: its loss as printed.
        z_nats: the z-loss within, NaN where the line does not say.
    """

    line: int
    step: int
    nats: float
    z_nats: float


class Row(NamedTuple):
    """One completed step; a tuple, because a log holds a million.

    Attributes:
        line: where, counted from 1.
        step: updates completed.
        nats: its loss.
        z_nats: the z-loss within, NaN where the line does not say.
        weight: tokens its loss is a mean of, NaN likewise.
        rampup: whether the batch was still growing.
    """

    line: int
    step: int
    nats: float
    z_nats: float
    weight: float
    rampup: bool


@dataclass(slots=True)
class Stream:
    """What one process printed, in order."""

    host: str
    rows: list[Row] = field(default_factory=list[Row])
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])
    starts: list[Start] = field(default_factory=list[Start])
    first_time: str = ""
    last_prefix: str = ""

    @property
    def last_time(self) -> str:
        """When it printed its last step, "" where lines carry no time."""
        return time_of(self.last_prefix)


@dataclass(slots=True)
class LogLines:
    """A log, line by line.

    Attributes:
        streams: (run, host or process) -> what it printed; a run without a name is "".
        settings: name -> value as printed at start-up, the last one printed, of one run.
        settings_of: run -> its settings.
        auxiliary: names of other losses taken out of ``loss`` where no ``lm_loss`` was printed.
        evaluation_terms: names of other losses beside an evaluation's.
        left_out: (line, what) of lines that could not be used.
        first_lost: how the first of these begins that is of a completed step, "" without one.
        cut: why reading ended early, "" otherwise.
    """

    streams: dict[tuple[str, str], Stream] = field(default_factory=dict[tuple[str, str], Stream])
    settings: dict[str, str] = field(default_factory=dict[str, str])
    settings_of: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    auxiliary: set[str] = field(default_factory=set[str])
    evaluation_terms: set[str] = field(default_factory=set[str])
    left_out: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    first_lost: str = ""
    cut: str = ""
    last_pairs: dict[str, str] = field(default_factory=dict[str, str])
    _run_of: dict[str, str] = field(default_factory=dict[str, str])
    _printed: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def stream(self, prefix: str) -> Stream:
        """Return the stream that a line with this prefix belongs to."""
        host = _host(prefix)
        if host in self._printed:
            self._take_settings(host)
        run = self._run_of.get(host)
        if run is None:  # often only one host prints its settings
            run = self._run_of[host] = next(reversed(self._run_of.values()), "")
        if (run, host) not in self.streams:
            self.streams[run, host] = Stream(host)
        return self.streams[run, host]

    def set(self, prefix: str, name: str, value: str) -> None:
        """Take a setting; the run's name stands somewhere among them, by the alphabet."""
        self._printed.setdefault(_host(prefix), {})[name] = value

    def choose(self, run: str) -> None:
        """Keep what one run printed."""
        self.streams = {key: found for key, found in self.streams.items() if key[0] == run}
        self.settings = self.settings_of.get(run, {})

    def finish(self) -> None:
        """Take settings that no other line has followed."""
        for host in list(self._printed):
            self._take_settings(host)
        for found in self.settings_of.values():
            self.settings |= found

    def _take_settings(self, host: str) -> None:
        """Give the settings a process has printed to its run."""
        printed = self._printed.pop(host)
        name = printed.get("run_name") or self._run_of.get(host, "")
        self._run_of[host] = name
        self.settings_of.setdefault(name, {}).update(printed)


def open_text(path: Path) -> IO[str]:
    """Open a log, plain or gzipped, whatever bytes stand between its lines."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def read_lines(path: Path) -> LogLines:
    """Read every line that says something.

    Args:
        path: the log, plain or gzipped, also while it is being written.

    Returns:
        One stream a host. A last line without its end is read as far as it is complete.

    Raises:
        DataError: it cannot be read.
    """
    log = LogLines()
    try:
        with open_text(path) as file:
            _take_all(log, file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such log; give the file MaxText's output went to") from None
    except (OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a text file or a .gz") from error
    return log


def _host(prefix: str) -> str:
    """Return the host or process a prefix names, "" where it names none."""
    found = _HOST.search(prefix)
    return found[found.lastindex or 0] if found else ""


def time_of(prefix: str) -> str:
    """Return the time a prefix carries, in a form that sorts; "" where there is none."""
    found = _TIME.search(prefix)
    return (found[1] or found[2]) if found else ""


def _take_all(log: LogLines, lines: Iterator[str]) -> None:
    """Read all lines; a gzip file that is still being written ends early."""
    at = 0
    try:
        for at, text in enumerate(lines, start=1):
            line = plain(text) if "\x1b" in text else text
            if "ompleted " in line or "step:" in line or "step=" in line:
                _take_result(log, at, line)
            elif _LOADER in line or _PARAMETERS in line:
                _take_start(log, at, line)
            elif "Config param " in line and (found := _SETTING.search(line)):
                log.set(line[: line.find("Config param ")], found[1], found[2].strip())
    except EOFError:
        log.cut = f"the gzip file ends within line {at + 1}; read up to there"
    log.finish()


def _take_result(log: LogLines, at: int, line: str) -> None:
    """Take a completed step or evaluation; leave any other line alone."""
    start = line.find("completed ")
    found = _STEP.match(line, start) if start >= 0 else None
    if found and not line[start - 1 : start].isalnum():
        _take_step(log, at, line, found)
        return
    found = _EVALUATION.search(line)
    if found:
        _take_evaluation(log, at, line, found)
    elif _LOADER in line:  # it names a resumed_step
        _take_start(log, at, line)


def _take_step(log: LogLines, at: int, line: str, found: re.Match[str]) -> None:
    """Take a completed step."""
    pairs = pairs_of(found[2])
    if not line.endswith("\n"):
        drop_torn(pairs, log.last_pairs)
    done = whole(found[1]) or 0
    nats = _train_nats(pairs, log)
    weight = known(pairs["total_weights"]) if "total_weights" in pairs else math.nan
    why = ""
    if "ompleted " in found[2]:
        why = "two results on one line"
    elif done >= MOST_STEPS:
        why = f"completed step {_short(found[1])}, and no run has {MOST_STEPS:,} steps"
    elif weight > MOST_TOKENS_A_STEP:
        why = f"total_weights {_short(pairs['total_weights'])}: no step has as many tokens"
    elif nats is None:
        why = f"completed step {_short(found[1])} without a loss"
    if why or nats is None:
        log.left_out.append((at, why))
        log.first_lost = log.first_lost or _short(line[found.start() :].strip(), _EXCERPT)
        return
    log.last_pairs = pairs
    prefix = line[: found.start()]
    stream = log.stream(prefix)
    if not stream.rows:
        stream.first_time = time_of(prefix)
    stream.last_prefix = prefix
    stream.rows.append(
        Row(
            at,
            done + 1,  # N counts from 0; the state is that after N + 1 updates
            nats,
            known(pairs["z_loss"]) if "z_loss" in pairs else math.nan,
            weight,
            "Rampup" in prefix,
        )
    )


def _take_evaluation(log: LogLines, at: int, line: str, found: re.Match[str]) -> None:
    """Take the result of an evaluation; its running means are not results."""
    pairs = pairs_of(found[2].lstrip(":, "))
    if not line.endswith("\n"):
        drop_torn(pairs, {})
    done = whole(found[1]) or 0
    nats = number(pairs.get("loss", pairs.get("eval_loss")))
    if nats is None:
        log.left_out.append((at, f"evaluation after step {_short(found[1])} without a loss"))
        return
    if done >= MOST_STEPS:
        what = f"evaluation after step {_short(found[1])}, and no run has {MOST_STEPS:,} steps"
        log.left_out.append((at, what))
        return
    log.evaluation_terms.update(name for term in _IN_THE_LOSS if (name := f"avg_{term}") in pairs)
    stream = log.stream(line[: found.start()])
    z_nats = known(pairs.get("avg_z_loss"))
    stream.evaluations.append(Evaluation(at, done + 1, nats, z_nats))


def _take_start(log: LogLines, at: int, line: str) -> None:
    """Take a line that a process prints once, before its first step."""
    prefix, loader, rest = line.partition(_LOADER)
    if not loader:
        log.stream(line.partition(_PARAMETERS)[0]).starts.append(Start(at))
        return
    stated = {name: value.strip(",").replace(",", "") for name, value in _EQUAL.findall(rest)}
    shards = stated.get("shard", "").partition("/")[2]
    factors = [whole(stated.get("per_host_batch", "")), whole(shards), whole(stated.get("seq", ""))]
    sizes = [factor for factor in factors if factor is not None]
    resumed = whole(stated.get("resumed_step", ""))
    if resumed is not None and resumed >= MOST_STEPS:
        resumed = None
    if len(sizes) < len(factors) or resumed is None:
        log.left_out.append((at, "loader line without batch, shards, length or step"))
    log.stream(prefix).starts.append(
        Start(
            line=at,
            resumed_step=resumed,
            tokens_per_step=math.prod(sizes) if len(sizes) == len(factors) else None,
        )
    )


def _short(text: str, most: int = 30) -> str:
    """Return the beginning of a text, for a message."""
    return text if len(text) <= most else f"{text[:most]}…"


def _train_nats(pairs: dict[str, str], log: LogLines) -> float | None:
    """Return the language-model loss of a step, None where the line holds none."""
    total = number(pairs.get("loss"))
    model = number(pairs.get("lm_loss"))
    if model and (total is None or math.isfinite(total)):  # builds without it print 0.000
        return model
    if total is None or not math.isfinite(total):
        return total
    terms = [(name, known(pairs[name])) for name in _IN_THE_LOSS if name in pairs]
    log.auxiliary.update(name for name, nats in terms if nats > 0)
    return total - sum(nats for _, nats in terms if math.isfinite(nats))
