"""The rules of the static check, and what they say of the pipelines of several hosts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from evalmon.audit import order_rules, sharding_rules
from evalmon.audit.config_finding import ConfigFinding
from evalmon.audit.lanes import Lane, lanes
from evalmon.audit.pipelines import Pipeline, Unknown

__all__ = ["RULES", "Rule", "judge"]

Rule: TypeAlias = Callable[[Lane], Iterator[ConfigFinding]]
"""Looks at one lane and yields what is wrong with it."""

RULES: Final[tuple[Rule, ...]] = (
    sharding_rules.double_sharding,
    sharding_rules.sampler_sharded_loader_not,
    sharding_rules.unsharded,
    sharding_rules.different_order_before_a_split,
    sharding_rules.uncovered_or_shared_parts,
    sharding_rules.files_and_hosts,
    order_rules.repeat_before_shuffle,
    order_rules.slice_after_shuffle,
    order_rules.sampler_repeats,
    order_rules.resume_position,
    sharding_rules.contiguous_slices,
    order_rules.sampler_without_length,
    order_rules.worker_dependent_order,
    order_rules.elastic_over_batches,
    order_rules.dropped_tails,
    order_rules.mixture_repeats,
    order_rules.local_shuffle_only,
)
"""Every rule; the order is that of the report."""


def judge(pipelines: Sequence[Pipeline]) -> tuple[list[ConfigFinding], list[str]]:
    """Apply every rule to the pipelines of several hosts.

    Args:
        pipelines: one a host, host 0 first; at least one.

    Returns:
        Findings, errors first and none twice, and what was not understood.

    Example:
        >>> from evalmon.audit.pipelines import Shuffle, Source
        >>> own = (Source("tokens", 4096), Shuffle(seed=0))
        >>> found, _ = judge([Pipeline(host, 8, own) for host in range(8)])
        >>> [(finding.id, finding.name) for finding in found]
        [('D', 'unsharded_same_seed')]
    """
    found, problems = lanes(pipelines)
    findings = dict.fromkeys(finding for lane in found for rule in RULES for finding in rule(lane))
    for lane in found:
        problems += _unsure(lane)
    ordered = sorted(findings, key=lambda finding: not finding.is_error)
    return ordered, list(dict.fromkeys(problems))


def _unsure(lane: Lane) -> list[str]:
    """Say which parts of a lane no rule could judge."""
    unknown = [
        f"{step.place}: what it does to the order is not known" for _, step in lane.find(Unknown)
    ]
    splits = lane.splits()
    for split in splits:
        if split.doubtful or (len(splits) == 1 and not split.certain and split.form != "files"):
            twice = "; if it does, it is sharded twice" if len(splits) > 1 else ""
            unknown.append(
                f"{split.place}: differs between hosts in a way that may or may not split the "
                f"data{twice}; say what it does by an attribute evalmon_sharding = (host, hosts) "
                "of the source or sampler, (0, 1) for nothing"
            )
    return unknown
