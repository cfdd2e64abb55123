"""Progress by bytes, on standard error."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tqdm import tqdm

__all__ = ["progress"]


@contextmanager
def progress(what: str, total_bytes: int) -> Generator[Callable[[int], None]]:
    """Show how far something is; what is yielded is called with the bytes done since.

    Args:
        what: one word.
        total_bytes: bytes to do in all.
    """
    with tqdm(
        total=total_bytes, unit="B", unit_scale=True, desc=what, file=sys.stderr, mininterval=0.5
    ) as bar:

        def done(count: int) -> None:
            bar.update(count)

        yield done
