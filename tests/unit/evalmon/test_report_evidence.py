"""The literal comparison, basis, slope and tasks' outcomes are shown, below the rule's own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
import pytest

from evalmon import report
from evalmon.report import figures
from evalmon.report.collect import collect
from evalmon.report.literal import trace
from evalmon.report.outcomes import last_window_text
from evalmon.report.view import LiteralTrace, RunView
from evalmon.store import Store
from evalmon.types import Series, TaskDifference
from tests import synthetic_store as synthetic

TICKS = "window beyond ±0.005 (an observation)"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunView]:
    """Return the view of the faulty run."""
    path = synthetic.build(tmp_path_factory.mktemp("evidence"))
    with Store.open(path, read_only=True) as store:
        yield collect(store, "double-sharded")


def series(*values: float, first: int = 1) -> Series:
    """Make a series of one point a step."""
    steps = np.arange(first, first + len(values), dtype=np.int64)
    return Series("x", steps, steps * 100, np.array(values))


def test_every_window_of_the_run_is_compared(view: RunView) -> None:
    shown = view.literal
    assert shown is not None
    ends = [step for step in synthetic.STEPS if step >= 20]  # before step 10 there is no train loss
    assert shown.tokens == tuple(step * synthetic.TOKENS_PER_STEP for step in ends)

    def median(step: int) -> float:
        return sum(synthetic.train_nats("double-sharded", at) for at in (step - 5, step - 4)) / 2

    gains = [synthetic.holdout_nats(step - 10) - synthetic.holdout_nats(step) for step in ends]
    drops = [median(step - 10) - median(step) for step in ends]
    assert shown.holdout_gain_nats == pytest.approx(gains, abs=1e-12)
    assert shown.train_drop_nats == pytest.approx(drops, abs=1e-12)
    assert shown.shortfall_nats == pytest.approx(np.subtract(drops, gains), abs=1e-12)
    # of a sound run too: the median lies half a window back, where the loss falls faster
    assert shown.unmatched[:3] == (True, True, True)
    assert shown.tolerance_nats == 0.005


def test_the_boundary_is_exact() -> None:
    found = trace(series(2.505, 2.5, 2.4949), series(3.0, 3.0, 3.0))
    assert found is not None
    assert found.unmatched == (False, True)
    assert found.tokens == (200, 300)


def test_evaluations_without_both_losses_end_no_window() -> None:
    found = trace(series(2.0, 1.0, first=2), series(9.0, 4.0, 3.5))
    assert found == LiteralTrace((300,), (1.0,), (0.5,), (0.5,), (True,), 0.005)
    assert trace(series(2.0, first=3), series(9.0, 4.0, 3.5)) is None
    assert trace(None, series(1.0, 1.0)) is None
    assert trace(series(1.0, 1.0), None) is None


def ticks(view: RunView) -> tuple[list[Any], dict[str, Any]]:
    """Return the ticks of the unmatched figure, and its layout."""
    figure = json.loads(figures.unmatched(view).to_json() or "")
    return [item for item in figure["data"] if item.get("name") == TICKS], figure["layout"]


def test_windows_beyond_are_ticks_on_a_scale_of_their_own(view: RunView) -> None:
    literal = LiteralTrace(
        (100, 200, 300), (0.08, 0.01, 0.0055), (0.0, 0.01, 0.0), (0.08, 0.0, 0.0055),
        (True, False, True), 0.005,
    )  # fmt: skip
    (shown,), layout = ticks(replace(view, literal=literal))
    assert shown["x"] == [100, 300]
    assert shown["text"] == [
        "train fell 0.080, holdout gained 0.000: shortfall 0.080 > 0.005",
        "train fell 0.005, holdout gained 0.000: shortfall 0.005500 > 0.005",
    ]
    assert "an observation, sound runs meet it" in shown["hovertemplate"]
    assert (shown["yaxis"], shown["marker"]["color"]) == ("y2", "#6B7785")
    assert layout["yaxis2"]["visible"] is False
    none = replace(literal, unmatched=(False, False, False))
    found, layout = ticks(replace(view, literal=none))
    assert found == []
    assert "yaxis2" not in layout
    assert ticks(replace(view, literal=None))[0] == []


TASKS = (
    TaskDifference(
        "eval/downstream/piqa_0shot/acc", "loss", -0.031, -0.051, -0.011, 0.028, 1838, True, 0.004,
        "McNemar",
    ),
    TaskDifference(
        "mean_without_boolq", "inconclusive", 0.002, -0.01, 0.014, 0.017, None, False, 0.7, "mean"
    ),
)  # fmt: skip
LITERAL = {
    "train_drop_nats": 0.08,
    "holdout_gain_nats": -0.002,
    "shortfall_nats": 0.082,
    "tolerance_nats": 0.005,
    "unmatched": True,
}
LINE = (
    "train fell 0.080, holdout lost 0.002: shortfall 0.082 > 0.005 (an observation: sound runs "
    "exceed it at most of their windows)"
)


def test_further_evidence_is_in_text_markdown_and_page(view: RunView) -> None:
    assert view.verdict is not None
    told = replace(
        view.verdict, slope=-0.25, matched_fraction=-0.034, literal=LITERAL, tasks=TASKS,
        basis="holdout only",
    )  # fmt: skip
    shown = replace(view, verdict=told)
    text = report.text(shown)
    assert (
        "  Matched           −3.4 % of the train drop\n"
        "  Slope             −0.25 nats of holdout loss per nat of train loss\n"
        "  Basis             holdout only\n"
        f"  Last window       {LINE}\n"
    ) in text
    assert (
        "Tasks against clean\n"
        "  task                outcome       difference  half-width  detectable  questions\n"
        "  PIQA acc            loss          −0.031      ±0.020      0.028       1,838, paired\n"
        "  mean without BoolQ  inconclusive  +0.002      ±0.012      0.017       not known\n"
    ) in text
    markdown = report.markdown(shown)
    assert "| Slope | −0.25 nats of holdout loss per nat of train loss |" in markdown
    assert "| PIQA acc | loss | −0.031 | ±0.020 | 0.028 | 1,838, paired |" in markdown
    assert "| Last window | " in markdown
    page = unescape(report.html(shown)).replace("<wbr>", "")
    for expected in (f"Last window: {LINE}.", "holdout only", "±0.020", "mean without BoolQ"):
        assert page.count(expected) == 1


def test_nothing_is_told_of_what_is_not_known(view: RunView) -> None:
    assert view.verdict is not None
    bare = replace(view.verdict, matched_fraction=None)
    assert last_window_text(bare) == ""
    text = report.text(replace(view, verdict=bare))
    for absent in ("Matched", "Slope", "Last window", "Tasks against"):
        assert absent not in text
