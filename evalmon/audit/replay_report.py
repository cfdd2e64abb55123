"""A replay, said to a person and as JSON."""

from typing import Any

from evalmon.audit.replay import ReplayResult

__all__ = ["lines", "record"]

_NEEDS_INSTANCES = (
    "whether the window is long enough cannot be told: give --instances, the size of the source"
)


def record(result: ReplayResult) -> dict[str, Any]:
    """Return a replay as JSON values; ``coverage`` and ``never_read`` may be "unknown"."""
    plan, stream, counts = result.plan, result.stream, result.counts
    known = plan.instances is not None
    judged = len(counts.judged)
    multiplicity = result.multiplicity()
    return {
        "target": plan.target.name,
        "hosts": plan.hosts,
        "workers": plan.workers,
        "args": plan.arguments,
        "instances": plan.instances,
        "epochs": result.epochs,
        "window": {
            "reason": stream.reason,
            "steps": stream.steps,
            "draws": counts.draws,
            "batches_per_host": [*stream.batches_per_host],
            "ended": [*stream.ended],
            "all_ended": stream.all_ended,
        },
        "window_sufficient": result.window_sufficient,
        "draws": counts.draws,
        "unique": counts.unique,
        "unique_fraction": counts.unique / judged if judged else None,
        "coverage": result.read / plan.instances if plan.instances else "unknown",
        "never_read": max((plan.instances or 0) - result.read, 0) if known else "unknown",
        "multiplicity": {
            str(times): int(many) for times, many in enumerate(multiplicity) if times and many
        },
        "same_step_duplicates": int(counts.same_step.sum()),
        "equal_text": counts.equal_text,
        "repeat_or_equal_text": result.repeat_or_equal_text,
        "id_conflicts": counts.id_conflicts,
        "single_token_instances": counts.single,
        "identity": counts.identity,
        "slack": counts.loose,
        "seams": [seam.record() for seam in result.seams],
        "worker_effects": result.workers.record() if result.workers else None,
        "beyond_planned": result.beyond_planned,
        "construction": result.construction.record() if result.construction else None,
        "findings": [finding.record() for finding in result.findings],
        "notes": [*result.notes],
        "sound": not result.findings,
    }


def lines(result: ReplayResult) -> list[str]:
    """Return a replay as lines for a person."""
    values = record(result)
    plan, window = result.plan, values["window"]
    coverage = values["coverage"]
    many = ", ".join(f"{count} x{times}" for times, count in values["multiplicity"].items())
    said = [
        f"{plan.target.name} on {plan.hosts} hosts"
        + (f" with {plan.workers} workers" if plan.workers is not None else ""),
        (
            f"  window: {window['steps']} steps, {values['draws']} draws, ended by "
            f"{window['reason'].replace('_', ' ')} ({_ended(result)})"
        ),
        (
            f"  told apart by {values['identity'].replace('_', ' ')}: "
            f"{values['unique']} different, multiplicity {many or 'none'}"
        ),
        (
            f"  coverage: {coverage if isinstance(coverage, str) else f'{coverage:.4f}'}, "
            f"never read: {values['never_read']}"
        ),
    ]
    for seam in result.seams:
        change = (
            f"{seam.hosts_before} hosts"
            if seam.hosts_before == seam.hosts_after
            else f"{seam.hosts_before} to {seam.hosts_after} hosts"
        )
        came = f" from step {seam.replays_step} on" if seam.replays_step else ""
        said.append(
            f"  stop after step {seam.step} ({change}, {seam.mode}): "
            f"{seam.replayed} draws re-read{came}"
        )
    said += [f"  note: {note}" for note in result.notes]
    said += [f"  FINDING {finding.kind}: {finding.message}" for finding in result.findings]
    if result.construction is not None and result.findings:
        fits = f" (or {', '.join(result.construction.fits)})" if result.construction.fits else ""
        text = values["construction"]
        said.append(f"  fits {text['id']}{fits}, {text['name']}: {text['description']}")
    said.append(f"  {_verdict(result)}")
    return said


def _ended(result: ReplayResult) -> str:
    """Say how many hosts came to their end."""
    stream = result.stream
    hosts = stream.segments[-1].hosts
    if stream.all_ended:
        return "every host ended"
    return f"{len(stream.ended)} of {hosts} hosts ended" if stream.ended else "no host ended"


def _verdict(result: ReplayResult) -> str:
    """Say what is concluded."""
    if result.findings:
        return "not sound"
    if result.window_sufficient is None:
        return f"nothing found; {_NEEDS_INSTANCES}"
    if not result.window_sufficient:
        needed = -(-2 * (result.plan.instances or 0) // result.plan.hosts)
        return (
            f"nothing found, but the window is too short to show double sharding: "
            f"{result.counts.draws} draws, {needed} needed (2 N / S); give more --steps"
        )
    return "sound"
