"""Figures show what is there, with its gaps, and nothing in another's place."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from evalmon.report import figures
from evalmon.report.collect import collect
from evalmon.report.view import Curve, RunView
from evalmon.store import Store
from tests import synthetic_store as synthetic


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return a store with both synthetic runs."""
    path = synthetic.build(tmp_path_factory.mktemp("figures"))
    with Store.open(path, read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def view(store: Store) -> RunView:
    """Return the view of the faulty run."""
    return collect(store, "double-sharded")


def read(figure: Any) -> dict[str, Any]:
    """Return a figure as strict JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(figure.to_json(), parse_constant=refuse)


def named(figure: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the trace of a name."""
    return next(trace for trace in figure["data"] if trace.get("name") == name)


def test_run_and_reference_are_told_apart_by_color_and_loss_by_dash(view: RunView) -> None:
    figure = read(figures.losses(view))
    lines = {
        name: (named(figure, name)["line"]["color"], named(figure, name)["line"]["dash"])
        for name in (
            "double-sharded: train",
            "double-sharded: holdout",
            "clean: train",
            "clean: holdout",
        )
    }
    assert len(set(lines.values())) == 4
    assert {color for color, _ in lines.values()} == {"#D55E00", "#0072B2"}


def test_a_missing_value_is_a_visible_gap_also_in_a_constant_line(view: RunView) -> None:
    flat = Curve("x", view.run.name, (1, 2, 3, 4, 5), (5.0, 5.0, None, 5.0, 5.0))
    figure = read(figures.losses(replace(view, train=(flat,), holdout=())))
    trace = named(figure, "double-sharded: train")
    assert trace["y"] == [5.0, 5.0, None, 5.0, 5.0]
    assert trace["connectgaps"] is False
    assert {trace["type"] for trace in figure["data"]} == {"scatter"}


def test_the_band_has_a_hole_where_nothing_was_judged(view: RunView) -> None:
    assert view.unmatched is not None
    low = list(view.unmatched.supported_low_nats)
    low[10] = None
    trace = replace(view.unmatched, supported_low_nats=tuple(low))
    figure = read(figures.losses(replace(view, unmatched=trace)))
    edges = [item["x"] for item in figure["data"] if item.get("fill") == "tonexty"]
    tokens = view.unmatched.tokens
    assert edges == [list(tokens[1:10]), list(tokens[11:])]


def test_each_marker_is_labeled_in_a_row_of_its_own(view: RunView) -> None:
    layout = read(figures.losses(view))["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [marker.tokens for marker in view.markers]
    labels = layout["annotations"]
    assert [label["text"] for label in labels] == [
        "first repeat · 53.2k",
        "onset · 123k",
        "alarm · 184k",
    ]
    rows = sorted(label["yshift"] for label in labels)
    assert all(upper - lower >= 16 for lower, upper in itertools.pairwise(rows))
    assert len({shape["line"]["dash"] for shape in layout["shapes"]}) == 3


def test_axes_carry_their_units(view: RunView) -> None:
    for figure in (figures.losses(view), figures.unmatched(view), figures.probes(view)):
        layout = read(figure)["layout"]
        assert layout["xaxis"]["title"]["text"] == "tokens trained on"
        assert layout["xaxis"]["exponentformat"] == "B"
        assert layout["xaxis"]["range"] == [0, pytest.approx(1.02 * 200 * 2048)]
        assert layout["yaxis"]["title"]["text"] == "nats / token"


def test_the_untrained_models_loss_does_not_flatten_the_rest(view: RunView) -> None:
    low, high = read(figures.losses(view))["layout"]["yaxis"]["range"]
    late = [synthetic.holdout_nats(step) for step in synthetic.STEPS if step >= 20]
    assert max(late) < high < synthetic.holdout_nats(0)
    assert low < synthetic.train_nats("double-sharded", 200)


def test_the_unmatched_drop_has_error_bars_of_its_interval(view: RunView) -> None:
    trace = named(read(figures.unmatched(view)), "unmatched drop, 95 % interval")
    assert trace["y"][-1] == 1.0
    assert trace["error_y"]["array"][-1] == pytest.approx(0.06)
    assert trace["error_y"]["arrayminus"][-1] == pytest.approx(0.06)


def test_tasks_show_run_reference_and_guessing(view: RunView) -> None:
    figure = read(figures.tasks(view.tasks, view.run.name, view.reference))
    run = named(figure, "double-sharded, 95 % interval")
    assert run["x"] == [row.run.value for row in view.tasks]
    right = [x + up for x, up in zip(run["x"], run["error_x"]["array"], strict=True)]
    assert right == pytest.approx([row.run.high for row in view.tasks])
    assert len(named(figure, "clean, 95 % interval")["x"]) == 8
    assert sorted(set(named(figure, "guessing")["x"])) == [0.25, 0.5]


def test_a_task_scored_two_ways_is_drawn_once(view: RunView) -> None:
    rows = [*view.tasks, *(replace(row, metric="len_norm") for row in view.tasks)]
    figure = read(figures.tasks(rows, view.run.name, None))
    assert len(named(figure, "double-sharded, 95 % interval")["x"]) == 8


def test_a_run_alone_is_drawn_without_a_reference(store: Store) -> None:
    figure = read(figures.losses(collect(store, "clean")))
    names = [trace["name"] for trace in figure["data"] if "name" in trace]
    assert names == [
        "supported by the holdout, ± tolerance",
        "clean: holdout",
        "clean: train",
    ]
    assert "shapes" not in figure["layout"]
