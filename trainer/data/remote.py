"""Token files that lie elsewhere: looked at through fsspec, and read from a cached copy."""

import errno
import hashlib
import os
import sys
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK, TqdmCallback

from evalmon.errors import FetchError, WriteError

__all__ = ["is_url", "local_copy", "read_range", "size_of"]

_VERSIONS: Final = (
    "ETag",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "generation",
    "md5Hash",
    "created",
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHOWN_BYTES: Final = 1 << 28


def is_url(path: str) -> bool:
    """Return whether a path names a protocol of fsspec.

    Example:
        >>> is_url("s3://bucket/part.npy"), is_url("/data/part.npy")
        (True, False)
    """
    return "://" in path


def size_of(url: str) -> int | None:
    """Return the bytes of a far file, None if there is no such file.

    Raises:
        FetchError: its place cannot be asked.
    """
    with _wrapped(url):
        file_system, path = fsspec.url_to_fs(url)
        try:
            return int(file_system.info(path)["size"])
        except FileNotFoundError:
            return None


def read_range(url: str, start: int, stop: int) -> bytes:
    """Return the bytes of a far file from ``start`` up to ``stop``.

    Raises:
        FetchError: they cannot be had.
    """
    with _wrapped(url):
        file_system, path = fsspec.url_to_fs(url)
        return file_system.cat_file(path, start=start, end=stop)


def local_copy(url: str, cache_dir: Path | None = None) -> Path:
    """Return a copy of a far file, fetched whole if it is not in the cache.

    Its name hangs on address, size and whatever version the place tells, so that another
    file is never taken for it. It gets the name when it is whole: a copy cut off by a kill is
    never read, and two processes may fetch the same one.

    Args:
        url: any address that fsspec knows.
        cache_dir: where copies are kept; by default ``tokens`` in ``$EVALMON_CACHE``, else in
            ``~/.cache/evalmon``.

    Raises:
        FetchError: the file is not there, cannot be fetched, or comes short.
        WriteError: the cache cannot be written, or is full.
    """
    cache = cache_dir or _default_cache()
    with _wrapped(url):
        file_system, path = fsspec.url_to_fs(url)
        facts = file_system.info(path)
        size = int(facts["size"])
    version = [str(facts[name]) for name in _VERSIONS if name in facts]
    key = hashlib.sha256("\0".join([url, str(size), *version]).encode()).hexdigest()[:32]
    target = cache / f"{key}.npy"
    if target.is_file() and target.stat().st_size == size:
        return target
    partial = cache / f"{key}.{os.getpid()}-{uuid.uuid4().hex}.partial"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        partial.touch()
    except OSError as error:
        raise WriteError(
            f"{cache}: the copy of {url} cannot be written ({error}); free some space, or point "
            "EVALMON_CACHE at a folder that can be written"
        ) from error
    try:
        _fetch(file_system, path, partial, url, size)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _fetch(file_system: Any, path: str, partial: Path, url: str, size: int) -> None:
    """Copy a far file, showing how far a large one is."""
    with ExitStack() as stack:
        shown = DEFAULT_CALLBACK
        if size >= _SHOWN_BYTES:
            look = {"desc": path.rsplit("/", 1)[-1], "unit": "B", "unit_scale": True}
            shown = stack.enter_context(TqdmCallback(tqdm_kwargs={**look, "file": sys.stderr}))
        with _wrapped(url):
            file_system.get_file(path, str(partial), callback=shown)
    found = partial.stat().st_size
    if found != size:
        raise FetchError(
            f"{url}: {found} bytes came of {size}; it was cut off or is being written: try again"
        )


def _default_cache() -> Path:
    """Return where copies are kept where nobody says."""
    named = os.environ.get("EVALMON_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "evalmon") / "tokens"


@contextmanager
def _wrapped(url: str) -> Generator[None]:
    """Turn what any file system raises into one error that names the address."""
    try:
        yield
    except FileNotFoundError as error:
        raise FetchError(f"{url}: no such file; restore it, or make the index again") from error
    except ImportError as error:
        raise FetchError(f"{url}: its protocol needs a package ({error}); install it") from error
    except Exception as error:  # each file system of fsspec raises its own
        if isinstance(error, OSError) and error.errno in _FULL:
            raise WriteError(
                f"{url}: its copy cannot be kept ({error}); free some space, or point "
                "EVALMON_CACHE at a larger disk"
            ) from error
        raise FetchError(
            f"{url}: cannot be read ({type(error).__name__}: {error}); check address, network and "
            "rights, then try again"
        ) from error
