"""`evalmon compare` without its command line: open run and reference, judge, and record.

What is judged is the last evaluation that the reference reaches. Nothing is guessed: where
two sources cannot be laid over each other, the error says what each of them holds.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from evalmon import comparable, comparing_tasks, comparison_notes, sources
from evalmon.comparable import Prepared
from evalmon.comparing_tasks import TaskScores
from evalmon.config import ComparisonSettings
from evalmon.errors import ConfigError, DataError
from evalmon.evidence import Case, build_case
from evalmon.run_evidence import RunEvidence
from evalmon.sources import Reading, Source
from evalmon.types import RunCurves, Series, TaskDifference, Verdict
from evalmon.verdict import judge

__all__ = ["CompareOptions", "Comparison", "compare"]

_HOLDOUT = re.compile(r"eval/lm/(.+)-validation/ce_nats")
_C4 = "c4_en"
_OVERRUN = 1.05  # a run this far beyond the plan it is said to have has another


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What is compared with what, and how.

    Attributes:
        run: path or name of the run, see ``sources.POSSIBLE``.
        run_name: the run of a table or store of several, None for the only one.
        reference: what it is judged against, None to judge it alone.
        same_recipe: the reference has the same mix, tokenizer, sequence length and loss.
        profile: profile of the rule, "" = by how often the run is evaluated.
        planned_tokens: tokens of the whole schedule, 0 = recorded, else the last of the run.
        holdout: the holdout that is judged, "" = C4, else the only one.
        thinned: train histories of tables were thinned by a declared rule.
        store: results store of a run directory or of a run's name, "" = beside the directory.
        tokens_per_step: tokens of one step of RUN where the source does not say them.
        without_leaked: report of ``evalmon audit leakage --json`` whose leaked documents are left
            out of the holdout, "" to judge all of it.
    """

    run: str
    run_name: str | None = None
    reference: str | None = None
    same_recipe: bool = False
    profile: str = ""
    planned_tokens: int = 0
    holdout: str = ""
    thinned: bool = False
    store: str = ""
    tokens_per_step: int | None = None
    without_leaked: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict and what it was reached from.

    Attributes:
        verdict: the verdict.
        run: the run.
        reference: what it was judged against, None when judged alone.
        first_tokens: tokens at the first evaluation that was compared.
        last_tokens: tokens at the last one.
        record: the verdict and its basis as one flat strict JSON object.
    """

    verdict: Verdict
    run: Source
    reference: Source | None
    first_tokens: int
    last_tokens: int
    record: dict[str, Any]


def compare(options: CompareOptions) -> Comparison:
    """Judge a run from whatever holds its curves.

    Args:
        options: what is compared with what.

    Returns:
        The verdict at the last evaluation that the reference reaches.

    Raises:
        ConfigError: an unknown run, reference, holdout or profile.
        DataError: curves that cannot be read, or not be laid over each other.
        StoreError: a store that cannot be read.
    """
    reading = Reading(options.run_name, options.store, options.thinned, options.tokens_per_step)
    run, reference = sources.open_pair(options.run, options.reference or "", reading)
    if reference and options.same_recipe:
        comparable.refuse_other_recipe(run, reference, options.planned_tokens)
    holdout = _holdout(options.holdout, run, reference)
    metric = f"eval/lm/{holdout}-validation/ce_nats"
    run = comparable.by_divisor(run, reference, metric)
    ready = _prepared(options.without_leaked, run, reference, metric)
    notes: list[str] = []
    judged = _within(ready.run, ready.reference, metric, notes)
    planned, source = _planned(options, run.curves, int(judged.tokens[-1]), notes)
    settings = ComparisonSettings(
        reference=reference.name if reference else "",
        profile=options.profile,
        holdout=holdout,
        same_recipe=True if options.same_recipe else None,
        planned_tokens=planned,
    )
    tasks = _tasks(run, reference, judged, notes)
    case = _case(ready.run, ready.reference, judged, settings, tasks)
    verdict, points = judge(case), case.curve.points
    notes += comparison_notes.uncovered(ready.run, ready.reference, judged, case)
    notes += comparison_notes.notes(ready.run, ready.reference, judged)
    evidence = {**verdict.evidence, **ready.evidence}
    if "contaminated" in ready.evidence:
        uncut = run.curves.curves[metric].series.until(int(judged.steps[-1]))
        whole = judge(_case(run, reference, uncut, settings, tasks))
        evidence["whole_holdout"] = {
            "verdict": str(whole.verdict),
            "unmatched_nats": whole.unmatched_nats,
            "literal": None if whole.literal is None else dict(whole.literal),
        }
    verdict = replace(verdict, reasons=(*ready.reasons, *verdict.reasons), evidence=evidence)
    notes += [*ready.notes, *run.curves.notes, *(reference.curves.notes if reference else ())]
    record = _record(verdict, notes) | {
        "holdout": holdout,
        "planned_tokens": planned,
        "planned_tokens_source": source,
        "data_changes": list(run.curves.data_changes),
    }
    compared = points.tokens if len(points) else judged.tokens
    ends = int(compared[0]), int(compared[-1])
    return Comparison(verdict, ready.run, reference, *ends, record)


def _prepared(report: str, run: Source, reference: Source | None, metric: str) -> Prepared:
    """Make run and reference comparable where they are not as they stand."""
    if report:
        return comparable.without_leaked(run, reference, metric, Path(report))
    found = comparable.by_bytes(run, reference, metric) if reference else None
    return found or Prepared(run, reference)


def _case(
    run: Source,
    reference: Source | None,
    judged: Series,
    settings: ComparisonSettings,
    tasks: tuple[TaskDifference, ...],
) -> Case:
    """Apply the rule to a run at the last evaluation of its holdout curve."""
    other = None
    if reference is not None:
        theirs = reference.curves.curves[judged.metric].series
        said = comparison_notes.withheld(reference, theirs, "the reference's")
        other = replace(_evidence(reference, theirs), withheld=said)
    own = _evidence(run, judged, tasks)
    why = comparison_notes.withheld(run, judged, "the run's")
    own = replace(own, withheld=why or comparison_notes.too_early(run, reference, judged))
    case = build_case(own, settings, other)
    # Train losses after the last evaluation that are no numbers are part of what the run came to.
    return replace(case, nonfinite=run.curves.nonfinite) if own.latest else case


def _holdout(asked: str, run: Source, reference: Source | None) -> str:
    """Return the one holdout that is judged."""
    own = _holdouts(run.curves)
    if not own:
        empty = {name for _, name in run.curves.nonfinite if _HOLDOUT.fullmatch(name)}
        if empty:
            raise DataError(
                f"{run.named}: every value of {_listed(sorted(empty))} is NaN or infinite; look "
                "for the step at which the run or its evaluator broke"
            )
        raise DataError(
            f"{run.named}: no holdout loss among {_listed(run.curves.curves)}; a verdict needs "
            f"eval/lm/<holdout>-validation/ce_nats{comparison_notes.unknown_names(run.curves)}"
        )
    if (found := _HOLDOUT.fullmatch(asked)) is not None:
        wanted = found[1]
    elif asked or _C4 in own:
        wanted = asked or _C4
    elif len(own) == 1:
        (wanted,) = own
    else:
        raise ConfigError(
            f"{run.named}: {len(own)} holdouts and none is {_C4}; --holdout one of {_listed(own)}"
        )
    if wanted not in own:
        raise ConfigError(f"{run.named}: no holdout {wanted!r}; it has {_listed(own)}")
    if reference is None:
        return wanted
    theirs = _holdouts(reference.curves)
    if wanted not in theirs:
        both = [name for name in own if name in theirs]
        remedy = (
            f"both have {_listed(both)}: give --holdout"
            if both
            else f"they share none ({run.name} has {_listed(own)}): choose a reference with one of "
            "these (evalmon reference list), or leave out --reference"
        )
        raise DataError(
            f"the reference {reference.named} has no holdout {wanted!r}, on which "
            f"{run.name} is judged (it has {_listed(theirs)}); {remedy}"
        )
    return wanted


def _holdouts(curves: RunCurves) -> tuple[str, ...]:
    """Return the names of the holdouts a run has losses of."""
    found = ((_HOLDOUT.fullmatch(metric), curve.series) for metric, curve in curves.curves.items())
    return tuple(match[1] for match, points in found if match and len(points))


def _within(run: Source, reference: Source | None, metric: str, notes: list[str]) -> Series:
    """Return the run's holdout curve up to the last evaluation that the reference reaches."""
    holdout = run.curves.curves[metric].series
    if reference is None:
        return holdout
    first, last = comparison_notes.reach(run, reference, metric)
    theirs = reference.curves.curves[metric].series.tokens
    inside = (holdout.tokens >= first) & (holdout.tokens <= theirs[-1])
    # Of train loss the windows that end at an evaluation are compared, not its tokens alone.
    inside &= np.concatenate([[-1], holdout.tokens[:-1]]) < last
    if not inside.any():
        if holdout.tokens[-1] < first:  # which the verdict says
            return holdout
        raise DataError(
            f"{comparison_notes.apart(run, reference, metric)}; choose another reference"
        )
    reached = holdout.until(int(holdout.steps[inside][-1]))
    beyond = len(holdout) - len(reached)
    if beyond:
        notes.append(
            f"judged at {reached.tokens[-1]:,} tokens: the reference {reference.name} ends at "
            f"{last:,}, {beyond} later evaluation{'s' if beyond > 1 else ''} of the run "
            f"{'are' if beyond > 1 else 'is'} not compared"
        )
    return reached


