"""Evaluation and loss-versus-holdout divergence monitor for language-model pre-training."""

from typing import TYPE_CHECKING

__all__ = ["__version__"]

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Look up the version when it is asked for: that takes longer than the rest of a start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("evalmon")
