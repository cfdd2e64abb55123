"""The figures of report and dashboard: pure Plotly, drawn from a run's view.

The run is vermilion, the reference blue; train loss is a solid line, holdout loss a
dotted one with points. Of a thinned train loss the single steps are drawn as dots.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from evalmon.metrics import Interval
from evalmon.report import figure_style as style
from evalmon.report.figure_style import BAND_COLOR, MUTED, REFERENCE_COLOR, RUN_COLOR, error_bars
from evalmon.report.outcomes import window_text
from evalmon.report.view import Curve, LiteralTrace, Marker, RunView, TaskRow
from evalmon.report.wording import task_label, tokens_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = [
    "div",
    "losses",
    "probes",
    "script",
    "tasks",
    "unmatched",
]


_MOST_POINTS = 120  # of a line with points: more of them run together


def losses(view: RunView) -> "go.Figure":
    """Draw train and holdout loss of run and reference with the supported band.

    The band is where train loss would lie if the holdout matched it: train CE plus the
    unmatched drop, plus and minus the tolerance.

    Returns:
        A figure with tokens on x and nats per token on y.
    """
    figure = _figure("nats / token", view.markers, height=460)
    _share_tokens_axis(figure, view)
    trace = view.unmatched
    if trace is not None:
        _band(
            figure,
            trace.tokens,
            trace.supported_low_nats,
            trace.supported_high_nats,
            name="supported by the holdout, ± tolerance",
            legendrank=2000,
        )
    for curve in reversed(view.holdout):  # the run's own lies upon its reference's
        _curve(figure, curve, view, kind="holdout")
    for curve in reversed(view.train):
        _curve(figure, curve, view, kind="train")
    _frame_late_part(figure, view)
    figure.update_layout(margin_b=120)  # five names take two or three rows on a narrow screen
    return figure


def unmatched(view: RunView) -> "go.Figure":
    """Draw the unmatched drop with its interval against the tolerance.

    Ticks at the foot mark windows beyond the literal ±0.005: an observation beside the rule.

    Returns:
        A figure with tokens on x and nats per token on y; above the tolerance band
        train loss has fallen further than the holdout.
    """
    figure = _figure("nats / token", view.markers, height=340)
    _share_tokens_axis(figure, view)
    trace = view.unmatched
    if trace is None:
        return figure
    negative = tuple(None if item is None else -item for item in trace.tolerance_nats)
    _band(figure, trace.tokens, negative, trace.tolerance_nats, name="tolerance")
    _add(
        figure,
        x=trace.tokens,
        y=trace.unmatched_nats,
        mode="lines+markers",
        name="unmatched drop, 95 % interval",
        line={"color": RUN_COLOR, "width": 2.5},
        marker={"size": 6},
        error_y=error_bars(trace.unmatched_nats, trace.low_nats, trace.high_nats),
        text=[tokens_text(item) for item in trace.tokens],
        hovertemplate="%{text} tokens<br>unmatched drop %{y:.3f} nats<extra></extra>",
        connectgaps=False,
    )
    figure.update_yaxes(zeroline=True, zerolinecolor=MUTED, zerolinewidth=1)
    if view.literal is not None:
        _ticks_beyond(figure, view.literal)
    return figure


def tasks(rows: Sequence[TaskRow], run: str, reference: str | None) -> "go.Figure":
    """Draw task accuracies with 95 % intervals, run above reference.

    Returns:
        A figure with accuracy on x and one line a task; a gray diamond is guessing.
    """
    preferred = sorted(rows, key=lambda row: row.metric == "acc")  # the last of a task is kept
    shown = list({row.task: row for row in preferred}.values())
    figure = _figure("", (), height=90 + 46 * max(len(shown), 1))
    labels = [task_label(row.task) for row in shown]
    places = list(range(len(shown)))
    guessing = [(place, row.chance) for place, row in enumerate(shown) if row.chance is not None]
    _add(
        figure,
        x=[chance for _, chance in guessing],
        y=[place for place, _ in guessing],
        mode="markers",
        name="guessing",
        marker={"symbol": "diamond-open", "size": 10, "color": MUTED, "line": {"width": 1.5}},
        hovertemplate="guessing %{x:.3f}<extra></extra>",
    )
    apart = 0.0 if reference is None else 0.16
    if reference is not None:
        pairs = [(p + apart, r.reference) for p, r in enumerate(shown) if r.reference is not None]
        _dots(figure, pairs, reference, REFERENCE_COLOR, "square")
    _dots(figure, [(p - apart, r.run) for p, r in enumerate(shown)], run, RUN_COLOR, "circle")
    figure.update_layout(margin_l=104)
    figure.update_xaxes(
        title_text="accuracy (fraction of questions)", tickformat=".1f", range=[0, 1]
    )
    figure.update_yaxes(
        tickvals=places,
        ticktext=labels,
        range=[len(shown) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    figure.update_layout(hovermode="closest")
    return figure


def probes(view: RunView) -> "go.Figure":
    """Draw the seen-against-fresh probe with its interval and the confirming bound.

    Returns:
        A figure with tokens on x; above 0 seen text is remembered.
    """
    figure = _figure("nats / token", view.markers, height=300)
    _share_tokens_axis(figure, view)
    points = view.probes
    means = tuple(point.result.mean_nats for point in points)
    tokens = tuple(point.tokens for point in points)
    _add(
        figure,
        x=tokens,
        y=means,
        mode="lines+markers",
        name="fresh − seen loss, 95 % interval",
        line={"color": RUN_COLOR, "width": 2.5},
        marker={"size": 6},
        error_y=error_bars(
            means,
            tuple(point.result.low_nats for point in points),
            tuple(point.result.high_nats for point in points),
        ),
        text=[tokens_text(item) for item in tokens],
        hovertemplate="%{text} tokens<br>fresh − seen %{y:.3f} nats<extra></extra>",
    )
    _add(
        figure,
        x=[0, *tokens[-1:]],
        y=[view.probe_limit_nats] * (1 + len(tokens[-1:])),
        mode="lines",
        name=f"a lower end above {view.probe_limit_nats} confirms memorization",
        line={"color": BAND_COLOR, "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )
    figure.update_yaxes(zeroline=True, zerolinecolor=MUTED, zerolinewidth=1)
    return figure


def div(figure: "go.Figure", name: str) -> str:
    """Return a figure as an HTML element that :func:`script` draws.

    Args:
        figure: the figure; a missing value becomes null.
        name: id of the element, unique in its page.
    """
    from plotly.io import to_html

    settings = {"displayModeBar": False, "responsive": True}
    return to_html(figure, config=settings, include_plotlyjs=False, full_html=False, div_id=name)


def script() -> str:
    """Return Plotly's script, to be written into a page once."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _figure(y_title: str, markers: Sequence[Marker], *, height: int) -> "go.Figure":
    """Return an empty figure in the house style, with the vertical lines drawn."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(**style.layout(len(markers), height))
    axis = style.axis()
    figure.update_xaxes(**axis, exponentformat="B", separatethousands=False, hoverformat=".3s")
    figure.update_xaxes(title_text="tokens trained on")
    figure.update_yaxes(**axis)
    figure.update_yaxes(title_text=y_title)
    for level, marker in enumerate(sorted(markers, key=lambda item: item.tokens)):
        line, label = style.vertical(marker, len(markers) - 1 - level)
        figure.add_shape(**line)
        figure.add_annotation(**label)
    return figure


def _curve(figure: "go.Figure", curve: Curve, view: RunView, *, kind: str) -> None:
    """Draw one loss curve of the run or its reference."""
    own = curve.run == view.run.name
    color = RUN_COLOR if own else REFERENCE_COLOR
    if curve.single_steps:
        _add(
            figure,
            x=curve.tokens,
            y=curve.values,
            mode="markers",
            name=f"{curve.run}: {kind}, single steps",
            marker={"size": 4, "color": color, "opacity": 0.45},
            legendrank=20,
            hovertemplate=f"{curve.run} {kind}, one step %{{y:.3f}}<extra></extra>",
        )
        return
    dotted = kind == "holdout" and len(curve.tokens) <= _MOST_POINTS
    _add(
        figure,
        x=curve.tokens,
        y=curve.values,
        mode="lines+markers" if dotted else "lines",
        name=f"{curve.run}: {kind}",
        line={
            "color": color,
            "width": 2.8 if own else 2,
            "dash": "dot" if kind == "holdout" else "solid",
        },
        marker={"size": 5, "symbol": "circle" if own else "square"},
        legendrank=(10 if kind == "train" else 30) + (0 if own else 10),
        text=[tokens_text(item) for item in curve.tokens],
        hovertemplate=f"{curve.run} {kind} %{{y:.3f}}<extra></extra>",
        connectgaps=False,
    )


def _band(
    figure: "go.Figure",
    tokens: Sequence[int],
    low: Sequence[float | None],
    high: Sequence[float | None],
    **settings: Any,
) -> None:
    """Fill between two edges; where one is not known the band has a hole."""
    shared: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    edges = zip(tokens, low, high, strict=True)
    known = [list(piece) for there, piece in groupby(edges, lambda edge: None not in edge) if there]
    for number, piece in enumerate(known):
        x = [edge[0] for edge in piece]
        _add(figure, x=x, y=[edge[1] for edge in piece], showlegend=False, **shared)
        _add(
            figure,
            x=x,
            y=[edge[2] for edge in piece],
            fill="tonexty",
            fillcolor="rgba(0, 158, 115, 0.16)",
            showlegend=number == 0,
            **shared,
            **settings,
        )


def _dots(
    figure: "go.Figure",
    points: Sequence[tuple[float, Interval]],
    name: str,
    color: str,
    symbol: str,
) -> None:
    """Draw accuracies as points with horizontal error bars."""
    _add(
        figure,
        x=[item.value for _, item in points],
        y=[place for place, _ in points],
        mode="markers",
        name=f"{name}, 95 % interval",
        marker={"color": color, "size": 9, "symbol": symbol},
        error_x=error_bars(
            [item.value for _, item in points],
            [item.low for _, item in points],
            [item.high for _, item in points],
            color,
        ),
        hovertemplate=f"{name} %{{x:.3f}}<extra></extra>",
    )


def _share_tokens_axis(figure: "go.Figure", view: RunView) -> None:
    """Give all figures of a view one token axis, so that their markers stand in line."""
    end = max((curve.tokens[-1] for curve in _framing(view)), default=0)
    figure.update_xaxes(range=[0, 1.02 * max(end, view.tokens or 0) or 1])


def _framing(view: RunView) -> tuple[Curve, ...]:
    """Return the curves that set the axes: a published one goes on beyond the run."""
    curves = (*view.train, *view.holdout)
    if view.published is None:
        return curves
    return tuple(curve for curve in curves if curve.run == view.run.name)


def _frame_late_part(figure: "go.Figure", view: RunView) -> None:
    """Frame what comes after the first tenth: the untrained model's loss would flatten the rest."""
    end = max((curve.tokens[-1] for curve in _framing(view) if curve.tokens), default=0)
    late = [
        value
        for curve in (*view.train, *view.holdout)
        for tokens, value in zip(curve.tokens, curve.values, strict=True)
        if value is not None and 0.1 * end <= tokens <= 1.02 * end
    ]
    if late:
        pad = 0.06 * (max(late) - min(late)) or 0.01
        figure.update_yaxes(range=[min(late) - pad, max(late) + pad])


