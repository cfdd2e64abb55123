"""A run's report as one HTML file that loads nothing else.

Plotly's script is written into the file once, a content security policy forbids any
request, and the page prints. It opens from a disk without a network.
"""

import html
import re
from collections.abc import Iterable, Sequence

from evalmon.report import figures
from evalmon.report.view import RunView, TaskRow
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

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

_STYLE = """
:root { --ink:#1f2933; --muted:#5f6b7a; --line:#dfe4ea; --soft:#f6f8fa; --accent:#0072b2; }
* { box-sizing:border-box; }
html { scroll-behavior:smooth; }
body { margin:0; color:var(--ink); background:#fff;
  font:16px/1.55 Inter,'Segoe UI','Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;
  -webkit-font-smoothing:antialiased; }
header, main, footer { max-width:1080px; margin:0 auto; padding:0 32px; }
header { padding-top:36px; }
header h1 { font-size:20px; font-weight:650; margin:0; letter-spacing:-.01em; }
header p, footer p { color:var(--muted); font-size:14px; margin:2px 0 0; }
footer { padding-bottom:28px; }
nav { display:flex; flex-wrap:wrap; gap:10px; margin-top:18px; }
nav a { display:flex; align-items:center; gap:10px; text-decoration:none; color:var(--ink);
  border:1px solid var(--line); border-radius:10px; padding:8px 14px; font-weight:550; }
nav a:hover { border-color:var(--accent); }
section.run { padding:36px 0 44px; border-bottom:1px solid var(--line); }
section.run:last-of-type { border-bottom:0; }
.name { color:var(--muted); font-size:14px; margin:0 0 10px; }
.name strong { color:var(--ink); }
h2 { font-size:27px; line-height:1.3; font-weight:680; letter-spacing:-.018em; margin:12px 0 0;
  text-wrap:balance; }
h3 { font-size:18px; font-weight:650; letter-spacing:-.01em; margin:44px 0 2px; }
h4 { font-size:15px; font-weight:650; margin:22px 0 4px; }
.lead { color:var(--muted); font-size:14.5px; margin:2px 0 10px; max-width:72ch; }
.badge { display:inline-block; border-radius:999px; padding:3px 12px; font-size:13px;
  font-weight:650; white-space:nowrap; }
.finding { color:#8a2d00; background:#fdece2; } .healthy { color:#00573f; background:#e0f4ec; }
.unsure { color:#4f4a00; background:#f6f1cf; }
.tiles { display:grid; grid-template-columns:repeat(4,1fr); gap:14px; margin:26px 0 0; }
.tile { background:var(--soft); border:1px solid var(--line); border-radius:12px;
  padding:14px 18px 13px; }
.tile dt { color:var(--muted); font-size:13px; font-weight:550; }
.tile dd { margin:0; } .tile .value { font-size:26px; font-weight:680; letter-spacing:-.02em;
  font-variant-numeric:tabular-nums; }
.tile .unit { font-size:14px; font-weight:500; color:var(--muted); margin-left:.3em;
  letter-spacing:0; }
.tile .note { color:var(--muted); font-size:13px; line-height:1.45; white-space:pre-line; }
.facts { display:grid; grid-template-columns:repeat(auto-fill,minmax(170px,1fr)); gap:10px 24px;
  margin:10px 0 0; } .facts dt { color:var(--muted); font-size:12.5px; }
.facts dd { margin:0; font-size:15px; font-weight:550; font-variant-numeric:tabular-nums;
  overflow-wrap:anywhere; }
table { border-collapse:collapse; width:100%; font-size:14.5px; margin:10px 0 0; }
th { text-align:left; color:var(--muted); font-size:12.5px; font-weight:600;
  border-bottom:1px solid #c6cdd5; padding:6px 14px 6px 0; vertical-align:bottom; }
td { border-bottom:1px solid var(--line); padding:7px 14px 7px 0; vertical-align:top; }
.number { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap; }
ul.reasons { padding-left:20px; margin:8px 0 0; max-width:80ch; } ul.reasons li { margin:5px 0; }
pre { background:var(--soft); border:1px solid var(--line); border-radius:10px; padding:12px 16px;
  font:13.5px/1.6 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace; white-space:pre-wrap;
  overflow-wrap:anywhere; }
summary { cursor:pointer; color:var(--accent); font-size:14.5px; margin:16px 0 0; }
.plot { margin:6px 0 0; }
.empty { background:var(--soft); border-radius:10px; color:var(--muted); padding:14px 18px;
  font-size:14.5px; }
@media (max-width:800px) { .tiles { grid-template-columns:repeat(2,1fr); }
  header, main, footer { padding-left:18px; padding-right:18px; } h2 { font-size:23px; } }
@media print { @page { margin:14mm; } header, main, footer { padding-left:0; padding-right:0;
  max-width:none; } nav { display:none; } section.run { break-before:page; border:0; padding:0; }
  section.run:first-of-type { break-before:auto; padding-top:16px; }
  .block, .tile, tr, pre { break-inside:avoid; } h3 { break-after:avoid; margin-top:26px; }
  body { font-size:13px; } h2 { font-size:22px; } * { print-color-adjust:exact; } }
"""

