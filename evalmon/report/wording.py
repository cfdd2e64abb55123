"""How values read: units, verdicts in plain words, the four key numbers.

The one place that turns numbers of a :class:`~evalmon.report.view.RunView` into words,
so that text, Markdown, HTML and dashboard say the same.
"""

from dataclasses import dataclass

from evalmon.metrics import Interval
from evalmon.report.trust import doubt
from evalmon.report.view import Marker, RunView
from evalmon.store import Delivery, StoredFailure
from evalmon.types import Finding, Json, ProbeResult, Verdict, VerdictName

__all__ = [
    "Tile",
    "accuracy_text",
    "badge_text",
    "delivery_text",
    "fact_label",
    "fact_text",
    "facts",
    "failure_text",
    "headline",
    "interval_text",
    "nats_text",
    "probe_text",
    "sentence",
    "share_text",
    "shown_findings",
    "task_label",
    "tiles",
    "tokens_text",
    "tone",
]

_TASK_LABELS = {
    "arc_easy": "ARC-E",
    "arc_challenge": "ARC-C",
    "boolq": "BoolQ",
    "hellaswag": "HellaSwag",
    "openbookqa": "OpenBookQA",
    "piqa": "PIQA",
    "sciq": "SciQ",
    "winogrande": "WinoGrande",
}

_BADGES = {
    VerdictName.NOT_ENOUGH_DATA: "Not enough data",
    VerdictName.HEALTHY: "Healthy",
    VerdictName.AHEAD_OF_REFERENCE: "Ahead of reference",
    VerdictName.BEHIND_REFERENCE: "Behind reference",
    VerdictName.MEMORIZATION_SUSPECTED: "Memorization suspected",
    VerdictName.MEMORIZATION_CONFIRMED: "Memorization confirmed",
    VerdictName.TRAIN_SHIFT: "Train shift, not memorization",
    VerdictName.LEAKAGE_SUSPECTED: "Leakage suspected",
    VerdictName.HOLDOUT_REGRESSION: "Holdout regression",
    VerdictName.EVALUATOR_FAULT: "Evaluator fault",
    VerdictName.TRAIN_RISE: "Train rise only",
    VerdictName.RECIPE_DIFFERS: "Recipes differ",
}

_SENTENCES = {
    VerdictName.NOT_ENOUGH_DATA: "There is not enough data yet to judge {run}.",
    VerdictName.HEALTHY: "{run} is healthy: its holdout loss follows its train loss{within}.",
    VerdictName.AHEAD_OF_REFERENCE: (
        "{run} is ahead of {reference}, and the lead is real: its holdout loss fell with its "
        "train loss."
    ),
    VerdictName.BEHIND_REFERENCE: (
        "{run} is behind {reference}: train and holdout loss are both higher."
    ),
    VerdictName.MEMORIZATION_SUSPECTED: (
        "{run} may be memorizing: train loss fell {drop} further than holdout loss, beyond the "
        "tolerance of {tolerance}."
    ),
    VerdictName.MEMORIZATION_CONFIRMED: (
        "{run} is memorizing: train loss fell {drop} further than holdout loss, and {proof}."
    ),
    VerdictName.TRAIN_SHIFT: (
        "The train loss of {run} fell without its holdout, but the probe finds no memory of its "
        "text: look for a change of data mix or loss."
    ),
    VerdictName.LEAKAGE_SUSPECTED: (
        "The holdout loss of {run} fell without its train loss: holdout text may have leaked."
    ),
    VerdictName.HOLDOUT_REGRESSION: "The holdout loss of {run} rose while train loss did not.",
    VerdictName.EVALUATOR_FAULT: (
        "The holdout loss of {run} jumped within one evaluation: suspect the evaluator first."
    ),
    VerdictName.TRAIN_RISE: (
        "The train loss of {run} rose alone: look for a harder mix or a change of the loss."
    ),
    VerdictName.RECIPE_DIFFERS: (
        "The curves of {run} and {reference} mean different things and are not laid over each "
        "other."
    ),
}


@dataclass(frozen=True, slots=True)
class Tile:
    """One key number, ready to read.

    Attributes:
        label: what it is.
        value: the number.
        unit: its unit, or "".
        note: a line below.
    """

    label: str
    value: str
    unit: str
    note: str


