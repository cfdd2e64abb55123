"""Run and reference made comparable before they are judged, where they are not as they stand.

Either the holdout is cut down to the documents that are not in the training text, or losses of
two tokenizers are laid over each other by bytes. What was done is said first in the verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalmon import across_tokenizers, clean_slice, overlap_reports, run_evidence, tags
from evalmon.clean_slice import CleanSlice
from evalmon.errors import ConfigError, DataError
from evalmon.run_evidence import RATE_METRIC, TRAIN_METRIC
from evalmon.sources import Kind, Source
from evalmon.types import Curve, Json, LeakageReport, Series

__all__ = ["Prepared", "by_bytes", "by_divisor", "refuse_other_recipe", "without_leaked"]

_SAME_PLAN = 0.05  # share by which two plans of one recipe may differ


@dataclass(frozen=True, slots=True)
class Prepared:
    """Run and reference as they are judged.

    Attributes:
        run: the run.
        reference: its reference, None when judged alone.
        reasons: what was done to them, one sentence each.
        notes: what else a reader must know.
        evidence: numbers behind it, JSON values; ``contaminated`` where documents were left out.
    """

    run: Source
    reference: Source | None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    evidence: Mapping[str, Json] = field(default_factory=dict[str, Json])


def by_divisor(run: Source, reference: Source | None, metric: str) -> Source:
    """Judge a run by the mean that its reference is published in, where it was scored as well.

    Args:
        run: the run.
        reference: its reference, None when judged alone.
        metric: the holdout's loss.

    Returns:
        The run, its ``metric`` as :func:`evalmon.run_evidence.by_divisor` chooses.
    """
    theirs = reference.curves.curves[metric] if reference else None
    chosen = run_evidence.by_divisor(run.curves.curves, theirs, metric)
    if chosen is run.curves.curves[metric]:
        return run
    curves = replace(run.curves, curves={**run.curves.curves, metric: chosen})
    return replace(run, curves=curves)


def without_leaked(run: Source, reference: Source | None, metric: str, path: Path) -> Prepared:
    """Cut a holdout down to the documents that are not in the training text.

    Args:
        run: a run whose store keeps a value a document.
        reference: likewise, or None.
        metric: the holdout's loss.
        path: report of ``evalmon audit leakage --json``.

    Raises:
        DataError: the report is none, or of another holdout; a run keeps no documents.
        StoreError: a store cannot be read.
    """
    report = overlap_reports.read(path)
    if not report.leaked:
        said = f"{path} names no leaked document: the whole holdout is judged"
        return Prepared(run, reference, notes=(said,))
    mine = _sliced(run, metric, report)
    theirs = _sliced(reference, metric, report) if reference else None
    notes: tuple[str, ...] = ()
    if report.run != run.name:
        notes = (f"{path} is of the training text of {report.run!r}, not of {run.name!r}",)
    return Prepared(
        run=_with(run, mine.clean),
        reference=_with(reference, theirs.clean) if reference and theirs else reference,
        reasons=(mine.reason,),
        notes=notes,
        evidence={"contaminated": mine.evidence},
    )


def by_bytes(run: Source, reference: Source, metric: str) -> Prepared | None:
    """Lay holdout losses of two tokenizers over each other by bytes of text.

    Args:
        run: the run.
        reference: its reference.
        metric: the holdout's loss in nats per token.

    Returns:
        Both in nats per token of the run's tokenizer, the reference without its train loss; None
        where the tokenizers are not known to differ, or bits per byte of one text are missing.

    Raises:
        StoreError: a store cannot be read.
    """
    bits = metric.replace("/ce_nats", "/bpb")
    names = _tokenizers(run, reference, metric, bits)
    own, theirs = (source.curves.curves.get(bits) for source in (run, reference))
    if names is None or own is None or theirs is None:
        return None
    nats = run.curves.curves[metric].series
    mine, other = (
        across_tokenizers.in_nats(part.series, own.series, nats) for part in (own, theirs)
    )
    if mine is None or other is None:
        return None
    kept = {
        name: curve
        for name, curve in reference.curves.curves.items()
        if name == RATE_METRIC or name.startswith("eval/downstream/")
    }
    curves = replace(reference.curves, curves={**kept, metric: Curve(other)})
    said = (
        f"tokenizers differ ({names[0]} against {names[1]}): holdout losses are compared by bits "
        "per byte, shown in nats per token of the run's tokenizer; train losses cannot be compared"
    )
    return Prepared(
        run=_with(run, mine),
        reference=replace(reference, curves=curves, description=None),
        reasons=(said,),
        evidence={"compared_by": bits},
    )


def refuse_other_recipe(run: Source, reference: Source, planned_tokens: int = 0) -> None:
    """Refuse --same-recipe where what is known of both sides shows two recipes.

    Args:
        run: the run.
        reference: its reference.
        planned_tokens: the run's plan where it was given, 0 for what is recorded.

    Raises:
        ConfigError: plans, batches of two models, or what their train losses mean, differ.
    """
    mine, theirs = run.curves, reference.curves
    found: list[str] = []
    own, other = planned_tokens or mine.planned_tokens, theirs.planned_tokens
    if own and other and abs(own - other) > _SAME_PLAN * max(own, other):
        found.append(f"planned tokens ({own:,} against {other:,})")
    steps = mine.tokens_per_step, theirs.tokens_per_step
    if all(steps) and steps[0] != steps[1]:
        named = _other_model(run, reference)
        found += [f"tokens of a step ({steps[0]:,} against {steps[1]:,})", *named] if named else []
    one, two = (item.curves.get(TRAIN_METRIC) for item in (mine, theirs))
    if one and two:
        found += [
            f"{item.fact} of train loss ({item.mine} against {item.theirs})"
            for item in tags.differences(one.facts, two.facts)
            if item.fact != "z_loss"
        ]
    if found:
        raise ConfigError(
            f"--same-recipe: {mine.name} and {theirs.name} are of other recipes, they differ in "
            f"{'; '.join(found)}; leave out --same-recipe, or name a reference of the same recipe"
        )


def _other_model(run: Source, reference: Source) -> list[str]:
    """Return in what two reference curves are known to be of other models."""
    if not run.kind is reference.kind is Kind.REFERENCE:
        return []
    from evalmon import reference as curves

    mine, theirs = curves.find(run.name), curves.find(reference.name)
    pairs = (("model", mine.model, theirs.model), ("tokenizer", mine.tokenizer, theirs.tokenizer))
    return [f"{what} ({a} against {b})" for what, a, b in pairs if a and b and a != b]


def _tokenizers(run: Source, reference: Source, metric: str, bits: str) -> tuple[str, str] | None:
    """Return the names of two tokenizers known to differ, None where none are, or texts do."""
    mine, theirs = (
        source.curves.curves[metric].facts.get("tokenizer") for source in (run, reference)
    )
    if mine is not None and theirs is not None:
        return (repr(mine), repr(theirs)) if mine != theirs else None
    if run.description is None or reference.description is None:
        return None
    from evalmon import stored_runs

    own, other = (
        [stored_runs.identity(source.store, source.name, name) for name in (metric, bits)]
        for source in (run, reference)
    )
    if own[0] is None or other[0] is None or own[0].tokenizer == other[0].tokenizer:
        return None
    if own[1] is None or other[1] is None or not across_tokenizers.same_text(own[1], other[1]):
        return None
    return own[0].tokenizer, other[0].tokenizer


def _sliced(source: Source, metric: str, report: LeakageReport) -> CleanSlice:
    """Return a run's holdout without the leaked documents."""
    if source.description is None:
        which = f"{source.name} ({source.kind})" if source.kind is Kind.REFERENCE else source.place
        raise DataError(
            f"{which} keeps no loss of single documents, so none can be left out; name a run that "
            "evalmon evaluated (run directory or store), or leave out --without-leaked or "
            "--reference"
        )
    from evalmon import stored_runs

    whole = source.curves.curves[metric].series
    scores = stored_runs.documents(source.store, source.name, metric)
    return clean_slice.without_leaked(whole, scores, report, f"{source.store}: {source.name}")


def _with(source: Source, holdout: Series) -> Source:
    """Return a run with other values of its holdout."""
    curves = source.curves.curves
    changed = replace(curves[holdout.metric], series=holdout)
    return replace(
        source, curves=replace(source.curves, curves={**curves, holdout.metric: changed})
    )
