"""Whether reading in worker processes changes what is read."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalmon.audit.drive import Stream
from evalmon.audit.replay_finding import ReplayFinding

__all__ = ["WorkerEffects", "worker_effects"]


@dataclass(frozen=True, slots=True)
class WorkerEffects:
    """A stream read with workers beside the same one read without.

    Attributes:
        workers: W.
        same_multiset: whether both hold every instance equally often.
        same_order: whether both hold them in one order.
        missing: draws without workers that the stream with workers lacks.
        extra: draws with workers that the stream without lacks.
        tail: draws by which both may differ at the end: what W workers have under way, or
            drop because it fills no batch.
        ended: whether both came to their end.
    """

    workers: int
    same_multiset: bool
    same_order: bool
    missing: int
    extra: int
    tail: int
    ended: bool

    def record(self) -> dict[str, Any]:
        """Return the effects as JSON values."""
        return {
            "workers": self.workers,
            "same_multiset": self.same_multiset,
            "same_order": self.same_order,
            "missing": self.missing,
            "extra": self.extra,
        }

    def findings(self) -> list[ReplayFinding]:
        """Return the finding of a multiset that no tail explains."""
        extra_excused = 0 if self.ended else self.tail
        if self.missing <= self.tail and self.extra <= extra_excused:
            return []
        message = (
            f"{self.workers} workers read other instances than none: {self.missing} draws are "
            f"missing and {self.extra} are extra over the same window"
        )
        return [ReplayFinding("worker_effect", message, self.missing + self.extra, None)]

    def notes(self) -> list[str]:
        """Return what is worth knowing though it is no finding."""
        if self.findings() or self.same_order:
            return []
        if not self.same_multiset:
            kind = "dropped at the workers' ends" if self.ended else "under way at the end"
            return [
                (
                    f"with {self.workers} workers {self.missing} draws are missing, {self.extra} "
                    f"extra ({kind}, at most {self.tail})"
                )
            ]
        return [f"the order depends on the workers: {self.workers} give another one than none"]


def worker_effects(stream: Stream, alone: Stream, identity: str, workers: int) -> WorkerEffects:
    """Compare a stream with the one read without workers.

    Args:
        stream: read with workers.
        alone: read without, over the same window.
        identity: "instance" or "text_hash": what makes two draws the same.
        workers: W, >= 1.
    """
    mine, theirs = _keys(stream, identity), _keys(alone, identity)
    both = np.concatenate([mine, theirs])
    _, code = np.unique(both, return_inverse=True)
    size = int(code.max(initial=-1)) + 1
    difference = np.bincount(code[len(mine) :], minlength=size) - np.bincount(
        code[: len(mine)], minlength=size
    )
    steps = np.bincount(stream.draws.step) if len(mine) else np.zeros(1, np.int64)
    return WorkerEffects(
        workers=workers,
        same_multiset=not difference.any(),
        same_order=len(mine) == len(theirs) and bool((mine == theirs).all()),
        missing=int(np.maximum(difference, 0).sum()),
        extra=int(np.maximum(-difference, 0).sum()),
        tail=workers * int(steps.max()),
        ended=stream.all_ended and alone.all_ended,
    )


def _keys(stream: Stream, identity: str) -> NDArray[Any]:
    """Return what identifies each draw."""
    draws = stream.draws
    return draws.instance if identity == "instance" and stream.has_ids else draws.text_hash
