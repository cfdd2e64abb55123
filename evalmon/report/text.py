"""A run's report as plain text for a terminal, and as Markdown for an issue or a chat."""

from collections.abc import Sequence

from evalmon.report.outcomes import (
    OUTCOME_HEADER,
    last_window_text,
    outcome_cells,
    reference_lines,
    verdict_facts,
)
from evalmon.report.view import RunView, TaskRow
from evalmon.report.wording import (
    accuracy_text,
    badge_text,
    delivery_text,
    failure_text,
    headline,
    interval_text,
    sentence,
    task_label,
    tiles,
    tokens_text,
)

__all__ = ["markdown", "text"]


def text(view: RunView) -> str:
    """Return the report as plain text, without a final newline."""
    blocks = [
        [f"{view.run.name}: {_identifier(view)}", headline(view)],
        _aligned(_facts(view), indent="  "),
        _listed("Why", [sentence(item) for item in view.verdict.reasons] if view.verdict else ()),
    ]
    if view.tasks:
        rows = [("task", "metric", "questions", view.run.name, view.reference or "")]
        rows += [_task(row) for row in view.tasks]
        blocks.append([f"Tasks at {tokens_text(view.tokens)} tokens, 95 % Wilson intervals"])
        blocks[-1] += _aligned(rows, indent="  ")
    if outcomes := _outcomes(view):
        blocks.append([f"Tasks against {view.reference}", *_aligned(outcomes, indent="  ")])
    blocks += [
        _listed(*_reference(view)),
        _listed("Alerts", _alerts(view)),
        _listed("Evaluator", [f"{label}: {said}" for label, said in view.self_check]),
        _listed("Failures", [failure_text(item) for item in view.failures]),
        _listed("Notes", view.notes),
        ["Reproduce", *(f"  {command}" for command in view.commands)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def markdown(view: RunView) -> str:
    """Return the report as GitHub-flavored Markdown, without a final newline."""
    blocks = [
        f"## {_escape(view.run.name)}: {badge_text(view)}",
        f"**{_escape(headline(view))}**",
        _table([("", "value"), *_facts(view)]),
    ]
    if view.verdict and view.verdict.reasons:
        blocks.append(
            "\n".join(f"- {_escape(sentence(reason))}" for reason in view.verdict.reasons)
        )
    if view.tasks:
        header = ("task", "metric", "questions", view.run.name, view.reference or "")
        blocks += [
            f"### Tasks at {tokens_text(view.tokens)} tokens, 95 % Wilson intervals",
            _table([header, *(_task(row) for row in view.tasks)]),
        ]
    if outcomes := _outcomes(view):
        blocks += [f"### Tasks against {_escape(view.reference or '')}", _table(outcomes)]
    for heading, lines in (
        _reference(view),
        ("Alerts", _alerts(view)),
        ("Evaluator", [f"{label}: {said}" for label, said in view.self_check]),
        ("Failures", [failure_text(item) for item in view.failures]),
        ("Notes", view.notes),
    ):
        if lines:
            blocks.append(
                f"### {_escape(heading)}\n\n" + "\n".join(f"- {_escape(line)}" for line in lines)
            )
    blocks.append("### Reproduce\n\n```sh\n" + "\n".join(view.commands) + "\n```")
    return "\n\n".join(blocks)


def _identifier(view: RunView) -> str:
    """Return the verdict's identifier with what it was judged against."""
    if view.verdict is None:
        return "not judged yet"
    against = f"against {view.reference}" if view.reference else "without a reference"
    return (
        f"{view.verdict.verdict} ({against}, profile {view.verdict.profile}, "
        f"step {view.verdict.step:,}, {tokens_text(view.verdict.tokens)} tokens)"
    )


def _facts(view: RunView) -> list[tuple[str, str]]:
    """Return the key numbers as (label, text)."""
    facts = [
        (tile.label, f"{tile.value} {tile.unit}".strip() + f" ({tile.note})".replace("\n", ", "))
        for tile in tiles(view)
    ]
    if view.verdict:
        facts += verdict_facts(view.verdict)
        if told := last_window_text(view.verdict):
            facts.append(("Last window", told))
    if view.probes:
        facts.append(("Fresh minus seen", interval_text(view.probes[-1].result)))
    return facts


def _outcomes(view: RunView) -> list[tuple[str, ...]]:
    """Return how the tasks stand against the reference, under a header; nothing without any."""
    tasks = view.verdict.tasks if view.verdict else ()
    return [OUTCOME_HEADER, *(outcome_cells(item) for item in tasks)] if tasks else []


def _reference(view: RunView) -> tuple[str, Sequence[str]]:
    """Return heading and lines on the reference curve, no lines without one."""
    if view.published is None:
        return "Reference", ()
    return f"Reference {view.published.name}", reference_lines(view.published)


def _task(row: TaskRow) -> tuple[str, ...]:
    """Return one task metric as cells."""
    reference = accuracy_text(row.reference) if row.reference else row.note
    return (
        task_label(row.task),
        row.metric,
        f"{row.items:,}",
        accuracy_text(row.run),
        reference,
    )


def _alerts(view: RunView) -> list[str]:
    """Return one line an alert episode."""
    return [
        f"{alert.status} since {tokens_text(alert.opened_tokens)} tokens: {alert.title}"
        + "".join(
            f"; {delivery_text(item, stuck=(item.alert_id, item.sink) in view.stuck)}"
            for item in view.deliveries
            if item.alert_id == alert.id
        )
        for alert in view.alerts
    ]


def _listed(heading: str, lines: Sequence[str]) -> list[str]:
    """Return a heading with its lines, or nothing."""
    return [heading, *(f"  - {line}" for line in lines)] if lines else []


def _aligned(rows: Sequence[Sequence[str]], indent: str) -> list[str]:
    """Return rows with their columns lined up."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first row is the header."""
    lines = ["| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _escape(cell: str) -> str:
    """Keep what a name may hold from becoming Markdown."""
    return cell.translate(str.maketrans({c: "\\" + c for c in "|*_`<>[]"})).replace("\n", " ")