def tokens_text(tokens: float | None) -> str:
    """Return a token count in three digits with k, M, B or T.

    Example:
        >>> tokens_text(53_248), tokens_text(5_930_000_000_000), tokens_text(None)
        ('53.2k', '5.93T', '—')
    """
    if tokens is None:
        return "—"
    for size, suffix in ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T")):
        shown = f"{tokens / size:.3g}"
        if "e" not in shown:
            return shown + suffix
    return f"{tokens:.2e}"


def nats_text(nats: float | None, *, signed: bool = False) -> str:
    """Return nats per token to three decimals, with a true minus sign.

    Example:
        >>> nats_text(-0.98136), nats_text(0.02, signed=True), nats_text(None)
        ('−0.981', '+0.020', '—')
    """
    if nats is None:
        return "—"
    nats = round(nats, 3) + 0.0  # no sign on zero
    return (f"{nats:+.3f}" if signed else f"{nats:.3f}").replace("-", "−")


def share_text(fraction: float | None) -> str:
    """Return a fraction as a percentage with one decimal.

    Example:
        >>> share_text(0.8512), share_text(None)
        ('85.1 %', '—')
    """
    return "—" if fraction is None else f"{100 * fraction:.1f} %"


def task_label(task: str) -> str:
    """Return a task's usual name in tables.

    Example:
        >>> task_label("arc_challenge"), task_label("my_task")
        ('ARC-C', 'my_task')
    """
    return _TASK_LABELS.get(task, task)


