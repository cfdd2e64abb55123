"""A run's report as one HTML file that loads nothing else.

Plotly's script is written into the file once, a content security policy forbids any
request, and the page prints. It opens from a disk without a network.
"""

import html
import re
from collections.abc import Iterable, Sequence

from evalmon.report import figures
from evalmon.report.outcomes import (
    OUTCOME_HEADER,
    OUTCOME_LEAD,
    last_window_text,
    outcome_cells,
    verdict_facts,
)
from evalmon.report.page_style import POLICY, SCRIPT, STYLE
from evalmon.report.view import AboutReference, RunView, TaskRow
from evalmon.report.wording import (
    accuracy_text,
    badge_text,
    delivery_text,
    facts,
    headline,
    nats_text,
    probe_text,
    sentence,
    shown_findings,
    task_label,
    tiles,
    tokens_text,
    tone,
)
from evalmon.types import Finding

__all__ = ["page"]

_LONGEST_NUMBER = 24  # characters; what is longer is a sentence and may break


def page(views: Sequence[RunView], title: str) -> str:
    """Lay out one or more runs as a self-contained HTML page.

    Args:
        views: the runs, in the order shown.
        title: heading and document title.

    Returns:
        The whole document; about 5 MB, nearly all of it Plotly's script.
    """
    heading = html.escape(title)
    links = "".join(
        f'<a href="#run-{number}">{html.escape(view.run.name)} {_badge(view)}</a>'
        for number, view in enumerate(views)
    )
    navigation = f'<nav aria-label="Runs">{links}</nav>' if len(views) > 1 else ""
    body = "\n".join(_run(view, number) for number, view in enumerate(views))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{heading}</title><link rel="icon" href="data:,"><style>{STYLE}</style>'
        f"<script>{figures.script()}</script></head>\n<body>"
        f"<header><h1>{heading}</h1><p>Is a falling train loss learning or memorizing? "
        f"Loss is cross-entropy in nats per token; runs are compared at equal tokens.</p>"
        f"{navigation}</header>\n<main>{body}</main>\n<footer><p>Written by evalmon. "
        "This file loads nothing from the network.</p></footer>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _run(view: RunView, number: int) -> str:
    """Lay out one run, top down: verdict, key numbers, figures, evidence, how to repeat it."""
    parts = [
        _head(view),
        _loss_figures(view, number),
        _evidence(view, number),
        _tasks(view, number),
        _alerts(view),
        _compared(view),
        _reference(view.published) if view.published else "",
        _block("Evaluator", _facts(view.self_check)) if view.self_check else "",
        _failures(view),
        _notes(view),
        _block("Reproduce", f"<pre>{html.escape(chr(10).join(view.commands))}</pre>"),
    ]
    return f'<section class="run" id="run-{number}">{"".join(parts)}</section>'


def _head(view: RunView) -> str:
    """Return badge, headline and the four key numbers."""
    reference = html.escape(view.reference or "")
    parts = [
        f"<strong>{html.escape(view.run.name)}</strong>",
        f"judged against <strong>{reference}</strong>"
        if reference
        else "judged on its own, without a reference",
        f"{tokens_text(view.tokens)} of {tokens_text(view.run.planned_tokens)} planned tokens",
    ]
    cells = "".join(
        f'<div class="tile"><dt>{html.escape(tile.label)}</dt><dd><span class="value">'
        f'{html.escape(tile.value)}</span><span class="unit">{html.escape(tile.unit)}</span>'
        f'<div class="note">{html.escape(tile.note)}</div></dd></div>'
        for tile in tiles(view)
    )
    return (
        f'<p class="name">{" · ".join(parts)}</p>{_badge(view)}'
        f'<h2>{html.escape(headline(view))}</h2><dl class="tiles">{cells}</dl>'
    )


def _loss_figures(view: RunView, number: int) -> str:
    """Return the overlay and the unmatched drop, or why there is none."""
    if not view.train and not view.holdout:
        note = "No evaluation is stored yet: start the evaluator on this run."
        return _block("Loss at equal tokens", f'<p class="empty">{note}</p>')
    single = any(curve.single_steps for curve in view.train)
    overlay = _block(
        "Loss at equal tokens",
        _lead(
            "Train loss is the median of the steps since the previous evaluation"
            f"{', of a thinned reference the single steps there are' if single else ''}. While "
            "the run's solid line stays inside the green band, its holdout loss accounts for it."
        )
        + _plot(figures.losses(view), f"losses-{number}"),
    )
    if view.unmatched is None:
        return overlay
    return overlay + _block(
        "Unmatched drop: how much further train loss fell than holdout loss",
        _last_window(view) + _plot(figures.unmatched(view), f"unmatched-{number}"),
    )


