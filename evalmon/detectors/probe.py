"""The seen-against-fresh probe, read: does the model remember what it has trained on?"""

from evalmon.types import CheckpointRef, Finding, ProbeResult

__all__ = ["REFUTES_NATS", "confirms", "finding", "refutes"]

REFUTES_NATS = 0.02
"""Memorization is refuted when the interval lies below."""


def confirms(result: ProbeResult, limit_nats: float) -> bool:
    """Tell whether the probe confirms memorization: its interval lies above the limit.

    Args:
        result: the paired difference with its interval.
        limit_nats: the profile's limit; what one pass over text leaves lies below it.
    """
    return result.low_nats > limit_nats


def refutes(result: ProbeResult) -> bool:
    """Tell whether the probe refutes memorization."""
    return result.high_nats < REFUTES_NATS


def finding(checkpoint: CheckpointRef, result: ProbeResult, limit_nats: float) -> Finding | None:
    """Return a finding when the probe's lower bound exceeds the profile's limit.

    Args:
        checkpoint: the checkpoint probed.
        result: the paired difference with its interval.
        limit_nats: the profile's limit in nats per token.

    Returns:
        A finding of kind ``memorization``, or None.
    """
    if not confirms(result, limit_nats):
        return None
    return Finding(
        detector="memorization_probe",
        kind="memorization",
        run=checkpoint.run,
        alarm_step=checkpoint.step,
        alarm_tokens=checkpoint.tokens,
        onset_tokens=None,
        channel="",
        magnitude_nats=result.mean_nats,
        message=(
            f"text the run trained on costs {result.mean_nats:.3f} nats less than fresh text of "
            f"the same mix (95 % interval {result.low_nats:.3f} to {result.high_nats:.3f}, "
            f"{result.pairs} pairs)"
        ),
        evidence={
            "mean_nats": result.mean_nats,
            "low_nats": result.low_nats,
            "high_nats": result.high_nats,
            "pairs": result.pairs,
            "limit_nats": limit_nats,
        },
    )