def fact_label(key: str) -> str:
    """Return the name of a number of a finding's evidence, its unit left to the value.

    Example:
        >>> fact_label("first_repeat_tokens")
        'first repeat'
    """
    for unit in ("_tokens", "_nats"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def facts(finding: Finding) -> tuple[tuple[str, str], ...]:
    """Return the numbers behind a finding as (label, text), without what its message says."""
    return tuple(
        (fact_label(key), fact_text(key, value))
        for key, value in finding.evidence.items()
        if value not in (None, "") and not (isinstance(value, str) and value in finding.message)
    )


def shown_findings(view: RunView) -> tuple[Finding, ...]:
    """Return the findings to show as such: the probe's is told with its own figure."""
    findings = view.verdict.findings if view.verdict else ()
    return tuple(
        finding
        for finding in findings
        if not (view.probes and finding.detector == "memorization_probe")
    )


def sentence(text: str) -> str:
    """Return a message as a sentence of its own, beginning with a capital.

    Example:
        >>> sentence("train loss fell"), sentence("train/ce_nats differs")
        ('Train loss fell', 'train/ce_nats differs')
    """
    metric = "/" in text.partition(" ")[0]
    return text if metric else text[:1].upper() + text[1:]


def fact_text(key: str, value: Json) -> str:
    """Return a number of a finding's evidence in the unit its name ends with.

    Example:
        >>> fact_text("onset_tokens", 53248), fact_text("repeated_fraction", 0.85)
        ('53.2k tokens', '85.0 %')
        >>> fact_text("draws", 3200), fact_text("slope", 0.123456), fact_text("hosts", [0, 1])
        ('3,200', '0.1235', '0, 1')
    """
    if isinstance(value, list):
        return ", ".join(fact_text(key, item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {fact_text(name, item)}" for name, item in value.items())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_text(key, value)
    return "—" if value is None else {"True": "yes", "False": "no"}.get(str(value), str(value))


def _number_text(key: str, value: float) -> str:
    """Return a number in the unit its name ends with."""
    if key.endswith("_tokens"):
        return f"{tokens_text(value)} tokens"
    if key.endswith("_nats"):
        return f"{nats_text(value)} nats"
    if key.endswith(("_fraction", "_share")):
        return share_text(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}".replace("-", "−")


def accuracy_text(interval: Interval) -> str:
    """Return an accuracy with the ends of its interval.

    Example:
        >>> accuracy_text(Interval(0.75, 0.301, 0.954, 4))
        '0.750 (0.301–0.954)'
    """
    return f"{interval.value:.3f} ({interval.low:.3f}–{interval.high:.3f})"


def delivery_text(delivery: Delivery, *, stuck: bool) -> str:
    """Say what became of one delivery."""
    status = {"dead": "given up"}.get(delivery.status, "overdue" if stuck else delivery.status)
    tries = "" if delivery.attempts < 2 else f" after {delivery.attempts} tries"
    error = f" ({delivery.error})" if delivery.error else ""
    return f"{delivery.sink}: {status}{tries}{error}"


def failure_text(stored: StoredFailure) -> str:
    """Say what failed."""
    failure = stored.failure
    tries = "" if stored.attempt < 2 else f", {stored.attempt} tries"
    return (
        f"step {failure.checkpoint.step:,}, {failure.evaluator}{tries}: "
        f"{failure.error}: {failure.message}"
    )


def headline(view: RunView) -> str:
    """Return the verdict as one sentence in plain words."""
    verdict = view.verdict
    if verdict is None:
        return f"{view.run.name} has not been judged yet."
    within = f" within ±{nats_text(verdict.tolerance_nats)} nats per token"
    return (doubt(verdict) or _SENTENCES[verdict.verdict]).format(
        run=view.run.name,
        reference=view.reference or "its reference",
        drop=f"{nats_text(verdict.unmatched_nats)} nats per token",
        tolerance=nats_text(verdict.tolerance_nats),
        within=within if verdict.tolerance_nats is not None else "",
        proof=_proof(verdict),
    )


def _proof(verdict: Verdict) -> str:
    """Say what confirmed the memorization."""
    if verdict.first_repeat_tokens is not None:
        return (
            "data fingerprints show unplanned repeats since "
            f"{tokens_text(verdict.first_repeat_tokens)} tokens"
        )
    return "the model predicts text it has seen better than fresh text of the same kind"


def badge_text(view: RunView) -> str:
    """Return the verdict in two or three words, with a sign that reads without color."""
    if view.verdict is None:
        return "○ Not judged yet"
    sign = {"finding": "▲", "healthy": "✓", "unsure": "○"}[tone(view)]
    return f"{sign} {_BADGES[view.verdict.verdict]}"


def tone(view: RunView) -> str:
    """Return ``finding``, ``healthy`` or ``unsure``: the color of the verdict."""
    if view.verdict is None:
        return "unsure"
    return {0: "healthy", 1: "finding"}.get(view.verdict.verdict.exit_code, "unsure")


def tiles(view: RunView) -> tuple[Tile, Tile, Tile, Tile]:
    """Return the four key numbers: first repeat, onset, alarm, unmatched drop."""
    verdict = view.verdict
    marks = {marker.kind: marker for marker in view.markers}
    repeated = verdict.repeated_fraction if verdict else None
    interval = ""
    if verdict and verdict.unmatched_low_nats is not None:
        low, high = nats_text(verdict.unmatched_low_nats), nats_text(verdict.unmatched_high_nats)
        interval = f"95 % interval {low} to {high}"
    tolerance = "no tolerance yet"
    if verdict and verdict.tolerance_nats is not None:
        tolerance = f"tolerance {nats_text(verdict.tolerance_nats)}"
    channel = f"{verdict.channel} channel, " if verdict and verdict.channel else ""
    return (
        _mark(
            "First repeat",
            marks.get("first repeat"),
            f"{share_text(repeated)} of draws repeat" if repeated else "from fingerprints",
            "no unplanned repeat" if repeated is not None else "no id log to tell from",
        ),
        _mark("Onset", marks.get("onset"), "from the loss curves alone", "no change point"),
        _mark(
            "First alarm",
            marks.get("alarm"),
            f"{channel}{share_text(marks['alarm'].share)} of the plan" if "alarm" in marks else "",
            "the curve rule is silent",
        ),
        Tile(
            "Unmatched drop",
            nats_text(verdict.unmatched_nats) if verdict else "—",
            "nats" if verdict and verdict.unmatched_nats is not None else "",
            "\n".join(filter(None, (tolerance, interval))),
        ),
    )


def _mark(label: str, marker: Marker | None, note: str, absent: str) -> Tile:
    """Return the tile of a place on the token axis."""
    if marker is None:
        return Tile(label, "none", "", absent)
    return Tile(label, tokens_text(marker.tokens), "tokens", note)


def interval_text(result: ProbeResult) -> str:
    """Return a probe's mean with its interval."""
    low, high = nats_text(result.low_nats, signed=True), nats_text(result.high_nats, signed=True)
    return f"{nats_text(result.mean_nats, signed=True)} nats ({low} to {high})"


def probe_text(view: RunView) -> str:
    """Say what the latest probe found, or that there is none."""
    if not view.probes:
        return "No probe has run."
    last = view.probes[-1]
    return (
        f"At {tokens_text(last.tokens)} tokens, loss on fresh text minus loss on text already "
        f"trained on: {interval_text(last.result)} per token, with its 95 % interval, over "
        f"{last.result.pairs:,} pairs of the same mix. A lower end above "
        f"{view.probe_limit_nats} confirms memorization."
    )
