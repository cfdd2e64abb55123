"""Judges a data pipeline by its construction, before anything runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evalmon.audit.config_finding import ConfigFinding
from evalmon.audit.descriptions import read_description, read_run
from evalmon.audit.drive import call_guarded
from evalmon.audit.grain_objects import read_pipeline
from evalmon.audit.pipelines import Pipeline
from evalmon.audit.rules import judge
from evalmon.audit.targets import Target, load_target
from evalmon.audit.time_limit import TimeLimit
from evalmon.errors import ConfigError
from evalmon.types import RunDescription

__all__ = ["StaticReport", "check_config", "check_objects"]

_ALL: Final = 8
"""Hosts up to which each is looked at; of more, the first seven and the last."""

_SECONDS: Final = 120.0
"""Limit on building the pipeline of one host."""


@dataclass(frozen=True, slots=True)
class StaticReport:
    """What a pipeline's construction says.

    Attributes:
        target: what was looked at.
        hosts: S.
        pipelines: one for each host that was looked at.
        findings: what is wrong, errors first.
        not_understood: what could not be judged.
    """

    target: str
    hosts: int
    pipelines: tuple[Pipeline, ...]
    findings: tuple[ConfigFinding, ...]
    not_understood: tuple[str, ...]

    @property
    def sound(self) -> bool | None:
        """Whether no rule found an error; None where part of it was not understood."""
        if any(finding.is_error for finding in self.findings):
            return False
        return None if self.not_understood else True

    @property
    def exit_code(self) -> int:
        """0 sound, 1 an error was found, 3 not understood."""
        return {True: 0, False: 1, None: 3}[self.sound]

    def record(self) -> dict[str, Any]:
        """Return everything as JSON values; of equal pipelines one."""
        shown: list[list[dict[str, Any]]] = []
        for pipeline in self.pipelines:
            if (own := pipeline.record()) not in shown:
                shown.append(own)
        return {
            "target": self.target,
            "hosts": self.hosts,
            "sound": self.sound,
            "pipelines": shown,
            "findings": [finding.record() for finding in self.findings],
            "not_understood": list(self.not_understood),
        }

    def text(self) -> list[str]:
        """Return lines to read: the outcome, host 0's operations, what was found."""
        said = {True: "sound by construction", False: "NOT sound", None: "not understood"}
        lines = [f"{self.target}: {said[self.sound]} for {self.hosts} hosts"]
        for n, operation in enumerate(self.pipelines[0].record()):
            values = ", ".join(f"{key}={value}" for key, value in operation.items())
            lines.append(f"  {n + 1}. {values.removeprefix('kind=')}")
        if self.hosts == 1:
            lines.append("one host has nothing to share: rules of sharding are left out")
        lines += [finding.text() for finding in self.findings]
        return [*lines, *(f"not understood: {problem}" for problem in self.not_understood)]


def check_config(target: str, hosts: int | None, arguments: dict[str, Any]) -> StaticReport:
    """Judge what a command line names.

    Args:
        target: a .toml or .json description, a run directory, or MODULE:CALLABLE that is
            called as callable(host, hosts, **arguments) and returns a Grain pipeline.
        hosts: S, None for what the description or run says, else 2.
        arguments: further keywords of the callable.

    Raises:
        ConfigError: no such target, hosts below 1, or arguments that go nowhere.
        CheckpointError: a run directory whose run.json cannot be read.
        DataError: the callable raises or takes too long.
    """
    if hosts is not None and hosts < 1:
        raise ConfigError(f"--hosts {hosts}: must be at least 1")
    path = Path(target)
    named = path.is_dir() or path.suffix in (".toml", ".json")
    if named and arguments:
        raise ConfigError(f"--arg {next(iter(arguments))}: only a callable takes arguments")
    if path.is_dir() or path.name == "run.json":
        run = RunDescription.load((path if path.is_dir() else path.parent).resolve())
        count = hosts or run.hosts
        return _report(target, count, [read_run(run, host, count) for host in _looked_at(count)])
    if named:
        own = read_description(path)
        count = hosts or own.hosts or 2
        return _report(target, count, [own.pipeline(host, count) for host in _looked_at(count)])
    return _check_target(load_target(target), hosts or 2, arguments)


def check_objects(target: str, hosts: int, build: Callable[[int], Any]) -> StaticReport:
    """Judge the Grain pipelines of several hosts.

    Args:
        target: what they are called in the report.
        hosts: S, at least 1.
        build: returns the pipeline of host h.
    """
    pipelines: list[Pipeline] = []
    problems: list[str] = []
    for host in _looked_at(hosts):
        pipeline, unknown = read_pipeline(build(host), host, hosts)
        pipelines.append(pipeline)
        problems += unknown
    return _report(target, hosts, pipelines, problems)


def _check_target(target: Target, hosts: int, arguments: dict[str, Any]) -> StaticReport:
    """Build each host's pipeline within a time limit and judge them."""
    with TimeLimit(_SECONDS) as limit:

        def build(host: int) -> Any:
            place = f"{target.name}, host {host} of {hosts}"
            return call_guarded(lambda: target.function(host, hosts, **arguments), limit, place)

        return check_objects(target.name, hosts, build)


def _looked_at(hosts: int) -> list[int]:
    """Return the hosts whose pipelines are looked at."""
    return list(range(hosts)) if hosts <= _ALL else [*range(_ALL - 1), hosts - 1]


def _report(
    target: str, hosts: int, pipelines: list[Pipeline], problems: Sequence[str] = ()
) -> StaticReport:
    """Judge pipelines."""
    findings, unknown = judge(pipelines)
    said = tuple(dict.fromkeys([*problems, *unknown]))
    return StaticReport(target, hosts, tuple(pipelines), tuple(findings), said)
