"""What can be learned of a sampler without reading a record: its first keys."""

import math
import time
from dataclasses import dataclass
from typing import Any, Final

from evalmon.audit.pipelines import INFINITE

__all__ = ["Probe", "probe"]

_SECONDS: Final = 2.0
_MOST: Final = 200_000


@dataclass(frozen=True, slots=True)
class Probe:
    """The first keys of a sampler.

    Attributes:
        keys: each once, in order.
        divides: how many positions in a row have the same key.
        problem: why there are none, "" where there are some.
    """

    keys: tuple[int, ...] = ()
    divides: int = 1
    problem: str = ""


def probe(sampler: Any, instances: int | None, hosts: int) -> Probe:
    """Ask a sampler for its first keys, for at most two seconds.

    Args:
        sampler: gives ``.record_key`` by index.
        instances: N of the source, None where that is not known.
        hosts: S; a sampler that slices by host is not asked beyond one slice.

    Returns:
        About 4 sqrt(N) keys: enough that two orders of the same N instances would have some
        in common.
    """
    known = instances if instances and instances < INFINITE else _MOST
    share = max(known // hosts - hosts, 0) or max(known // hosts, 1)
    wanted = min(share, max(64, math.isqrt(16 * known)), _MOST)
    deadline = time.monotonic() + _SECONDS
    keys: list[int] = []
    divides = 1
    while len(keys) < wanted and time.monotonic() < deadline:
        try:
            key = int(sampler[len(keys) * divides].record_key)
            if len(keys) == 0:
                divides = _run(sampler, key, hosts)
        except IndexError:
            break
        except Exception as error:  # noqa: BLE001 - a stranger's sampler may raise anything
            return Probe(problem=f"raised {type(error).__name__}: {error}")
        keys.append(key)
    return Probe(tuple(keys), divides, "" if keys else "gave no key")


def _run(sampler: Any, key: int, hosts: int) -> int:
    """Return hosts where the first that many positions share one key, else 1."""
    try:
        same = all(int(sampler[n].record_key) == key for n in range(hosts))
    except IndexError:
        return 1
    return hosts if same else 1
