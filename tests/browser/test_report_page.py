"""The HTML report opens from a disk, without a network, and draws its figures."""

from itertools import combinations
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from evalmon import report
from evalmon.store import Store
from tests import synthetic_store as synthetic
from tests.browser.conftest import Witness

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of both synthetic runs."""
    folder = tmp_path_factory.mktemp("page")
    with Store.open(synthetic.build(folder), read_only=True) as store:
        views = [report.collect(store, name) for name in ("double-sharded", "clean")]
    target = folder / "report.html"
    target.write_text(report.html_page(views, "Two runs"), encoding="utf-8")
    return target


def overlapping(labels: Locator) -> list[tuple[str, str]]:
    """Return the texts of labels that lie upon each other."""
    boxes = [(label.text_content() or "", label.bounding_box()) for label in labels.all()]
    found: list[tuple[str, str]] = []
    for (one, a), (other, b) in combinations(boxes, 2):
        assert a is not None
        assert b is not None
        apart = (
            a["x"] + a["width"] <= b["x"]
            or b["x"] + b["width"] <= a["x"]
            or a["y"] + a["height"] <= b["y"]
            or b["y"] + b["height"] <= a["y"]
        )
        if not apart:
            found.append((one, other))
    return found


def test_the_page_draws_offline_and_asks_for_nothing(
    file: Path, page: Page, witness: Witness
) -> None:
    page.context.set_offline(True)
    page.goto(file.as_uri())
    plots = page.locator(".js-plotly-plot")
    expect(plots).to_have_count(8)
    for plot in plots.all():
        assert plot.locator(".scatterlayer .trace").count() >= 1
    expect(page.get_by_role("heading", level=2).first).to_contain_text("is memorizing")
    assert witness.requests == [file.as_uri()]
    assert witness.complaints == []


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_no_label_lies_upon_another(file: Path, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(file.as_uri())
    plot = page.locator("#losses-0")
    expect(plot.locator(".annotation-text")).to_have_count(3)
    assert overlapping(plot.locator(".annotation-text, .xtick text, .xtitle, .legendtext")) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") is True


def test_printed_figures_fit_the_paper(file: Path, page: Page) -> None:
    page.goto(file.as_uri())
    expect(page.locator(".js-plotly-plot")).to_have_count(8)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = page.locator(".main-svg").evaluate_all("all => all.map(one => one.clientWidth)")
    assert max(widths) <= 680
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    widths = page.locator(".main-svg").evaluate_all("all => all.map(one => one.clientWidth)")
    assert min(widths) > 680
