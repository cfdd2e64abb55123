"""Parity: whether a model predicts what a reference with the same weights predicts.

A port of a model is right when its next-token distributions are the reference's, at every
position, also at those where a window hides something. The divergence of each position is
KL(reference || model) = sum of p (log p - log q) over the entries both vocabularies have.
"""

from evalmon.parity.check import ParityOptions, check_parity
from evalmon.parity.result import ParityResult

__all__ = ["ParityOptions", "ParityResult", "check_parity"]
