"""How far a model's predictions are from a reference's, position by position.

Both sides come as log-probabilities. They are cut to the entries both vocabularies have,
normalized again over those in float64, and compared there; what is summed is float64 too.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Divergence", "Meter", "Worst", "overlap"]

_ENTRIES: Final = 1 << 22
"""Log-probabilities compared at a time: 32 MiB a float64 array."""

_NORMALIZED: Final = 1e-3
"""Nats by which the sum of probabilities may miss 1, before the vocabularies are cut. Float32
misses by 1e-5; a sum of exponentials in bfloat16 misses by 4e-3 and more."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The position with the largest divergence.

    Attributes:
        prompt: number of the prompt, from 0.
        position: number of its token, from 0; the prediction is of the token after it.
        kl: divergence there, in nats; None where a log-probability is not finite.
    """

    prompt: int
    position: int
    kl: float | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far apart model and reference are.

    Attributes:
        positions: predictions compared.
        max_kl: largest KL(reference || model) of a position, in nats. This and every other
            number is None where any log-probability is not finite.
        mean_kl: mean over positions.
        max_logprob_diff: largest absolute difference of two log-probabilities.
        topk_agreement: mean over positions of the share of the reference's ``k`` likeliest
            tokens that are among the model's ``k`` likeliest.
        max_kl_first: largest KL at position 0, where attention has one token to look at.
        max_kl_within: largest KL at the later positions that see the whole prompt so far.
        max_kl_beyond: largest KL at positions from which the window hides something.
        worst: where it is largest; a position that is not finite comes first.
        nonfinite: positions with a log-probability that is not finite, by side.
        unnormalized: positions whose probabilities do not sum to 1, by side.
    """

    positions: int
    max_kl: float | None
    mean_kl: float | None
    max_logprob_diff: float | None
    topk_agreement: float | None
    max_kl_first: float | None
    max_kl_within: float | None
    max_kl_beyond: float | None
    worst: Worst
    nonfinite: dict[str, int]
    unnormalized: dict[str, int]


class Meter:
    """Takes log-probabilities of both sides part by part and keeps sums and maxima.

    Args:
        vocabulary: entries both sides have, from id 0 on.
        top_k: k of the agreement, at most ``vocabulary``.
        window: tokens a sliding layer sees, the current one included.
    """

    def __init__(self, vocabulary: int, top_k: int, window: int) -> None:
        self._vocabulary, self._top_k, self._window = vocabulary, top_k, window
        self._positions = 0
        self._kl_sum = self._agreement_sum = self._difference = 0.0
        self._worst: Worst | None = None
        self._regions: dict[str, float] = {}
        self._nonfinite = {"reference": 0, "model": 0}
        self._unnormalized = {"reference": 0, "model": 0}

    def add(
        self,
        prompt: int,
        positions: NDArray[np.int64],
        reference: NDArray[np.float32],
        model: NDArray[np.float32],
    ) -> None:
        """Compare some positions of a prompt.

        Args:
            prompt: its number.
            positions: [t] numbers of its tokens.
            reference: [t, V] log-probabilities of the reference.
            model: [t, V'] log-probabilities of the model.
        """
        rows = max(1, _ENTRIES // self._vocabulary)
        for start in range(0, len(positions), rows):
            part = slice(start, start + rows)
            self._add(prompt, positions[part], reference[part], model[part])

    def result(self) -> Divergence:
        """Return what was found; at least one position must have been added."""
        assert self._worst is not None
        finite = not any(self._nonfinite.values())
        regions = self._regions if finite else {}
        return Divergence(
            positions=self._positions,
            max_kl=self._worst.kl,
            mean_kl=self._kl_sum / self._positions if finite else None,
            max_logprob_diff=self._difference if finite else None,
            topk_agreement=self._agreement_sum / self._positions if finite else None,
            max_kl_first=regions.get("first"),
            max_kl_within=regions.get("within"),
            max_kl_beyond=regions.get("beyond"),
            worst=self._worst,
            nonfinite=dict(self._nonfinite),
            unnormalized=dict(self._unnormalized),
        )

    def _add(
        self,
        prompt: int,
        positions: NDArray[np.int64],
        reference: NDArray[np.float32],
        model: NDArray[np.float32],
    ) -> None:
        """Compare a part that fits in memory in float64."""
        self._positions += len(positions)
        p, good_p = self._side("reference", reference)
        q, good_q = self._side("model", model)
        good = good_p & good_q
        if not good.all() and (self._worst is None or self._worst.kl is not None):
            self._worst = Worst(prompt, int(positions[~good][0]), None)
        if not good.any():
            return
        p, q, positions = p[good], q[good], positions[good]
        # Both are normalized, so what rounding leaves below 0 is no divergence.
        kl = np.maximum((np.exp(p) * (p - q)).sum(axis=-1), 0.0)
        self._kl_sum += float(kl.sum())
        self._difference = max(self._difference, float(np.abs(p - q).max()))
        self._agreement_sum += float(overlap(p, q, self._top_k).sum())
        self._note_largest(prompt, positions, kl)

    def _side(
        self, side: str, rows: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the shared entries, normalized, and which rows are finite."""
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=-1))
        self._nonfinite[side] += int((~finite).sum())
        wide = np.where(finite[:, None], rows, np.float64(0.0))
        total = _log_sum(wide)
        self._unnormalized[side] += int(((np.abs(total) > _NORMALIZED) & finite).sum())
        if rows.shape[1] > self._vocabulary:
            wide = wide[:, : self._vocabulary]
            total = _log_sum(wide)
        return wide - total[:, None], finite

    def _note_largest(
        self, prompt: int, positions: NDArray[np.int64], kl: NDArray[np.float64]
    ) -> None:
        """Keep the largest divergence, overall and by region."""
        regions = {
            "first": positions == 0,
            "within": (positions > 0) & (positions < self._window),
            "beyond": positions >= self._window,
        }
        for name, where in regions.items():
            if where.any():
                self._regions[name] = max(self._regions.get(name, 0.0), float(kl[where].max()))
        top = int(kl.argmax())
        worst = self._worst
        if worst is None or (worst.kl is not None and kl[top] > worst.kl):
            self._worst = Worst(prompt, int(positions[top]), float(kl[top]))


def overlap(p: NDArray[np.float64], q: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Return for each row the share of the ``k`` largest of ``p`` that are so in ``q``.

    Args:
        p: [t, V].
        q: [t, V].
        k: at most V.

    Example:
        >>> overlap(np.array([[3.0, 2.0, 1.0]]), np.array([[3.0, 1.0, 2.0]]), 2).tolist()
        [0.5]
    """
    largest = np.argpartition(p, -k, axis=-1)[:, -k:]
    among = np.zeros(q.shape, bool)
    np.put_along_axis(among, np.argpartition(q, -k, axis=-1)[:, -k:], True, axis=-1)
    return np.take_along_axis(among, largest, axis=-1).mean(axis=-1)


def _log_sum(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of the sum of exponentials of each row."""
    highest = rows.max(axis=-1, keepdims=True)
    return (np.log(np.exp(rows - highest).sum(axis=-1, keepdims=True)) + highest)[:, 0]
