"""The page of a model that re-ranks: what was learned, and what it gains; other models show nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import Create, Open, http, learn
from tests.page.test_accessible import barriers

HEADING = "What re-ranking has learned"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_weights_and_gain_are_shown(
    open_page: Open, create_model: Create, scheme: str, width: int, tmp_path: Path
) -> None:
    name = f"near-{width}"
    address = create_model(name, update="sls", rerank=True)
    vectors = {"tea": [1.0, 0.1, 0.0], "coffee": [0.0, 1.0, 0.2], "milk": [0.1, 0.0, -1.0]}
    instances = [{"text": "a hot drink", "vector": vector, "labels": [label]} for label, vector in vectors.items()]
    learn(address, instances * 20)
    page = open_page("overview", name, color_scheme=scheme, viewport={"width": width, "height": 800})
    expect(page.get_by_role("heading", name=HEADING)).to_be_visible()
    card = page.locator("section", has_text=HEADING)
    expect(card.get_by_text("Weight of similarity to the class")).to_be_visible()
    expect(card.get_by_text("by the index alone").first).to_be_visible()
    counted = http.get(f"{address}/stats").json()["reranking"]["n"]
    assert counted > 50
    expect(card.get_by_text(str(counted), exact=True)).to_be_visible()
    barriers(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(full_page=True, path=tmp_path / "overview.png")


def test_other_models_show_nothing_of_it(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    expect(page.get_by_text("How well it ranks, over time")).to_be_visible()
    expect(page.get_by_role("heading", name=HEADING)).to_be_hidden()
