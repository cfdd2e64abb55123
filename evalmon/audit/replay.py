"""Replay audit: drives the loaders of S hosts and judges what they drew.

A finding is an instance drawn more than E times, or again before the pass is complete, or by
two hosts in one step. ``evalmon.audit.passes`` derives what remainders and batches that
straddle the end of a pass excuse. A stream that goes on after E complete passes is judged up to
there: what follows is outside the plan and counted as ``beyond_planned``, except where the
stream ends by itself after more than E N draws: then it was built for more passes than planned.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evalmon.audit.constructions import Construction, find_construction
from evalmon.audit.counts import Counts, count
from evalmon.audit.drive import DrivePlan, Stream, call_guarded, drive
from evalmon.audit.replay_finding import (
    ReplayFinding,
    beyond_planned,
    stream_findings,
    unexplained,
)
from evalmon.audit.seams import Seam, positions, seams
from evalmon.audit.signatures import construction
from evalmon.audit.targets import Target
from evalmon.audit.time_limit import TimeLimit
from evalmon.audit.worker_effects import WorkerEffects, worker_effects
from evalmon.errors import ConfigError
from evalmon.types import IntArray, text_hashes

__all__ = ["ReplayResult", "replay"]

_MOST_HOLDOUT_BATCHES = 100_000


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay found.

    Attributes:
        plan: what was driven.
        epochs: E, planned passes.
        stream: what was drawn.
        counts: what of it again.
        seams: the stops.
        beyond_planned: draws after E complete passes.
        repeat_or_equal_text: draws of a text again that may be another instance's.
        workers: the comparison with no workers, None without workers.
        construction: what makes such a stream, None where nothing known does.
        findings: what is wrong; empty for a sound stream.
        notes: what a reader should know besides.
    """

    plan: DrivePlan
    epochs: int
    stream: Stream
    counts: Counts
    seams: tuple[Seam, ...]
    beyond_planned: int
    repeat_or_equal_text: int
    workers: WorkerEffects | None
    construction: Construction | None
    findings: tuple[ReplayFinding, ...]
    notes: tuple[str, ...]

    @property
    def read(self) -> int:
        """Different instances that were read, rows of one token included."""
        return self.counts.unique + self.counts.single_unique

    @property
    def window_sufficient(self) -> bool | None:
        """Whether double sharding would have shown; None where N is needed to tell."""
        instances = self.plan.instances
        if instances is None:
            return True if self.stream.all_ended else None
        complete = self.counts.unique >= self.counts.size - self.counts.loose
        if self.stream.all_ended and complete:
            return True
        return self.counts.draws * self.plan.hosts >= 2 * instances

    @property
    def exit_code(self) -> int:
        """1 with findings, 3 where the window is too short to tell, 0 for a sound stream."""
        if self.findings:
            return 1
        return 0 if self.window_sufficient else 3

    def multiplicity(self) -> IntArray:
        """Return [most + 1] how many judged instances were drawn 0, 1, 2 … times."""
        times = np.bincount(self.counts.passes.code)
        return np.bincount(times) if len(times) else np.zeros(1, np.int64)


