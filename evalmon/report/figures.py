"""The figures of report and dashboard: pure Plotly, drawn from a run's view.

Colors are Okabe and Ito's, which color-blind readers tell apart: the run is
vermilion, the reference blue; train loss is a solid line, holdout loss a dotted one
with points. Each figure has a token axis with the same margins, so that figures
stacked on a page line up.

Source: M. Okabe, K. Ito, "Color Universal Design" (2008).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from evalmon.metrics import Interval
from evalmon.report.view import Curve, Marker, RunView, TaskRow
from evalmon.report.wording import task_label, tokens_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = [
    "MARKER_COLORS",
    "div",
    "losses",
    "probes",
    "script",
    "tasks",
    "unmatched",
]

RUN_COLOR = "#D55E00"
REFERENCE_COLOR = "#0072B2"
BAND_COLOR = "#009E73"
INK = "#1F2933"
MUTED = "#6B7785"
MARKER_COLORS = {"first repeat": "#AA3377", "onset": "#B8860B", "alarm": "#1F2933"}
"""Color of each vertical line; the dash differs as well, so color is never alone."""

_DASHES = {"first repeat": "dot", "onset": "dash", "alarm": "solid"}
_FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"


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
    for curve in view.holdout:
        _curve(figure, curve, view, kind="holdout")
    for curve in view.train:
        _curve(figure, curve, view, kind="train")
    _frame_late_part(figure, (*view.train, *view.holdout))
    figure.update_layout(margin_b=120)  # five names take two or three rows on a narrow screen
    return figure


def unmatched(view: RunView) -> "go.Figure":
    """Draw the unmatched drop with its interval against the tolerance.

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
        error_y=_error_bars(trace.unmatched_nats, trace.low_nats, trace.high_nats),
        text=[tokens_text(item) for item in trace.tokens],
        hovertemplate="%{text} tokens<br>unmatched drop %{y:.3f} nats<extra></extra>",
        connectgaps=False,
    )
    figure.update_yaxes(zeroline=True, zerolinecolor=MUTED, zerolinewidth=1)
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
        title_text="accuracy (fraction of questions)", tickformat=".1f", range=[0, 1], dtick=0.1
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
        error_y=_error_bars(
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
    top = 16 + 19 * len(markers)
    figure.update_layout(
        template="none",
        height=height,
        font={"family": _FONT, "size": 13, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        margin={"l": 72, "r": 20, "t": top, "b": 88},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 12},
            "itemsizing": "trace",
            "traceorder": "normal",
        },
        hovermode="x unified",
        hoverlabel={"font": {"family": _FONT, "size": 12}, "bgcolor": "white"},
        showlegend=True,
    )
    axis: dict[str, Any] = {
        "showline": True,
        "linecolor": "#C6CDD5",
        "gridcolor": "#E8ECF0",
        "ticks": "outside",
        "tickcolor": "#C6CDD5",
        "zeroline": False,
        "automargin": False,
        "title": {"font": {"size": 13, "color": MUTED}, "standoff": 10},
    }
    figure.update_xaxes(**axis, exponentformat="B", separatethousands=False, hoverformat=".3s")
    figure.update_xaxes(title_text="tokens trained on")
    figure.update_yaxes(**axis)
    figure.update_yaxes(title_text=y_title)
    for level, marker in enumerate(sorted(markers, key=lambda item: item.tokens)):
        _vertical(figure, marker, len(markers) - 1 - level)
    return figure


def _vertical(figure: "go.Figure", marker: Marker, level: int) -> None:
    """Draw one labeled vertical line; each label has a row of its own above the plot."""
    color = MARKER_COLORS[marker.kind]
    figure.add_shape(
        type="line",
        x0=marker.tokens,
        x1=marker.tokens,
        y0=0,
        y1=1,
        yref="y domain",
        line={"color": color, "width": 1.6, "dash": _DASHES[marker.kind]},
        opacity=0.85,
    )
    late = marker.share > 0.6
    figure.add_annotation(
        x=marker.tokens,
        y=1,
        yref="y domain",
        text=f"{marker.kind} · {tokens_text(marker.tokens)}",
        showarrow=False,
        xanchor="right" if late else "left",
        yanchor="bottom",
        yshift=2 + 19 * level,
        xshift=3 if late else -3,
        font={"size": 12, "color": color},
    )


def _curve(figure: "go.Figure", curve: Curve, view: RunView, *, kind: str) -> None:
    """Draw one loss curve of the run or its reference."""
    own = curve.run == view.run.name
    color = RUN_COLOR if own else REFERENCE_COLOR
    _add(
        figure,
        x=curve.tokens,
        y=curve.values,
        mode="lines+markers" if kind == "holdout" else "lines",
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
        error_x=_error_bars(
            [item.value for _, item in points],
            [item.low for _, item in points],
            [item.high for _, item in points],
            color,
        ),
        hovertemplate=f"{name} %{{x:.3f}}<extra></extra>",
    )


def _error_bars(
    values: Sequence[float | None],
    low: Sequence[float | None],
    high: Sequence[float | None],
    color: str = RUN_COLOR,
) -> dict[str, Any]:
    """Return Plotly's asymmetric error bars; a point without an interval gets none."""
    up = [None if v is None or h is None else h - v for v, h in zip(values, high, strict=True)]
    down = [None if v is None or w is None else v - w for v, w in zip(values, low, strict=True)]
    shape = {"type": "data", "symmetric": False, "thickness": 1.4, "width": 3, "color": color}
    return {"array": up, "arrayminus": down, **shape}


def _share_tokens_axis(figure: "go.Figure", view: RunView) -> None:
    """Give all figures of a view one token axis, so that their markers stand in line."""
    end = max((curve.tokens[-1] for curve in (*view.train, *view.holdout)), default=0)
    figure.update_xaxes(range=[0, 1.02 * max(end, view.tokens or 0) or 1])


def _frame_late_part(figure: "go.Figure", curves: Sequence[Curve]) -> None:
    """Frame what comes after the first tenth: the untrained model's loss would flatten the rest."""
    end = max((curve.tokens[-1] for curve in curves if curve.tokens), default=0)
    late = [
        value
        for curve in curves
        for tokens, value in zip(curve.tokens, curve.values, strict=True)
        if value is not None and tokens >= 0.1 * end
    ]
    if late:
        pad = 0.06 * (max(late) - min(late)) or 0.01
        figure.update_yaxes(range=[min(late) - pad, max(late) + pad])


def _add(figure: "go.Figure", **settings: Any) -> None:
    """Add one SVG scatter trace: the WebGL form joins lines over gaps."""
    import plotly.graph_objects as go

    figure.add_trace(go.Scatter(**settings))
