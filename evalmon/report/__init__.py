"""A run's verdict as text, Markdown and a self-contained HTML page.

Layout: :mod:`~evalmon.report.collect` gathers a run's values into a
:mod:`~evalmon.report.view`, with :mod:`~evalmon.report.literal`,
:mod:`~evalmon.report.references` and :mod:`~evalmon.report.task_rows`;
:mod:`~evalmon.report.wording` and :mod:`~evalmon.report.outcomes` say how they read;
:mod:`~evalmon.report.figures` draws them (Plotly lives only there);
:mod:`~evalmon.report.text` and :mod:`~evalmon.report.page` lay them out.
"""

from collections.abc import Sequence

from evalmon.report.collect import collect
from evalmon.report.page import page
from evalmon.report.text import markdown, text
from evalmon.report.view import RunView

__all__ = ["RunView", "collect", "html", "html_page", "markdown", "text"]


def html(view: RunView) -> str:
    """Return one run as a self-contained HTML page."""
    return page([view], f"evalmon: {view.run.name}")


def html_page(views: Sequence[RunView], title: str) -> str:
    """Return several runs as one self-contained HTML page.

    Args:
        views: the runs, in the order shown.
        title: heading and document title.
    """
    return page(views, title)
