"""Texts that share beginnings, laid out so that every shared token is computed once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROW_TOKENS", "ForestScores", "TokenForest"]

ROW_TOKENS = 256
"""Places of the shortest row. A shared beginning is computed so many places at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenForest:
    """Rows of token trees: a token stands behind the text it continues, each text once.

    A row holds trees one after the other, in depth-first order. The text before a token is
    the prefix of the whole forest, then those earlier tokens of its row whose branch it is
    on: place ``j`` is on the branch of place ``i`` when ``j <= i <= ends[j]``. That is what
    it attends to, and nothing else; how far back, the positions tell.

    Attributes:
        ids: [R, T] token ids; padding holds 0.
        positions: [R, T] place of each token in its text, counted from the text's first
            token, so from the prefix's length in the first column; padding holds 0.
        ends: [R, T] last place of its row that continues this token; padding ends in itself.
        tokens: places that are not padding.
        picks: [P] places, ``row * T + column``, whose next token is asked for.
        targets: [P] the token asked for.

    Example:
        The texts (7, 8, 9) and (7, 8, 4), the last token of each asked for:

        >>> forest = TokenForest(
        ...     ids=np.array([[7, 8]]), positions=np.array([[0, 1]]), ends=np.array([[1, 1]]),
        ...     tokens=2, picks=np.array([1, 1]), targets=np.array([9, 4]))
        >>> forest.text_at(1)
        (7, 8)
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    ends: NDArray[np.int32]
    tokens: int
    picks: NDArray[np.int32]
    targets: NDArray[np.int32]

    def text_at(self, place: int) -> tuple[int, ...]:
        """Return the tokens of a place's branch down to itself, the prefix left out.

        A model that cannot compute branches together can score each text by itself.

        Args:
            place: ``row * T + column``.
        """
        row, column = divmod(place, self.ids.shape[1])
        branch = np.flatnonzero(self.ends[row, : column + 1] >= column)
        return tuple(self.ids[row, branch].tolist())


@dataclass(frozen=True, slots=True, eq=False)
class ForestScores:
    """What a model says of a forest's picks.

    Attributes:
        logprobs: [P] natural-log probability of each target, float32.
        likeliest: [P] the likeliest token at each place.
    """

    logprobs: NDArray[np.float32]
    likeliest: NDArray[np.int32]