def _ticks_beyond(figure: "go.Figure", literal: LiteralTrace) -> None:
    """Mark at the foot the windows beyond the literal tolerance: small, gray, on no scale."""
    beyond = [n for n, unmatched in enumerate(literal.unmatched) if unmatched]
    if not beyond:
        return
    _add(
        figure,
        x=[literal.tokens[n] for n in beyond],
        y=[0.03] * len(beyond),
        yaxis="y2",
        mode="markers",
        name=f"window beyond ±{literal.tolerance_nats} (an observation)",
        marker={"symbol": "line-ns-open", "size": 8, "color": MUTED, "line": {"width": 1}},
        legendrank=3000,
        text=[
            window_text(
                literal.train_drop_nats[n],
                literal.holdout_gain_nats[n],
                literal.shortfall_nats[n],
                literal.tolerance_nats,
                unmatched=True,
            )
            for n in beyond
        ],
        hovertemplate="window up to here: %{text};<br>an observation, sound runs meet it at most "
        "of their windows<extra></extra>",
    )
    figure.update_layout(
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    )


def _add(figure: "go.Figure", **settings: Any) -> None:
    """Add one SVG scatter trace: the WebGL form joins lines over gaps."""
    import plotly.graph_objects as go

    figure.add_trace(go.Scatter(**settings))
