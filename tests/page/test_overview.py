"""The overview: what it draws and what it leaves out, and the words that it explains."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, Create, Open, http, learn, painted, serve_version, stats
from tests.page.newsroom import SUBJECTS
from tests.page.test_accessible import fits, tables

DRAWN = """(canvas) => Object.fromEntries(
    Chart.getChart(canvas).data.datasets.map(({ label, data }) => [label.replace(/:.*/, ""), data])
)"""


def test_what_has_fewer_than_thirty_events_is_not_drawn(open_page: Open, serving: Serving) -> None:
    bins = [{"n": 0, "estimate": None, "true": None} for _ in range(10)]
    bins[1] = {"n": 29, "estimate": 0.15, "true": 1.0}
    bins[4] = {"n": 30, "estimate": 0.45, "true": 0.5}
    part = {"n": 59, "error": 0.2, "brier": 0.2, "bins": bins}
    page = open_page("datasets")
    serve_version(page, n_served=29)

    def with_few(route: Any) -> None:
        answer = route.fetch()
        said = answer.json()
        said["window"]["groups"]["torso"] |= {"n": 30, "R@1": 0.4, "R@5": 0.5, "MRR": 0.45}
        said["window"]["groups"]["tail"] |= {"n": 29, "R@1": 1.0, "R@5": 1.0, "MRR": 1.0}
        route.fulfill(response=answer, json=said | {"calibration": {"newest": part, "all": part}})

    page.get_by_role("link", name="Overview").click()
    tile = page.locator(".tile").filter(has_text="of version aaaaaaaa")
    expect(tile.locator(".figure")).to_have_text("–")
    expect(tile.locator(".beside")).to_have_text("29 events so far")
    page.route("**/models/default/stats", with_few)
    drawn = painted(page, "How far probabilities were right").evaluate(DRAWN)
    assert drawn["lately"] == drawn["over all time"] == [{"x": 0.45, "y": 0.5}]
    groups = painted(page, "Frequent and rare labels").evaluate(DRAWN)
    assert (groups["torso"], groups["tail"]) == ([0.4, 0.5, 0.45], [None] * 3)


def test_overview(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    tile = page.locator(".tile")
    said = stats(serving)
    assert said["classes"] >= len(SUBJECTS)
    expect(tile.filter(has_text="Classes").locator(".figure")).to_have_text(str(said["classes"]))
    expect(tile.filter(has=page.get_by_role("button", name="R@1")).locator(".figure")).to_have_text(
        f"{100 * said['window']['R@1']:.1f} %"
    )
    expect(tile.filter(has=page.get_by_role("button", name="R@1")).locator(".beside")).to_have_text(
        f"{100 * said['recent']['R@1']:.1f} % of the newest 500, {100 * said['all']['R@1']:.1f} % over all time"
    )
    expect(tile.filter(has_text="Events a second").locator(".beside")).to_have_text(re.compile(r"^[\d,]+ in all$"))
    for heading in ("How well it ranks, over time", "Frequent and rare labels", "Events a second"):
        painted(page, heading)
    trace = page.get_by_role("region", name="How well it ranks, over time")
    trace.get_by_text("As a table").click()
    expect(trace.locator("tbody tr")).to_have_count(len(said["trace"]["learned"]))
    replicas = page.get_by_role("region", name="Replicas", exact=True)
    expect(replicas.locator("tbody tr")).to_have_count(2)
    expect(replicas.locator("tbody")).to_contain_text(said["offset"])
    expect(replicas.get_by_text("ready", exact=True)).to_have_count(2)
    page.wait_for_function(  # at rest both replicas show the same digest, each for the offset that it is at
        """() => {
            const shown = [...document.querySelectorAll("code.digest")].map((one) => one.textContent);
            const areNow = document.querySelector("code.digest + .hint") === null;
            return areNow && shown.length === 2 && shown[0] !== "–" && shown[0] === shown[1];
        }"""
    )
    budgets = page.get_by_role("region", name="Size against its bounds")
    expect(budgets.get_by_role("meter", name="Connections a feature, mean")).to_have_attribute("aria-valuemax", "25")
    expect(budgets).to_contain_text("max_features")
    expect(budgets).to_contain_text("no bound of its own: all models share the memory of a replica max_memory")


def test_words_of_the_field_are_explained_where_they_stand(open_page: Open) -> None:
    page = open_page("overview")
    painted(page, "How well it ranks, over time")
    painted(page, "Frequent and rare labels")
    tables(page)
    words = [(".tile", "R@1", "ranked first"), (".tile", "R@5", "among the first five")]
    words += [(".card", "MRR", "1 / rank"), (".card", "torso", "10 to 99 times")]
    for place, word, said in words:
        button = page.locator(place).get_by_role("button", name=word, exact=True).first
        expect(button).to_have_accessible_description(re.compile(said))
        button.focus()
        tip = page.get_by_role("tooltip").filter(has_text=said)
        expect(tip).to_be_visible()
        page.keyboard.press("Escape")
        expect(tip).to_have_count(0)


def test_re_ranking_shows_what_it_learned_and_other_models_nothing_of_it(open_page: Open, create_model: Create) -> None:
    address = create_model("near", update="sls", rerank=True)
    vectors = {"tea": [1.0, 0.1, 0.0], "coffee": [0.0, 1.0, 0.2], "milk": [0.1, 0.0, -1.0]}
    instances = [{"text": "a hot drink", "vector": vector, "labels": [label]} for label, vector in vectors.items()]
    learn(address, instances * 20)
    page = open_page("overview", "near", **NARROW)
    card = page.locator("section", has=page.get_by_role("heading", name="What re-ranking has learned"))
    expect(card.get_by_text("Weight of similarity to the class")).to_be_visible()
    expect(card.get_by_text("by the index alone").first).to_be_visible()
    counted = http.get(f"{address}/stats").json()["reranking"]["n"]
    expect(card.get_by_text(str(counted), exact=True)).to_be_visible()
    fits(page, 390)
    page.get_by_label("Model", exact=True).select_option("default")
    expect(page.get_by_text("How well it ranks, over time")).to_be_visible()
    expect(card).to_be_hidden()
