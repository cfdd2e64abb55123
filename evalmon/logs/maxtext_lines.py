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
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_ARRAY = re.compile(r"Array\(\s*([^,)\s]+)")
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
        cut: why reading ended early, "" otherwise.
    """

    streams: dict[tuple[str, str], Stream] = field(default_factory=dict[tuple[str, str], Stream])
    settings: dict[str, str] = field(default_factory=dict[str, str])
    settings_of: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    auxiliary: set[str] = field(default_factory=set[str])
    evaluation_terms: set[str] = field(default_factory=set[str])
    left_out: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
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
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if "ompleted " in line or "step:" in line or "step=" in line:
                _take_result(log, number, line)
            elif _LOADER in line or _PARAMETERS in line:
                _take_start(log, number, line)
            elif "Config param " in line and (found := _SETTING.search(_COLOR.sub("", line))):
                log.set(line[: line.find("Config param ")], found[1], found[2].strip())
    except EOFError:
        log.cut = f"the gzip file ends within line {number + 1}; read up to there"
    log.finish()


def _take_result(log: LogLines, number: int, line: str) -> None:
    """Take a completed step or evaluation; leave any other line alone."""
    if "\x1b" in line:
        line = _COLOR.sub("", line)
    start = line.find("completed ")
    found = _STEP.match(line, start) if start >= 0 else None
    if found and not line[start - 1 : start].isalnum():
        _take_step(log, number, line, found)
        return
    found = _EVALUATION.search(line)
    if found:
        _take_evaluation(log, number, line, found)
    elif _LOADER in line:  # it names a resumed_step
        _take_start(log, number, line)


def _take_step(log: LogLines, number: int, line: str, found: re.Match[str]) -> None:
    """Take a completed step."""
    if "ompleted " in found[2]:
        log.left_out.append((number, "two results on one line"))
        return
    pairs = _pairs(found[2])
    if not line.endswith("\n"):
        _drop_torn(pairs, log.last_pairs)
    nats = _train_nats(pairs, log)
    if nats is None:
        log.left_out.append((number, f"completed step {found[1]} without a loss"))
        return
    log.last_pairs = pairs
    prefix = line[: found.start()]
    stream = log.stream(prefix)
    if not stream.rows:
        stream.first_time = time_of(prefix)
    stream.last_prefix = prefix
    stream.rows.append(
        Row(
            number,
            int(found[1]) + 1,  # N counts from 0; the state is that after N + 1 updates
            nats,
            _known(pairs["z_loss"]) if "z_loss" in pairs else math.nan,
            _known(pairs["total_weights"]) if "total_weights" in pairs else math.nan,
            "Rampup" in prefix,
        )
    )


def _take_evaluation(log: LogLines, number: int, line: str, found: re.Match[str]) -> None:
    """Take the result of an evaluation; its running means are not results."""
    pairs = _pairs(found[2].lstrip(":, "))
    if not line.endswith("\n"):
        _drop_torn(pairs, {})
    nats = _number(pairs.get("loss", pairs.get("eval_loss")))
    if nats is None:
        log.left_out.append((number, f"evaluation after step {found[1]} without a loss"))
        return
    log.evaluation_terms.update(name for term in _IN_THE_LOSS if (name := f"avg_{term}") in pairs)
    stream = log.stream(line[: found.start()])
    z_nats = _known(pairs.get("avg_z_loss"))
    stream.evaluations.append(Evaluation(number, int(found[1]) + 1, nats, z_nats))


def _take_start(log: LogLines, number: int, line: str) -> None:
    """Take a line that a process prints once, before its first step."""
    prefix, loader, rest = line.partition(_LOADER)
    if not loader:
        log.stream(line.partition(_PARAMETERS)[0]).starts.append(Start(number))
        return
    stated = {name: value.strip(",").replace(",", "") for name, value in _EQUAL.findall(rest)}
    shards = stated.get("shard", "").partition("/")[2]
    factors = [stated.get("per_host_batch", ""), shards, stated.get("seq", "")]
    whole = all(factor.isdecimal() for factor in factors)
    resumed = stated.get("resumed_step", "")
    if not whole or not resumed.isdecimal():
        log.left_out.append((number, "loader line without batch, shards, length or step"))
    log.stream(prefix).starts.append(
        Start(
            line=number,
            resumed_step=int(resumed) if resumed.isdecimal() else None,
            tokens_per_step=math.prod(map(int, factors)) if whole else None,
        )
    )


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs ``key: value`` and ``key=value`` between commas."""
    try:  # the common form, at a quarter of the time
        return dict([part.split(": ") for part in text.split(", ") if part])
    except ValueError:
        pass
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, mark, value = part.partition(":")
        if not mark:
            key, mark, value = part.partition("=")
        if mark:
            pairs[key.strip()] = value.strip()
    return pairs


def _drop_torn(pairs: dict[str, str], before: dict[str, str]) -> None:
    """Drop the last pair of a line without end unless it has all the decimals."""
    if pairs:
        key, value = next(reversed(pairs.items()))
        decimals = len(before.get(key, "0.000").partition(".")[2])
        if value not in {"nan", "inf", "-inf"} and len(value.partition(".")[2]) != decimals:
            del pairs[key]
    if "lm_loss" in before and "lm_loss" not in pairs:  # not the same quantity as the lines before
        pairs.pop("loss", None)


def _train_nats(pairs: dict[str, str], log: LogLines) -> float | None:
    """Return the language-model loss of a step, None where the line holds none."""
    total = _number(pairs.get("loss"))
    model = _number(pairs.get("lm_loss"))
    if model and (total is None or math.isfinite(total)):  # builds without it print 0.000
        return model
    if total is None or not math.isfinite(total):
        return total
    terms = [(name, _known(pairs[name])) for name in _IN_THE_LOSS if name in pairs]
    log.auxiliary.update(name for name, nats in terms if nats > 0)
    return total - sum(nats for _, nats in terms if math.isfinite(nats))


def _known(text: str | None) -> float:
    """Return a number, NaN where there is none."""
    if text is None:
        return math.nan
    number = _number(text)
    return math.nan if number is None else number


def _number(text: str | None) -> float | None:
    """Return the number a value begins with, None where it is none."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    array = _ARRAY.match(text)  # older builds print arrays as Python shows them
    try:
        return float(array[1] if array else text.split()[0])
    except ValueError:
        return None