# Chromium lays a page out for paper without telling its charts.
_PRINT_SCRIPT = """
const resize = width => document.querySelectorAll('.js-plotly-plot').forEach(
  plot => Plotly.relayout(plot, width ? {width} : {width: null, autosize: true}));
addEventListener('beforeprint', () => resize(680));
addEventListener('afterprint', () => resize(null));
"""


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
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{heading}</title><link rel="icon" href="data:,"><style>{_STYLE}</style>'
        f"<script>{figures.script()}</script></head>\n<body>"
        f"<header><h1>{heading}</h1><p>Is a falling train loss learning or memorizing? "
        f"Loss is cross-entropy in nats per token; runs are compared at equal tokens.</p>"
        f"{navigation}</header>\n<main>{body}</main>\n<footer><p>Written by evalmon. "
        "This file loads nothing from the network.</p></footer>"
        f"<script>{_PRINT_SCRIPT}</script></body></html>\n"
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
    overlay = _block(
        "Loss at equal tokens",
        _lead(
            "Train loss is the median of the steps since the previous evaluation. While the run's "
            "solid line stays inside the green band, its holdout loss accounts for it."
        )
        + _plot(figures.losses(view), f"losses-{number}"),
    )
    if view.unmatched is None:
        return overlay
    return overlay + _block(
        "Unmatched drop: how much further train loss fell than holdout loss",
        _plot(figures.unmatched(view), f"unmatched-{number}"),
    )


def _evidence(view: RunView, number: int) -> str:
    """Return the verdict's reasons, the probe and each finding's numbers."""
    reasons = view.verdict.reasons if view.verdict else ()
    listed = "".join(f"<li>{html.escape(sentence(reason))}</li>" for reason in reasons)
    content = f'<ul class="reasons">{listed}</ul>' if listed else ""
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


def _facts(labeled: Iterable[tuple[str, str]]) -> str:
    """Return labeled values as a grid."""
    cells = "".join(
        f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd></div>"
        for label, value in labeled
    )
    return f'<dl class="facts">{cells}</dl>'


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
        "corroborate; the verdict does not rest on them."
    )
    return _block(
        "Task accuracies",
        _lead(lead)
        + _plot(figures.tasks(view.tasks, view.run.name, view.reference), f"tasks-{number}")
        + _table(header, rows, numbers_from=3),
    )


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
    """Return a table; columns from ``numbers_from`` on are set flush right."""

    def cell(kind: str, column: int, text: str) -> str:
        mark = ' class="number"' if column >= numbers_from else ""
        broken = re.sub(r"([/_])", r"\1<wbr>", html.escape(text))  # names may be long
        return f"<{kind}{mark}>{broken}</{kind}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(header))
    body = "".join(
        "<tr>" + "".join(cell("td", column, text) for column, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
