"""How a stopped replay goes on: with other hosts, and from which position.

``argument`` calls the callable with how far it came, ``state`` hands the old iterators'
states to new ones, ``skip`` reads and throws away what was drawn before, ``fresh`` starts
from the beginning.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from evalmon.audit.targets import Target
from evalmon.errors import ConfigError, DataError

__all__ = ["MODES", "ResumePlan", "parse_resume", "read_states", "write_state"]

MODES = ("argument", "state", "skip", "fresh")
"""Ways to go on, as ``--resume`` names them."""

_STATE_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Where the replay stops, and how it goes on.

    Attributes:
        stops: steps after which all hosts stop, rising.
        hosts: hosts to go on with after each stop; empty for the same ones.
        mode: a name of ``MODES``, None to choose one.
    """

    stops: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    mode: str | None = None

    def hosts_after(self, stop: int, present: int) -> int:
        """Return the hosts after the stop of this number (0-based)."""
        given = list(self.hosts)
        return given[min(stop, len(given) - 1)] if given else present

    def mode_for(self, target: Target, iterators: list[Iterator[Any]], hosts: int) -> str:
        """Return the way to go on, chosen where none is named.

        Args:
            target: the callable.
            iterators: the stopped hosts' iterators.
            hosts: hosts to go on with.

        Raises:
            ConfigError: ``argument`` for a callable that takes neither step nor consumed.
        """
        by_name = target.names("step") or target.names("consumed")
        if self.mode is None:
            if by_name:
                return "argument"
            same = hosts == len(iterators)
            return "state" if same and all(map(_methods, iterators)) else "fresh"
        if self.mode == "argument" and not (by_name or target.accepts("step")):
            raise ConfigError(
                f"--resume argument: {target.name} takes neither step nor consumed; "
                f"give it one, or choose another of {', '.join(MODES[1:])}"
            )
        return self.mode


def parse_resume(stop_at: str | None, resume: str | None) -> ResumePlan:
    """Read ``--stop-at`` and ``--resume``.

    Args:
        stop_at: steps, as in ``100,200``.
        resume: hosts to go on with (one number for all stops, or one a stop) and a mode, in
            any order, as in ``2``, ``state`` or ``4,argument``.

    Raises:
        ConfigError: a step below 1, steps that do not rise, an unknown mode, or another
            number of hosts than stops.

    Example:
        >>> parse_resume("10,20", "2,8,state")
        ResumePlan(stops=(10, 20), hosts=(2, 8), mode='state')
    """
    if stop_at is None:
        if resume is not None:
            raise ConfigError(f"--resume {resume}: nothing stops; give --stop-at STEP[,STEP]")
        return ResumePlan()
    parts = [part.strip() for part in stop_at.split(",")]
    stops = tuple(int(part) for part in parts if part.isdecimal())
    if len(stops) != len(parts) or any(
        after <= before for before, after in zip((0, *stops), stops, strict=False)
    ):
        raise ConfigError(f"--stop-at {stop_at}: expected rising steps from 1, as in 100,200")
    hosts: list[int] = []
    mode: str | None = None
    for part in (word.strip() for word in (resume or "").split(",") if word.strip()):
        if part.isdecimal() and int(part) > 0:
            hosts.append(int(part))
        elif part in MODES and mode is None:
            mode = part
        else:
            raise ConfigError(
                f"--resume {resume}: {part!r} is neither a number of hosts nor one mode of "
                f"{', '.join(MODES)}; as in --resume 4,argument"
            )
    if len(hosts) not in (0, 1, len(stops)):
        raise ConfigError(
            f"--resume {resume}: {len(hosts)} numbers of hosts for {len(stops)} stops; "
            "give one for all, or one a stop"
        )
    return ResumePlan(stops, tuple(hosts), mode)


def read_states(iterators: list[Iterator[Any]], place: str) -> list[Any]:
    """Return a copy of each iterator's state.

    Raises:
        DataError: an iterator has none.
    """
    states: list[Any] = []
    for iterator in iterators:
        methods = _methods(iterator)
        if methods is None:
            raise DataError(
                f"{place}: --resume state, but {type(iterator).__name__} has no get_state and "
                "set_state; choose argument, skip or fresh"
            )
        states.append(deepcopy(getattr(iterator, methods[0])()))
    return states


def write_state(iterator: Iterator[Any], host: int, states: list[Any], place: str) -> None:
    """Give a new host's iterator the state saved by the same host.

    States that are all equal belong to no host, and serve any number of them.

    Raises:
        DataError: more hosts than states that differ, or an iterator without set_state.
    """
    methods = _methods(iterator)
    if host >= len(states) and any(state != states[0] for state in states):
        raise DataError(
            f"{place}: {len(states)} loader states were saved, none for host {host}; go on with "
            f"{len(states)} hosts, or use a loader whose state is the same for all hosts"
        )
    if methods is None:
        raise DataError(f"{place}: {type(iterator).__name__} has no set_state; choose another mode")
    getattr(iterator, methods[1])(deepcopy(states[min(host, len(states) - 1)]))


def _methods(iterator: Iterator[Any]) -> tuple[str, str] | None:
    """Return the names by which an iterator's state is read and written."""
    for read, write in _STATE_METHODS:
        if hasattr(iterator, read) and hasattr(iterator, write):
            return read, write
    return None