def replay(
    plan: DrivePlan,
    *,
    epochs: int = 1,
    holdout: Target | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> ReplayResult:
    """Drive loaders and judge what they draw.

    Args:
        plan: what is driven, and for how long.
        epochs: E, planned passes, >= 1.
        holdout: callable of an evaluation loader whose texts must not be drawn.
        progress: told the draws of each step.

    Raises:
        ConfigError: a number that must be positive is not.
        DataError: the callable or a loader cannot be used.
    """
    _check(plan, epochs)
    stream = drive(plan, progress)
    counts = count(stream, plan)
    where = positions(stream, counts)
    found = seams(stream, counts, where, plan.workers or 0)
    findings = stream_findings(stream, counts, found, epochs)
    repeats = bool(findings)
    suspected = 0 if counts.confirms else unexplained(stream, counts, epochs)
    fits = None
    if repeats or not counts.passes.early.any():
        fits = construction(
            stream, counts, where, found, instances=plan.instances, workers=plan.workers or 0
        )
    effects = None
    if plan.workers:
        # Where workers drop tails, the stream without them ends later.
        window = plan.steps if stream.all_ended else stream.steps
        alone = drive(replace(plan, workers=0, steps=window), progress)
        effects = worker_effects(stream, alone, counts.identity, plan.workers)
        findings += effects.findings()
    if holdout is not None:
        leaked = _leakage(holdout, plan, stream)
        findings += leaked
        if leaked and not repeats:
            fits = find_construction("R")
    after = int(beyond_planned(stream, counts, epochs).sum())
    return ReplayResult(
        plan,
        epochs,
        stream,
        counts,
        tuple(found),
        after,
        suspected,
        effects,
        fits,
        tuple(findings),
        tuple(_notes(plan, stream, counts, epochs, (after, suspected, effects, repeats))),
    )


def _check(plan: DrivePlan, epochs: int) -> None:
    """Refuse numbers that cannot be meant."""
    numbers = {
        "--hosts": (plan.hosts, 1),
        "--instances": (plan.instances, 1),
        "--epochs": (epochs, 1),
        "--steps": (plan.steps, 1),
        "--workers": (plan.workers, 0),
    }
    for option, (value, least) in numbers.items():
        if value is not None and value < least:
            raise ConfigError(f"{option} {value}: expected at least {least}")
    if not plan.seconds > 0:
        raise ConfigError(f"--time-limit {plan.seconds:g}: expected more than 0 seconds")


def _leakage(holdout: Target, plan: DrivePlan, stream: Stream) -> list[ReplayFinding]:
    """Return the finding of holdout texts in the stream, empty without any."""
    held: list[Any] = []
    place = f"--holdout {holdout.name}"
    with TimeLimit(plan.seconds) as limit:

        def made() -> Any:
            arguments = (0, 1) if holdout.positions() >= 2 else ()
            return iter(holdout.function(*arguments))

        batches = call_guarded(made, limit, place)
        for number in range(1, _MOST_HOLDOUT_BATCHES + 1):
            where = f"{place}, batch {number}"
            try:
                batch = call_guarded(batches.__next__, limit, where)
            except StopIteration:
                break
            tokens, _ = replace(plan.reader, id_field="none").read(batch, where)
            held.append(text_hashes(tokens))
    texts = np.unique(np.concatenate(held)) if held else np.empty(0, np.uint64)
    draws = stream.draws
    leaked = np.flatnonzero(np.isin(draws.text_hash, texts) & ~draws.single)
    if not len(leaked):
        return []
    shared = len(np.unique(draws.text_hash[leaked]))
    examples = tuple(
        {
            "step": int(draws.step[draw]),
            "host": int(draws.host[draw]),
            "instance": int(draws.instance[draw]) if stream.has_ids else None,
            "text_hash": f"{int(draws.text_hash[draw]):016x}",
        }
        for draw in leaked[:5]
    )
    message = f"{shared} of {len(texts)} holdout texts are in the stream, in {len(leaked)} draws"
    return [ReplayFinding("leakage", message, len(leaked), int(draws.step[leaked[0]]), examples)]


def _notes(
    plan: DrivePlan,
    stream: Stream,
    counts: Counts,
    epochs: int,
    seen: tuple[int, int, WorkerEffects | None, bool],
) -> list[str]:
    """Return what a reader should know besides findings."""
    after, suspected, effects, repeats = seen
    notes: list[str] = []
    if plan.instances is None:
        notes.append("coverage is unknown without --instances, the size of the source")
    if after:
        notes.append(
            f"{after} draws come after {epochs} complete passes; they are outside the plan "
            "and not judged as more than planned (give --epochs for more passes)"
        )
    if suspected and not repeats:
        notes.append(
            f"{suspected} draws of a text seen before: repeats, or instances of equal text; "
            "below 1 % of the draws that confirms nothing (ids in the batches would tell)"
        )
    if counts.id_conflicts:
        doing = "ids are not trusted and texts tell instances apart"
        kept = "so few that ids are trusted all the same"
        notes.append(
            f"{counts.id_conflicts} ids came with more than one text: "
            f"{kept if counts.identity == 'instance' else doing}"
        )
    if counts.single:
        notes.append(f"{counts.single} draws of one single token over and over are left out")
    missing = counts.size - counts.unique
    if plan.instances is not None and stream.all_ended and missing:
        small = missing <= counts.loose
        notes.append(
            f"{missing} instances were never read though every host ended"
            + (": what does not fill shards and batches is dropped" if small else "")
        )
    if effects is not None:
        notes += effects.notes()
    return notes + _resume_notes(plan, stream)


def _resume_notes(plan: DrivePlan, stream: Stream) -> list[str]:
    """Return what a reader should know of how the stream went on."""
    notes: list[str] = []
    for segment in stream.segments[1:]:
        if segment.mode == "fresh" and plan.resume.mode is None:
            notes.append(
                f"after step {segment.first_step} the loaders started afresh: the callable takes "
                "no step or consumed, and no iterator state fits the hosts (see --resume)"
            )
        if segment.mode == "skip" and plan.resume.mode is None:
            notes.append(
                f"after step {segment.first_step} new loaders refused the old iterators' state; "
                "what was drawn was read again and thrown away instead"
            )
        if segment.surplus:
            notes.append(
                f"skipping to step {segment.first_step} threw away {segment.surplus} instances "
                "more than were drawn: batches of other hosts do not end there"
            )
    unreached = plan.resume.stops[len(stream.segments) - 1 :]
    if unreached:
        notes.append(f"the window ended before --stop-at {', '.join(map(str, unreached))}")
    return notes