def _last_window(view: RunView) -> str:
    """Return the literal comparison of the last window as a line, or nothing."""
    told = last_window_text(view.verdict) if view.verdict else ""
    return _lead(f"Last window: {told}.") if told else ""


def _evidence(view: RunView, number: int) -> str:
    """Return the verdict's reasons, the probe and each finding's numbers."""
    reasons = view.verdict.reasons if view.verdict else ()
    listed = "".join(f"<li>{html.escape(sentence(reason))}</li>" for reason in reasons)
    content = f'<ul class="reasons">{listed}</ul>' if listed else ""
    content += _facts(verdict_facts(view.verdict)) if view.verdict else ""
    content += "".join(_finding(finding, reasons) for finding in shown_findings(view))
    if view.probes:
        content += f"<h4>Seen-against-fresh probe</h4>{_lead(probe_text(view))}"
    if len(view.probes) > 1:
        content += _plot(figures.probes(view), f"probes-{number}")
    return _block("Evidence", content or '<p class="empty">No findings.</p>')


def _finding(finding: Finding, told: Sequence[str]) -> str:
    """Return one finding with the numbers behind it, and its message if it is not told yet."""
    name = html.escape(finding.detector.replace("_", " ").capitalize())
    message = "" if finding.message in told else _lead(sentence(finding.message))
    return f"<h4>{name}</h4>{message}{_facts(facts(finding))}"


def _facts(labeled: Iterable[tuple[str, str]], *, wide: bool = False) -> str:
    """Return labeled values as a grid; of sentences as a wide one."""
    cells = "".join(
        f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd></div>"
        for label, value in labeled
    )
    return f'<dl class="facts{" wide" if wide else ""}">{cells}</dl>'


def _tasks(view: RunView, number: int) -> str:
    """Return task accuracies as figure and table."""
    if not view.tasks:
        return ""
    header = ["task", "shots", "metric", "questions", f"{view.run.name} (95 %)"]
    if view.reference:
        header.append(f"{view.reference} (95 %)")
    rows = [_task_cells(row, with_reference=view.reference is not None) for row in view.tasks]
    lead = (
        f"At {tokens_text(view.tokens)} tokens, with 95 % Wilson intervals. Accuracies "
        "corroborate: they raise no alarm, but a loss alone makes a run behind_reference."
    )
    return _block(
        "Task accuracies",
        _lead(lead)
        + _plot(figures.tasks(view.tasks, view.run.name, view.reference), f"tasks-{number}")
        + _table(header, rows, numbers_from=3)
        + _outcomes(view),
    )


def _outcomes(view: RunView) -> str:
    """Return how the tasks stand against the reference, or nothing."""
    tasks = view.verdict.tasks if view.verdict else ()
    if not tasks:
        return ""
    table = _table(OUTCOME_HEADER, [outcome_cells(item) for item in tasks], numbers_from=2)
    against = html.escape(view.reference or "the reference")
    return f"<h4>Against {against}</h4>{_lead(OUTCOME_LEAD)}{table}"


def _task_cells(row: TaskRow, *, with_reference: bool) -> list[str]:
    """Return one table row of a task metric."""
    shots = "—" if row.shots is None else str(row.shots)
    cells = [task_label(row.task), shots, row.metric, f"{row.items:,}", accuracy_text(row.run)]
    if with_reference:
        cells.append(accuracy_text(row.reference) if row.reference else row.note or "—")
    return cells


def _alerts(view: RunView) -> str:
    """Return the alert episodes and what became of their deliveries."""
    if not view.alerts:
        return _block("Alerts", '<p class="empty">None: nobody was alerted about this run.</p>')
    header = ["opened at", "status", "cause", "alert", "deliveries"]
    cells = [
        [
            tokens_text(alert.opened_tokens),
            alert.status.value,
            alert.cause,
            alert.title,
            "; ".join(
                delivery_text(item, stuck=(item.alert_id, item.sink) in view.stuck)
                for item in view.deliveries
                if item.alert_id == alert.id
            )
            or "—",
        ]
        for alert in view.alerts
    ]
    return _block("Alerts", _table(header, cells))


