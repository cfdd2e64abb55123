"""Drives the loaders of S hosts side by side, step by step, and records what they draw."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from evalmon.audit.batches import BatchReader
from evalmon.audit.draws import DrawLog, Draws
from evalmon.audit.resume import ResumePlan, read_states, write_state
from evalmon.audit.targets import Target, user_frame
from evalmon.audit.time_limit import OutOfTime, TimeLimit
from evalmon.errors import ConfigError, DataError

__all__ = ["DrivePlan", "Segment", "Stream", "call_guarded", "drive"]

_MOST_BATCHES = 4096
"""Batches of each host where neither steps nor the source's size bound the window."""


@dataclass(frozen=True, slots=True)
class DrivePlan:
    """What is driven, and for how long.

    Attributes:
        target: called as callable(host, hosts, **arguments).
        hosts: S at the start, >= 1.
        arguments: further keywords.
        workers: keyword ``workers``, None to leave it out.
        instances: N, None where it is not known.
        steps: window in steps, None for one that ends by itself.
        resume: stops on the way.
        reader: takes tokens and ids out of batches.
        seconds: limit on building a loader and on each batch.
    """

    target: Target
    hosts: int
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    workers: int | None = None
    instances: int | None = None
    steps: int | None = None
    resume: ResumePlan = field(default_factory=ResumePlan)
    reader: BatchReader = field(default_factory=BatchReader)
    seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a stream between two stops.

    Attributes:
        first_step: steps done before it.
        first_draw: draws before it.
        hosts: hosts that drew it.
        mode: how it went on, "start" for the first.
        surplus: instances thrown away beyond what was drawn before (``skip`` only).
    """

    first_step: int
    first_draw: int
    hosts: int
    mode: str
    surplus: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """What the hosts drew.

    Attributes:
        draws: every instance.
        has_ids: whether the batches named their instances.
        segments: parts between stops, the first from step 0.
        steps: steps driven.
        batches_per_host: batches of each host.
        ended: hosts of the last segment that came to their end.
        reason: why the window ended: steps, ended, twice_the_source or batches.
        loader: host 0's first loader, to look at its source.
    """

    draws: Draws
    has_ids: bool
    segments: tuple[Segment, ...]
    steps: int
    batches_per_host: tuple[int, ...]
    ended: tuple[int, ...]
    reason: str
    loader: Any = field(repr=False)

    @property
    def all_ended(self) -> bool:
        """Whether every host came to its end."""
        return len(self.ended) == self.segments[-1].hosts


def drive(plan: DrivePlan, progress: Callable[[int], object] = lambda _: None) -> Stream:
    """Drive loaders over the window.

    Args:
        plan: what is driven.
        progress: told the draws of each step.

    Raises:
        ConfigError: the callable does not take an argument it is to be given.
        DataError: the callable or a loader raises, hangs, or yields no usable batches.
    """
    for keyword in (*plan.arguments, *(["workers"] if plan.workers is not None else [])):
        if not plan.target.accepts(keyword):
            option = "--workers" if keyword == "workers" else f"--arg {keyword}"
            raise ConfigError(
                f"{option}: {plan.target.name} takes no argument {keyword!r}; "
                "add it to the callable, or leave the option out"
            )
    _parse_flags()
    with TimeLimit(plan.seconds) as limit:
        driver = _Driver(plan, limit)
        try:
            return driver.run(progress)
        finally:
            driver.close()


def call_guarded(function: Callable[[], Any], limit: TimeLimit, place: str) -> Any:
    """Run a stranger's code within the time limit.

    Args:
        function: what is run.
        limit: an entered limit.
        place: what is run, for messages.

    Raises:
        StopIteration: the function's own.
        DataError: it raised anything else, or took too long.
    """
    limit.start(place)
    try:
        return function()
    except StopIteration:
        raise
    except OutOfTime as error:
        raise DataError(str(error)) from error
    except (Exception, SystemExit) as error:
        where = user_frame(error)
        raise DataError(
            f"{place}: raised {type(error).__name__}: {error}{f' at {where}' if where else ''}; "
            "nothing is concluded from what was drawn before: correct the loader"
        ) from error
    finally:
        limit.stop()


class _Driver:
    """The loaders of one replay."""

    def __init__(self, plan: DrivePlan, limit: TimeLimit) -> None:
        self._plan, self._limit = plan, limit
        self._log = DrawLog()
        self._has_ids: bool | None = None
        self._iterators: list[Iterator[Any]] = []
        self._running: list[int] = []
        self._batches: list[int] = []
        self._segments: list[Segment] = []
        self._loader: Any = None
        self._step = 0

    def run(self, progress: Callable[[int], object]) -> Stream:
        """Drive until the window ends."""
        plan, stops = self._plan, list(self._plan.resume.stops)
        self._build(plan.hosts, self._start_arguments())
        self._segments = [Segment(0, 0, plan.hosts, "start")]
        while (reason := self._end()) is None:
            if stops and self._step == stops[0]:
                stops.pop(0)
                self._go_on(len(plan.resume.stops) - len(stops) - 1)
            before = len(self._log)
            self._step += 1
            if not self._one_step():
                self._step -= 1
            progress(len(self._log) - before)
        return Stream(
            draws=self._log.draws(),
            has_ids=bool(self._has_ids),
            segments=tuple(self._segments),
            steps=self._step,
            batches_per_host=tuple(self._batches),
            ended=tuple(sorted(set(range(len(self._iterators))) - set(self._running))),
            reason=reason,
            loader=self._loader,
        )

    def close(self) -> None:
        """Let loaders end their threads and worker processes."""
        for iterator in self._iterators:
            end = getattr(iterator, "close", None)
            if callable(end):
                call_guarded(end, self._limit, f"{self._plan.target.name}: closing a loader")
        self._iterators = []

    def _end(self) -> str | None:
        """Return why the window is over, None while it is not."""
        plan, most = self._plan, max(self._batches, default=0)
        if not self._running:
            return "ended"
        if plan.steps is not None:
            return "steps" if self._step >= plan.steps else None
        if plan.instances is not None and len(self._log) >= 2 * plan.instances:
            return "twice_the_source"
        if most >= _MOST_BATCHES and not len(self._log):
            raise DataError(
                f"{plan.target.name}: {most} batches of each host hold no instance; "
                "correct the loader"
            )
        return "batches" if plan.instances is None and most >= _MOST_BATCHES else None

    def _one_step(self) -> bool:
        """Read one batch of each host that has one; return whether any had."""
        target, read = self._plan.target.name, False
        for host in tuple(self._running):
            place = f"{target} host {host} of {len(self._iterators)}, step {self._step}"
            try:
                batch = call_guarded(self._iterators[host].__next__, self._limit, place)
            except StopIteration:
                self._running.remove(host)
                continue
            tokens, ids = self._plan.reader.read(batch, place)
            if self._has_ids is None:
                self._has_ids = ids is not None
            if self._has_ids != (ids is not None):
                raise DataError(
                    f"{place}: {'no ids' if ids is None else 'ids'} here, unlike in batches "
                    "before; give ids in every batch, or leave them out by --id-field none"
                )
            self._log.append(self._step, host, tokens, ids)
            self._batches[host] += 1
            read = True
        return read

    def _build(self, hosts: int, arguments: dict[str, Any]) -> None:
        """Make the loaders of all hosts."""
        plan = self._plan
        keywords = {**plan.arguments, **arguments}
        if plan.workers is not None:
            keywords["workers"] = plan.workers
        self._iterators = []
        for host in range(hosts):
            place = f"{plan.target.name} host {host} of {hosts}, building the loader"

            def made(host: int = host) -> tuple[Any, Iterator[Any]]:
                loader = plan.target.function(host, hosts, **keywords)
                return loader, iter(loader)

            loader, iterator = call_guarded(made, self._limit, place)
            _parse_flags()
            self._loader = loader if self._loader is None else self._loader
            self._iterators.append(iterator)
        self._running = list(range(hosts))
        self._batches += [0] * (hosts - len(self._batches))

    def _start_arguments(self) -> dict[str, int]:
        """Return position arguments that the callable cannot do without."""
        given = self._plan.arguments
        required = [
            key
            for key in ("step", "consumed")
            if key not in given and self._plan.target.requires(key)
        ]
        return dict.fromkeys(required, 0)

    def _go_on(self, stop: int) -> None:
        """Stop all hosts and go on in new loaders."""
        plan, before = self._plan, len(self._iterators)
        hosts = plan.resume.hosts_after(stop, before)
        mode = plan.resume.mode_for(plan.target, self._iterators, hosts)
        place = f"{plan.target.name} stopped after step {self._step} on {before} hosts"
        states: list[Any] = []
        if mode == "state":
            saved = self._iterators
            states = call_guarded(lambda: read_states(saved, place), self._limit, place)
        self.close()
        arguments = self._start_arguments()
        if mode == "argument":
            position = {"step": self._step, "consumed": len(self._log)}
            named = [key for key in position if plan.target.names(key)] or ["step"]
            arguments = {key: position[key] for key in named}
        self._build(hosts, arguments)
        if mode == "state" and not self._restore(states, f"{place}, resumed on {hosts}"):
            self.close()
            self._build(hosts, arguments)
            mode = "skip"
        surplus = self._skip() if mode == "skip" else 0
        self._segments.append(Segment(self._step, len(self._log), hosts, mode, surplus))

    def _restore(self, states: list[Any], place: str) -> bool:
        """Hand states to the new iterators; return whether they were taken.

        Raises:
            DataError: they were refused, and ``--resume state`` asked for them.
        """
        for host, iterator in enumerate(self._iterators):
            where = f"{place}: host {host}, set_state ({len(states)} states saved)"
            try:
                call_guarded(
                    lambda it=iterator, h=host, w=where: write_state(it, h, states, w),
                    self._limit,
                    where,
                )
            except DataError:
                if self._plan.resume.mode is not None:
                    raise
                return False
        return True

    def _skip(self) -> int:
        """Throw away whole steps until as much was passed over as was drawn; return the surplus."""
        passed = 0
        while passed < len(self._log) and self._running:
            for host in tuple(self._running):
                place = f"{self._plan.target.name} host {host}, skipping to step {self._step}"
                try:
                    batch = call_guarded(self._iterators[host].__next__, self._limit, place)
                except StopIteration:
                    self._running.remove(host)
                    continue
                passed += len(self._plan.reader.read(batch, place)[0])
        return max(passed - len(self._log), 0)


def _parse_flags() -> None:
    """Mark absl's flags as parsed, without which Grain's worker processes end at once."""
    flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    if flags is not None and not flags.is_parsed():
        flags.mark_as_parsed()
