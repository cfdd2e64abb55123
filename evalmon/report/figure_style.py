"""How figures look: colors, layout and axes, as plain values that Plotly takes.

Colors are Okabe and Ito's, which color-blind readers tell apart: the run is
vermilion, the reference blue. Each figure has a token axis with the same margins, so
that figures stacked on a page line up.

Source: M. Okabe, K. Ito, "Color Universal Design" (2008).
"""

from collections.abc import Sequence
from typing import Any, Final

from evalmon.report.view import Marker
from evalmon.report.wording import tokens_text

__all__ = [
    "BAND_COLOR",
    "MARKER_COLORS",
    "MUTED",
    "REFERENCE_COLOR",
    "RUN_COLOR",
    "axis",
    "error_bars",
    "layout",
    "vertical",
]

RUN_COLOR: Final = "#D55E00"
REFERENCE_COLOR: Final = "#0072B2"
BAND_COLOR: Final = "#009E73"
MUTED: Final = "#6B7785"
MARKER_COLORS: Final = {"first repeat": "#AA3377", "onset": "#B8860B", "alarm": "#1F2933"}
"""Color of each vertical line; the dash differs as well, so color is never alone."""

_INK = "#1F2933"
_DASHES = {"first repeat": "dot", "onset": "dash", "alarm": "solid"}
_FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"


def layout(markers: int, height: int) -> dict[str, Any]:
    """Return the layout of an empty figure.

    Args:
        markers: vertical lines, each labeled in a row of its own above the plot.
        height: of the figure in pixels.
    """
    return {
        "template": "none",
        "height": height,
        "font": {"family": _FONT, "size": 13, "color": _INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 72, "r": 20, "t": 16 + 19 * markers, "b": 88},
        "legend": {
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
        "hovermode": "x unified",
        "hoverlabel": {"font": {"family": _FONT, "size": 12}, "bgcolor": "white"},
        "showlegend": True,
    }


def axis() -> dict[str, Any]:
    """Return what both axes share."""
    return {
        "showline": True,
        "linecolor": "#C6CDD5",
        "gridcolor": "#E8ECF0",
        "ticks": "outside",
        "tickcolor": "#C6CDD5",
        "zeroline": False,
        "automargin": False,
        "title": {"font": {"size": 13, "color": MUTED}, "standoff": 10},
    }


def vertical(marker: Marker, level: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a vertical line and its label.

    Args:
        marker: the line.
        level: row of the label above the plot, 0 for the lowest.
    """
    color = MARKER_COLORS[marker.kind]
    line = {
        "type": "line",
        "x0": marker.tokens,
        "x1": marker.tokens,
        "y0": 0,
        "y1": 1,
        "yref": "y domain",
        "line": {"color": color, "width": 1.6, "dash": _DASHES[marker.kind]},
        "opacity": 0.85,
    }
    late = marker.share > 0.6
    label = {
        "x": marker.tokens,
        "y": 1,
        "yref": "y domain",
        "text": f"{marker.kind} · {tokens_text(marker.tokens)}",
        "showarrow": False,
        "xanchor": "right" if late else "left",
        "yanchor": "bottom",
        "yshift": 2 + 19 * level,
        "xshift": 3 if late else -3,
        "font": {"size": 12, "color": color},
    }
    return line, label


def error_bars(
    values: Sequence[float | None],
    low: Sequence[float | None],
    high: Sequence[float | None],
    color: str = RUN_COLOR,
) -> dict[str, Any]:
    """Return asymmetric error bars; a point without an interval gets none.

    Args:
        values: [n] the points.
        low: [n] lower ends.
        high: [n] upper ends.
        color: of the bars.
    """
    up = [None if v is None or h is None else h - v for v, h in zip(values, high, strict=True)]
    down = [None if v is None or w is None else v - w for v, w in zip(values, low, strict=True)]
    shape = {"type": "data", "symmetric": False, "thickness": 1.4, "width": 3, "color": color}
    return {"array": up, "arrayminus": down, **shape}
