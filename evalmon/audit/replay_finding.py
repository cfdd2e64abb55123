"""Findings of a replay: which draws break the rule, and how that is said."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalmon.audit.counts import Counts
from evalmon.audit.drive import Stream
from evalmon.audit.seams import Seam

__all__ = ["ReplayFinding", "beyond_planned", "stream_findings", "unexplained"]

_CONFIRMING = 0.01
"""Share of draws from which repeats of a text confirm repeats of an instance."""

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class ReplayFinding:
    """One way in which a stream is not sound.

    Attributes:
        kind: repeat_in_pass, more_than_planned, same_step_duplicate, resume_replay,
            worker_effect or leakage.
        message: what was seen, in one sentence.
        count: draws it was seen in.
        first_step: first step with one, None where steps do not matter.
        examples: a few of them.
    """

    kind: str
    message: str
    count: int
    first_step: int | None
    examples: tuple[dict[str, Any], ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {**asdict(self), "examples": [*self.examples]}


def beyond_planned(stream: Stream, counts: Counts, epochs: int) -> NDArray[np.bool_]:
    """Return the draws beyond E passes that were all complete by then.

    A stream that goes on after its planned passes is not unsound: a trainer stops reading.
    But one that ends by itself after more than E N draws is built for other passes than
    planned, and its surplus is a finding.
    """
    if _built_for_more(stream, counts, epochs):
        return np.zeros(len(counts.judged), np.bool_)
    return (counts.passes.rank >= epochs) & ~counts.passes.early


def unexplained(stream: Stream, counts: Counts, epochs: int) -> int:
    """Return the draws that no planned pass explains, of any kind."""
    over = (counts.passes.rank >= epochs) & _built_for_more(stream, counts, epochs)
    return int((counts.passes.early | over | counts.same_step_early).sum())


def stream_findings(
    stream: Stream, counts: Counts, found: list[Seam], epochs: int
) -> list[ReplayFinding]:
    """Return what is wrong with a stream.

    Args:
        stream: what was drawn.
        counts: what of it again.
        found: its seams.
        epochs: E, planned passes.

    Returns:
        None where the repeats are of texts, the source does not tell whether it holds
        them several times, and they are below one percent of the draws.
    """
    passes = counts.passes
    if not counts.confirms and (
        unexplained(stream, counts, epochs) < _CONFIRMING * max(counts.draws, 1)
    ):
        return []
    over = (passes.rank >= epochs) & (passes.early | _built_for_more(stream, counts, epochs))
    what = "an instance" if counts.identity == "instance" else "a text"
    plan = "once" if epochs == 1 else f"{epochs} times"
    findings = [
        _finding("repeat_in_pass", f"draws of {what} again before the pass is complete",
                 passes.early, stream, counts),
        _finding("more_than_planned", f"draws of {what} more often than planned ({plan})",
                 over, stream, counts),
        _finding("same_step_duplicate", f"draws of {what} that another host drew in the same step",
                 counts.same_step_early, stream, counts),
    ]  # fmt: skip
    return [*filter(None, findings), *(_at_seam(seam) for seam in found if seam.replayed)]


def _built_for_more(stream: Stream, counts: Counts, epochs: int) -> bool:
    """Return whether a stream that ended by itself drew more than its planned passes."""
    return stream.all_ended and len(counts.judged) > epochs * counts.size


def _finding(
    kind: str, what: str, draws: NDArray[np.bool_], stream: Stream, counts: Counts
) -> ReplayFinding | None:
    """Return a finding of marked draws, None where none is."""
    marked = np.flatnonzero(draws)
    if not len(marked):
        return None
    share = len(marked) / max(len(draws), 1)
    first = int(counts.step[marked[0]])
    return ReplayFinding(
        kind,
        f"{len(marked)} {what}, {share:.1%} of all, the first in step {first}",
        len(marked),
        first,
        tuple(_example(int(draw), stream, counts) for draw in marked[:_EXAMPLES]),
    )


def _example(draw: int, stream: Stream, counts: Counts) -> dict[str, Any]:
    """Return one draw and the one before of the same instance."""
    place = int(counts.judged[draw])
    drawn = stream.draws
    previous = int(counts.passes.previous[draw])
    record: dict[str, Any] = {
        "step": int(drawn.step[place]),
        "host": int(drawn.host[place]),
        "slot": int(drawn.slot[place]),
        "instance": int(drawn.instance[place]) if stream.has_ids else None,
        "text_hash": f"{int(drawn.text_hash[place]):016x}",
    }
    if previous >= 0:
        record["before_step"] = int(counts.step[previous])
        record["before_host"] = int(counts.host[previous])
    return record


def _at_seam(seam: Seam) -> ReplayFinding:
    """Return the finding of a seam that re-reads."""
    return ReplayFinding(
        "resume_replay",
        f"{seam.replayed} draws right after the stop at step {seam.step} were drawn before it; "
        f"the first come from step {seam.replays_step}",
        seam.replayed,
        seam.step + 1,
    )
