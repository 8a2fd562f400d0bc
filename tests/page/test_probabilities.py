"""Probabilities beside scores, and how far they were right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, Open, http, learn, painted, until_drawn_again
from tests.page.newsroom import news
from tests.page.test_accessible import barriers, fits

pytestmark = pytest.mark.long

TEXT = "wheat harvest in kansas"
HEADING = "Are the probabilities right?"


@pytest.fixture(scope="module")
def sure(serving: Serving) -> Iterator[str]:
    """The address of a model that has learned the news."""
    address = f"{serving.url}/models/sure"
    assert http.put(address, json={}).status_code == 201
    learn(address, list(news(1000)))
    yield address
    http.delete(address).raise_for_status()


def ranked(address: str, **asked: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.post(f"{address}/classify", json={"text": TEXT, **asked}).json()["labels"]
    return found


def as_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def chance(p: float) -> str:
    """Nothing that was estimated is certain."""
    return "<0.1 %" if p < 0.001 else ">99.9 %" if p > 0.999 else as_percent(p)


def test_a_probability_stands_beside_each_score_and_the_least_may_be_chosen(open_page: Open, sure: str) -> None:
    page = open_page("try", "sure")
    page.get_by_role("textbox", name="Text").fill(TEXT)
    said = ranked(sure)
    figures = page.locator(".rank .probability")
    expect(figures).to_have_text([chance(one["probability"]) for one in said])
    barriers(page)
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Least probability").select_option("50 %")
    likely = ranked(sure, min_probability=0.5)
    assert 0 < len(likely) < len(said)
    expect(page.locator(".rank .name")).to_have_text([one["label"] for one in likely])
    page.get_by_role("textbox", name="Text").fill("zeppelin")
    expect(page.locator(".empty")).to_contain_text("No label is as probable as that.")
    page.get_by_label("Least probability").select_option("any")
    expect(page.locator(".empty")).to_contain_text("No label has any of these features.")


def test_how_far_probabilities_were_right_is_drawn_and_told(open_page: Open, sure: str) -> None:
    page = open_page("overview", "sure", **NARROW)
    chart = painted(page, HEADING)
    said = http.get(f"{sure}/stats").json()["calibration"]
    part = page.get_by_role("region", name=HEADING)
    expect(part.locator("dd").first).to_have_text(
        f"{said['newest']['error']:.3f} over the newest {said['newest']['n']:,} labels, "
        f"{said['all']['error']:.3f} over all time"
    )
    assert f"Probabilities of the newest {said['newest']['n']:,} labels" in chart.get_attribute("aria-label")
    part.get_by_text("As a table").click()
    rows = part.locator("tbody tr")
    expect(rows).to_have_count(10)
    best = said["newest"]["bins"][9]
    expect(rows.nth(9).locator("td").nth(1)).to_have_text(f"{best['n']:,}")
    expect(rows.nth(9).locator("td").nth(3)).to_have_text(as_percent(best["true"]))
    until_drawn_again(page, "/stats")  # the table stays open where it is
    expect(part.locator("details")).to_have_attribute("open", "")
    fits(page, 390)