def _planned(
    options: CompareOptions, curves: RunCurves, tokens: int, notes: list[str]
) -> tuple[int, str]:
    """Return the tokens of the whole schedule, and who says so."""
    if options.planned_tokens:
        planned, source = options.planned_tokens, "given"
    elif curves.planned_tokens:
        planned, source = curves.planned_tokens, "recorded"
    else:
        return comparison_notes.last_tokens(curves), "last token in the table"
    if source == "given" and tokens > _OVERRUN * planned:
        raise ConfigError(
            f"--planned-tokens {planned:,}: {curves.name} is judged at {tokens:,} tokens, beyond "
            "it; windows of the rule are fractions of the plan, so give the whole schedule's"
        )
    if tokens > planned:
        notes.append(f"the run goes beyond its {planned:,} planned tokens ({source})")
    return planned, source


def _evidence(
    source: Source, holdout: Series, tasks: tuple[TaskDifference, ...] = ()
) -> RunEvidence:
    """Gather what a source left behind up to the evaluation judged."""
    if source.description is None:
        facts = source.curves.curves[holdout.metric].facts
        last = source.curves.curves[holdout.metric].series.steps[-1]
        latest = bool(holdout.steps[-1] == last)
        return RunEvidence(source.curves, holdout, facts, tasks=tasks, latest=latest)
    from evalmon import stored_runs

    found = stored_runs.evidence(source.store, source.description, source.curves, holdout)
    facts = source.curves.curves[holdout.metric].facts
    known = {**found.holdout_facts, **{k: v for k, v in facts.items() if k == "divisor"}}
    return replace(found, holdout=holdout, holdout_facts=known, tasks=tasks)


