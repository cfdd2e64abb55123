"""Curves of a run from any source, with what each one means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from evalmon.types.series import Series
from evalmon.types.verdicts import Json

__all__ = ["Curve", "RunCurves", "Sampling"]


class Sampling(StrEnum):
    """How the points of a curve were chosen from the steps of its run."""

    FULL = "full"
    """Every step, or every n-th: nothing was chosen after the fact."""
    THINNED = "thinned"
    """By a declared rule that does not look at the values: a window's median holds."""
    SAMPLED = "sampled"
    """At random, or by a rule nobody states: no verdict rests on it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric along a run.

    Attributes:
        series: its points, finite, one a step, by rising step and tokens.
        facts: what the numbers mean, as far as it is known. Two curves are laid over each
            other only where every fact that both state is equal. Keys in use: ``tokenizer``
            (name or hash), ``divisor`` (``predicted_tokens``, ``all_tokens``, …), ``z_loss``
            (``excluded``, ``included``), ``data`` (name and version of the text), ``shots``,
            ``split``, ``prompt_set``, ``normalization``. Two say how large, and are not compared:
            ``z_loss_nats`` (usual size of an included z-loss) and ``items`` (items scored).
        sampling: how its points were chosen.
        note: why it counts as sampled, or the rule that thinned it; "" where there is nothing to
            say.
    """

    series: Series
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    sampling: Sampling = Sampling.FULL
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunCurves:
    """Everything a log, a table or a reference says of one run.

    Attributes:
        name: the run's name.
        source: file or store it was read from, for messages.
        curves: canonical metric name -> curve.
        tokens_per_step: tokens trained on by one step, None where steps differ or it is not known.
        planned_tokens: tokens of the whole schedule where the source records them, else None.
        warmup_tokens: tokens of learning-rate warm-up, 0 where not known.
        recipe: hash of every setting that changes what is learned, "" where not known.
        seams: steps from which a restart went on.
        data_changes: steps after which the run went on with other data.
        nonfinite: (step, metric) of every value that was not a finite number.
        superseded: points that a restart logged again.
        notes: what a reader must know of how the source was read, one sentence each.
    """

    name: str
    source: str
    curves: Mapping[str, Curve]
    tokens_per_step: int | None = None
    planned_tokens: int | None = None
    warmup_tokens: int = 0
    recipe: str = ""
    seams: tuple[int, ...] = ()
    data_changes: tuple[int, ...] = ()
    nonfinite: tuple[tuple[int, str], ...] = ()
    superseded: int = 0
    notes: tuple[str, ...] = ()
