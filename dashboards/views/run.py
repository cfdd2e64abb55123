"""The one page: is this run learning or memorizing, and what says so."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import pandas as pd
import streamlit as st

from dashboards import data
from evalmon.report import figures
from evalmon.report.outcomes import (
    OUTCOME_HEADER,
    OUTCOME_LEAD,
    last_window_text,
    outcome_cells,
    verdict_facts,
)
from evalmon.report.view import RunView
from evalmon.report.wording import (
    accuracy_text,
    badge_text,
    delivery_text,
    facts,
    headline,
    probe_text,
    sentence,
    share_text,
    shown_findings,
    task_label,
    tiles,
    tokens_text,
    tone,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["plain", "show"]

_COLORS: dict[str, Literal["red", "green", "yellow"]] = {
    "finding": "red",
    "healthy": "green",
    "unsure": "yellow",
}
_CHART = {"displayModeBar": False, "responsive": True}


def show(view: RunView) -> None:
    """Lay out one run: verdict, key numbers, curves beside evidence, tasks, evaluator."""
    _head(view)
    if view.step is None:
        st.info(
            "This run has no evaluation yet. They appear here as soon as `evalmon watch` has "
            "scored the first checkpoint.",
            icon=":material/hourglass_empty:",
        )
    else:
        curves, evidence = st.columns([2, 1], gap="large")
        with curves:
            _curves(view)
        with evidence:
            _evidence(view)
            _alerts(view)
        _tasks(view)
        _reference(view)
    _evaluator(view)
    with st.expander("Reproduce", icon=":material/terminal:"):
        st.code("\n".join(view.commands), language="bash")


def plain(text: str) -> str:
    r"""Keep text from being read as Markdown: run names and messages may hold anything.

    Example:
        >>> print(plain("a_b: 5 % of $x"))
        a\_b\: 5 \% of \$x
    """
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def _head(view: RunView) -> None:
    """Show badge, headline and the four key numbers."""
    st.badge(plain(badge_text(view)), color=_COLORS[tone(view)])
    st.header(plain(headline(view)), anchor=False)
    against = f"judged against {view.reference}" if view.reference else "without a reference"
    place = (
        f"{tokens_text(view.tokens)} of {tokens_text(view.run.planned_tokens)} planned tokens "
        f"({share_text(view.progress)}), step {view.step:,}"
        if view.step is not None
        else f"{tokens_text(view.run.planned_tokens)} tokens planned"
    )
    st.caption(plain(f"{view.run.name} · {against} · {place}"))
    for column, tile in zip(st.columns(4), tiles(view), strict=True):
        column.metric(
            tile.label,
            plain(f"{tile.value} {tile.unit}".strip()),
            tile.note.partition("\n")[0],
            help=tile.note.replace("\n", " · ") if "\n" in tile.note else None,
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
        )
    for note in view.notes:
        st.warning(plain(note), icon=":material/info:")


def _curves(view: RunView) -> None:
    """Show loss at equal tokens and the unmatched drop, on one token axis."""
    st.subheader("Loss at equal tokens", anchor=False)
    st.caption(
        "While the run's solid line stays inside the green band, its holdout loss accounts for it."
    )
    _chart(figures.losses(view), "losses")
    if view.unmatched is not None:
        st.subheader("Unmatched drop", anchor=False)
        told = last_window_text(view.verdict) if view.verdict else ""
        lead = "How much further train loss fell than holdout loss."
        st.caption(plain(f"{lead} Last window: {told}." if told else lead))
        _chart(figures.unmatched(view), "unmatched")


def _evidence(view: RunView) -> None:
    """Show why the verdict is what it is."""
    st.subheader("Evidence", anchor=False)
    if view.verdict is None:
        st.caption("No verdict yet.")
        return
    st.markdown("\n".join(f"- {plain(sentence(reason))}" for reason in view.verdict.reasons))
    _numbers(verdict_facts(view.verdict))
    for finding in shown_findings(view):
        with st.expander(plain(finding.detector.replace("_", " ").capitalize())):
            st.markdown(plain(sentence(finding.message)))
            if numbers := facts(finding):
                _numbers(numbers)
    if view.probes:
        with st.expander("Seen-against-fresh probe"):
            st.markdown(plain(probe_text(view)))
            _chart(figures.probes(view), "probes")


def _numbers(labeled: Sequence[tuple[str, str]]) -> None:
    """Show labeled values as a table."""
    rows = [(label, plain(value)) for label, value in labeled]
    table = pd.DataFrame(rows, columns=["", "value"]).set_index("")
    st.table(table, border="horizontal")


def _alerts(view: RunView) -> None:
    """Show alert episodes, and deliveries that did not arrive."""
    st.subheader("Alerts", anchor=False)
    if not view.alerts:
        st.caption("Nobody was alerted about this run.")
    for alert in view.alerts:
        color = "red" if alert.status == "open" else "gray"
        with st.container(border=True):
            st.badge(str(alert.status), color=color)
            st.markdown(f"**{plain(alert.title)}**")
            for delivery in view.deliveries:
                if delivery.alert_id != alert.id:
                    continue
                stuck = (delivery.alert_id, delivery.sink) in view.stuck
                line = plain(delivery_text(delivery, stuck=stuck))
                if stuck:
                    st.error(f"Not delivered — {line}", icon=":material/notification_important:")
                else:
                    st.caption(line)


def _tasks(view: RunView) -> None:
    """Show task accuracies with their intervals."""
    if not view.tasks:
        return
    st.subheader("Task accuracies", anchor=False)
    st.caption(
        f"At {tokens_text(view.tokens)} tokens, with 95 % Wilson intervals. Accuracies "
        "corroborate: they raise no alarm, but a loss alone makes a run behind_reference."
    )
    _chart(figures.tasks(view.tasks, view.run.name, view.reference), "tasks")
    with st.expander("Numbers"):
        rows = [
            {
                "task": task_label(row.task),
                "metric": row.metric,
                "questions": f"{row.items:,}",
                view.run.name: accuracy_text(row.run),
                view.reference or "reference": (
                    accuracy_text(row.reference) if row.reference else row.note or "—"
                ),
            }
            for row in view.tasks
        ]
        st.table(pd.DataFrame(rows).set_index("task"), border="horizontal")
    if view.verdict and view.verdict.tasks:
        with st.expander(f"Against {plain(view.reference or 'the reference')}"):
            st.caption(plain(OUTCOME_LEAD))
            cells = [outcome_cells(item) for item in view.verdict.tasks]
            table = pd.DataFrame(cells, columns=list(OUTCOME_HEADER)).set_index("task")
            st.table(table, border="horizontal")


def _reference(view: RunView) -> None:
    """Show where a reference curve is from, how it differs, and what is wrong with its data."""
    about = view.published
    if about is None:
        return
    with st.expander(f"Reference {plain(about.name)}", icon=":material/menu_book:"):
        _numbers(about.facts)
        said = [sentence(item) for item in about.differences]
        said += [f"Stated by the reference alone: {item}" for item in about.one_sided]
        said += [f"Known fault: {item}" for item in about.known_faults]
        st.markdown("\n".join(f"- {plain(item)}" for item in said))


def _evaluator(view: RunView) -> None:
    """Show what the evaluator is doing and what it could not score."""
    st.subheader("Evaluator", anchor=False)
    beats = data.activity(view)
    if not beats:
        st.caption("No evaluator is watching this run now.")
    for beat in beats:
        ending = " — this process is gone" if beat.alive is False else ""
        st.markdown(plain(f"{beat.holder}: {beat.stage}, for {beat.seconds:.0f} s{ending}"))
    for label, said in view.self_check:
        st.caption(plain(f"{label}: {said}"))
    if view.failures:
        st.error(
            f"Failed and not succeeded since: {len(view.failures)}",
            icon=":material/error:",
        )
        rows = [
            {
                "step": f"{item.failure.checkpoint.step:,}",
                "evaluator": item.failure.evaluator,
                "tries": str(item.attempt),
                "error": plain(f"{item.failure.error}: {item.failure.message}"),
            }
            for item in view.failures
        ]
        st.table(pd.DataFrame(rows).set_index("step"), border="horizontal")


def _chart(figure: "Figure", key: str) -> None:
    """Show a figure in its own style, redrawn in place."""
    st.plotly_chart(figure, theme=None, key=key, config=_CHART)
