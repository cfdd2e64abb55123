"""Detectors: series and data audits in, findings out.

A detector is a pure function of what was observed; its row in ``DETECTORS`` says what it
reads. ``unmatched_drop`` sees curves alone and can only suspect; ``repeated_instances``
and ``memorization_probe`` confirm. ``untrained_model``, ``evaluator_suspect``,
``same_weights``, ``same_scores`` and ``zero_stderr`` doubt the scores themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from evalmon.detectors import (
    evaluator_trust,
    nonfinite_loss,
    probe,
    repeated_instances,
    same_results,
    unmatched_drop,
)
from evalmon.detectors.curve import CurveResult
from evalmon.detectors.profiles import profile_named
from evalmon.detectors.trust_evidence import TrustEvidence
from evalmon.types import CheckpointRef, Finding, ProbeResult, RepeatSummary

__all__ = ["DETECTORS", "Detector", "Observations", "find"]


@dataclass(frozen=True, slots=True)
class Observations:
    """What was seen of a run up to one evaluation.

    Attributes:
        run: the run's name.
        tokens_per_step: tokens trained on by one step, None where steps differ.
        curve: result of the curve rule.
        repeats: counts of the id log, None without one.
        probe: the checkpoint probed and its result, None without one that still counts.
        nonfinite: (step, metric) of logged values that were not finite.
        trust: what tells whether the scores can be believed, None without any.
    """

    run: str
    tokens_per_step: int | None
    curve: CurveResult
    repeats: RepeatSummary | None = None
    probe: tuple[CheckpointRef, ProbeResult] | None = None
    nonfinite: tuple[tuple[int, str], ...] = ()
    trust: TrustEvidence | None = None


Detector: TypeAlias = Callable[[Observations], Finding | None]

DETECTORS: MappingProxyType[str, Detector] = MappingProxyType(
    {
        "unmatched_drop": lambda seen: unmatched_drop.finding(seen.run, seen.curve),
        "repeated_instances": lambda seen: (
            repeated_instances.finding(seen.run, seen.repeats) if seen.repeats else None
        ),
        "memorization_probe": lambda seen: (
            probe.finding(*seen.probe, profile_named(seen.curve.profile).probe_nats)
            if seen.probe
            else None
        ),
        "nonfinite_loss": lambda seen: nonfinite_loss.finding(
            seen.run, seen.nonfinite, tokens_per_step=seen.tokens_per_step
        ),
        "untrained_model": lambda seen: (
            evaluator_trust.untrained(seen.run, seen.trust) if seen.trust else None
        ),
        "evaluator_suspect": lambda seen: (
            evaluator_trust.suspect(seen.run, seen.trust) if seen.trust else None
        ),
        "zero_stderr": lambda seen: (
            evaluator_trust.zero_stderr(seen.run, seen.trust) if seen.trust else None
        ),
        "same_weights": lambda seen: (
            same_results.same_weights(seen.run, seen.trust) if seen.trust else None
        ),
        "same_scores": lambda seen: (
            same_results.same_scores(seen.run, seen.trust) if seen.trust else None
        ),
    }
)
"""Detector by name."""


def find(seen: Observations) -> Mapping[str, Finding]:
    """Return what each detector found, by its name."""
    found = ((name, detector(seen)) for name, detector in DETECTORS.items())
    return {name: finding for name, finding in found if finding is not None}
