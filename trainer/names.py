"""Names that a user gives, held against those there are."""

import difflib
from collections.abc import Collection

from evalmon.errors import ConfigError

__all__ = ["require_known"]


def require_known(option: str, kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is none of those known, and suggest the nearest.

    Args:
        option: the option it was given with, such as ``--order``.
        kind: what it should name.
        name: as given.
        known: every name there is, at least one.

    Raises:
        ConfigError: it is not among them.

    Example:
        >>> require_known("--order", "order", "maxtxt", ("olmo_core", "maxtext"))
        Traceback (most recent call last):
        ...
        evalmon.errors.ConfigError: --order 'maxtxt': no such order; nearest is 'maxtext' of \
olmo_core, maxtext
    """
    if name not in known:
        (near,) = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)
        raise ConfigError(
            f"{option} {name!r}: no such {kind}; nearest is {near!r} of {', '.join(known)}"
        )
