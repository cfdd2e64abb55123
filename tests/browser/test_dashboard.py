"""The dashboard in a real browser, on a store that a real evaluator could be writing."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from evalmon.store import Store
from tests import synthetic_store as synthetic
from tests.browser.conftest import Serve, Witness

pytestmark = [pytest.mark.browser, pytest.mark.slow]
LONG_MS = 60_000


def wait_for_headline(page: Page, text: str) -> None:
    """Wait until the verdict's sentence holds ``text``."""
    expect(page.get_by_role("heading", level=2)).to_contain_text(text, timeout=LONG_MS)


def test_the_page_follows_a_run_without_reload(
    tmp_path: Path, serve: Serve, page: Page, witness: Witness
) -> None:
    store = synthetic.build(tmp_path, steps=range(0, 90, 10))
    with serve(store) as address:
        page.goto(f"{address}/?run=double-sharded")
        wait_for_headline(page, "double-sharded is healthy")
        curves = page.locator(".js-plotly-plot").first.locator(".scatterlayer .trace")
        expect(curves).to_have_count(6, timeout=LONG_MS)  # four curves, two edges of the band
        page.evaluate("window.sameDocument = true")
        with Store.open(store) as opened:
            for step in (90, 100):
                synthetic.add(opened, synthetic.describe(tmp_path, "double-sharded"), step)
        wait_for_headline(page, "double-sharded is memorizing")
        expect(page.get_by_text("alarm · 184k").first).to_be_visible(timeout=LONG_MS)
        expect(page.get_by_text("data were sharded twice")).to_have_count(1)
        assert page.evaluate("window.sameDocument") is True
    assert witness.complaints == []
    assert {urlsplit(request).hostname for request in witness.requests} <= {"localhost", None}


def test_the_run_picked_survives_a_refresh(
    tmp_path: Path, serve: Serve, page: Page, witness: Witness
) -> None:
    store = synthetic.build(tmp_path, steps=(0, 50, 100))
    with serve(store) as address:
        page.goto(address)
        wait_for_headline(page, "double-sharded is memorizing")
        page.get_by_role("combobox").click()
        page.get_by_role("option", name="clean").click()
        wait_for_headline(page, "clean is healthy")
        assert "run=clean" in page.url
        page.reload()
        wait_for_headline(page, "clean is healthy")
    assert witness.complaints == []


def test_a_store_that_appears_later_is_opened(
    tmp_path: Path, serve: Serve, page: Page, witness: Witness
) -> None:
    with serve(tmp_path / "evalmon.sqlite") as address:
        page.goto(address)
        expect(page.get_by_text("There is no store at")).to_be_visible(timeout=LONG_MS)
        assert list(tmp_path.iterdir()) == []
        synthetic.build(tmp_path, steps=(0, 50, 100))
        wait_for_headline(page, "double-sharded is memorizing")
    assert witness.complaints == []
