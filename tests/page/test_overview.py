"""The overview: what it draws and what it leaves out, and the words that it explains."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import Open
from tests.page.test_views import painted

DRAWN = """(canvas) => Object.fromEntries(
    Chart.getChart(canvas).data.datasets.map(({ label, data }) => [label.replace(/:.*/, ""), data])
)"""


def test_what_has_fewer_than_thirty_events_is_not_drawn(open_page: Open, serving: Serving) -> None:
    bins = [{"n": 0, "estimate": None, "true": None} for _ in range(10)]
    bins[1] = {"n": 29, "estimate": 0.15, "true": 1.0}
    bins[4] = {"n": 30, "estimate": 0.45, "true": 0.5}
    part = {"n": 59, "error": 0.2, "brier": 0.2, "bins": bins}

    def with_few(route: Any) -> None:
        answer = route.fetch()
        said = answer.json()
        said["window"]["groups"]["torso"] |= {"n": 30, "R@1": 0.4, "R@5": 0.5, "MRR": 0.45}
        said["window"]["groups"]["tail"] |= {"n": 29, "R@1": 1.0, "R@5": 1.0, "MRR": 1.0}
        route.fulfill(response=answer, json=said | {"calibration": {"newest": part, "all": part}})

    page = open_page("datasets")
    page.route("**/models/default/stats", with_few)
    page.get_by_role("link", name="Overview").click()
    groups = painted(page, "Frequent and rare labels").evaluate(DRAWN)
    assert (groups["torso"], groups["tail"]) == ([0.4, 0.5, 0.45], [None] * 3)
    drawn = painted(page, "How far probabilities were right").evaluate(DRAWN)
    assert drawn["lately"] == drawn["over all time"] == [{"x": 0.45, "y": 0.5}]


def test_requests_are_said_to_be_those_of_all_models(open_page: Open) -> None:
    page = open_page("overview")
    tile = page.locator(".tile").filter(has_text="Requests to /classify")
    expect(tile.locator("dt")).to_have_text("Requests to /classify a second, all models")


@pytest.mark.parametrize(
    ("place", "word", "said"),
    [
        (".tile", "R@5", "among the first five"),
        ("Table: Measures by how often a label had been learned", "MRR", "1 / rank"),
        ("Table: R@1 over time", "head", "100 times or more"),
        ("Table: R@1 over time", "torso", "10 to 99 times"),
        ("Table: R@1 over time", "tail", "fewer than 10 times"),
    ],
    ids=["R@5", "MRR", "head", "torso", "tail"],
)
def test_words_of_the_field_are_explained_where_they_stand(open_page: Open, place: str, word: str, said: str) -> None:
    page = open_page("overview")
    if place == ".tile":
        where = page.locator(place)
    else:
        painted(page, "How well it ranks, over time")
        painted(page, "Frequent and rare labels")
        for one in page.get_by_text("As a table").all():
            one.click()
        where = page.get_by_role("region", name=place)
    button = where.get_by_role("button", name=word, exact=True)
    expect(button).to_have_accessible_description(re.compile(re.escape(said)))
    button.focus()
    expect(page.get_by_role("tooltip").filter(has_text=said).first).to_be_visible()
