"""What the fingerprints of a run's instances show."""

from dataclasses import dataclass

__all__ = ["RepeatSummary", "Seam"]


@dataclass(frozen=True, slots=True)
class Seam:
    """A resume after which instances are drawn again.

    Attributes:
        step: step of the checkpoint it went on from.
        repeated: draws beyond plan in the step after it.
        previous_step: step in which these were drawn before (median).
    """

    step: int
    repeated: int
    previous_step: int


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Draws of a run that read an instance more often than planned.

    A draw is one instance read for one step. Draws that a restart replays are no
    repeats: only the last copy of a step counts. Where a sample was kept, ``draws`` and
    ``replayed_draws`` are exact and all other counts are estimates, those of the sample
    times its rate.

    Attributes:
        first_repeat_step: step in which the first repeat beyond plan is drawn, or None; of
            a sample the first one in a window of steps that holds enough of them.
        first_repeat_tokens: the same in tokens trained on after that step.
        draws: draws counted.
        unique: distinct instances among them.
        repeated: draws beyond plan: an instance drawn more often than planned in all, or
            again before the pass is complete.
        repeated_fraction: ``repeated / draws``.
        same_step_duplicates: draws of an instance already drawn in the same step.
        replayed_draws: records that a later copy of their step replaced.
        duplicate_texts: draws whose text was first drawn under another index: the
            source holds that text more than once.
        planned_passes: times each instance is meant to be read.
        source_instances: instances in the source.
        hosts: hosts that drew.
        period_draws: distance of a repeat from the previous draw of its instance, in
            draws of one host, where nearly all repeats share it; else None.
        cross_host: repeats whose previous draw was another host's.
        fingerprint: hash of the records counted.
        planned_repeats: draws of an instance drawn before, as planned: later passes, and
            instances that a pass reads several times.
        changed_texts: draws whose instance was first drawn with another text: the data
            behind the index is no longer the same.
        multiplicity: (times drawn, instances drawn so often), by rising times.
        first_repeat_instance: instance of the first repeat.
        first_repeat_host: host that drew it again.
        first_repeat_previous_step: step in which it was drawn before.
        first_repeat_draws: draws before the step of the first repeat.
        seams: resumes after which instances are drawn again.
        rate: of so many texts one was kept, 1 where every draw was.
        kept: draws kept.
        coverage: distinct instances drawn, of all of the source; None where these are not
            known: instances that a pass reads several times, and data that was changed.
    """

    first_repeat_step: int | None
    first_repeat_tokens: int | None
    draws: int
    unique: int
    repeated: int
    repeated_fraction: float
    same_step_duplicates: int
    replayed_draws: int
    duplicate_texts: int
    planned_passes: int
    source_instances: int
    hosts: int
    period_draws: int | None
    cross_host: int
    fingerprint: str
    planned_repeats: int = 0
    changed_texts: int = 0
    multiplicity: tuple[tuple[int, int], ...] = ()
    first_repeat_instance: int | None = None
    first_repeat_host: int | None = None
    first_repeat_previous_step: int | None = None
    first_repeat_draws: int | None = None
    seams: tuple[Seam, ...] = ()
    rate: int = 1
    kept: int = 0
    coverage: float | None = None
