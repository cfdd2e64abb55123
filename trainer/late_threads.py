"""What Orbax and its threads would print beside the one error that is raised."""

import logging
import sys
from functools import cache

__all__ = ["be_quiet", "first_line"]

_LONGEST = 300


@cache
def be_quiet() -> None:
    """Keep Orbax from logging every phase, and its threads from reporting after the end.

    What goes wrong is raised to the caller. The first array that fails, or an interrupt, ends
    Orbax's event loop; TensorStore's threads, still at the others, then find it closed and
    would print a traceback an array where nobody can catch it.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    report = sys.unraisablehook

    def unless_late(unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            report(unraisable)

    sys.unraisablehook = unless_late


def first_line(cause: object) -> str:
    """Return the first line of an error's text, at most 300 characters, or its class.

    Example:
        >>> first_line(ValueError("torn")), first_line(KeyError())
        ('torn', 'KeyError')
    """
    lines = str(cause).strip().splitlines()
    return lines[0][:_LONGEST] if lines else type(cause).__name__
