"""From draws to counts: who an instance is, how often it came, and how often too early."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalmon.audit.drive import DrivePlan, Stream
from evalmon.audit.passes import Passes, slack, straddles
from evalmon.audit.source_texts import loader_workers, source_copies
from evalmon.errors import DataError
from evalmon.types import IntArray

__all__ = ["Counts", "count"]

_UNTRUSTED = 0.01
"""Share of ids with several texts from which ids are taken for local ones."""

_PADDING_TEXTS = 16
"""Most different texts that rows of one token have while they are padding."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was drawn, and what of it again.

    Attributes:
        identity: "instance" or "text_hash": what makes two draws the same.
        judged: [m] indices into the draws that are judged: all but rows of one token.
        passes: place of each judged draw among the passes.
        step: [m] step of each judged draw.
        host: [m] host of each judged draw.
        draws: all draws.
        unique: different instances among the judged draws.
        single: draws of one single token.
        single_unique: different instances among those.
        id_conflicts: ids that came with more than one text.
        equal_text: different instances whose text an earlier one has.
        copies_known: whether repeats of a text were judged against the source.
        size: N as given, without rows of one token; the unique instances where N is unknown.
        loose: D, instances that a sound stream may leave out of a pass.
        same_step: [m] whether another host drew the instance earlier in the same step.
        same_step_early: [m] those of ``same_step`` that no end of a pass explains.
    """

    identity: str
    judged: IntArray
    passes: Passes
    step: IntArray
    host: IntArray
    draws: int
    unique: int
    single: int
    single_unique: int
    id_conflicts: int
    equal_text: int
    copies_known: bool
    size: int
    loose: int
    same_step: NDArray[np.bool_]
    same_step_early: NDArray[np.bool_]

    @property
    def confirms(self) -> bool:
        """Whether a repeat is surely one, and not two instances of equal text."""
        return self.identity == "instance" or self.copies_known


def count(stream: Stream, plan: DrivePlan) -> Counts:
    """Count a stream's draws.

    Args:
        stream: what was drawn.
        plan: how.

    Raises:
        DataError: more different instances than the source is said to hold.
    """
    draws = stream.draws
    trusted, conflicts, equal = _identity(stream)
    keep = ~_padding(stream, trusted=trusted)
    judged = np.flatnonzero(keep)
    hashes = draws.text_hash[judged]
    keys = draws.instance[judged] if trusted else hashes
    step, host = draws.step[judged].astype(np.int64), draws.host[judged].astype(np.int64)
    copies = None if trusted else _copies(stream, plan, hashes)
    padding = len(draws) - len(judged)
    padding_unique = len(np.unique((draws.instance if trusted else draws.text_hash)[~keep]))
    size = _judged_size(plan.instances, len(draws), padding, padding_unique, trusted=trusted)
    per_step = int(np.bincount(draws.step).max()) if len(draws) else 0
    workers = max(plan.workers or 0, loader_workers(stream.loader), 1)
    whole = size if size is not None else len(np.unique(keys))
    loose = slack(whole, workers * per_step, per_step)
    passes = Passes.of(keys, step, instances=size, loose=loose, copies=copies)
    unique = int((passes.rank == 0).sum())
    if size is not None and unique > size:
        raise DataError(
            f"--instances {plan.instances}: the loaders drew {unique} different instances"
            f"{f' and {padding} of one single token' if padding else ''}; give the number of "
            "instances that the source holds, or leave the option out"
        )
    alone = np.ones(len(judged), np.bool_) if copies is None else copies < 2
    same_step = _same_step(step, host, passes.code) & alone
    first = np.searchsorted(draws.step, step, side="left")
    last = np.searchsorted(draws.step, step, side="right")
    whole = size if size is not None else unique
    explained = straddles(first, last, instances=max(whole + padding_unique, 1), loose=loose)
    return Counts(
        identity="instance" if trusted else "text_hash",
        judged=judged,
        passes=passes,
        step=step,
        host=host,
        draws=len(draws),
        unique=unique,
        single=padding,
        single_unique=padding_unique,
        id_conflicts=conflicts,
        equal_text=equal,
        copies_known=copies is not None,
        size=whole,
        loose=loose,
        same_step=same_step,
        same_step_early=same_step & ~explained,
    )


def _identity(stream: Stream) -> tuple[bool, int, int]:
    """Return whether ids are trusted, ids with several texts, and texts with several ids."""
    draws = stream.draws
    if not stream.has_ids or not len(draws):
        return False, 0, 0
    order = np.lexsort((draws.text_hash, draws.instance))
    ids, texts = draws.instance[order], draws.text_hash[order]
    single = draws.single[order]
    new_id = np.concatenate(([True], ids[1:] != ids[:-1]))
    new_pair = new_id | np.concatenate(([True], texts[1:] != texts[:-1]))
    distinct = int(new_id.sum())
    conflicts = len(np.unique(ids[new_pair & ~new_id]))
    if conflicts > _UNTRUSTED * distinct:
        return False, conflicts, 0
    pair_texts = texts[new_pair & ~single]
    return True, conflicts, len(pair_texts) - len(np.unique(pair_texts))


def _padding(stream: Stream, *, trusted: bool) -> NDArray[np.bool_]:
    """Return which draws are rows of one token, and so no texts to judge."""
    draws = stream.draws
    single = draws.single
    rows = int(single.sum())
    if 2 * rows > len(draws):
        kinds = draws.instance if trusted else draws.text_hash
        # A stream of mostly such rows is one of stand-ins for texts, unless they are all alike.
        if len(np.unique(kinds[single])) > _PADDING_TEXTS:
            return np.zeros(len(draws), np.bool_)
    return single


def _copies(stream: Stream, plan: DrivePlan, hashes: NDArray[np.uint64]) -> IntArray | None:
    """Return how often the source holds each drawn text, None where nobody asks or knows."""
    if not len(hashes) or len(np.unique(hashes)) == len(hashes):
        return None
    return source_copies(stream.loader, hashes, plan.reader, seconds=plan.seconds)


def _judged_size(
    instances: int | None, draws: int, padding: int, padding_unique: int, *, trusted: bool
) -> int | None:
    """Return N without rows of one token."""
    if instances is None:
        return None
    if trusted:
        return max(instances - padding_unique, 0)
    # Rows of equal text cannot be told apart: those of one pass are left out.
    return max(instances - int(np.ceil(padding / max(1.0, draws / instances))), 0)


def _same_step(step: IntArray, host: IntArray, code: IntArray) -> NDArray[np.bool_]:
    """Return which draws bring an instance that another host drew earlier in the step."""
    order = np.lexsort((host, code, step))
    step, host, code = step[order], host[order], code[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = (step[1:] == step[:-1]) & (code[1:] == code[:-1]) & (host[1:] != host[:-1])
    found = np.zeros(len(order), np.bool_)
    found[order] = again
    return found
