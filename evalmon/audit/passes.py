"""Which draws come again too early: the arithmetic of passes over a source.

In a sound stream an instance is drawn for the (r + 1)-th time only when all others were
drawn r times. Said in draws: let C_r(s) be the instances drawn at least r times by the end
of step s. The r-th pass is complete at the first step c_r with ``C_r >= N - r D``; a draw that
is its instance's (r + 1)-th and lies in a step before c_r is early. D, the slack, is what
a sound stream may leave out or read ahead in one pass:

- where the W B draws that S hosts with W workers have under way do not divide N, up to
  W B - 1 instances: dropped shard remainders (N mod S), batch remainders (N mod B), and tails
  that workers drop each (at most b - 1);
- and, for shuffles in windows that reach over the end of a pass, up to 8 B draws, at most N/16.

The end of the step counts because a batch may straddle the end of a pass. Two hosts that draw
one instance in one step are early too, unless that step may hold the end of a pass:
``T_end >= r (N - D)`` and ``T_start <= r N + D`` for some r >= 1, T being draws over all hosts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalmon.types import IntArray

__all__ = ["Passes", "occurrences", "slack", "straddles"]


@dataclass(frozen=True, slots=True)
class Passes:
    """Each draw's place among the draws of its instance.

    Attributes:
        code: [n] number of the draw's instance, from 0.
        rank: [n] earlier draws of the same instance; of a text that the source holds m times,
            earlier draws divided by m.
        previous: [n] index of the draw before of the same instance, -1 for none.
        early: [n] whether the draw comes before the passes it needs are complete.
        complete_step: [max rank] step by which pass 1, 2 … is complete, a step beyond all where
            it is not.
    """

    code: IntArray
    rank: IntArray
    previous: IntArray
    early: NDArray[np.bool_]
    complete_step: IntArray

    @classmethod
    def of(
        cls,
        keys: NDArray[np.integer],
        steps: NDArray[np.integer],
        *,
        instances: int | None,
        loose: int,
        copies: NDArray[np.integer] | None = None,
    ) -> "Passes":
        """Place draws among the passes.

        Args:
            keys: [n] equal exactly where the instance is.
            steps: [n] step of each draw, not falling.
            instances: N, None to take the instances that were drawn for the whole.
            loose: D, instances a pass may leave out.
            copies: [n] how often the source holds the draw's instance, None for once.

        Example:
            >>> p = Passes.of(np.array([0, 1, 0, 1, 2]), np.arange(1, 6), instances=3, loose=0)
            >>> p.rank.tolist(), p.early.tolist()
            ([0, 0, 1, 1, 0], [False, False, True, True, False])
        """
        _, code = np.unique(keys, return_inverse=True)
        times, previous = occurrences(code)
        rank = times if copies is None else times // np.maximum(copies, 1)
        whole = int((rank == 0).sum()) if instances is None else instances
        counts = np.bincount(rank) if len(rank) else np.zeros(0, np.int64)
        starts = np.cumsum(counts) - counts
        by_rank = steps[np.argsort(rank, kind="stable")]
        needed = np.maximum(whole - loose * np.arange(1, len(counts) + 1), 1)
        enough = counts >= needed
        never = int(steps[-1]) + 1 if len(steps) else 1
        complete = np.full(len(counts), never, np.int64)
        complete[enough] = by_rank[starts[enough] + needed[enough] - 1]
        # No pass is complete before the one that it follows.
        complete = np.maximum.accumulate(complete)
        early = np.zeros(len(rank), np.bool_)
        again = rank > 0
        early[again] = steps[again] < complete[rank[again] - 1]
        return cls(code.astype(np.int64), rank, previous, early, complete)


def occurrences(code: IntArray) -> tuple[IntArray, IntArray]:
    """Return how often each draw's instance was drawn before, and where the last time.

    Args:
        code: [n] numbers from 0.

    Returns:
        [n] earlier draws, and [n] index of the last of them, -1 for none.
    """
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    fresh = np.ones(len(code), np.bool_)
    fresh[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(fresh, np.arange(len(code)), 0))
    times = np.empty(len(code), np.int64)
    times[order] = np.arange(len(code)) - start
    previous = np.full(len(code), -1, np.int64)
    previous[order[1:][~fresh[1:]]] = order[:-1][~fresh[1:]]
    return times, previous


def slack(instances: int, under_way: int, per_step: int) -> int:
    """Return D, the instances that a sound stream may leave out of a pass.

    Args:
        instances: N.
        under_way: W B, draws of S hosts with W workers at a time.
        per_step: B, draws of a step.

    Example:
        >>> slack(4096, 32, 32), slack(4100, 32, 32), slack(24, 8, 8)
        (256, 256, 1)
        >>> slack(4100, 512, 512)
        511
    """
    tail = under_way - 1 if under_way and instances % under_way else 0
    return max(tail, min(8 * per_step, instances // 16))


def straddles(first: IntArray, last: IntArray, *, instances: int, loose: int) -> NDArray[np.bool_]:
    """Return which steps may hold the end of a pass.

    Args:
        first: [k] draws before each step.
        last: [k] draws by its end.
        instances: N.
        loose: D.

    Returns:
        [k] flags.
    """
    # The number of the last pass whose end may come so early, and whether it came.
    shortest = max(instances - loose, 1)
    passes = last // shortest
    # Some r from 1 to passes with first <= r N + D: the largest serves.
    return (passes >= 1) & (first <= passes * instances + loose)
