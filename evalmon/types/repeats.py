"""What the fingerprints of a run's instances show."""

from dataclasses import dataclass

__all__ = ["RepeatSummary"]


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Draws of a run that read an instance more often than planned.

    A draw is one instance read for one step. Draws that a restart replays are no
    repeats: only the last copy of a step counts.

    Attributes:
        first_repeat_step: step in which the first repeat beyond plan is drawn, or None.
        first_repeat_tokens: the same in tokens trained on after that step.
        draws: draws counted.
        unique: distinct instances among them.
        repeated: draws beyond plan.
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