def _compared(view: RunView) -> str:
    """Return what exactly was compared: the run's facts and each metric's identity."""
    run, verdict = view.run, view.verdict
    compared = [
        ("reference", view.reference or "none (the run's own baseline)"),
        ("profile of the rule", verdict.profile if verdict else "—"),
        ("tolerance", f"{nats_text(verdict.tolerance_nats if verdict else None)} nats / token"),
        ("holdout metric", view.holdout_name or "—"),
        ("loader", f"{run.loader}, {run.hosts} hosts, planned passes: {run.planned_passes}"),
        ("recipe", run.recipe),
        ("seed", str(run.seed)),
        ("train loss", ", ".join(f"{key}: {value}" for key, value in run.loss.items()) or "—"),
    ]
    header = ["metric", "prompts", "split", "item limit", "per", "max length", "identity"]
    identities = [
        [
            metric,
            item.prompt_set or "—",
            item.split,
            "all" if item.item_limit is None else f"{item.item_limit:,}",
            item.normalization,
            f"{item.max_length:,}",
            item.fingerprint,
        ]
        for metric, item in view.identities
    ]
    meanings = ""
    if identities:
        table = _table(header, identities)
        meanings = f"<details><summary>What each metric means</summary>{table}</details>"
    return _block("What was compared", _facts(compared) + meanings)


def _reference(about: AboutReference) -> str:
    """Return where a reference curve is from, how it differs, and what is wrong with its data."""
    said = [sentence(item) for item in about.differences]
    said += [f"Stated by the reference alone: {item}" for item in about.one_sided]
    listed = "".join(f"<li>{html.escape(item)}</li>" for item in said)
    faults = "".join(f"<li>{html.escape(item)}</li>" for item in about.known_faults)
    content = _facts(about.facts, wide=True)
    content += f'<ul class="reasons fine">{listed}</ul>' if listed else ""
    if faults:
        count = len(about.known_faults)
        content += (
            f"<details><summary>Known faults of its data: {count}</summary>"
            f'<ul class="reasons fine">{faults}</ul></details>'
        )
    return _block(f"Reference {about.name}", content)


def _failures(view: RunView) -> str:
    """Return what could not be scored; nothing when all could."""
    if not view.failures:
        return ""
    rows = [
        [
            f"{item.failure.checkpoint.step:,}",
            item.failure.evaluator,
            str(item.attempt),
            item.failure.error,
            item.failure.message,
        ]
        for item in view.failures
    ]
    return _block("Failures", _table(["step", "evaluator", "tries", "error", "message"], rows))


def _notes(view: RunView) -> str:
    """Return what could not be shown; nothing when all could."""
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in view.notes)
    return _block("Notes", f'<ul class="reasons">{listed}</ul>') if listed else ""


def _badge(view: RunView) -> str:
    """Return the verdict as a colored label that also reads without color."""
    return f'<span class="badge {tone(view)}">{html.escape(badge_text(view))}</span>'


def _block(heading: str, content: str) -> str:
    """Return a headed part of the page."""
    return f'<div class="block"><h3>{html.escape(heading)}</h3>{content}</div>'


def _lead(text: str) -> str:
    """Return an explaining line."""
    return f'<p class="lead">{html.escape(text)}</p>'


def _plot(figure: "figures.go.Figure", name: str) -> str:
    """Return a figure that draws itself with the script already in the page."""
    return f'<div class="plot">{figures.div(figure, name)}</div>'


def _table(header: Iterable[str], rows: Iterable[Sequence[str]], numbers_from: int = 99) -> str:
    """Return a table; columns from ``numbers_from`` on are set flush right, notes in them not."""

    def cell(kind: str, column: int, text: str) -> str:
        mark = ""
        if column >= numbers_from:
            note = kind == "td" and len(text) > _LONGEST_NUMBER
            mark = f' class="{"note" if note else "number"}"'
        broken = re.sub(r"([/_])", r"\1<wbr>", html.escape(text))  # names may be long
        return f"<{kind}{mark}>{broken}</{kind}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(header))
    body = "".join(
        "<tr>" + "".join(cell("td", column, text) for column, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )
