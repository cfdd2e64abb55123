"""Evaluation and loss-versus-holdout divergence monitor for language-model pre-training."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("evalmon")