def _tasks(
    run: Source, reference: Source | None, judged: Series, notes: list[str]
) -> tuple[TaskDifference, ...]:
    """Compare the tasks that both have at the evaluation judged, and the mean of the seven."""
    if reference is None:
        return ()
    step, tokens = int(judged.steps[-1]), int(judged.tokens[-1])
    found = comparing_tasks.compare(_task_scores(run), _task_scores(reference), step, tokens)
    if found.note:
        notes.append(found.note)
    return found.differences


def _task_scores(source: Source) -> TaskScores:
    """Return a source's task curves, with the answers that a store keeps."""
    if source.description is None:
        return TaskScores.of(source.curves.curves)
    from evalmon import stored_runs

    answers = partial(stored_runs.answers, source.store, source.name)
    return TaskScores.of(source.curves.curves, answers)


def _record(verdict: Verdict, notes: Iterable[str]) -> dict[str, Any]:
    """Return a verdict as a flat JSON object without numbers that are not finite."""
    record: dict[str, Any] = {
        "run": verdict.run,
        "verdict": str(verdict.verdict),
        "basis": verdict.basis,
        "reference": verdict.reference,
        "profile": verdict.profile,
        "step": verdict.step,
        "tokens": verdict.tokens,
        "onset_tokens": verdict.onset_tokens,
        "alarm_tokens": verdict.alarm_tokens,
        "channel": verdict.channel,
        "unmatched_nats": verdict.unmatched_nats,
        "low": verdict.unmatched_low_nats,
        "high": verdict.unmatched_high_nats,
        "matched_fraction": verdict.matched_fraction,
        "slope": verdict.slope,
        "train_gap_nats": verdict.train_gap_nats,
        "holdout_gap_nats": verdict.holdout_gap_nats,
        "tolerance_nats": verdict.tolerance_nats,
        "tasks": [asdict(task) for task in verdict.tasks],
        "literal": verdict.literal,
        "evidence": verdict.evidence,
        "reasons": list(verdict.reasons),
        "findings": [asdict(finding) for finding in verdict.findings],
        "notes": list(notes),
    }
    return cast("dict[str, Any]", _strict(record))


def _strict(value: Any) -> Any:
    """Return a value as strict JSON holds it: null for a number that is not finite."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _strict(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _listed(names: Iterable[str]) -> str:
    """List names for a message."""
    shown = list(names)
    more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
    return (", ".join(shown[:12]) + more) or "none"
